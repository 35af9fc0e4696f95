from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.affine import affine, aggregated_affine
from isthmus.models.sparse import SparseMatrix


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
