"""Hyperband: successive halvings that begin on different rungs. Li et al., 2018."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from isthmus.core.errors import refuse
from isthmus.tune.search import Search
from isthmus.tune.searches.halving import Bracket
from isthmus.tune.table import Table, Trial


@dataclass(frozen=True)
class Hyperband(Search):
    """Halves ceil((S + 1) / (s + 1) factor^s) configurations with s = S, ..., 0 rungs left, S being the last rung.

    When all have had their turn it begins anew, with other configurations, until the budget is used up.

    Fields:
        factor: of how many one goes on
    """

    ends: ClassVar[bool] = False

    factor: float = 2.0

    def __post_init__(self) -> None:
        refuse(not self.factor > 1.0, self, "factor", "it must be more than 1")

    def brackets(self, top: int) -> Iterator[Bracket]:
        """Yield the halvings, one after the other."""
        first = 0
        while True:
            for left in range(top, -1, -1):
                number = math.ceil((top + 1) / (left + 1) * self.factor**left - 1e-9)
                yield Bracket(first, number, top - left, self.factor)
                first += number

    def next(self, table: Table) -> Trial | None:
        """Return the next trial of the first halving that is not done."""
        bracket = next(each for each in self.brackets(table.top) if not each.is_done(table))
        return bracket.next(table, self.fresh)

    def fresh(self, table: Table, rung: int) -> Trial:
        """Return a configuration that is new."""
        return table.fresh(rung)
