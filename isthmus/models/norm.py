"""Batch normalisation over nodes, told by the generator whether it is training.

Ioffe and Szegedy (2015): y = (x - mean) / sqrt(var + eps) * weight + bias, each feature by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BatchNorm(nn.Module):
    """Like `torch.nn.BatchNorm1d`, but training or not is an argument, and there is no counter of batches.

    The counter would be an integer among the averaged tensors, and nothing reads it. With one node there is no
    variance to take: the running statistics serve then, unchanged.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Normalise (nodes, dim) by this batch's statistics when there is a generator, else by the running ones."""
        return functional.batch_norm(
            h,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=generator is not None and len(h) > 1,
            momentum=self.momentum,
            eps=self.eps,
        )

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{len(self.weight)}, eps={self.eps:g}, momentum={self.momentum:g}"
