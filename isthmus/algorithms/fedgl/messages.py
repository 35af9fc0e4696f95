"""What FedGL's server and clients send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.core.protocol import Request
from isthmus.core.record import Params, Record
from isthmus.models.products.sparse import Pattern, SparseMatrix

NO_LABEL = -1
MAX_EMBEDDING = 1e15


@dataclass(frozen=True)
class NodeList(Record):
    """Which nodes a client holds."""

    ids: Tensor
    """(nodes,), int64: the same number at two clients is the same node. Between sites a keyed hash, whose key the
    server does not have: it learns how many nodes each client has, which nodes clients have in common, and nothing
    that could be looked up. In simulation, the node's index."""
    classes: tuple[str, ...]
    """The names of the classes, in the order of the predictions' columns."""


@dataclass(frozen=True)
class ShareNodes(Request[NodeList]):
    """Asks a client that the server has not met which nodes it holds."""

    def problem(self, reply: NodeList) -> str:
        """Return what is wrong with a list of nodes."""
        if reply.ids.ndim != 1 or reply.ids.dtype != torch.int64:
            return f"ids has shape {tuple(reply.ids.shape)} of {reply.ids.dtype}, expected (nodes,) of torch.int64"
        if not reply.classes:
            return "classes is empty; there is nothing to predict"
        repeated = first_repeated(reply.ids)
        return f"ids holds {repeated} twice; every node has an id of its own" if repeated is not None else ""

    def num_nodes(self, reply: NodeList) -> int:
        """Return how many nodes are named."""
        return len(reply.ids)

    def common(self, reply: NodeList) -> tuple[str, ...]:
        """Return the classes in their order: predictions are fused class by class."""
        return reply.classes


@dataclass(frozen=True)
class Guidance(Record):
    """What the server has found out about a client's own nodes, and about no others."""

    labels: Tensor
    """(nodes,), int32: the pseudo label of each of the client's nodes, -1 for none: what others think of the node."""
    start: Tensor
    """(nodes + 1,), int32: the pseudo graph's edges of node i are those from start[i] to start[i + 1]."""
    neighbors: Tensor
    """(edges,), int32: which of the client's own nodes are similar in the eyes of all clients that hold them."""
    weights: Tensor
    """(edges,): how similar, as a share of what the node has in the pseudo graph of all nodes."""

    def problem(self, num_nodes: int) -> str:
        """Return what keeps this from being about so many nodes; nothing if it is.

        Kernels for sparse matrices trust their indices, and memory is taken by what `start` says.
        """
        whole = (self.labels, self.start, self.neighbors)
        if any(t.ndim != 1 or t.dtype != torch.int32 for t in whole) or self.weights.shape != self.neighbors.shape:
            return "labels, start and neighbors are lists of int32, weights one of as many numbers as neighbors"
        if len(self.labels) != num_nodes or len(self.start) != num_nodes + 1:
            return f"it is about {len(self.labels)} nodes, with {len(self.start)} beginnings of rows, not {num_nodes}"
        ends = int(self.start[0]), int(self.start[-1])
        if ends != (0, len(self.neighbors)) or bool((self.start.diff() < 0).any()):
            return f"rows lie from {ends[0]} to {ends[1]} of {len(self.neighbors)} edges, or not one after the other"
        if len(self.neighbors) and not 0 <= int(self.neighbors.min()) <= int(self.neighbors.max()) < num_nodes:
            return f"neighbors is from {int(self.neighbors.min())} to {int(self.neighbors.max())}"
        return ""

    @property
    def graph(self) -> SparseMatrix:
        """The projection of the pseudo graph on the client's nodes, (nodes, nodes)."""
        nodes = len(self.labels)
        return SparseMatrix(Pattern(self.start, self.neighbors, (nodes, nodes)), self.weights)


@dataclass(frozen=True)
class View(Record):
    """How a client sees its nodes."""

    # What has a row for each node, and whether a row is of probabilities (guard row_noise).
    row_fields: ClassVar[Mapping[str, bool]] = {"predictions": True, "embeddings": False}

    predictions: Tensor
    """(nodes, classes): the class probabilities P_k; labels of training nodes can be read off them."""
    embeddings: Tensor
    """(nodes, width): the representations H_k; close to what the predictions are made of, and as telling."""


@dataclass(frozen=True)
class LocalView(Record):
    """What a client has learned: its model, and how it sees its nodes."""

    params: Params
    """The client's parameters W_k; alone they reveal much about its graph, and the server sees each client's."""
    weight: float
    """The client's number of nodes N_k; 0 if it had nothing to train on."""
    view: View
    """Predictions and embeddings of the client's nodes."""


@dataclass(frozen=True)
class TrainWithGuidance(Request[LocalView]):
    """Asks a client to train the global model on its own graph, complemented by what others know of its nodes."""

    params: Params
    """The global model."""
    guidance: Guidance
    """What the server has found out about this client's nodes."""
    num_classes: int = 0
    """How many columns predictions have; 0 for any number."""
    width: int = 0
    """How many columns embeddings have; 0 as long as nobody has said."""

    def problem(self, reply: LocalView) -> str:
        """Return what is wrong with the shapes or the numbers of a view."""
        nodes, view = len(self.guidance.labels), reply.view
        for name, columns in (("predictions", self.num_classes), ("embeddings", self.width)):
            found = getattr(view, name)
            fits = found.ndim == 2 and len(found) == nodes and found.shape[1] == (columns or found.shape[1])
            if not fits or not found.is_floating_point():
                wanted = f"({nodes}, {columns or 'any'})"
                return f"view.{name} has shape {tuple(found.shape)} of {found.dtype}, expected {wanted} of floats"
        if view.predictions.numel() and not all(
            -1e-3 <= float(end) <= 1.0 + 1e-3 for end in view.predictions.aminmax()
        ):
            return "view.predictions holds numbers that are no probabilities"
        if view.embeddings.numel() and float(view.embeddings.abs().max()) > MAX_EMBEDDING:
            return f"view.embeddings holds numbers beyond {MAX_EMBEDDING:g}, whose products overflow"
        return ""

    def common(self, reply: LocalView) -> int:
        """Return the width of the embeddings, which nobody knows before the first views."""
        return reply.view.embeddings.shape[1]


def first_repeated(ids: Tensor) -> int | None:
    """Return the smallest id that is there more than once, if any is."""
    ordered = ids.sort().values
    twice = ordered[1:] == ordered[:-1]
    return int(ordered[1:][twice][0]) if bool(twice.any()) else None
