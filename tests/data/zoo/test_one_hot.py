from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data import features as module
from isthmus.data.features import one_hot

from ..strategies import dense, many, rng, seeds


@many
@given(st.integers(0, 10), st.lists(st.integers(1, 5), min_size=1, max_size=4), seeds)
def test_each_category_has_a_one_at_its_value_and_none_at_minus_one(rows: int, sizes: list[int], seed: int) -> None:
    codes = rng(seed).integers(-1, sizes, (rows, len(sizes)))
    x = one_hot(codes, sizes)
    assert x.shape == (rows, sum(sizes)) and x.dtype == torch.float32
    for row, code in zip(x.tolist(), codes.tolist(), strict=True):
        expected = [float(value == c) for c, size in zip(code, sizes, strict=True) for value in range(size)]
        assert row == expected


def test_large_ones_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.array([[0, 1], [1, -1]])
    small = one_hot(codes, [2, 2])
    monkeypatch.setattr(module, "DENSE_ENTRIES", 7)
    large = one_hot(codes, [2, 2])
    assert small.layout == torch.strided and large.layout == torch.sparse_csr
    assert torch.equal(dense(large), small)
