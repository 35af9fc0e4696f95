"""Successive halving: many configurations on the lowest rung, the better ones go on. Jamieson and Talwalkar, 2016."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.core.errors import refuse
from isthmus.tune.search import Search
from isthmus.tune.space import Space
from isthmus.tune.table import Rung, Table, Trial

MOST_POINTS = 100_000  # of a space that is taken as a whole


@dataclass(frozen=True)
class Bracket:
    """One successive halving: `num_arms` configurations from the number `first` on, beginning on the rung `lowest`."""

    first: int
    num_arms: int
    lowest: int
    factor: float

    def sizes(self, top: int) -> list[int]:
        """Return how many configurations there are on each of its rungs: of those below 1 / factor, at least 1."""
        sizes = [self.num_arms]
        for _ in range(self.lowest, top):
            sizes.append(max(1, int(sizes[-1] / self.factor + 1e-9)))
        return sizes

    def next(self, table: Table, fresh: Callable[[Table, int], Trial]) -> Trial | None:
        """Return the bracket's next trial; None where it has to wait, or is done."""
        begun = sum(self.first <= arm < self.first + self.num_arms for arm in table.arms)
        if begun < self.num_arms:
            return fresh(table, self.lowest)
        mine = range(self.first, self.first + self.num_arms)
        sizes = self.sizes(table.top)
        for step, size in enumerate(sizes[1:]):
            below = table.at(self.lowest + step, mine)
            if len(below) < sizes[step]:
                return None
            for row in table.ranked(below)[:size]:
                trial = table.promoted(row)
                if (trial.arm, trial.rung) not in table.begun:
                    return trial
        return None

    def is_done(self, table: Table) -> bool:
        """Whether its last trial has come to an end."""
        mine = range(self.first, self.first + self.num_arms)
        return len(table.at(table.top, mine)) == self.sizes(table.top)[-1]


@dataclass(frozen=True)
class SuccessiveHalving(Search):
    """Takes `arms` configurations to the first rung, the best 1 / factor of them to the next, and so on.

    With one rung it is random search over `arms` points.

    Fields:
        arms:   how many; 0: all points of the space
        factor: of how many one goes on
    """

    arms: int = 0
    factor: float = 2.0

    def __post_init__(self) -> None:
        refuse(self.arms < 0, self, "arms", "it must be at least 0")
        refuse(not self.factor > 1.0, self, "factor", "it must be more than 1")

    def next(self, table: Table) -> Trial | None:
        """Return the next configuration, or the next one that goes on."""
        number = self.arms or len(table.space.listed)
        return Bracket(0, number, 0, self.factor).next(table, self.fresh)

    def fresh(self, table: Table, rung: int) -> Trial:
        """Return a configuration that is new."""
        if self.arms:
            return table.fresh(rung)
        return table.fresh(rung, table.space.listed[len(table.arms)])

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Refuse to take all points of a range."""
        if self.arms or space.most <= MOST_POINTS:
            return ""
        has = f"{space.most:,} points" if space.finite else "a range"
        return f"arms is 0, which takes all points, and the space has {has}: say how many to draw"
