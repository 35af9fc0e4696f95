from __future__ import annotations

import pytest
import torch

from isthmus.models.dropout import _kind, dropout
from isthmus.models.products.sparse import SparseMatrix


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("p", [0.5, 0.25, 1 / 1024, 0.1, 0.3, 0.6, 0.9])
def test_drops_with_the_probability_and_keeps_the_mean(p: float) -> None:
    count = 2_000_000
    out = dropout(torch.ones(count), p, generator())
    kept = out != 0
    error = 5 * (p * (1 - p) / count) ** 0.5
    assert abs(float((~kept).float().mean()) - p) < error
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - p)))
    # Each of eight neighbouring entries shares a random word: none of them may be special.
    for lane in kept.view(-1, 8).float().mean(dim=0):
        assert abs(float(lane) - (1 - p)) < 8**0.5 * error


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_neighbouring_entries_are_independent(p: float) -> None:
    kept = (dropout(torch.ones(2_000_000), p, generator()) != 0).float()
    for lag in (1, 2, 4, 8):
        both = float((kept[lag:] * kept[:-lag]).mean())
        assert abs(both - (1 - p) ** 2) < 5 * (0.25 / len(kept)) ** 0.5


@pytest.mark.parametrize("p", [0.5, 0.1, 1 / 3, 0.123456789, 1e-4, 0.9999, 3 / 65536])
def test_the_threshold_is_p_within_a_millionth(p: float) -> None:
    _, bits = _kind(p)
    assert abs(round(p * 2**bits) / 2**bits - p) < 1e-6
    assert 0 < round(p * 2**bits) < 2**bits


def test_the_cheapest_width_is_chosen() -> None:
    assert [_kind(p)[1] for p in (0.5, 0.25, 1 / 1024, 0.3)] == [8, 8, 16, 32]


def test_same_seed_same_mask_and_another_seed_another() -> None:
    x = torch.randn(50, 7)
    assert torch.equal(dropout(x, 0.5, generator(1)), dropout(x, 0.5, generator(1)))
    assert not torch.equal(dropout(x, 0.5, generator(1)), dropout(x, 0.5, generator(2)))
    g = generator(1)
    assert not torch.equal(dropout(x, 0.5, g), dropout(x, 0.5, g))


def test_evaluation_and_zero_return_the_very_input() -> None:
    x, g = torch.randn(3, 3), generator()
    state = g.get_state()
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, g) is x
    assert torch.equal(g.get_state(), state)


def test_the_gradient_passes_through_the_same_mask() -> None:
    x = torch.randn(20, 9, requires_grad=True)
    out = dropout(x, 0.3, generator())
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad * x, out)
    assert (grad == 0).any() and (grad != 0).any()


def test_a_sparse_matrix_loses_stored_entries_only() -> None:
    full = torch.ones(30, 40)
    full[:, ::2] = 0.0
    matrix = SparseMatrix.from_csr(full.to_sparse_csr())
    dropped = dropout(matrix, 0.5, generator())
    assert dropped.pattern is matrix.pattern
    dense = dropped.to_dense()
    assert set(dense.unique().tolist()) == {0.0, 2.0} and not dense[:, ::2].any()
    torch.testing.assert_close(dropped.t().to_dense(), dense.t())


def test_shapes_types_and_bounds() -> None:
    assert dropout(torch.zeros(0, 4), 0.5, generator()).shape == (0, 4)
    assert dropout(torch.ones(3, 5, dtype=torch.float64), 0.5, generator()).dtype == torch.float64
    assert torch.isfinite(dropout(torch.ones(100), 1 - 1e-12, generator())).all()
    for p in (1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="below 1"):
            dropout(torch.ones(2), p, generator())


def test_the_global_generator_is_untouched() -> None:
    state = torch.random.get_rng_state()
    dropout(torch.ones(10, 10), 0.5, generator())
    assert torch.equal(torch.random.get_rng_state(), state)
