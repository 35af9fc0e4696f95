from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.algorithms.gcfl import warping_distances


def brute_force(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The least over all alignments, each tried: from both ends backwards, one step at a time."""

    @cache
    def least(i: int, j: int) -> float:
        gap = (a[i] - b[j]) ** 2
        if i == 0 and j == 0:
            return gap
        before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
        return gap + min(least(x, y) for x, y in before if x >= 0 and y >= 0)

    return math.sqrt(least(len(a) - 1, len(b) - 1))


numbers = st.floats(-10, 10, allow_nan=False, width=32)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_distances_are_those_of_the_recursion(rows: list[list[float]]) -> None:
    found = warping_distances(torch.tensor(rows))
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert float(found[i, j]) == pytest.approx(brute_force(tuple(a), tuple(b)), abs=1e-5)


def test_a_shifted_sequence_is_near_and_another_level_is_far() -> None:
    rows = torch.tensor([[0.0, 0.0, 5.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    found = warping_distances(rows)
    assert float(found[0, 1]) == 0.0
    assert float(found[0, 2]) > 4.0
    assert torch.equal(found, found.t()) and not found.diagonal().any()


def test_one_entry_each_is_the_difference() -> None:
    assert warping_distances(torch.tensor([[1.0], [4.0]])).tolist() == [[0.0, 3.0], [3.0, 0.0]]


def test_sequences_without_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="no entries"):
        warping_distances(torch.zeros(3, 0))
