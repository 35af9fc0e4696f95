"""A study as Optuna's programs read it: `optuna-dashboard optuna.log` shows it while it goes on.

What decides a study is `trials.jsonl`; this is written from it, so that nothing is lost when it is: a file that cannot
be gone on with is begun anew. Each configuration is a trial with a value for every rung that it was taken to; one that
may be thawed again is still running.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from isthmus.core.errors import MissingExtra
from isthmus.core.outside import replace_file
from isthmus.tune.searches.model_based import distributions, optuna_itself, to_places
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table

FILE = "optuna.log"
ARM = "arm"
LOCK_SECONDS = 2.0  # how long a lock is respected: whoever lives holds it for milliseconds


class Mirror:
    """Writes the rows of a study into a journal of Optuna's."""

    def __init__(self, study: Study, folder: Path) -> None:
        optuna_itself()
        self.study, self.path = study, folder / FILE
        self.rows: list[Row] = []  # that it was told of
        _let_go(self.path)
        try:
            self._open()
        except (ValueError, KeyError, OSError):  # it is damaged, or not of this study
            self._open(anew=True)

    def _open(self, anew: bool = False) -> None:
        optuna = optuna_itself()
        if anew:
            self.path.unlink(missing_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(self.path))
        self.storage = optuna.storages.JournalStorage(backend)
        directions = ["minimize" if each.lower else "maximize" for each in self.study.objectives]
        self.theirs = optuna.create_study(
            storage=self.storage, study_name=self.study.title, directions=directions, load_if_exists=True
        )
        found = self.theirs.get_trials(deepcopy=False)
        self.ids: dict[int, int] = {trial.user_attrs[ARM]: trial._trial_id for trial in found}
        self.ended = {trial.user_attrs[ARM] for trial in found if trial.state.is_finished()}
        self.steps: set[tuple[int, int]] = {
            (trial.user_attrs[ARM], step) for trial in found for step in trial.intermediate_values
        }

    def told(self, row: Row) -> None:
        """Write what came of a trial."""
        self.rows.append(row)
        arm, rounds = row.trial.arm, self.study.rungs[row.trial.rung].rounds
        if arm in self.ended and (arm, rounds) not in self.steps and not math.isnan(row.scores[0]):
            # With a larger budget it goes on, and Optuna lets nobody change a trial that has ended.
            self._open(anew=True)
            for each in self.rows:
                self._write(each)
        else:
            self._write(row)

    def _write(self, row: Row) -> None:
        arm, rounds = row.trial.arm, self.study.rungs[row.trial.rung].rounds
        if arm not in self.ids:
            self.ids[arm] = self._begun(row)
        score = row.scores[0]
        if (arm, rounds) not in self.steps and arm not in self.ended and not math.isnan(score):
            self.storage.set_trial_intermediate_value(self.ids[arm], rounds, score)
            self.steps.add((arm, rounds))

    def ends(self, table: Table) -> None:
        """Say of each configuration that it is complete, was left on the way, or failed."""
        state = optuna_itself().trial.TrialState
        last = {row.trial.arm: row for row in table.rows if row.done}
        for arm, row in last.items():
            if arm in self.ended:
                continue
            failed = any(math.isnan(score) for score in row.scores)
            is_whole = row.trial.rung == table.top
            how = state.FAIL if failed else state.COMPLETE if is_whole else state.PRUNED
            values = None if failed or not is_whole else list(row.scores)
            self.storage.set_trial_state_values(self.ids[arm], how, values)
            self.ended.add(arm)

    def _begun(self, row: Row) -> int:
        optuna = optuna_itself()
        known, params = distributions(self.study.space), to_places(self.study.space, row.trial.values)
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=params,
            distributions={key: known[key] for key in params},
            user_attrs={ARM: row.trial.arm, **{key: str(value) for key, value in row.trial.values.items()}},
        )
        self.theirs.add_trial(trial)
        found = self.theirs.get_trials(deepcopy=False)
        return next(int(each._trial_id) for each in reversed(found) if each.user_attrs.get(ARM) == row.trial.arm)


def _let_go(path: Path) -> None:
    """Take away what a process that was killed has left: a line that was cut off, and a lock that nobody holds."""
    lock = path.with_name(path.name + ".lock")
    deadline = time.monotonic() + LOCK_SECONDS
    while lock.is_symlink() and time.monotonic() < deadline:
        time.sleep(0.05)
    lock.unlink(missing_ok=True)
    text = path.read_bytes() if path.exists() else b""
    if text and not text.endswith(b"\n"):
        replace_file(path, text[: text.rfind(b"\n") + 1])


def mirror_of(study: Study, folder: Path) -> Mirror | None:
    """Return the mirror of a study; nothing where Optuna is not installed."""
    try:
        return Mirror(study, folder)
    except MissingExtra:
        return None


def importance(table: Table) -> dict[str, float]:
    """Return by key the share that it has in what trials of the last rung came to, by fANOVA; nothing of too few.

    Hutter et al., 2014, by Optuna's forests. Keys that are not there in some trials have no share.
    """
    from isthmus.tune.searches.model_based import as_study

    rows = [row for row in table.at(table.top) if not math.isnan(row.scores[0])]
    if len(rows) < 4 or len({row.scores[0] for row in rows}) == 1:
        return {}
    try:
        optuna = optuna_itself()
    except MissingExtra:
        return {}
    found: Any = as_study(table, rows, (), None)
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    target = None if len(table.lower) == 1 else _first
    shares = optuna.importance.get_param_importances(found, evaluator=evaluator, target=target)
    return {str(key): float(share) for key, share in shares.items()}


def _first(trial: Any) -> float:
    return float(trial.values[0])
