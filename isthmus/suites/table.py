"""The table of a suite: mean and deviation over seeds for each cell, beside the paper's."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.core.protocol import LOWER_IS_BETTER
from isthmus.report.summary import Table, as_csv
from isthmus.suites.outcomes import Run
from isthmus.suites.spec import Expectation, Point, Suite


@dataclass(frozen=True)
class Cell:
    """One cell: the chosen point of the search, and what it gave over the seeds."""

    choices: dict[str, str]
    chosen: dict[str, Any]
    scores: tuple[float, ...]
    expected: Expectation | None
    errors: tuple[str, ...]
    runs: tuple[Run, ...] = ()  # of the chosen point, one for each seed

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, with n - 1 below the line; None for a single seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def ci95(self) -> float | None:
        """Half of the 95 % interval of the mean over seeds, by Student's distribution; None for a single seed."""
        from scipy.stats import t

        number = len(self.scores)
        return None if self.std is None else float(t.ppf(0.975, number - 1)) * self.std / math.sqrt(number)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.mean is None or self.expected is None else self.mean - self.expected.value

    @property
    def holds(self) -> bool | None:
        """Whether ours is as near to the paper's as the suite asks; None where it does not ask."""
        if self.expected is None or self.expected.within is None:
            return None
        return self.difference is not None and abs(self.difference) <= self.expected.within + 1e-12


def cells(suite: Suite, runs: Sequence[Run]) -> list[Cell]:
    """Return the cells of a suite, each at its best point by mean validation score over the seeds.

    Points at which clients are missing in some seed's score stand back behind those that everybody scored.
    """
    return [_cell(suite, choices, [run for run in runs if run.point.cell == choices]) for choices in suite.cells()]


def _cell(suite: Suite, choices: dict[str, str], runs: Sequence[Run]) -> Cell:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.point.searched, sort_keys=True), []).append(run)
    errors = tuple(run.error for run in runs if run.error)
    best = _best([group for group in groups.values() if all(run.score is not None for run in group)])
    scores = tuple(run.score for run in best if run.score is not None)
    chosen = best[0].point.searched if best else {}
    return Cell(choices, chosen, scores, suite.expectation(choices), errors, tuple(best))


def _best(groups: list[list[Run]]) -> list[Run]:
    if len(groups) < 2:
        return groups[0] if groups else []
    metric = groups[0][0].point.course.stopping.metric

    def rank(group: list[Run]) -> tuple[int, float]:
        missing = sum(len(run.missing) for run in group)
        values = [run.validation for run in group if run.validation is not None]
        mean = statistics.fmean(values) if values else math.inf
        return -missing, -mean if metric in LOWER_IS_BETTER or not values else mean

    return max(groups, key=rank)


def cell_table(suite: Suite, found: Sequence[Cell]) -> Table:
    """Return the table that is printed and written."""
    with_paper = any(cell.expected for cell in found)
    with_search = any(cell.chosen for cell in found)
    headings = [*suite.axes, _ours(suite)]
    headings += ["paper", "difference", "asked", "holds"] if with_paper else []
    headings += ["chosen by validation"] if with_search else []
    rows = []
    for cell in found:
        row = [*cell.choices.values(), _score(cell, cell.ci95 if suite.spread == "ci95" else cell.std)]
        if with_paper:
            row += _paper(cell)
        if with_search:
            row.append(", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in cell.chosen.items()))
        rows.append(tuple(row))
    return Table(tuple(headings), tuple(rows))


def _ours(suite: Suite) -> str:
    what = [] if suite.measured else [suite.metric]
    what += ["± 95 % interval"] if suite.spread == "ci95" else []
    return f"ours ({', '.join(what)})" if what else "ours"


def _score(cell: Cell, spread: float | None) -> str:
    failed = f" ({len(cell.errors)} failed: {cell.errors[0].splitlines()[0][:60]})" if cell.errors else ""
    return _plus_minus(cell.mean, spread) + failed


def _paper(cell: Cell) -> list[str]:
    if cell.expected is None:
        return ["", "", "", ""]
    asked = "" if cell.expected.within is None else f"±{100 * cell.expected.within:.1f}"
    holds = {True: "yes", False: "NO", None: ""}[cell.holds]
    difference = "" if cell.difference is None else f"{100 * cell.difference:+.2f}"
    return [_plus_minus(cell.expected.value, cell.expected.std), difference, asked, holds]


def _plus_minus(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" if std is None else f"{100 * mean:.2f} ± {100 * std:.2f}"


def runs_csv(suite: Suite, runs: Sequence[Run]) -> str:
    """Return every run as a line of CSV."""
    rows: list[list[Any]] = [[*suite.axes, *suite.columns.values()]]
    for run in runs:
        found = [run.score, run.validation, run.num_rounds, run.seconds, run.error, run.point.key]
        # With these a row stands for its run where the run's folder is not: isthmus/suites/moving.py.
        proof = [" ".join(run.missing), run.point.digest, run.data]
        rows.append([*run.point.cell.values(), searched_text(run.point), run.point.seed, *found, *proof])
    return as_csv(rows)


def searched_text(point: Point) -> str:
    """Return the point of a search as a row has it."""
    return json.dumps(point.searched, sort_keys=True) if point.searched else ""


def cells_csv(suite: Suite, found: Sequence[Cell]) -> str:
    """Return every cell as a line of CSV."""
    rows: list[list[Any]] = [
        [*suite.axes, "mean", "std", "num_seeds", "paper", "difference", "within", "holds", "chosen"]
    ]
    for cell in found:
        paper = [cell.expected.value, cell.difference, cell.expected.within] if cell.expected else ["", "", ""]
        holds = "" if cell.holds is None else cell.holds
        facts = [cell.mean, cell.std, len(cell.scores), *paper, holds, json.dumps(cell.chosen, sort_keys=True)]
        rows.append([*cell.choices.values(), *facts])
    return as_csv(rows)
