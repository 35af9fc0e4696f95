"""What GFL-APPNP's server and clients send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.core.protocol import Kept, Known, Request, unlike
from isthmus.core.record import Params, Record

# Of one client. Its own part of A~ is a dense matrix with so many rows and columns.
MAX_HOSTED = 4096
# A request to train holds no model to compare with.
MAX_PARAMETER = 1e10


@dataclass(frozen=True)
class NeighborList(Record):
    """Which nodes a client hosts, and who their neighbours are."""

    # What says which nodes are joined, and which field names all of the client's own (guard edge_response).
    joins: ClassVar[tuple[str, str]] = ("source", "target")
    joins_among: ClassVar[str] = "nodes"

    nodes: Tensor
    """Keys of the nodes that the client hosts, (hosted,), int64: numbers that name a node for all clients alike."""
    source: Tensor
    """(edges,), int64: a hosted node's key for each of its edges; with `target`, the client's edges by key."""
    target: Tensor
    """(edges,), int64: the key of its neighbour, whoever hosts it."""
    weight: Tensor
    """(edges,), float32: weights of the edges, or nothing where all are one."""
    trains: Tensor
    """(hosted,), bool: which of the nodes have something to train on."""


@dataclass(frozen=True)
class ShareNeighbors(Request[NeighborList]):
    """Asks a client for the edges of its nodes; all that the server ever learns of the graph."""

    def problem(self, reply: NeighborList) -> str:
        """Return what makes a list unusable."""
        if any(t.dtype != torch.int64 or t.ndim != 1 for t in (reply.nodes, reply.source, reply.target)):
            return "nodes, source and target are lists of int64"
        if len(reply.nodes) > MAX_HOSTED:
            return f"{len(reply.nodes)} nodes, of which a client can host {MAX_HOSTED}: each has a row of all others"
        if len(reply.nodes) == 0 or len(torch.unique(reply.nodes)) != len(reply.nodes):
            return f"{len(reply.nodes)} nodes, of which {len(torch.unique(reply.nodes))} are different"
        if len(reply.source) != len(reply.target) or reply.weight.shape not in ((0,), reply.source.shape):
            return "source, target and weight differ in length"
        if reply.trains.shape != reply.nodes.shape or reply.trains.dtype != torch.bool:
            return "trains must have a truth value for each node"
        if not reply.weight.is_floating_point() or bool((reply.weight < 0).any()):
            return "an edge has a negative weight, or one that is no number"
        if not bool(torch.isin(reply.source, reply.nodes).all()):
            return "an edge starts at a node of somebody else"
        return one_sided(reply.nodes, reply.source, reply.target, reply.weight)

    def num_nodes(self, reply: NeighborList) -> int:
        """Return how many nodes the client says that it hosts: its part of A~ has as many rows and columns."""
        return len(reply.nodes)


@dataclass(frozen=True)
class KeepOwnWeights(Request[Kept]):
    """Gives a client its own part of A~."""

    own: Tensor
    """(hosted, hosted): A~ between the client's own nodes; for one node the number A~_kk."""


@dataclass(frozen=True)
class HiddenShare(Record):
    """A client's hidden representations and their gradients."""

    # What has a row for each node, and whether a row is of probabilities (guard row_noise).
    row_fields: ClassVar[Mapping[str, bool]] = {"hidden": False, "gradients": False}

    hidden: Tensor
    """(hosted, classes): h of each node, the mean over its samples; the server sees each client's."""
    gradients: Params
    """d(h_c - h_last) / dW of each node, name -> (hosted, classes - 1, ...); of one sample they reveal its features."""


@dataclass(frozen=True)
class ShareHidden(Request[HiddenShare]):
    """Gives a client the averaged model and asks for what its nodes look like in it."""

    params: Params
    """The averaged model."""
    gradients: bool
    """Whether gradients are wanted too."""

    def problem(self, reply: HiddenShare) -> str:
        """Return what is wrong with the shapes of a share, or with the names of its gradients."""
        rows, found = reply.hidden, reply.gradients
        if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype != torch.float32:
            return f"hidden has shape {tuple(rows.shape)} of {rows.dtype}; a row of float32 for each node is needed"
        if not self.gradients:
            return "gradients were not asked for" if found else ""
        odd = sorted(self.params.keys() ^ found.keys())
        if odd:
            return f"gradients: {odd[0]!r} is in the request or in the reply only"
        for name, slot in self.params.items():
            fitting = (len(rows), rows.shape[1] - 1, *slot.shape)
            if found[name].shape != fitting or found[name].dtype != torch.float32:
                return (
                    f"gradients[{name!r}] has shape {tuple(found[name].shape)} of {found[name].dtype}; with this "
                    f"hidden it must be {fitting} of float32"
                )
        return ""

    def num_nodes(self, reply: HiddenShare) -> int:
        """Return of how many nodes there are representations."""
        return len(reply.hidden)

    def common(self, reply: HiddenShare) -> int:
        """Return the number of classes, which most clients know; none of them has to be trusted with it."""
        return reply.hidden.shape[1]


@dataclass(frozen=True)
class ReceiveAggregates(Request[Kept]):
    """Gives a client what its neighbours amount to: sums over other clients.

    A sum over one other client would reveal what that one shared; it is withheld, unless `min_sources` is 1.
    """

    aggregate: Tensor
    """(hosted, classes): C of each node, the sum over nodes j of other clients of A~_kj h_j; of one j, h_j itself."""
    gradients: Params
    """grad C of each node that is trained on, name -> (nodes, classes - 1, ...), likewise; may be empty."""


@dataclass(frozen=True)
class TrainWithAggregates(Request[ModelUpdate]):
    """Tells a client to train the averaged model with the aggregates that it has received."""

    def misfit(self, reply: ModelUpdate, known: Known) -> str:
        """Return how a model differs from the course's."""
        return unlike("params", reply.params, known.params) if known.params else ""

    def limits(self, known: Known) -> dict[str, float]:
        """Return how large a model's numbers may become."""
        return {"params": MAX_PARAMETER}


def one_sided(nodes: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> str:
    """Return which edge between nodes of one list it names in one direction only; nothing if there is none."""
    given = weight.double() if len(weight) else torch.ones(len(source), dtype=torch.float64)
    place = torch.searchsorted(nodes.sort().values, torch.stack([source, target]))
    inner = torch.isin(target, nodes) & (source != target)
    (u, v), given = place[:, inner], given[inner]
    there, order = torch.unique(u * len(nodes) + v, return_inverse=True)
    back = torch.unique(v * len(nodes) + u)
    if torch.equal(there, back):
        first = torch.zeros(len(there), dtype=torch.float64).index_put_((order.flip(0),), given.flip(0))
        reverse = first[torch.searchsorted(there, (there % len(nodes)) * len(nodes) + there // len(nodes))]
        if bool(((first - reverse).abs() <= 1e-6 * torch.maximum(first, reverse)).all()):
            return ""
    return "an edge between its own nodes is named in one direction only, or with two weights"
