"""ASHA: successive halving that waits for nobody. Li et al., 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.core.errors import refuse
from isthmus.tune.search import Search
from isthmus.tune.table import Table, Trial


@dataclass(frozen=True)
class Asha(Search):
    """Takes up whoever is among the best 1 / factor of a rung, the highest rung first; else begins one more.

    What is known when a trial is proposed is decided by the study's `parallel`, not by who was faster.

    Fields:
        factor: of how many one goes on
    """

    ends: ClassVar[bool] = False

    factor: float = 2.0

    def __post_init__(self) -> None:
        refuse(not self.factor > 1.0, self, "factor", "it must be more than 1")

    def next(self, table: Table) -> Trial | None:
        """Return a configuration that goes on, or a new one."""
        for rung in range(table.top - 1, -1, -1):
            rows = table.at(rung)
            for row in table.ranked(rows)[: int(len(rows) / self.factor + 1e-9)]:
                if (row.trial.arm, rung + 1) not in table.begun:
                    return table.promoted(row)
        return table.fresh()
