"""Carries a study out: proposes, computes, and keeps what came of it; whatever stops it, the same command goes on.

What a search knows when it proposes is decided by the order of the proposals alone. Trials end in whatever order they
do, but are told in the order in which they were proposed, and one more is proposed as soon as fewer than `parallel` of
them are untold. So the trials are the same in one process, in many, and after a stop.

    study.json     what is searched, and how
    trials.jsonl   a line for each trial that came to its end, in the order of the proposals
    trials/        run folders
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isthmus import __version__
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import replace_file
from isthmus.tune.backends import Backend
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table, Trial
from isthmus.tune.trials import facts_of_row, failed_row, row_of, tasks_of, trial_name

STUDY_FILE, TRIALS_FILE, TRIALS_DIR = "study.json", "trials.jsonl", "trials"

Hear = Callable[[Row, Table], None]


class Answers(Protocol):
    """Whoever says what comes of a trial."""

    def start(self, trial: Trial, table: Table) -> None:
        """Take it on."""

    def row(self, trial: Trial, table: Table) -> Row:
        """Return what came of it, as soon as it is there."""


def search(study: Study, answers: Answers, on_row: Hear = lambda row, table: None) -> Table:
    """Ask a study's search for trials until it or the budget is at an end; return the table."""
    rows: list[Row] = []
    waiting: deque[int] = deque()
    while True:
        table = study.table(tuple(rows))
        trial = _proposed(study, table) if len(waiting) < study.parallel else None
        if trial is not None:
            answers.start(trial, table)
            waiting.append(len(rows))
            rows.append(Row(trial))
            continue
        if not waiting:
            return table
        place = waiting.popleft()
        rows[place] = answers.row(rows[place].trial, table)
        on_row(rows[place], study.table(tuple(rows)))


def _proposed(study: Study, table: Table) -> Trial | None:
    """Return the next trial, if there is one that the budget allows."""
    budget, rows = study.budget, table.rows
    if budget.seconds is not None and sum(row.seconds for row in rows) >= budget.seconds:
        return None
    trial = study.search.next(table)
    if trial is None:
        return None
    _check(trial, table)
    if budget.trials is not None and trial.arm not in table.arms and len(table.arms) >= budget.trials:
        return None
    if budget.client_rounds is not None:
        spent = sum(row.cost if row.done else _cost(study, row.trial, table) for row in rows)
        if spent + _cost(study, trial, table) > budget.client_rounds + 1e-9:
            return None
    return trial


def _cost(study: Study, trial: Trial, table: Table) -> float:
    """Return the client-rounds that a trial takes."""
    if trial.parent is not None:
        before: int | None = next(row.trial.rung for row in table.rows if row.trial.arm == trial.parent)
    else:
        rungs = [row.trial.rung for row in table.rows if row.trial.arm == trial.arm and row.trial.rung < trial.rung]
        before = max(rungs, default=None)
    return study.cost(trial.rung, before)


def _check(trial: Trial, table: Table) -> None:
    """Refuse what no search may propose."""
    problem = ""
    if (trial.arm, trial.rung) in table.begun:
        problem = "which it has proposed before"
    elif not 0 <= trial.rung <= table.top:
        problem = f"and there are the rungs 0 to {table.top}"
    elif trial.arm not in table.arms and trial.arm != len(table.arms):
        problem = f"and the next configuration has the number {len(table.arms)}"
    elif trial.arm in table.arms and dict(table.arms[trial.arm]) != dict(trial.values):
        problem = f"and that configuration is {dict(table.arms[trial.arm])}"
    if problem:
        raise CourseFailed(f"the search proposes {trial}, {problem}")


# ---- trials that are runs


@dataclass
class Computed:
    """Trials that are computed, in a folder; what is finished there is not computed again."""

    study: Study
    folder: Path
    backend: Backend

    def __post_init__(self) -> None:
        _begin(self.study, self.folder, self.backend.facts())
        self.kept = dict(_read_rows(self.folder / TRIALS_FILE))
        self.calls: dict[tuple[int, int], list[Any]] = {}
        self.refused: dict[tuple[int, int], str] = {}

    def start(self, trial: Trial, table: Table) -> None:
        """Give its stages to the backend."""
        if self._key(trial, table) in self.kept:
            return
        try:
            tasks = tasks_of(self.study, trial, table, self.folder / TRIALS_DIR)
        except BadInput as error:  # the course refuses these values beside each other
            self.refused[trial.arm, trial.rung] = str(error)
            return
        self.calls[trial.arm, trial.rung] = [self.backend.start(task) for task in tasks]

    def row(self, trial: Trial, table: Table) -> Row:
        """Return its row: the one that is kept, or the one that is computed, which is kept then."""
        key = self._key(trial, table)
        if key in self.kept:
            return _with_trial(self.kept[key], trial)
        problem = self.refused.pop((trial.arm, trial.rung), "")
        if problem:
            row = failed_row(self.study, trial, table, problem)
        else:
            found = [self.backend.result(call) for call in self.calls.pop((trial.arm, trial.rung))]
            for each in found:
                if each.blameless:
                    raise BadInput(each.error)
            row = row_of(self.study, trial, table, found)
        with (self.folder / TRIALS_FILE).open("a") as file:
            file.write(json.dumps({"key": key, **facts_of_row(row)}) + "\n")
        return row

    def _key(self, trial: Trial, table: Table) -> str:
        return f"{trial_name(trial, table)}/{trial.rung}"


def _begin(study: Study, folder: Path, where: Mapping[str, Any]) -> None:
    """Make the folder, or see that it is of the same study."""
    path, facts = folder / STUDY_FILE, json.loads(json.dumps({**study.facts(), **where}))
    if path.exists():
        before = json.loads(path.read_text())
        known = dict.fromkeys([*facts, *(key for key in before if key != "version")])
        differing = [key for key in known if before.get(key) != facts.get(key)]
        if differing:
            raise BadInput(
                f"{folder} holds another study: it differs in {', '.join(differing)}; choose another folder with --out"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no study; choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps({**facts, "version": __version__}, indent=2) + "\n").encode())


def _read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the lines of a file by their keys; one that was cut off is taken away."""
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        replace_file(path, whole.encode())
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found = json.loads(line)
            yield found["key"], found
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}: line {number} is no trial: {line[:60]!r}; delete it and go on") from None


def _with_trial(kept: Mapping[str, Any], trial: Trial) -> Row:
    def numbers(values: list[float | None]) -> tuple[float, ...]:
        return tuple(math.nan if value is None else value for value in values)

    scores, each = numbers(kept["scores"]), numbers(kept["each"])
    return Row(trial, True, scores, each, kept["cost"], kept["seconds"], kept["error"])
