"""The nodes that a client hosts: how what is said of them mixes within it, and what clients share of them.

Hidden representations of hosted nodes and their gradients, as in GFL-APPNP (Wu et al., 2022):

    h_k,s = encoder(x_k,s; W)        h_k = mean over s of h_k,s        d h_k / d W, a Jacobian (classes x parameters)

Jacobians are only ever multiplied by softmax(z) - y, whose entries add up to 0. So only the differences of their rows
to the last row count, and gradients have classes - 1 rows here: row c is d(h_c - h_last) / d W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params
from isthmus.data.graph import select_rows
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import load_params
from isthmus.learn.together.blocks import stackable
from isthmus.learn.together.layouts import replaced
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
        owner = torch.arange(x.shape[0], device=prepared.graph.edge_index.device) if owner is None else owner
        return Hosted(x, owner, torch.bincount(owner), prepared.index["train"], prepared.labels["train"])

    @staticmethod
    def joined(hosts: Sequence[Hosted]) -> Hosted:
        """Return the samples of many clients one after the other, with nothing to train on; of one, they stay."""
        if len(hosts) == 1:
            return hosts[0]
        before = accumulate((host.num_nodes for host in hosts), initial=0)
        nothing = hosts[0].owner[:0]
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
    place = (x.values if isinstance(x, SparseMatrix) else x).device
    return GraphInput(x=x, edge_index=torch.empty(2, 0, dtype=torch.int64, device=place))


def hidden(model: nn.Module, params: Params, x: Features) -> Tensor:
    """Return the encoder's output for every row, (rows, classes)."""
    load_params(model, params)
    with torch.no_grad():
        found: Tensor = model(bare(x), None)
    return found


def gradients_together(model: nn.Module, params: Params, x: Tensor, owner: Tensor, counts: Tensor) -> Params:
    """Return the gradients of every node's h, name -> (nodes, classes - 1, ...), one backward pass for each class.

    Every node gets the parameters as if they were its own, expanded without a copy, so that a pass gives a row of all
    nodes' Jacobians; the model must be one that runs for many clients at once.
    """
    rows, weights = _padded_by_node(owner, counts)
    live = {
        name: params[name].detach().expand(len(counts), *params[name].shape).requires_grad_()
        for name, _ in model.named_parameters()
    }
    stacked = x[rows].flatten(0, 1)  # (nodes * samples, features)
    with replaced(model, live):
        h = model(bare(stacked), None).view(len(counts), rows.shape[1], -1)
    means = (h * weights[..., None]).sum(dim=1)  # (nodes, classes)
    last = means.shape[1] - 1
    found: dict[str, list[Tensor]] = {name: [] for name in live}
    for c in range(last):
        difference = (means[:, c] - means[:, last]).sum()
        grads = torch.autograd.grad(difference, list(live.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(live, grads, strict=True):
            found[name].append(live[name].new_zeros(live[name].shape) if grad is None else grad)
    if last == 1:  # without a copy
        return {name: rows[0].unsqueeze(1) for name, rows in found.items()}
    return {name: torch.stack(rows, dim=1) if rows else live[name][:, None][:, :0] for name, rows in found.items()}


def gradients_one_by_one(model: nn.Module, params: Params, x: Features, hosted: Hosted) -> Params:
    """Return the same for any module: one vector product for each node and class."""
    load_params(model, params)
    live = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
    means = hosted.means(model(bare(x), None))
    last = means.shape[1] - 1
    found = {name: slot.new_zeros(len(means), last, *slot.shape) for name, slot in live.items()}
    for k in range(len(means)):
        for c in range(last):
            grads = torch.autograd.grad(
                means[k, c] - means[k, last], list(live.values()), retain_graph=True, allow_unused=True
            )
            for name, grad in zip(live, grads, strict=True):
                if grad is not None:
                    found[name][k, c] = grad
    return found


def gradients(model: nn.Module, params: Params, hosted: Hosted, at_once: bool = True) -> Params:
    """Return the gradients of h of each hosted node, name -> (hosted, classes - 1, ...), the quickest way there is."""
    if at_once and isinstance(hosted.x, Tensor) and stackable(model):
        return gradients_together(model, params, hosted.x, hosted.owner, hosted.counts)
    return gradients_one_by_one(model, params, hosted.x, hosted)


def add_noise(found: Params, std: float, num_classes: int, stream: ProtectingStream) -> Params:
    """Return gradients as of Jacobians to each of whose entries noise of a standard deviation was added.

    Noise is drawn for all rows of the Jacobian; of it, too, the differences to the last row count.
    """
    noisy = {}
    for name, tensor in found.items():
        shape = (tensor.shape[0], num_classes, *tensor.shape[2:])
        noise = std * stream.normal(shape).to(tensor)
        noisy[name] = tensor + (noise[:, :-1] - noise[:, -1:])
    return noisy


def _padded_by_node(owner: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return each node's rows, filled up with its first, and their share in its mean, both (nodes, most rows)."""
    order = torch.argsort(owner, stable=True)
    start = torch.cumsum(counts, 0) - counts
    place = torch.arange(int(counts.max()), device=counts.device).expand(len(counts), -1)
    real = place < counts[:, None]
    rows = order[start[:, None] + torch.where(real, place, torch.zeros_like(place))]
    return rows, real / counts[:, None]
