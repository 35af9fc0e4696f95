"""Grid search: every point, each taken to the last rung."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from isthmus.core.errors import refuse
from isthmus.tune.search import Search
from isthmus.tune.table import Table, Trial


@dataclass(frozen=True)
class Grid(Search):
    """Takes the points of the space in their order, the last key running fastest.

    Fields:
        points: how many values of a range are tried, from end to end
    """

    points: int = 3

    def __post_init__(self) -> None:
        refuse(self.points < 1, self, "points", "it must be at least 1")

    def next(self, table: Table) -> Trial | None:
        """Return the next point of the grid, on the last rung."""
        point = next(islice(table.space.points(self.points), len(table.arms), None), None)
        return None if point is None else table.fresh(table.top, point)
