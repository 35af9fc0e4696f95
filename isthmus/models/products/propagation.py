"""Polynomials of an operator applied to representations: the propagation of APPNP, GPR-GNN and SGC.

    Z = sum_k c_k S^k H

Gasteiger et al. (2019) with the weights of personalised PageRank; Chien et al. (2021) with learnt weights;
Wu et al. (2019) with one weight, of the last power. The whole polynomial is one step for autograd: its backward
is the polynomial of S^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.models.products.sparse import SparseMatrix


def pagerank_weights(alpha: float, hops: int) -> tuple[float, ...]:
    """Return c_k = alpha (1 - alpha)^k for k < hops and c_hops = (1 - alpha)^hops; they add up to one."""
    return (*(alpha * (1 - alpha) ** k for k in range(hops)), (1 - alpha) ** hops)


def propagate(matrix: SparseMatrix, h: Tensor, weights: Sequence[float] | Tensor) -> Tensor:
    """Return sum_k weights[k] matrix^k h, (nodes, width); differentiable in `h`, and in `weights` if a tensor.

    Weights (clients, hops + 1) are those of many clients whose rows of `h` lie one below the other.
    """
    gamma = weights if isinstance(weights, Tensor) else None
    if torch.is_grad_enabled() and (h.requires_grad or (gamma is not None and gamma.requires_grad)):
        out: Tensor = _Polynomial.apply(h, gamma, weights, matrix)  # type: ignore[no-untyped-call]
        return out
    return _polynomial(matrix, h, _terms(weights, h), None)


def _terms(weights: Sequence[float] | Tensor, h: Tensor) -> Sequence[float | Tensor]:
    """Return the weight of each power: a number, or (rows, 1) where clients have their own."""
    if not isinstance(weights, Tensor):
        return weights
    if weights.ndim == 1:
        return [float(weight) for weight in weights.tolist()]
    return [column.repeat_interleave(len(h) // len(weights)).unsqueeze(1) for column in weights.detach().t()]


def _polynomial(
    matrix: SparseMatrix, h: Tensor, weights: Sequence[float | Tensor], powers: list[Tensor] | None
) -> Tensor:
    """Return the sum; append each matrix^k h to `powers` if a list is given."""
    out = h * weights[0]
    if powers is not None:
        powers.append(h)
    for weight in weights[1:]:
        h = matrix.matmul(h)
        if powers is not None:
            powers.append(h)
        if isinstance(weight, Tensor):
            out.addcmul_(h, weight)
        elif weight != 0.0:
            out.add_(h, alpha=weight)
    return out


class _Polynomial(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, gamma: Tensor | None, weights: Sequence[float] | Tensor, matrix: SparseMatrix
    ) -> Tensor:
        ctx.matrix, ctx.weights = matrix, weights
        powers: list[Tensor] | None = [] if ctx.needs_input_grad[1] else None
        out = _polynomial(matrix, h, _terms(weights, h), powers)
        if powers is not None:
            ctx.save_for_backward(*powers)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,) = grads
        by_h = by_gamma = None
        if ctx.needs_input_grad[0]:
            by_h = propagate(ctx.matrix.t(), grad, ctx.weights)
        if ctx.needs_input_grad[1]:
            powers = ctx.saved_tensors
            if torch.is_grad_enabled():
                # A gradient of this gradient is wanted: only the first power, H itself, is tied to its history.
                powers = [powers[0]]
                while len(powers) < ctx.weights.shape[-1]:
                    powers.append(ctx.matrix.matmul(powers[-1]))
            if ctx.weights.ndim == 2:
                by_client = grad.reshape(len(ctx.weights), -1)
                dots = [(power.reshape(by_client.shape) * by_client).sum(dim=1) for power in powers]
                by_gamma = torch.stack(dots, dim=1)  # (clients, hops + 1)
            else:
                flat = grad.reshape(-1)
                by_gamma = torch.stack([torch.dot(power.reshape(-1), flat) for power in powers])
        return by_h, by_gamma, None, None
