"""What every search keeps to: it is asked for one trial after the other, and knows what the table has.

class Mine(Search):
    def next(self, table):
        return table.fresh() if len(table.arms) < 10 else None
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from isthmus.core.random import derive_seed
from isthmus.tune.space import Space
from isthmus.tune.table import Rung, Table, Trial


class Search(ABC):
    """Proposes trials; a frozen dataclass whose fields are its settings.

    It has no memory but the table: asked twice with the same table, it proposes the same trial. So a study that was
    killed goes on with the same trials, and who computes them, and when, changes nothing.
    """

    # Whether it comes to an end by itself: else the study needs a budget.
    ends: ClassVar[bool] = True
    # Whether configurations go on from checkpoints of others.
    forks: ClassVar[bool] = False

    @abstractmethod
    def next(self, table: Table) -> Trial | None:
        """Return the next trial; None where it waits for trials under way, or, if there are none, at its end."""

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Return why it cannot search a space on these rungs, with what would do; empty if it can."""
        return ""

    def draw_seed(self, table: Table, purpose: str) -> int:
        """Return a seed below 2^31 for what is drawn for the arm that is proposed next."""
        return derive_seed(table.seed, purpose, len(table.arms)) % 2**31
