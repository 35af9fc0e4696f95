"""Batch normalisation over nodes, told by the generator whether it is training.

Ioffe and Szegedy (2015): y = (x - mean) / sqrt(var + eps) * weight + bias, each feature by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.models.together.streams import Streams


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

    def forward(self, h: Tensor, generator: torch.Generator | Streams | None) -> Tensor:
        """Normalise (nodes, dim) by this batch's statistics when there is a generator, else by the running ones."""
        if self.weight.ndim == 2:
            return self._of_each_client(h, generator if isinstance(generator, Streams) else None)
        assert not isinstance(generator, Streams)
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

    def _of_each_client(self, h: Tensor, streams: Streams | None) -> Tensor:
        """Normalise the rows of many clients, (clients * rows, dim), each by its own statistics."""
        clients, dim = self.weight.shape
        x = h.view(clients, -1, dim)
        mean, var = self.running_mean, self.running_var  # (clients, dim)
        if streams is not None:
            sizes = torch.tensor(streams.sizes, dtype=h.dtype).view(-1, 1)  # (clients, 1)
            real = (torch.arange(x.shape[1]) < sizes).unsqueeze(2)  # (clients, rows, 1)
            batch_mean = (x * real).sum(dim=1) / sizes
            batch_var = ((x - batch_mean.unsqueeze(1)).square() * real).sum(dim=1) / sizes
            several = sizes > 1
            with torch.no_grad():
                share = torch.where(several, self.momentum, 0.0)
                mean.lerp_(batch_mean, share.expand_as(mean))
                var.lerp_(batch_var * sizes / (sizes - 1).clamp(min=1), share.expand_as(var))
            mean, var = torch.where(several, batch_mean, mean), torch.where(several, batch_var, var)
        scale = self.weight * (var + self.eps).rsqrt()
        return torch.addcmul(self.bias.unsqueeze(1), x - mean.unsqueeze(1), scale.unsqueeze(1)).view(h.shape)

    def extra_repr(self) -> str:
        """Fields shown in the repr."""
        return f"{len(self.weight)}, eps={self.eps:g}, momentum={self.momentum:g}"
