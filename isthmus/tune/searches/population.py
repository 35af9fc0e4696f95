"""Population based training: settings change while models are trained. Jaderberg et al., 2017."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.core.errors import refuse
from isthmus.core.random import numpy_generator
from isthmus.runs.stages import MID_COURSE
from isthmus.tune.search import Search
from isthmus.tune.space import Dimension, Space, Values
from isthmus.tune.table import Row, Rung, Table, Trial


@dataclass(frozen=True)
class PopulationBased(Search):
    """Trains `size` members from rung to rung; at each, the worst go on as copies of the best, with other settings.

    Every member on every rung is an arm of its own, which goes on from its parent's checkpoint.

    Fields:
        size:     members
        replaced: the share of the members that give way at a rung, to as many of the best
        factor:   by how much a number is multiplied or divided; a choice moves to one of its neighbours
    """

    forks: ClassVar[bool] = True

    size: int = 8
    replaced: float = 0.25
    factor: float = 1.2

    def __post_init__(self) -> None:
        refuse(self.size < 2, self, "size", "it must be at least 2")
        refuse(not 0.0 <= self.replaced <= 0.5, self, "replaced", "it must be from 0 to 0.5")
        refuse(not self.factor > 1.0, self, "factor", "it must be more than 1")

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Refuse keys that cannot change while a course goes on, and seeds of which no parent has a checkpoint."""
        if len({rung.seeds for rung in rungs}) > 1:
            return "members go on from checkpoints, which a seed of a later rung has not: give fidelity.seeds one value"
        for key in space.dimensions:
            if key not in MID_COURSE:
                return f"{key} cannot change while a course goes on; keys that can are {', '.join(MID_COURSE)}"
        return ""

    def next(self, table: Table) -> Trial | None:
        """Return the next member on the rung that the population is on."""
        rung, place = divmod(len(table.arms), self.size)
        if rung > table.top:
            return None
        if rung == 0:
            return table.fresh()
        before = range((rung - 1) * self.size, rung * self.size)
        rows = table.at(rung - 1, before)
        if len(rows) < self.size:
            return None
        parent, is_copy = self._parent(table.ranked(rows), before[place])
        values = self._moved(table, parent.trial.values) if is_copy else parent.trial.values
        return Trial(len(table.arms), values, rung, parent.trial.arm)

    def _parent(self, ranked: Sequence[Row], arm: int) -> tuple[Row, bool]:
        """Return whom a member goes on from, itself or one of the best, and whether that is another."""
        number = int(self.replaced * self.size)
        order = [row.trial.arm for row in ranked]
        from_the_end = self.size - 1 - order.index(arm)
        return (ranked[from_the_end], True) if from_the_end < number else (ranked[order.index(arm)], False)

    def _moved(self, table: Table, values: Values) -> dict[str, Any]:
        rng = numpy_generator(table.seed, "population", len(table.arms))
        return {
            key: self._step(table.space.dimensions[key], value, rng.random() < 0.5) for key, value in values.items()
        }

    def _step(self, dimension: Dimension, value: Any, up: bool) -> Any:
        if dimension.choices:
            place = dimension.choices.index(value) + (1 if up else -1)
            return dimension.choices[min(max(place, 0), len(dimension.choices) - 1)]
        assert dimension.low is not None and dimension.high is not None
        found = value * self.factor if up else value / self.factor
        if dimension.whole:
            found = max(round(found), value + 1) if up else min(round(found), value - 1)
        return type(value)(min(max(found, dimension.low), dimension.high))
