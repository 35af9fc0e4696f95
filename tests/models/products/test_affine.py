from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.products.affine import affine, aggregated_affine, per_row, pooled_affine
from isthmus.models.products.sparse import SparseMatrix


def pieces(in_dim: int, out_dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(6, in_dim, generator=draw, dtype=torch.float64) * (torch.rand(6, in_dim, generator=draw) < 0.5)
    weight = torch.randn(in_dim, out_dim, generator=draw, dtype=torch.float64)
    bias = torch.randn(out_dim, generator=draw, dtype=torch.float64)
    operator = torch.randn(6, 6, generator=draw, dtype=torch.float64) * (torch.rand(6, 6, generator=draw) < 0.4)
    return h, weight, bias, operator


@pytest.mark.parametrize("out_dim", [1, 3, 15, 16, 40])
@pytest.mark.parametrize("in_dim", [4, 20])
def test_equals_the_dense_formula(in_dim: int, out_dim: int) -> None:
    h, weight, bias, operator = pieces(in_dim, out_dim)
    matrix = SparseMatrix.from_csr(operator.to_sparse_csr())
    for features in (h, SparseMatrix.from_csr(h.to_sparse_csr())):
        torch.testing.assert_close(affine(features, weight), h @ weight)
        torch.testing.assert_close(affine(features, weight, bias), h @ weight + bias)
        torch.testing.assert_close(affine(features, weight, None, matrix), operator @ h @ weight)
        torch.testing.assert_close(aggregated_affine(matrix, features, weight, bias), operator @ h @ weight + bias)


@pytest.mark.parametrize("out_dim", [2, 17])
@pytest.mark.parametrize("with_operator", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_gradients_are_right_to_second_order(out_dim: int, with_operator: bool, is_sparse: bool) -> None:
    h, weight, bias, operator = pieces(4, out_dim)
    matrix = SparseMatrix.from_csr(operator.to_sparse_csr()) if with_operator else None
    wrapped = SparseMatrix.from_csr(h.to_sparse_csr())
    x = (wrapped.values if is_sparse else h).clone().requires_grad_()

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return affine(wrapped.with_values(x) if is_sparse else x, weight, bias, matrix).tanh()

    inputs = (x, weight.requires_grad_(), bias.requires_grad_())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


# ---- weights of many clients


def of_many(in_dim: int, out_dim: int, rows: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows, weights, biases and operators of three clients with equally many rows, clients first."""
    draw = torch.Generator().manual_seed(5)
    h = torch.randn(3, rows, in_dim, generator=draw, dtype=torch.float64)
    weight = torch.randn(3, in_dim, out_dim, generator=draw, dtype=torch.float64)
    bias = torch.randn(3, out_dim, generator=draw, dtype=torch.float64)
    operator = torch.randn(3, rows, rows, generator=draw, dtype=torch.float64)
    operator[torch.rand(operator.shape, generator=draw) < 0.5] = 0.0
    return h, weight, bias, operator


@pytest.mark.parametrize("rows", [4, 20])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(5, 2), (2, 5), (3, 17), (20, 3)])
def test_each_clients_weights_multiply_its_own_rows(in_dim: int, out_dim: int, rows: int) -> None:
    h, weight, bias, operator = of_many(in_dim, out_dim, rows)
    matrix = SparseMatrix.from_csr(torch.block_diag(*operator).to_sparse_csr())
    flat = h.flatten(0, 1)
    plain = torch.cat([h[k] @ weight[k] for k in range(3)])
    biased = torch.cat([h[k] @ weight[k] + bias[k] for k in range(3)])
    whole = torch.cat([operator[k] @ h[k] @ weight[k] + bias[k] for k in range(3)])
    torch.testing.assert_close(affine(flat, weight), plain)
    torch.testing.assert_close(affine(flat, weight, bias), biased)
    torch.testing.assert_close(affine(flat, weight, bias, matrix), whole)
    torch.testing.assert_close(aggregated_affine(matrix, flat, weight, bias), whole)
    # A weight that all have in common, with a bias for each.
    torch.testing.assert_close(affine(flat, weight[0], bias), torch.cat([h[k] @ weight[0] + bias[k] for k in range(3)]))


@pytest.mark.parametrize(("in_dim", "out_dim", "rows"), [(4, 2, 4), (2, 4, 4), (18, 2, 17)])
@pytest.mark.parametrize("with_operator", [False, True])
def test_gradients_of_many_clients_are_right_to_second_order(
    in_dim: int, out_dim: int, rows: int, with_operator: bool
) -> None:
    h, weight, bias, operator = of_many(in_dim, out_dim, rows)
    matrix = SparseMatrix.from_csr(torch.block_diag(*operator).to_sparse_csr()) if with_operator else None

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return affine(x, weight, bias, matrix).tanh()

    inputs = (h.flatten(0, 1).requires_grad_(), weight.requires_grad_(), bias.requires_grad_())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)
    # And each client's gradients are those that it has alone.
    found = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    for k in range(3):
        mine = [tensor.detach()[k].clone().requires_grad_() for tensor in (h, weight, bias)]
        out = mine[0] @ mine[1]
        out = (operator[k] @ out if with_operator else out) + mine[2]
        expected = torch.autograd.grad(out.tanh().square().sum(), mine)
        torch.testing.assert_close(found[0].view(h.shape)[k], expected[0])
        torch.testing.assert_close(found[1][k], expected[1])
        torch.testing.assert_close(found[2][k], expected[2])


def test_a_parameter_of_each_client_is_repeated_over_its_rows() -> None:
    one, each = torch.randn(2), torch.randn(3, 2)
    assert per_row(one, 1, 6) is one
    assert torch.equal(per_row(each, 1, 6), torch.stack([each[0], each[0], each[1], each[1], each[2], each[2]]))
    heads = torch.randn(2, 3, 4)
    first = heads[0]
    assert per_row(first, 2, 6) is first
    assert torch.equal(per_row(heads, 2, 4), heads.repeat_interleave(2, dim=0))


def test_weights_that_stand_for_all_clients_have_each_clients_gradient() -> None:
    h, weight, bias, _ = of_many(4, 5)
    shared = [each[:1].clone().expand(each.shape).requires_grad_() for each in (weight, bias)]
    copied = [each.detach().clone().requires_grad_() for each in shared]
    rows = h.flatten(0, 1)
    found, wanted = ([rows.clone().requires_grad_(), *maps] for maps in (shared, copied))
    outs = [affine(*given).tanh() for given in (found, wanted)]
    torch.testing.assert_close(*outs)
    slopes = (torch.autograd.grad(out.sum(), given) for out, given in zip(outs, (found, wanted), strict=True))
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("clients", [False, True])
def test_a_pooled_map_adds_its_bias_once_for_each_row_that_was_pooled(clients: bool) -> None:
    h, weight, bias, operator = of_many(3, 2)
    weight, bias = (weight, bias) if clients else (weight[0], bias[0])
    pool = SparseMatrix.from_csr(torch.block_diag(*operator).to_sparse_csr())
    given = tuple(each.requires_grad_() for each in (pool.matmul(h.flatten(0, 1)), weight, bias))

    def call(pooled: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return pooled_affine(pool, pooled, weight, bias)

    wanted = pool.matmul(affine(h.flatten(0, 1), weight, bias))
    torch.testing.assert_close(call(*given), wanted)
    assert torch.autograd.gradcheck(call, given) and torch.autograd.gradgradcheck(call, given)
