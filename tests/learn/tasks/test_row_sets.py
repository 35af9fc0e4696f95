"""Sets of places by row, against Python sets."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.learn.tasks.known_links import RowSets


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, 6), st.integers(0, n - 1)), max_size=30))
    )
)
def test_counts_entries_and_missing_places_are_those_of_plain_sets(case: tuple[int, list[tuple[int, int]]]) -> None:
    num_places, pairs = case
    row = torch.tensor([r for r, _ in pairs], dtype=torch.int64)
    place = torch.tensor([p for _, p in pairs], dtype=torch.int64)
    sets = RowSets.of(row, place, num_places)
    asked = torch.tensor([6, 0, 1, 2, 3, 3, 4, 5])
    owner, found = sets.entries(asked)
    for position, number in enumerate(asked.tolist()):
        plain = {p for r, p in pairs if r == number}
        missing = sorted(set(range(num_places)) - plain)
        assert found[owner == position].tolist() == sorted(plain)
        assert sets.count(asked[[position]]).item() == len(plain)
        rows = torch.full((len(missing),), number)
        assert sets.absent(rows, torch.arange(len(missing))).tolist() == missing


def test_no_rows_at_all() -> None:
    none = torch.empty(0, dtype=torch.int64)
    sets = RowSets.of(none, none, 4)
    assert sets.count(torch.tensor([0, 7])).tolist() == [0, 0]
    assert sets.absent(torch.tensor([5]), torch.tensor([3])).tolist() == [3]
    assert sets.entries(none)[0].tolist() == []
