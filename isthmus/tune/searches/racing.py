"""Racing: configurations meet on one split after the other, and the worse drop out. Birattari et al., 2002."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from isthmus.core.errors import refuse
from isthmus.tune.search import Search
from isthmus.tune.space import Space
from isthmus.tune.table import Row, Rung, Table, Trial


@dataclass(frozen=True)
class Racing(Search):
    """Draws `arms` configurations; on each rung, which has more seeds than the one before, some drop out.

    Who drops out is worse than the best by Wilcoxon's signed-rank test over the seeds that both were run with: with
    fewer than five pairs nobody can be at the usual level.

    Fields:
        arms:  how many configurations
        level: of the test, one-sided; a smaller one keeps more
    """

    arms: int = 16
    level: float = 0.05

    def __post_init__(self) -> None:
        refuse(self.arms < 1, self, "arms", "it must be at least 1")
        refuse(not 0.0 < self.level < 1.0, self, "level", "it must be between 0 and 1")

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Refuse rungs that do not differ in seeds."""
        if any(after.seeds <= before.seeds for before, after in pairwise(rungs)):
            return "each rung needs more seeds than the one before: fidelity.seeds, for example [1, 2, 3, 4, 5, 6]"
        return ""

    def next(self, table: Table) -> Trial | None:
        """Return the next configuration, or one that is still in the race."""
        if len(table.arms) < self.arms:
            return table.fresh()
        left = set(table.arms)
        for rung in range(table.top):
            rows = table.at(rung, left)
            if len(rows) < len(left):
                return None
            left = {row.trial.arm for row in self.left(table, rows)}
            for row in rows:
                if row.trial.arm in left and (row.trial.arm, rung + 1) not in table.begun:
                    return table.promoted(row)
        return None

    def left(self, table: Table, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of a rung that go on."""
        best = table.ranked(rows)[0]
        return [row for row in rows if row is best or not self._is_worse(row, best, table.lower[0])]

    def _is_worse(self, row: Row, best: Row, lower: bool) -> bool:
        from scipy.stats import wilcoxon

        gaps = [(a - b) if lower else (b - a) for a, b in zip(row.each, best.each, strict=True)]
        if any(gap != gap for gap in gaps):
            return True
        return any(gaps) and float(wilcoxon(gaps, alternative="greater", zero_method="zsplit").pvalue) < self.level
