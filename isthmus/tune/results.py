"""What a study has found: the best course as a file, its score on splits that no trial has seen, tables and charts."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.config.build import brief
from isthmus.config.load import course_to_yaml
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import replace_file
from isthmus.report.summary import Table as Printed
from isthmus.report.summary import as_csv, score_of
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import read_journal
from isthmus.tune.backends import Backend
from isthmus.tune.mirror import importance
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table
from isthmus.tune.trials import Task

BEST_FILE, FINAL_DIR = "best.yaml", "final"
MOST_SHOWN = 10


@dataclass(frozen=True)
class Found:
    """What a study has found.

    Fields:
        best:   the row of the best configuration on the highest rung that any reached; with several objectives the
                first of `front`
        front:  with several objectives, the rows on that rung that nothing beats in all
        final:  the test scores of the best course on the final seeds
        shares: how much each key decides, by fANOVA
        regret: by client-rounds, how far the best so far was from the best there is
        truth:  by which measure; empty: by the first objective, from the best that the study found
    """

    study: Study
    table: Table
    best: Row
    front: tuple[Row, ...] = ()
    final: tuple[float, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    regret: tuple[tuple[float, float], ...] = ()
    truth: str = ""

    @property
    def cost(self) -> float:
        """The client-rounds that were taken."""
        return sum(row.cost for row in self.table.rows)


def found_by(
    study: Study,
    table: Table,
    final: Sequence[float] = (),
    regret: Sequence[tuple[float, float]] = (),
    truth: str = "",
) -> Found:
    """Return what a study has found; where it is known what is best in truth, with the regret by that."""
    best = table.best()
    if best is None:
        unmeasured = f"{study.objectives[0].name} was measured in none of {len(table.rows)}"
        errors = sorted({row.error.splitlines()[0] for row in table.rows if row.error})
        errors = errors or [unmeasured if table.rows else "the budget allows for none"]
        raise BadInput(f"{study.source}: no trial has a score: {errors[0]}")
    front: tuple[Row, ...] = ()
    if len(table.lower) > 1:
        rows = [row for row in table.at(best.trial.rung) if not row.error]
        front = tuple(_first_front(table, rows))
    known = tuple(regret or regret_so_far(table))
    return Found(study, table, best, front, tuple(final), importance(table), known, truth)


def _first_front(table: Table, rows: Sequence[Row]) -> list[Row]:
    from isthmus.tune.objectives import not_dominated

    places = not_dominated([row.scores for row in rows], table.lower)
    return [row for row in table.ranked(rows) if places[rows.index(row)] == 0]


def final_scores(
    study: Study, table: Table, folder: Path, backend: Backend, say: Callable[[str], None] = lambda text: None
) -> list[float]:
    """Run the best course with the seeds that no trial has seen, and return its test scores."""
    best = table.best()
    if best is None:
        return []
    tasks = []
    for seed in study.final_seeds:
        course = study.course(best.trial.values, None, seed)
        path = folder / FINAL_DIR / f"arm-{best.trial.arm:04d}-seed-{seed}"
        tasks.append(Task(course, path, course.rounds, None, study.objectives))
    calls, found = [backend.start(task) for task in tasks], []
    for task, call in zip(tasks, calls, strict=True):
        say(f"the best course with seed {task.course.seed}")
        problem = backend.result(call).error
        if problem:
            raise CourseFailed(f"the best course with seed {task.course.seed}: {problem}")
        found.append(_test_score(task))
    return found


def _test_score(task: Task) -> float:
    """Return the test score that a run came to, of the whole graph where anybody has that."""
    ends = [event for event in read_journal(RunFolder(task.folder).journal) if event["event"] == "end"]
    metrics, metric = ends[-1]["metrics"], task.course.task.metrics[0]
    scores = [score_of(metrics, graph, metric) for graph in ("global_graph", "local_graph")]
    return next((score for score in scores if score is not None), math.nan)


# ---- tables


def trials_table(found: Found, most: int = MOST_SHOWN) -> Printed:
    """Return the best configurations, those that went furthest first."""
    return ranking(found.study, found.table, most)


def ranking(study: Study, table: Table, most: int) -> Printed:
    """Return the best configurations of a table, those that went furthest first."""
    last: dict[int, Row] = {}
    for row in table.rows:
        if row.done:
            last[row.trial.arm] = row
    rows = [
        row
        for rung in range(table.top, -1, -1)
        for row in table.ranked([r for r in last.values() if r.trial.rung == rung])
    ]
    headings = ("", *study.space.dimensions, "rounds", *(each.name for each in study.objectives))
    lines = []
    for row in rows[:most]:
        values = [brief(row.trial.values[key]) if key in row.trial.values else "" for key in study.space.dimensions]
        scores = [_number(score) for score in row.scores]
        lines.append((str(row.trial.arm), *values, str(study.rungs[row.trial.rung].rounds), *scores))
    return Printed(headings, tuple(lines))


def _number(score: float) -> str:
    return "-" if math.isnan(score) else f"{score:,.0f}" if abs(score) >= 1000 else f"{score:.4f}"


def in_words(found: Found) -> list[str]:
    """Return what there is to say of it."""
    study, best = found.study, found.best
    whole = study.whole_cost()
    begun = len(found.table.arms)
    lines = [
        f"{begun} configurations, {len(found.table.rows)} trials, {found.cost:,.0f} client-rounds: as many as "
        f"{found.cost / whole:.1f} configurations that are run to their end take"
    ]
    failed = [row for row in found.table.rows if row.error]
    if failed:
        lines.append(f"{len(failed)} trials failed: {failed[0].error.splitlines()[0]}")
    if best.trial.rung < study.top:
        lines.append(f"no configuration came to the last rung: the best of rung {best.trial.rung + 1} is shown")
    if found.front:
        lines.append(f"nothing beats in all objectives: {', '.join(str(row.trial.arm) for row in found.front)}")
    if found.final:
        metric = study.course(best.trial.values).task.metrics[0]
        spread = f" ± {statistics.stdev(found.final):.4f}" if len(found.final) > 1 else ""
        mean = statistics.fmean(found.final)
        lines.append(f"the best on {len(found.final)} splits that no trial saw: test {metric} {mean:.4f}{spread}")
    if found.shares:
        lines.append("what decides: " + ", ".join(f"{key} {share:.0%}" for key, share in found.shares.items()))
    return lines


def progress(table: Table) -> list[tuple[float, float]]:
    """Return after each trial the client-rounds so far, and the best score so far on the highest rung so far."""
    return [(spent, best.scores[0]) for spent, best in table.so_far()]


def regret_so_far(table: Table) -> list[tuple[float, float]]:
    """Return by client-rounds how far the best so far is from the best found, of what is on the highest rung."""
    found = list(table.so_far())
    top = max((best.trial.rung for _, best in found), default=0)
    scores = [(spent, table.cost_of(best)) for spent, best in found if best.trial.rung == top]
    return [(spent, cost - scores[-1][1]) for spent, cost in scores if math.isfinite(cost)]


def facts_of(found: Found) -> dict[str, Any]:
    """Return it as plain values, for scripts."""
    study = found.study
    rows = [
        {
            "arm": row.trial.arm,
            "values": dict(row.trial.values),
            "rounds": study.rungs[row.trial.rung].rounds,
            "scores": [None if math.isnan(score) else score for score in row.scores],
            "client_rounds": row.cost,
            "error": row.error,
        }
        for row in found.table.rows
    ]
    return {
        "title": study.title,
        "objectives": [each.name for each in study.objectives],
        "best": {
            "arm": found.best.trial.arm,
            "values": dict(found.best.trial.values),
            "scores": list(found.best.scores),
        },
        "front": [{"values": dict(row.trial.values), "scores": list(row.scores)} for row in found.front],
        "final": list(found.final),
        "importance": found.shares,
        "client_rounds": found.cost,
        "trials": rows,
    }


def write_results(found: Found, folder: Path) -> list[Path]:
    """Write the best course, the trials as a table, a report and a page; return the files."""
    from isthmus.tune.page import study_page  # which stands on this file

    study = found.study
    lines = [f"# {study.title}", "", trials_table(found, 10**9).markdown(), *(f"{line}.\n" for line in in_words(found))]
    rows = [
        [
            "trial",
            "arm",
            *study.space.dimensions,
            "rounds",
            *(o.name for o in study.objectives),
            "client_rounds",
            "error",
        ]
    ]
    for number, row in enumerate(found.table.rows):
        values = [json.dumps(row.trial.values[k]) if k in row.trial.values else "" for k in study.space.dimensions]
        scores = ["" if math.isnan(score) else str(score) for score in row.scores]
        rounds = str(study.rungs[row.trial.rung].rounds)
        rows.append([str(number), str(row.trial.arm), *values, rounds, *scores, str(row.cost), row.error])
    texts = {
        BEST_FILE: course_to_yaml(study.course(found.best.trial.values)),
        "report.md": "\n".join(lines),
        "trials.csv": as_csv(rows),
        "report.html": study_page(found),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in texts]
