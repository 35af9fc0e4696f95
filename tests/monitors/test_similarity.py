"""Linear CKA against its definition by HSIC, written out, and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isthmus.core.random import torch_generator
from isthmus.monitors.similarity import pairwise_cka


def linear_cka(x: Tensor, y: Tensor) -> float:
    return float(pairwise_cka([x, y])[0, 1])


def drawn(nodes: int, width: int, purpose: str) -> Tensor:
    return torch.randn(nodes, width, generator=torch_generator(0, purpose), dtype=torch.float64)


def by_hsic(x: Tensor, y: Tensor) -> float:
    """HSIC(K, L) = tr(K H L H) / (n - 1)^2 with K = X X^T, L = Y Y^T and H = I - 1 1^T / n; CKA is its cosine."""
    n = len(x)
    h = torch.eye(n, dtype=torch.float64) - torch.ones(n, n, dtype=torch.float64) / n

    def hsic(k: Tensor, other: Tensor) -> float:
        return float(torch.trace(k @ h @ other @ h)) / (n - 1) ** 2

    k, m = x.double() @ x.double().T, y.double() @ y.double().T
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize(("nodes", "one", "two"), [(12, 3, 3), (30, 7, 4), (5, 9, 2), (2, 1, 1)])
def test_it_is_the_cosine_of_hsic_with_centring_matrices(nodes: int, one: int, two: int) -> None:
    x = 3.0 + 2.0 * drawn(nodes, one, "x")
    y = drawn(nodes, two, "y") - 5.0
    assert linear_cka(x, y) == pytest.approx(by_hsic(x, y), abs=1e-12)
    mixed = torch.cat([x, y], dim=1) @ drawn(one + two, two, "map")
    assert linear_cka(x, mixed) == pytest.approx(by_hsic(x, mixed), abs=1e-12)


def test_numbers_worked_out_by_hand() -> None:
    # Centred: X = (-1, 0, 1), Y = (-1, 0, 1), (1, -2, 1). X^T X = 2; X^T Y = (2, 0); Y^T Y = diag(2, 6), of norm
    # sqrt(40). CKA = 4 / (2 sqrt(40)) = 1 / sqrt(10).
    x = torch.tensor([[1.0], [2.0], [3.0]])
    y = torch.tensor([[10.0, 5.0], [11.0, 2.0], [12.0, 5.0]])
    assert linear_cka(x, y) == pytest.approx(1 / math.sqrt(10), abs=1e-15)
    assert linear_cka(x, y[:, 1:]) == pytest.approx(0.0, abs=1e-30)  # the second column has nothing in common with X


def test_it_is_one_for_the_same_and_does_not_see_shifts_scales_and_rotations() -> None:
    x, y = drawn(40, 5, "x"), drawn(40, 5, "y")
    turn = torch.linalg.qr(drawn(5, 5, "turn"))[0]
    assert linear_cka(x, x) == pytest.approx(1.0, abs=1e-14)
    assert linear_cka(x, x @ turn) == pytest.approx(1.0, abs=1e-12)
    assert linear_cka(x, -1e-3 * x + 7.0) == pytest.approx(1.0, abs=1e-9)
    before = linear_cka(x, y)
    assert 0.0 < before < 1.0
    for same in (y @ turn, 1e6 * y, y + torch.arange(5.0)):
        assert linear_cka(x, same) == pytest.approx(before, abs=1e-12)
    assert linear_cka(y, x) == pytest.approx(before, abs=1e-15)


def test_a_general_linear_map_changes_it() -> None:
    x = drawn(40, 5, "x")
    stretched = x * torch.tensor([1.0, 1.0, 1.0, 1.0, 30.0])
    assert linear_cka(x, stretched) < 0.7


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e8])
def test_what_is_the_same_for_all_nodes_is_like_nothing_not_even_itself(value: float) -> None:
    x = drawn(12, 3, "x")
    constant = torch.full((12, 4), value) + torch.tensor([0.0, 0.3, 0.7, 1e-3])
    found = pairwise_cka([x, constant, constant])
    assert found[0].tolist() == [1.0, 0.0, 0.0]
    assert not found[1:].any()


@pytest.mark.parametrize("nodes", [0, 1])
def test_without_two_nodes_there_is_nothing_to_compare(nodes: int) -> None:
    assert linear_cka(torch.ones(nodes, 3), torch.ones(nodes, 2)) == 0.0


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_neither_tiny_nor_huge_numbers_lose_it(scale: float) -> None:
    x, y = drawn(12, 3, "x"), drawn(12, 3, "y")
    assert linear_cka(scale * x, y) == pytest.approx(linear_cka(x, y), abs=1e-12)


def test_every_pair_of_many_is_what_it_is_alone() -> None:
    models = [drawn(20, width, f"model {width}").float() for width in (2, 3, 4, 3)]
    found = pairwise_cka(models)
    assert found.dtype == torch.float64 and torch.equal(found, found.T)
    assert found.diagonal().tolist() == [1.0] * 4
    for i, x in enumerate(models):
        for j, y in enumerate(models[:i]):
            assert float(found[i, j]) == pytest.approx(by_hsic(x, y), abs=1e-12)
    assert pairwise_cka([]).shape == (0, 0)


def test_what_cannot_be_compared_is_refused() -> None:
    x = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"has shape \(3,\); expected \(nodes, width\)"):
        pairwise_cka([x[:, 0]])
    with pytest.raises(ValueError, match="are of 2 and 3 nodes"):
        linear_cka(x, x[:2])
    with pytest.raises(ValueError, match="not finite"):
        linear_cka(x, x * math.nan)
