"""The one product of every layer, S H W + b, as one step for autograd.

A client's step takes well under a millisecond, so that each recorded operation counts; and MKL multiplies by few
columns (classes) several times more slowly than it multiplies the transposes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.models.products.sparse import Features, SparseMatrix
from isthmus.models.together.span import SpanFeatures, SpanWeight, add_bias_, bias_gradient, span_affine

# Columns below which the transposed product is the faster one (measured: 7 columns 54 against 14 us, 16 equal).
_NARROW = 16


def affine(h: Features, weight: Tensor, bias: Tensor | None = None, operator: SparseMatrix | None = None) -> Tensor:
    """Return S (H W) + b, (rows, out), with S the operator; without an operator or a bias, they are left out.

    Weights (clients, in, out) and biases (clients, out) are those of many clients whose rows of H lie one below the
    other, equally many for each.
    """
    if isinstance(h, SpanFeatures):
        assert isinstance(weight, SpanWeight)
        return span_affine(h, weight, bias, operator)
    if isinstance(h, Tensor):
        out: Tensor = _Affine.apply(h, weight, bias, None, operator)  # type: ignore[no-untyped-call]
    else:
        out = _Affine.apply(h.values, weight, bias, h, operator)  # type: ignore[no-untyped-call]
    return out


def aggregated_affine(operator: SparseMatrix, h: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return S H W + b in the cheaper order: a dense H is aggregated first if W widens it."""
    if isinstance(h, Tensor) and weight.shape[-2] < weight.shape[-1]:
        return affine(operator.matmul(h), weight, bias)
    return affine(h, weight, bias, operator)


def per_row(parameter: Tensor, dims: int, rows: int) -> Tensor:
    """Return a parameter of `dims` dimensions as it broadcasts over rows; one for each client is repeated over its."""
    if parameter.ndim == dims:
        return parameter
    clients = len(parameter)
    return parameter.unsqueeze(1).expand(clients, rows // clients, *parameter.shape[1:]).flatten(0, 1)


def _dense_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, contiguous; weights of many clients each multiply their own rows."""
    if right.ndim == 3:
        return _batched_product(left.view(len(right), -1, right.shape[1]), right).flatten(0, 1)
    if right.shape[1] >= _NARROW:
        return left.mm(right)
    return right.t().mm(left.t()).t().contiguous()


def _batched_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right for each client, (clients, rows, out); with few columns by the transposes, as above."""
    if right.shape[2] >= _NARROW or left.shape[1] < _NARROW:
        return left.bmm(right)
    return right.transpose(1, 2).bmm(left.transpose(1, 2)).transpose(1, 2).contiguous()


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sparse: SparseMatrix | None,
        operator: SparseMatrix | None,
    ) -> Tensor:
        """Return S (H W) + b, where H is `x` (dense), or `sparse` with the values `x`."""
        ctx.sparse, ctx.operator = sparse, operator
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.save_for_backward(x, weight)
        out = _dense_product(x, weight) if sparse is None else sparse.matmul(weight)
        if operator is not None:
            out = operator.matmul(out)
        return out if bias is None else add_bias_(out, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        # Written with differentiable operations, so that a gradient of a gradient (an attack's) is right too.
        (grad,) = grads
        x, weight = ctx.saved_tensors
        sparse: SparseMatrix | None = ctx.sparse
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        by_x = by_weight = None
        by_bias = bias_gradient(grad, ctx.bias_shape) if wants_bias else None
        if ctx.operator is not None and (wants_x or wants_weight):
            grad = ctx.operator.t().matmul(grad)
        if weight.ndim == 3:  # of many clients
            return *_gradients_by_client(grad, x, weight, wants_x, wants_weight), by_bias, None, None
        if wants_weight:
            by_weight = _dense_product(x.t(), grad) if sparse is None else sparse.t().matmul(grad)
        if wants_x:
            by_x = grad.mm(weight.t()) if sparse is None else sparse.sample(grad, weight)
        return by_x, by_weight, by_bias, None, None


def _gradients_by_client(
    grad: Tensor, x: Tensor, weight: Tensor, wants_x: bool, wants_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients by the features and by the weights of many clients, where they are wanted."""
    by_x = by_weight = None
    by_client = grad.view(len(weight), -1, grad.shape[1])
    if wants_weight:
        by_weight = _batched_product(x.view(len(weight), -1, x.shape[1]).transpose(1, 2), by_client)
    if wants_x:
        by_x = by_client.bmm(weight.transpose(1, 2)).flatten(0, 1)
    return by_x, by_weight
