from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.products.propagation import pagerank_weights, propagate
from isthmus.models.products.sparse import SparseMatrix


def random_operator() -> tuple[SparseMatrix, Tensor]:
    draw = torch.Generator().manual_seed(0)
    full = torch.rand(5, 5, generator=draw, dtype=torch.float64) * (torch.rand(5, 5, generator=draw) < 0.5) * 0.5
    return SparseMatrix.from_csr(full.to_sparse_csr()), full


def test_equals_the_sum_of_matrix_powers() -> None:
    matrix, full = random_operator()
    h = torch.randn(5, 3, dtype=torch.float64)
    weights = (0.5, 0.0, -2.0, 1.5)
    expected = sum(w * torch.linalg.matrix_power(full, k) @ h for k, w in enumerate(weights))
    torch.testing.assert_close(propagate(matrix, h, weights), expected)
    torch.testing.assert_close(propagate(matrix, h, torch.tensor(weights, dtype=torch.float64)), expected)
    torch.testing.assert_close(propagate(matrix, h.requires_grad_(), weights), expected)


def test_gradients_are_right_to_second_order() -> None:
    matrix, _ = random_operator()
    h = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor([0.3, -0.4, 0.7], dtype=torch.float64, requires_grad=True)
    both = lambda h, gamma: propagate(matrix, h, gamma).tanh()  # noqa: E731
    fixed = lambda h: propagate(matrix, h, (0.3, -0.4, 0.7)).tanh()  # noqa: E731
    assert torch.autograd.gradcheck(both, (h, gamma))
    assert torch.autograd.gradgradcheck(both, (h, gamma))
    assert torch.autograd.gradcheck(fixed, (h,))
    assert torch.autograd.gradgradcheck(fixed, (h,))


def test_no_hops_is_a_multiple() -> None:
    matrix, _ = random_operator()
    h = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(propagate(matrix, h, (2.0,)), 2.0 * h)


@pytest.mark.parametrize(("alpha", "hops"), [(0.1, 10), (0.5, 0), (1.0, 3), (0.0, 2)])
def test_pagerank_weights_are_those_of_the_iteration(alpha: float, hops: int) -> None:
    # The iteration z <- (1 - alpha) s z + alpha on polynomials in s, as coefficients.
    z = [1.0] + [0.0] * hops
    for _ in range(hops):
        z = [alpha] + [(1 - alpha) * c for c in z[:-1]]
    assert pagerank_weights(alpha, hops) == pytest.approx(z)
    assert sum(pagerank_weights(alpha, hops)) == pytest.approx(1.0)


# ---- weights of many clients


def of_many() -> tuple[list[Tensor], SparseMatrix, Tensor, Tensor]:
    """Return the operators of three clients, all of them as one, rows and weights by client."""
    draw = torch.Generator().manual_seed(1)
    parts = [torch.rand(4, 4, generator=draw, dtype=torch.float64) * 0.5 for _ in range(3)]
    parts[1][:] = 0.0  # a client without edges
    matrix = SparseMatrix.from_csr(torch.block_diag(*parts).to_sparse_csr())
    h = torch.randn(3, 4, 2, generator=draw, dtype=torch.float64)
    return parts, matrix, h, torch.randn(3, 4, generator=draw, dtype=torch.float64)


def test_each_client_propagates_with_its_own_weights() -> None:
    parts, matrix, h, gamma = of_many()
    expected = []
    for k, full in enumerate(parts):
        expected.append(sum(gamma[k, j] * torch.linalg.matrix_power(full, j) @ h[k] for j in range(4)))
    torch.testing.assert_close(propagate(matrix, h.flatten(0, 1), gamma), torch.cat(expected))  # type: ignore[arg-type]
    recorded = propagate(matrix, h.flatten(0, 1).requires_grad_(), gamma.requires_grad_())
    torch.testing.assert_close(recorded, torch.cat(expected))  # type: ignore[arg-type]


def test_gradients_by_each_clients_weights_and_rows_are_its_own() -> None:
    parts, matrix, h, gamma = of_many()
    flat = h.flatten(0, 1).requires_grad_()
    loss = propagate(matrix, flat, gamma.requires_grad_()).sin().sum()
    by_h, by_gamma = torch.autograd.grad(loss, [flat, gamma])
    for k, full in enumerate(parts):
        mine, weights = h[k].clone().requires_grad_(), gamma[k].detach().clone().requires_grad_()
        out = sum(weights[j] * torch.linalg.matrix_power(full, j) @ mine for j in range(4))
        expected = torch.autograd.grad(out.sin().sum(), [mine, weights])  # type: ignore[union-attr]
        torch.testing.assert_close(by_h.view(h.shape)[k], expected[0])
        torch.testing.assert_close(by_gamma[k], expected[1])


def test_gradients_of_many_clients_are_right_to_second_order() -> None:
    _, matrix, h, gamma = of_many()
    inputs = (h.flatten(0, 1).requires_grad_(), gamma.requires_grad_())
    call = lambda h, gamma: propagate(matrix, h, gamma).tanh()  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)
