"""BOHB: Hyperband whose configurations come from a model of the better ones. Falkner et al., 2018."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.core.errors import refuse
from isthmus.core.random import numpy_generator
from isthmus.tune.searches.hyperband import Hyperband
from isthmus.tune.searches.model_based import new_point, optuna_itself, parzen
from isthmus.tune.space import Space
from isthmus.tune.table import Rung, Table, Trial

GOOD = 0.15  # the share of trials that are good ones


@dataclass(frozen=True)
class Bohb(Hyperband):
    """Takes new configurations from TPE on the highest rung with enough trials, and some at random.

    Fields:
        factor:          of how many one goes on
        random_fraction: how many are drawn at random all the same
        enough:          trials that a rung must have to be learned from; 0: three more than there are keys
    """

    random_fraction: float = 1 / 3
    enough: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.random_fraction <= 1.0, self, "random_fraction", "it must be from 0 to 1")
        refuse(self.enough < 0, self, "enough", "it must be at least 0")

    def problem(self, space: Space, rungs: tuple[Rung, ...], num_objectives: int, seeds: int) -> str:
        """Refuse where Optuna is missing."""
        optuna_itself()
        return ""

    def fresh(self, table: Table, rung: int) -> Trial:
        """Return a configuration that promises much, or one drawn at random."""
        keys = len(table.space.dimensions)
        enough = self.enough or keys + 3
        known = [rows for level in range(table.top, -1, -1) if len(rows := table.at(level)) >= enough]
        by_chance = numpy_generator(table.seed, "bohb", len(table.arms)).random() < self.random_fraction
        if not known or by_chance:
            return table.fresh(rung)
        sampler = parzen(self.draw_seed(table, "tpe"), lambda number: self.num_good(number, keys))
        return table.fresh(rung, new_point(table, known[0], sampler))

    def num_good(self, number: int, keys: int) -> int:
        """Return how many of some trials are learned from as good ones."""
        return min(number, max(keys + 1, math.ceil(GOOD * number - 1e-9)))
