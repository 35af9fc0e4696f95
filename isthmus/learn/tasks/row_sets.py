"""A set of places for each of many rows, sorted once: how many there are, which, and the n-th place that is missing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSets:
    """For each row, some of the places 0, 1, ..., `num_places` - 1. Rows may be any numbers from 0 on.

    Fields:
        key:        row * num_places + place, ascending, each once
        missing:    row * num_places + how many smaller places the row lacks; ascending too
        num_places: how many places there are
    """

    key: Tensor  # (entries,)
    missing: Tensor  # (entries,)
    num_places: int

    @staticmethod
    def of(row: Tensor, place: Tensor, num_places: int) -> RowSets:
        """Sort pairs of row and place, (pairs,) each; repeated ones count once."""
        key = torch.unique(row * num_places + place)
        first = torch.searchsorted(key, key - key % max(num_places, 1))  # where each entry's row begins
        return RowSets(key, key - (torch.arange(len(key)) - first), num_places)

    def count(self, row: Tensor) -> Tensor:
        """Return how many places each row has, (rows,)."""
        return self._start(row + 1) - self._start(row)

    def absent(self, row: Tensor, number: Tensor) -> Tensor:
        """Return the place that is the `number`-th, from 0, of those that a row lacks, (rows,)."""
        passed = torch.searchsorted(self.missing, row * self.num_places + number, right=True) - self._start(row)
        return number + passed

    def entries(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return all places of the given rows: the position of the row in `row`, and the place, (found,) each."""
        count = self.count(row)
        owner = torch.repeat_interleave(torch.arange(len(row)), count)
        before = count.cumsum(0) - count
        position = self._start(row)[owner] + torch.arange(len(owner)) - before[owner]
        return owner, self.key[position] % max(self.num_places, 1)

    def _start(self, row: Tensor) -> Tensor:
        return torch.searchsorted(self.key, row * self.num_places)
