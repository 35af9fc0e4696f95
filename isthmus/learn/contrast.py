"""Supervised contrast of nodes with nodes of another view. Khosla et al. (2020); Huang et al. (2023), equation 8.

    L_i = -1/|P_i| sum_p log( e_ip / (e_ip + sum_k e_ik) ),   p in P_i, k in K_i,   e_ij = exp(cos(h_i, g_j) / tau)

P_i are the nodes of i's class, i itself among them, K_i those of other classes. With n_i = log sum_k e_ik and
s_ij = cos(h_i, g_j) / tau, a term is log(1 + exp(n_i - s_ip)): no exponential of a similarity is ever taken alone.

Similarities are held for a block of rows at a time. What the gradient needs of them is used at once, so that nothing
of size n^2 stays behind for autograd.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Similarities that are held at a time.
BLOCK_BYTES = 32 * 2**20
# A vector this short is taken for zero: the slope of its direction would be as large as the inverse.
NO_LENGTH = 1e-6


def node_contrast(
    h: Tensor,
    g: Tensor,
    labels: Tensor,
    tau: float,
    *,
    sample: Tensor | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Tensor:
    """Return the mean of L_i over the rows, a scalar; no gradient flows into `g`. Without rows it is 0.

    A row without negatives (one class only) contributes 0: nothing is there to be told apart from. With `sample`, a
    node is contrasted with these rows of `g` and with its own only; the sum over negatives is scaled to what all of
    them would give, and the mean is over the positives there are.

    Args:
        h:           representations that are trained, (nodes, width)
        g:           representations of the same nodes in the other view, (nodes, width)
        labels:      class of each node, (nodes,)
        tau:         temperature
        sample:      rows of `g` to contrast with, (sampled,), without repetition; None for all
        block_bytes: memory that similarities may take at a time
    """
    if not len(h):
        return h.sum()
    out: Tensor = _Contrast.apply(_directions(h), _directions(g.detach()), labels, tau, sample, block_bytes)  # type: ignore[no-untyped-call]
    return out


def _directions(vectors: Tensor) -> Tensor:
    """Return the rows divided by their lengths; a row without length has no direction, and stays zero with any step."""
    length = vectors.norm(dim=1, keepdim=True)
    has = length > NO_LENGTH
    return torch.where(has, vectors, 0.0) / torch.where(has, length, 1.0)


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, g: Tensor, labels: Tensor, tau: float, sample: Tensor | None, block_bytes: int
    ) -> Tensor:
        others, theirs = (g, labels) if sample is None else (g[sample], labels[sample])
        # How many nodes each sampled negative stands for, as a logarithm.
        scale = _log_scale(labels, theirs)
        total = h.new_zeros(())
        grad = torch.empty_like(h)
        for rows in torch.split(torch.arange(len(h)), max(1, block_bytes // (8 * max(len(theirs), 1)))):
            similar = (h[rows] @ others.t()) / tau  # (rows, sampled)
            positive = labels[rows].unsqueeze(1) == theirs
            negatives = similar.masked_fill(positive, -torch.inf)
            pressure = negatives.logsumexp(dim=1) + scale[labels[rows]]  # (rows,), n_i
            own = None
            if sample is not None:
                own = (h[rows] * g[rows]).sum(dim=1) / tau  # (rows,)
                # A node that is in the sample is its own positive once.
                positive &= rows.unsqueeze(1) != sample
            found, push = _terms(similar, positive, own, pressure)
            total += found
            share = torch.where(pressure.isfinite(), (pressure - scale[labels[rows]]), 0.0).unsqueeze(1)
            weight = (negatives - share).exp_().mul_(push.sum(dim=1, keepdim=True))  # of the negatives
            weight.masked_fill_(~pressure.isfinite().unsqueeze(1), 0.0)
            mine = push[:, : len(theirs)]
            grad[rows] = (weight - mine) @ others / tau
            if own is not None:
                grad[rows] -= push[:, -1:] * g[rows] / tau
        ctx.save_for_backward(grad / len(h))
        return total / len(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        if torch.is_grad_enabled():  # what the gradient is made of was not kept
            raise RuntimeError("node_contrast has no gradient of its gradient (create_graph=True)")
        (grad,) = ctx.saved_tensors
        return grads[0] * grad, None, None, None, None, None


def _terms(similar: Tensor, positive: Tensor, own: Tensor | None, pressure: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows' losses, and how hard each positive is pulled, (rows, sampled [+ 1])."""
    if own is not None:
        similar = torch.cat([similar, own.unsqueeze(1)], dim=1)
        positive = torch.cat([positive, torch.ones_like(positive[:, :1])], dim=1)
    gap = pressure.unsqueeze(1) - similar  # n_i - s_ip
    counts = positive.sum(dim=1, keepdim=True)  # |P_i|, at least one: the node itself
    loss = (F.softplus(gap) * positive / counts).sum()
    return loss, gap.sigmoid_() * positive / counts


def _log_scale(labels: Tensor, sampled: Tensor) -> Tensor:
    """Return, for each class, the logarithm of negatives per sampled negative, (classes,); 0 where there are none."""
    number = int(labels.max()) + 1
    every, chosen = torch.bincount(labels, minlength=number), torch.bincount(sampled, minlength=number)
    ratio = (len(labels) - every).double() / (len(sampled) - chosen).double()
    return torch.where(ratio.isfinite() & (ratio > 0), ratio.log(), 0.0).float()
