from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.conventions import SPARSE_DENSITY
from isthmus.data.features import compact, normalized_rows

from .strategies import dense, many, rng, seeds


@many
@given(seeds, st.floats(0, 0.3), st.booleans())
def test_layout_follows_density_and_values_stay(seed: int, density: float, given_sparse: bool) -> None:
    draw = rng(seed)
    x = torch.from_numpy(draw.random((20, 10)) * (draw.random((20, 10)) < density))
    kept = compact(x.to_sparse_csr() if given_sparse else x)
    few = int((x != 0).sum()) < SPARSE_DENSITY * x.numel()
    assert (kept.layout == torch.sparse_csr) is few
    assert kept.dtype == torch.float32
    assert torch.equal(dense(kept), x.float())


def test_rows_are_divided_by_their_sum_and_rows_that_sum_to_zero_stay() -> None:
    x = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, -1.0, 0.0]])
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
    assert torch.equal(normalized_rows(x), expected)
    sparse = normalized_rows(x.to_sparse_csr())
    assert sparse.layout == torch.sparse_csr
    assert torch.equal(sparse.to_dense(), expected)
