"""The samples of the nodes that a client hosts, and how what is said of them mixes within the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.data.graph import select_rows
from isthmus.learn.graph_client import GraphClient
from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import Features, SparseMatrix, dense

# Features with more entries than this are not made dense.
DENSE_LIMIT = 50_000_000


@dataclass(frozen=True, eq=False)
class Hosted:
    """The samples of the nodes that one client hosts.

    Fields:
        x:      (rows, features); dense, unless that would be too much
        owner:  (rows,); the hosted node of each row
        counts: (hosted,); rows of each node
        train:  (examples,); rows to train on
        labels: (examples,); their classes
    """

    x: Features
    owner: Tensor
    counts: Tensor
    train: Tensor
    labels: Tensor

    @staticmethod
    def of(client: GraphClient) -> Hosted:
        """Return a client's samples; where its task knows none, each node is one. Kept with the prepared data."""
        prepared = client.prepared
        found: Hosted | None = getattr(prepared, "hosted", None)
        if found is None:
            found = prepared.hosted = Hosted.of_prepared(prepared)
        return found

    @staticmethod
    def of_prepared(prepared: Any) -> Hosted:
        """Return the samples of data that a node task has prepared."""
        x: Features = prepared.graph.x
        if isinstance(x, SparseMatrix) and x.shape[0] * x.shape[1] <= DENSE_LIMIT:
            x = dense(x)
        owner = getattr(prepared, "owner", None)
        owner = torch.arange(x.shape[0]) if owner is None else owner
        return Hosted(x, owner, torch.bincount(owner), prepared.index["train"], prepared.labels["train"])

    @staticmethod
    def joined(hosts: Sequence[Hosted]) -> Hosted:
        """Return the samples of many clients one after the other, with nothing to train on."""
        before = accumulate((host.num_nodes for host in hosts), initial=0)
        nothing = torch.empty(0, dtype=torch.int64)
        return Hosted(
            torch.cat([host.dense_x for host in hosts]),
            torch.cat([host.owner + offset for host, offset in zip(hosts, before, strict=False)]),
            torch.cat([host.counts for host in hosts]),
            nothing,
            nothing,
        )

    @property
    def dense_x(self) -> Tensor:
        """The features; refused where they are too many to be made dense."""
        if not isinstance(self.x, Tensor):
            raise ValueError(f"{self.x!r} has more than {DENSE_LIMIT} entries; it is not made dense")
        return self.x

    def rows(self, chosen: Tensor) -> Features:
        """Return the features of some rows."""
        if isinstance(self.x, Tensor):
            return self.x[chosen]
        if len(chosen) == self.x.shape[0]:
            return self.x
        return SparseMatrix.from_csr(select_rows(self.x.to_csr(), chosen))

    @property
    def num_nodes(self) -> int:
        """Number of hosted nodes."""
        return len(self.counts)

    @cached_property
    def train_nodes(self) -> Tensor:
        """The hosted nodes that have something to train on, ascending."""
        found: Tensor = torch.unique(self.owner[self.train])
        return found

    def means(self, h: Tensor) -> Tensor:
        """Return the mean of each node's rows, (hosted, width)."""
        if len(self.owner) == len(self.counts):
            return h
        total = h.new_zeros(len(self.counts), h.shape[1]).index_add_(0, self.owner, h)
        return total / self.counts[:, None]

    def mixed(self, own: Tensor, h: Tensor, aggregate: Tensor) -> Tensor:
        """Return z of every row, (rows, classes), from h of every row and the client's own part of A~."""
        if len(self.owner) == len(self.counts):
            return own @ h + aggregate
        others = own - torch.diag(own.diagonal())
        return own.diagonal()[self.owner, None] * h + (others @ self.means(h) + aggregate)[self.owner]

    def mixing_of_rows(self, own: Tensor) -> Tensor:
        """Return the matrix that `mixed` applies to the rows, (rows, rows)."""
        others = own - torch.diag(own.diagonal())
        matrix = others[self.owner][:, self.owner] / self.counts[self.owner]
        return matrix + torch.diag(own.diagonal()[self.owner])


class Given(nn.Module):
    """A model whose answers are known: tasks can measure them."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what is given."""
        return self.logits


def bare(x: Features) -> GraphInput:
    """Return rows as a graph without edges: models see each by itself."""
    return GraphInput(x=x, edge_index=torch.empty(2, 0, dtype=torch.int64))
