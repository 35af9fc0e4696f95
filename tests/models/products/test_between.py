"""What lies between some nodes is the rows and columns of these, in their order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.models.products.between import EvenRows
from isthmus.models.products.sparse import Pattern, SparseMatrix
from tests.models.products.test_sparse import check_rows, drawn


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 8), seed=st.integers(0, 999), density=st.floats(0, 1), data=st.data())
def test_the_entries_between_some_nodes_are_those_rows_and_columns_in_their_order(
    size: int, seed: int, density: float, data: st.DataObject
) -> None:
    matrix, full = drawn(size, size, seed, density)
    chosen = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    missing = data.draw(st.lists(st.integers(0, len(chosen)), max_size=3))
    for place in missing:
        chosen.insert(place, -1)
    found = EvenRows(matrix).between(torch.tensor(chosen, dtype=torch.int64))
    check_rows(found)
    expected = torch.zeros(len(chosen), len(chosen))
    for i, row in enumerate(chosen):
        for j, column in enumerate(chosen):
            if row >= 0 and column >= 0:
                expected[i, j] = full[row, column]
    assert torch.equal(found.to_dense(), expected)
    assert found.pattern.nnz == int((expected != 0).sum())


def test_between_takes_rows_whose_columns_are_in_no_order() -> None:
    pattern = Pattern(torch.tensor([0, 3, 3, 4]), torch.tensor([2, 0, 1, 2]), (3, 3))
    matrix = SparseMatrix(pattern, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert EvenRows(matrix).between(torch.tensor([2, 0])).to_dense().tolist() == [[4.0, 0.0], [1.0, 2.0]]


def test_a_matrix_without_entries_or_rows_has_nothing_between() -> None:
    for size in (0, 3):
        empty = SparseMatrix(
            Pattern(torch.zeros(size + 1, dtype=torch.int64), torch.empty(0), (size, size)), torch.empty(0)
        )
        rows = EvenRows(empty)
        found = rows.between(torch.tensor([-1, 1, 0][: max(size, 1)]))
        assert found.pattern.nnz == 0 and found.shape == (max(size, 1), max(size, 1))
