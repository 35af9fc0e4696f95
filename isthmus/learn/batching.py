"""How a client's training examples come in batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from isthmus.core.errors import refuse


@dataclass(frozen=True)
class Batching:
    """How training examples come in batches; what a batch holds is the task's affair."""


@dataclass(frozen=True)
class FullBatch(Batching):
    """Every step sees the whole graph, or all training graphs."""


@dataclass(frozen=True)
class MiniBatch(Batching):
    """Every step sees `batch_size` training examples, in an order that is drawn anew for each pass over them.

    The last batch of a pass holds those that are left.
    """

    batch_size: int = 64

    def __post_init__(self) -> None:
        refuse(self.batch_size < 1, self, "batch_size", "it must be at least 1")


@dataclass(frozen=True)
class NeighborBatch(Batching):
    """Every step sees `batch_size` training examples and a sample of their neighbourhood.

    `fanouts` gives, per hop from the examples outward, how many in-edges of a node are kept; -1 keeps all.
    """

    batch_size: int = 128
    fanouts: tuple[int, ...] = (10, 10)

    def __post_init__(self) -> None:
        refuse(self.batch_size < 1, self, "batch_size", "it must be at least 1")
        if not self.fanouts or any(f == 0 or f < -1 for f in self.fanouts):
            raise ValueError(f"fanouts is {self.fanouts!r}; give a positive number or -1 for each hop")

    @property
    def most_nodes(self) -> int:
        """The most nodes that a batch can have; a great many where a hop keeps all in-edges."""
        hops = accumulate((fanout if fanout > 0 else 10**6 for fanout in self.fanouts), mul, initial=1)
        return self.batch_size * sum(hops)


@dataclass(frozen=True)
class LinkBatch(Batching):
    """Every step sees `batch_size` training links, and the whole graph they lie in; for link tasks."""

    batch_size: int = 4096

    def __post_init__(self) -> None:
        refuse(self.batch_size < 1, self, "batch_size", "it must be at least 1")


BATCHINGS: dict[str, type[Batching]] = {
    "full": FullBatch,
    "mini": MiniBatch,
    "neighbor": NeighborBatch,
    "links": LinkBatch,
}
