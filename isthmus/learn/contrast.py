"""Supervised contrast of nodes with nodes of another view. Khosla et al. (2020); Huang et al. (2023), equation 8.

    L_i = -1/|P_i| sum_p log( e_ip / (e_ip + sum_k e_ik) ),   p in P_i, k in K_i,   e_ij = exp(cos(h_i, g_j) / tau)

P_i are the nodes of i's class, i itself among them, K_i those of other classes. With n_i = log sum_k e_ik and
s_ij = cos(h_i, g_j) / tau, a term is log(1 + exp(n_i - s_ip)): no exponential of a similarity is ever taken alone.

Similarities are held for a block of rows at a time. What the gradient needs of them is used at once, so that nothing
of size n^2 stays behind for autograd.
"""

from __future__ import annotations

import math
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
    out: Tensor = _Contrast.apply(directions(h), directions(g.detach()), labels, tau, sample, block_bytes)  # type: ignore[no-untyped-call]
    return out


def directions(vectors: Tensor) -> Tensor:
    """Return the rows divided by their lengths; a row without length has no direction, and stays zero with any step."""
    length = vectors.norm(dim=1, keepdim=True)
    has = length > NO_LENGTH
    return torch.where(has, vectors, 0.0) / torch.where(has, length, 1.0)


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, g: Tensor, labels: Tensor, tau: float, sample: Tensor | None, block_bytes: int
    ) -> Tensor:
        chosen = torch.arange(len(g), device=g.device) if sample is None else sample
        chosen = chosen[torch.argsort(labels[chosen], stable=True)]  # by class: positives are neighbouring columns
        others, theirs = g[chosen], labels[chosen]
        total = h.new_zeros(())
        grad = torch.zeros_like(h)
        for label in torch.unique(labels).tolist():
            first, last = torch.searchsorted(theirs, theirs.new_tensor([label, label + 1])).tolist()
            if last - first == len(theirs):
                continue  # nothing to be told apart from
            members = (labels == label).nonzero().flatten()
            # How many nodes each sampled negative stands for, as a logarithm.
            scale = math.log((len(labels) - len(members)) / (len(theirs) - (last - first)))
            for rows in torch.split(members, max(1, block_bytes // (4 * len(theirs)))):
                similar = (h[rows] @ others.t()).div_(tau)  # (rows, sampled)
                # With all nodes in the sample, a node's own view is one of the columns; else it is one more.
                own = None if sample is None else (h[rows] * g[rows]).sum(dim=1).div_(tau)
                mine = None if sample is None else rows.unsqueeze(1) == chosen[first:last]
                loss, pull = _pull_and_push(similar, first, last, scale, own, mine)
                total += loss
                grad[rows] = similar @ others
                if own is not None:
                    grad[rows] -= pull[:, -1:] * g[rows]
        ctx.save_for_backward(grad.div_(tau * len(h)))
        return total / len(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        if torch.is_grad_enabled():  # what the gradient is made of was not kept
            raise RuntimeError("node_contrast has no gradient of its gradient (create_graph=True)")
        (grad,) = ctx.saved_tensors
        return grads[0] * grad, None, None, None, None, None


def _pull_and_push(
    similar: Tensor, first: int, last: int, scale: float, own: Tensor | None, mine: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows' losses, and how hard each positive pulls, (rows, positives [+ own]).

    `similar` becomes the derivative by itself: how hard each negative pushes, and, below zero, each positive pulls.
    """
    positive = similar[:, first:last].clone()  # s_ip
    similar[:, first:last] = -torch.inf
    top = similar.amax(dim=1, keepdim=True)
    sums = similar.sub_(top).exp_().sum(dim=1, keepdim=True)
    pressure = top + sums.log() + scale  # (rows, 1), n_i
    if own is not None and mine is not None:
        # A node that is in the sample is its own positive once.
        positive = torch.cat([positive.masked_fill_(mine, torch.inf), own.unsqueeze(1)], dim=1)
    gap = pressure - positive  # n_i - s_ip; none for who is left out
    counts = gap.isfinite().sum(dim=1, keepdim=True)  # |P_i|, at least one: the node itself
    loss = (F.softplus(gap).sum(dim=1, keepdim=True) / counts).sum()
    pull = gap.sigmoid_().div_(counts)
    similar.mul_(pull.sum(dim=1, keepdim=True) / sums)
    similar[:, first:last] = -pull[:, : last - first]
    return loss, pull
