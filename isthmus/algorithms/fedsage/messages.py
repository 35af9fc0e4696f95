"""What FedSage+'s server and clients send each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.protocol import Holdings, Kept, Known, Request
from isthmus.core.record import Params, Record

# What the names of fGen's parameters begin with in a generator.
FEATURES = "features."
# More than any client's graph grows by.
MAX_ADDED = 1e10


@dataclass(frozen=True)
class PretrainGenerator(Request[Kept]):
    """Asks a client to hide some of its nodes and to train its generator on them, alone."""

    params: Params
    """The model that the course starts from: the generator's features are also judged by a classifier."""


@dataclass(frozen=True)
class GeneratorView(Record):
    """What others need to judge the features that a client generates. No features of its nodes, and no edges."""

    params: Params
    """The client's fGen, trained on its hidden nodes' features, of which it tells what is typical: of words, little
    more by default than what is typical of all nodes; but who knows the features of many nodes guesses by it which of
    them the client holds."""
    inputs: Tensor
    """(nodes, latent): embeddings of the client's visible nodes that lack neighbours, with Gaussian noise: each tells
    about the features around one node. The server and all peers see each client's."""
    counts: Tensor
    """(nodes,), int64: how many neighbours the client believes each of them to lack."""


@dataclass(frozen=True)
class ShareGenerator(Request[GeneratorView]):
    """Asks a client for its feature generator and for embeddings of its nodes."""

    latent: int
    """Columns of the embeddings."""
    hidden: int
    """Width of the feature generator's hidden layer."""
    num_generated: int
    """Neighbours that a node can be given."""

    def problem(self, reply: GeneratorView) -> str:
        """Return what is wrong with the shapes or the numbers of a view."""
        weight = reply.params.get("slot_weight", torch.empty(0))
        columns = weight.shape[2] if weight.ndim == 3 else 0
        wanted = {
            "hidden_weight": (self.latent, self.hidden),
            "hidden_bias": (self.hidden,),
            "slot_weight": (self.num_generated, self.hidden, columns),
            "slot_bias": (self.num_generated, columns),
        }
        if reply.params.keys() != wanted.keys():
            return f"params has {sorted(reply.params)}, expected {sorted(wanted)}"
        for name, shape in wanted.items():
            if tuple(reply.params[name].shape) != shape or reply.params[name].dtype != torch.float32:
                found = reply.params[name]
                return f"params[{name!r}] has shape {tuple(found.shape)} of {found.dtype}, expected {shape} of floats"
        inputs, counts = reply.inputs, reply.counts
        if inputs.ndim != 2 or inputs.shape[1] != self.latent or inputs.dtype != torch.float32:
            return (
                f"inputs has shape {tuple(inputs.shape)} of {inputs.dtype}, expected (nodes, {self.latent}) of floats"
            )
        if counts.shape != inputs.shape[:1] or counts.dtype != torch.int64:
            return f"counts has shape {tuple(counts.shape)} of {counts.dtype}, expected ({len(inputs)},) of torch.int64"
        if columns == 0:
            return f"params['slot_weight'] has shape {tuple(weight.shape)}: it generates no features"
        if len(counts) and not 1 <= int(counts.min()) <= int(counts.max()) <= self.num_generated:
            return f"counts is from {int(counts.min())} to {int(counts.max())}, expected 1 to {self.num_generated}"
        return ""

    def num_nodes(self, reply: GeneratorView) -> int:
        """Return of how many nodes there are embeddings."""
        return len(reply.inputs)

    def common(self, reply: GeneratorView) -> int:
        """Return the number of features that the generator gives: peers hold them against their own."""
        return int(reply.params["slot_weight"].shape[2])


@dataclass(frozen=True)
class GeneratorGradients(Record):
    """How a client would change the others' generators, so that they give nodes as it has them."""

    gradients: dict[str, Params]
    """By client, the gradient of sum_v sum_p min_u |x_v^p - x_u|^2 over the peer's own nodes u; zero for itself. A sum
    over the client's generated features; but who generates few can solve for the features of the nearest nodes. So the
    server asks for the mean over all clients alone, and only that goes on to the client."""
    weight: float
    """1: all count the same."""


@dataclass(frozen=True)
class GradeGenerators(Request[GeneratorGradients]):
    """Asks a client to hold the others' generated features against its own nodes."""

    views: dict[str, GeneratorView]
    """Every client's feature generator and embeddings, by client."""

    def max_weight(self, held: Holdings) -> float:
        """Return 1: all count the same."""
        return 1.0

    def misfit(self, reply: GeneratorGradients, known: Known) -> str:
        """Return what is wrong with the names or the shapes of gradients, or with the weight."""
        if reply.gradients.keys() != self.views.keys():
            return f"gradients are for {sorted(reply.gradients)}, expected {sorted(self.views)}"
        for client, view in self.views.items():
            shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in view.params.items()}
            if {name: (tensor.shape, tensor.dtype) for name, tensor in reply.gradients[client].items()} != shapes:
                return f"the gradients for {client} do not have the shapes of its generator"
        return "" if reply.weight == 1.0 else f"weight is {reply.weight}, expected 1"


@dataclass(frozen=True)
class UpdateGenerator(Request[Kept]):
    """Asks a client to take a step with its generator."""

    gradients: Params
    """The sum of what all peers found for the client's feature generator."""


@dataclass(frozen=True)
class MendedGraph(Record):
    """How much was added to a graph; the server sees only the mean."""

    num_generated: float
    """Generated neighbours."""
    num_nodes: float
    """The client's own nodes."""
    weight: float
    """1: all count the same."""


@dataclass(frozen=True)
class MendGraph(Request[MendedGraph]):
    """Asks a client to add the neighbours that its generator gives to its graph, for all rounds to come."""

    def problem(self, reply: MendedGraph) -> str:
        """Return which number cannot be."""
        for name in ("num_generated", "num_nodes"):
            if not 0.0 <= getattr(reply, name) <= MAX_ADDED:
                return f"{name} is {getattr(reply, name):g}; it must be in [0, {MAX_ADDED:g}]"
        return "" if reply.weight == 1.0 else f"weight is {reply.weight:g}, expected 1"
