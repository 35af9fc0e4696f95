"""Searches that learn where good points lie, by Optuna's samplers: TPE, Gaussian processes, NSGA-II.

Bergstra et al., 2011; Deb et al., 2002. A study of Optuna's is made of the table for every proposal: it has no memory
of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.core.errors import MissingExtra, refuse
from isthmus.tune.search import Search
from isthmus.tune.space import Dimension, Space, Values
from isthmus.tune.table import Row, Rung, Table, Trial

GENERATION = "NSGAIISampler:generation"
MOST_TRIES = 10  # of a sampler, for a point that was not tried yet


def optuna_itself() -> Any:
    """Return the package, which only some searches need, and the study's page."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "tuning", "this search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def distributions(space: Space) -> dict[str, Any]:
    """Return a space as Optuna has it; choices are by their places, in order where they are numbers that rise."""
    found = optuna_itself().distributions
    return {key: _distribution(dimension, found) for key, dimension in space.dimensions.items()}


def _distribution(dimension: Dimension, found: Any) -> Any:
    if dimension.ordered:
        return found.IntDistribution(0, len(dimension.choices) - 1)
    if dimension.choices:
        return found.CategoricalDistribution(list(range(len(dimension.choices))))
    kind = found.IntDistribution if dimension.whole else found.FloatDistribution
    return kind(dimension.low, dimension.high, log=dimension.log)


def to_places(space: Space, values: Values) -> dict[str, Any]:
    """Return values as Optuna has them."""
    choices = {key: dimension.choices for key, dimension in space.dimensions.items()}
    return {key: choices[key].index(value) if choices[key] else value for key, value in values.items()}


def from_places(space: Space, params: Values) -> dict[str, Any]:
    """Return Optuna's parameters as values, without those that are not there."""
    dimensions = space.dimensions
    found = {key: dimensions[key].choices[place] if dimensions[key].choices else place for key, place in params.items()}
    return space.there(found)


def as_study(table: Table, rows: Sequence[Row], waiting: Sequence[Trial], sampler: Any) -> Any:
    """Return a study of Optuna's that has these rows as finished trials, and these trials under way.

    What failed has the worst values of the others: samplers leave failures out, and would go there again.
    """
    optuna = optuna_itself()
    directions = ["minimize" if lower else "maximize" for lower in table.lower]
    study = optuna.create_study(directions=directions, sampler=sampler)
    known, state = distributions(table.space), optuna.trial.TrialState
    every: list[Row | Trial] = [*rows, *waiting]
    worst = _worst(rows, table.lower)
    for each in every:
        trial: Trial = each.trial if isinstance(each, Row) else each
        params = to_places(table.space, trial.values)
        made = optuna.trial.create_trial(
            params=params,
            distributions={key: known[key] for key in params},
            values=_filled(each.scores, worst) if isinstance(each, Row) else None,
            state=state.COMPLETE if isinstance(each, Row) else state.RUNNING,
        )
        study.add_trial(made)
    return study


def _worst(rows: Sequence[Row], lower: Sequence[bool]) -> list[float]:
    """Return by objective the worst value that there is; 0 where there is none."""
    found = []
    for place, less in enumerate(lower):
        known = [row.scores[place] for row in rows if not math.isnan(row.scores[place])]
        found.append((max if less else min)(known, default=0.0))
    return found


def _filled(scores: Sequence[float], worst: Sequence[float]) -> list[float]:
    """Return the worst values in place of all where one is missing."""
    return list(worst if any(math.isnan(score) for score in scores) else scores)


def new_point(table: Table, rows: Sequence[Row], sampler: Any) -> dict[str, Any]:
    """Return the point that a sampler chooses, by what came of some rows: a new one, as far as it finds any."""
    done = {row.trial.arm for row in rows}
    last = {row.trial.arm: row.trial for row in table.rows}
    waiting = [trial for arm, trial in last.items() if arm not in done]
    return not_tried(table, as_study(table, rows, waiting, sampler))


def not_tried(table: Table, study: Any) -> dict[str, Any]:
    """Return what a study of Optuna's proposes; where all of that was tried, which comes to the same again, a draw."""
    for _ in range(MOST_TRIES):
        point = asked(table, study)
        if point not in table.arms.values():
            return point
    return table.drawn(len(table.arms))


