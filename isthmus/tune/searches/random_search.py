"""Random search: points drawn at random, each taken to the last rung. Bergstra and Bengio, 2012."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.tune.search import Search
from isthmus.tune.table import Table, Trial


@dataclass(frozen=True)
class RandomSearch(Search):
    """Draws one point after the other, until the budget is used up."""

    ends: ClassVar[bool] = False

    def next(self, table: Table) -> Trial | None:
        """Return a point drawn at random, on the last rung."""
        return table.fresh(table.top)