def asked(table: Table, study: Any) -> dict[str, Any]:
    """Return a point that a study of Optuna's proposes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = study.ask()
        values: dict[str, Any] = {}
        for key, dimension in table.space.dimensions.items():
            if dimension.is_there(values):
                place = _suggested(trial, key, dimension)
                values[key] = dimension.choices[place] if dimension.choices else place
    return values


def parzen(seed: int, num_good: Callable[[int], int] | None = None) -> Any:
    """Return Optuna's TPE over all keys together; `num_good` says how many of so many trials are good ones."""
    optuna = optuna_itself()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(n_startup_trials=0, multivariate=True, group=True, seed=seed, gamma=num_good)


@dataclass(frozen=True)
class ModelBased(Search):
    """Begins with points drawn at random, and then asks one of Optuna's samplers; each goes to the last rung.

    Fields:
        start: how many points are drawn at random
    """

    ends: ClassVar[bool] = False

    start: int = 10
    several: ClassVar[bool] = True  # whether there may be several objectives

    def __post_init__(self) -> None:
        refuse(self.start < 1, self, "start", "it must be at least 1")

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Refuse where Optuna is missing, or what it cannot do."""
        optuna_itself()
        if num_objectives > 1 and not self.several:
            return f"it has one objective, and the study {num_objectives}; choose nsga2 or tpe"
        return ""

    def next(self, table: Table) -> Trial | None:
        """Return a point that promises much, on the last rung."""
        if len(table.arms) < self.start:
            return table.fresh(table.top)
        return table.fresh(table.top, self.proposed(table, table.at(table.top)))

    def proposed(self, table: Table, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the point that the sampler chooses, by what came of some rows: a new one, as far as it has any."""
        return new_point(table, rows, self.sampler(table))

    def sampler(self, table: Table) -> Any:
        """Return the sampler, seeded for the arm that is proposed."""
        raise NotImplementedError


def _suggested(trial: Any, key: str, dimension: Dimension) -> Any:
    if dimension.ordered:
        return trial.suggest_int(key, 0, len(dimension.choices) - 1)
    if dimension.choices:
        return trial.suggest_categorical(key, list(range(len(dimension.choices))))
    suggest = trial.suggest_int if dimension.whole else trial.suggest_float
    return suggest(key, dimension.low, dimension.high, log=dimension.log)


@dataclass(frozen=True)
class Tpe(ModelBased):
    """Draws where good points are dense and bad ones are not (tree-structured Parzen estimators)."""

    def sampler(self, table: Table) -> Any:
        """Return Optuna's, over all keys together."""
        return parzen(self.draw_seed(table, "tpe"))


@dataclass(frozen=True)
class Gp(ModelBased):
    """Takes the point from which a Gaussian process expects the largest improvement."""

    several: ClassVar[bool] = False

    def sampler(self, table: Table) -> Any:
        """Return Optuna's."""
        return optuna_itself().samplers.GPSampler(n_startup_trials=0, seed=self.draw_seed(table, "gp"))


@dataclass(frozen=True)
class Nsga2(ModelBased):
    """Crosses and mutates points that nothing beats in all objectives, a whole generation at a time.

    Fields:
        start: the size of a generation; the first is drawn at random
    """

    start: int = 20

    def next(self, table: Table) -> Trial | None:
        """Return a child of the generation before, which has to be there first."""
        if len(table.arms) < self.start:
            return table.fresh(table.top)
        before = len(table.arms) // self.start * self.start
        rows = [row for row in table.at(table.top) if row.trial.arm < before]
        return None if len(rows) < before else table.fresh(table.top, self.proposed(table, rows))

    def proposed(self, table: Table, rows: Sequence[Row]) -> dict[str, Any]:
        """Return a child."""
        rows = sorted(rows, key=lambda row: row.trial.arm)
        study = as_study(table, rows, (), self.sampler(table))
        for trial, row in zip(study.get_trials(deepcopy=False), rows, strict=True):
            trial.system_attrs[GENERATION] = row.trial.arm // self.start
        return not_tried(table, study)

    def sampler(self, table: Table) -> Any:
        """Return Optuna's."""
        seed = self.draw_seed(table, "nsga2")
        return optuna_itself().samplers.NSGAIISampler(population_size=self.start, seed=seed)
