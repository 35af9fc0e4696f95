"""Self-supervised objectives: what an encoder can learn from a graph without labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.core.errors import refuse
from isthmus.core.record import Params
from isthmus.data.graph import select_rows
from isthmus.learn.augment import Augmentation
from isthmus.learn.contrast import directions
from isthmus.learn.one_or_many import Graphs, means_of_rows
from isthmus.learn.together.layouts import replaced
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import Perceptron, glorot, require_count
from isthmus.models.products.sparse import SparseMatrix


@dataclass(frozen=True)
class SelfSupervision(ABC):
    """Scores an encoder on a graph without its labels.

    An objective is frozen. What it learns besides the encoder (`build`) is shared and averaged like the encoder; what
    it has to remember (`memory`) stays with the client. It has `losses`, or just a `loss` for one client.
    """

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the objective's own parts for representations of this width, drawn from torch's global generator."""

    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss of one client, a scalar with a gradient; `memory` is a copy and may be changed in place."""
        return self.losses(model, own, memory, Graphs.of_one(graph, generator))[0]

    def losses(self, model: Model, own: nn.Module, memory: Params, graphs: Graphs) -> Tensor:
        """Return the loss of each client, (clients,); of many, parameters and `memory` are side by side as graphs are.

        Clients of an objective whose very class does not have this learn alone: it is never inherited.
        """
        raise NotImplementedError

    def memory(self, model: nn.Module) -> Params:
        """Return what a client remembers from the start; here nothing."""
        return {}

    def remember(self, memory: Params, learned: Mapping[str, Tensor], round: int) -> Params:
        """Return what a client remembers after a step in a round, of the model's parameters; here the same.

        Number by number: those of many clients may come as one.
        """
        return memory


@dataclass(frozen=True)
class BGRL(SelfSupervision):
    """L = -2/N sum_i cos(Z_i, H_i) with Z = s(omega(G1)), H = tau(G2), G1 and G2 two random views of the graph.

    omega is the encoder that is trained, s a perceptron that is trained with it, tau the target: a copy that only this
    client has. No gradient flows into it; after every step its parameters become decay * tau + (1 - decay) * omega.
    decay rises from its start to 1 as half a cosine: 1 - (1 - start) (1 + cos(pi t / rounds)) / 2 in round t. Both
    encoders run as in training: batch norm takes the view's own statistics, which the target keeps apart. A row of
    zeros has no direction, and its cosine is 0.

    Fields:
        first:     the view that the encoder sees
        second:    the view that the target sees
        hidden:    width of s between its two maps
        decay:     share of the target that stays, at the start
        rounds:    round at which it stands still; give it the rounds of the course
        symmetric: whether the loss with the two views exchanged is added, and the sum halved
    """

    first: Augmentation = Augmentation(edges=0.2, features=0.2)
    second: Augmentation = Augmentation(edges=0.2, features=0.1)
    hidden: int = 512
    decay: float = 0.99
    rounds: int = 1000
    symmetric: bool = False

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("rounds", self.rounds)
        refuse(not 0.0 <= self.decay <= 1.0, self, "decay", "it must be in [0, 1]")

    def build(self, width: int) -> nn.Module:
        """Return s."""
        return nn.ModuleDict({"predictor": Perceptron([width, self.hidden, width])})

    def memory(self, model: nn.Module) -> Params:
        """Return the target as it begins: a copy of the encoder."""
        return {name: slot.detach().clone() for name, slot in _encoder(model).items()}

    def losses(self, model: Model, own: nn.Module, memory: Params, graphs: Graphs) -> Tensor:
        """Return the losses, scaled as in equation 5 of FedGRL (Suresh et al., 2022)."""
        first, second = graphs.view(self.first), graphs.view(self.second)
        found = self._one_way(model, own, first, second, memory, graphs.generator)  # (nodes,)
        if self.symmetric:
            found = 0.5 * (found + self._one_way(model, own, second, first, memory, graphs.generator))
        return graphs.means(found)

    def remember(self, memory: Params, learned: Mapping[str, Tensor], round: int) -> Params:
        """Return the target a little nearer to the encoder; its running statistics are its own."""
        share = 1.0 - self.decay_at(round)
        with torch.no_grad():
            return {n: t.lerp(learned[n].detach(), share) if n in learned else t for n, t in memory.items()}

    def decay_at(self, round: int) -> float:
        """Return the decay of a round."""
        progress = min(1.0, round / self.rounds)
        return 1.0 - (1.0 - self.decay) * (1.0 + math.cos(math.pi * progress)) / 2.0

    def _one_way(
        self, model: Model, own: nn.Module, seen: GraphInput, other: GraphInput, memory: Params, generator: Any
    ) -> Tensor:
        assert isinstance(own, nn.ModuleDict)
        h = model.embed(seen, generator)  # (nodes, width)
        z = own["predictor"](seen, h, generator)
        with torch.no_grad(), replaced(model, memory):
            target = model.embed(other, generator)
        return -2.0 * (directions(z) * directions(target)).sum(dim=1)


def _encoder(model: nn.Module) -> Params:
    return {name: slot for name, slot in model.state_dict().items() if not name.startswith("decoder.")}


@dataclass(frozen=True)
class GRACE(SelfSupervision):
    """The mean over nodes i and both directions of -log( e(u_i, v_i) / sum_k (e(u_i, v_k) + [k != i] e(u_i, u_k)) ).

    u and v are a perceptron's outputs for the encoder's representations of two random views, e(a, b) =
    exp(cos(a, b) / tau). That compares every node with every other; of a graph with more than `max_nodes` nodes, so
    many are drawn at random in every step, and compared among themselves.

    Fields:
        first, second: the two views
        hidden:        width of the perceptron between its two maps
        tau:           temperature
        max_nodes:     nodes that are compared at most
    """

    first: Augmentation = Augmentation(edges=0.2, features=0.3)
    second: Augmentation = Augmentation(edges=0.4, features=0.4)
    hidden: int = 128
    tau: float = 0.5
    max_nodes: int = 1024

    def __post_init__(self) -> None:
        require_count("hidden", self.hidden)
        require_count("max_nodes", self.max_nodes, least=2)
        refuse(not 0.0 < self.tau < float("inf"), self, "tau", "a temperature is above 0")

    def build(self, width: int) -> nn.Module:
        """Return the perceptron."""
        return nn.ModuleDict({"projector": Perceptron([width, self.hidden, width])})

    def losses(self, model: Model, own: nn.Module, memory: Params, graphs: Graphs) -> Tensor:
        """Return the losses."""
        views = graphs.view(self.first), graphs.view(self.second)
        chosen = [self._chosen(graph, draw) for graph, draw in zip(graphs.own, graphs.draws, strict=True)]
        u, v = (graphs.apart(self._pointing(model, own, view, graphs.generator)) for view in views)
        return torch.stack([self._of_pairs(*each) for each in zip(u, v, chosen, strict=True)])

    def _chosen(self, graph: GraphInput, generator: torch.Generator) -> Tensor | None:
        """Return the nodes that are compared; None for all."""
        if graph.num_nodes <= self.max_nodes:
            return None
        drawn = torch.randperm(graph.num_nodes, generator=generator)[: self.max_nodes]
        return drawn.to(graph.edge_index.device)

    def _pointing(self, model: Model, own: nn.Module, view: GraphInput, generator: Any) -> Tensor:
        """Return the directions of all nodes, (nodes, width)."""
        assert isinstance(own, nn.ModuleDict)
        return directions(own["projector"](view, model.embed(view, generator), generator))

    def _of_pairs(self, u: Tensor, v: Tensor, chosen: Tensor | None) -> Tensor:
        if chosen is not None:
            u, v = u.index_select(0, chosen), v.index_select(0, chosen)
        return 0.5 * (self._told_apart(u, v) + self._told_apart(v, u))

    def _told_apart(self, u: Tensor, v: Tensor) -> Tensor:
        between = u @ v.t() / self.tau  # (nodes, nodes)
        within = (u @ u.t() / self.tau).fill_diagonal_(-torch.inf)
        return (torch.cat([between, within], dim=1).logsumexp(dim=1) - between.diagonal()).mean()


@dataclass(frozen=True)
class DGI(SelfSupervision):
    """-1/(2N) (sum_i log D(h_i, s) + sum_j log(1 - D(h~_j, s))), D(h, s) = sigmoid(h^T W s), s = sigmoid(mean of h).

    h are the encoder's representations of the graph, h~ those of the same graph with its rows of features shuffled.
    """

    def build(self, width: int) -> nn.Module:
        """Return W."""
        return Discriminator(width)

    def losses(self, model: Model, own: nn.Module, memory: Params, graphs: Graphs) -> Tensor:
        """Return the losses."""
        assert isinstance(own, Discriminator)
        whole, sizes = graphs.whole, [graph.num_nodes for graph in graphs.own]
        order = torch.arange(whole.num_nodes)
        for first, size, draw in zip(range(0, len(order), graphs.rows), sizes, graphs.draws, strict=True):
            order[first : first + size] = torch.randperm(size, generator=draw) + first
        shuffled = whole.replace(x=_rows(whole.x, order.to(whole.edge_index.device)))
        real, false = (model.embed(graph, graphs.generator) for graph in (whole, shuffled))
        summary = torch.stack([rows.mean(dim=0) for rows in graphs.apart(real)]).sigmoid()
        direction = own.weight @ summary.unsqueeze(2)  # (clients, width, 1)
        scores = (rows.view(len(sizes), -1, rows.shape[1]).bmm(direction).flatten() for rows in (real, false))
        found = [means_of_rows(F.softplus(sign * each), sizes) for sign, each in zip((-1, 1), scores, strict=True)]
        return 0.5 * (found[0] + found[1])


class Discriminator(nn.Module):
    """The W of D(h, s) = sigmoid(h^T W s)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = glorot(width, width)


def _rows(x: Tensor | SparseMatrix, order: Tensor) -> Tensor | SparseMatrix:
    if isinstance(x, SparseMatrix):
        return SparseMatrix.from_csr(select_rows(x.to_csr(), order))
    return x.index_select(0, order)


@dataclass(frozen=True)
class GAE(SelfSupervision):
    """The mean over edges of -log sigmoid(<h_i, h_j>), plus the mean over pairs without edge of -log(1 - the same).

    Edges that are used are drawn at random in every step, `max_edges` at most, and as many random pairs of nodes;
    those of them that are joined, or the same node twice, do not count.

    Fields:
        max_edges: edges that are looked at in a step, at most
    """

    max_edges: int = 50_000

    def __post_init__(self) -> None:
        require_count("max_edges", self.max_edges)

    def build(self, width: int) -> nn.Module:
        """Return nothing: the decoder is the inner product."""
        return nn.ModuleDict()

    def losses(self, model: Model, own: nn.Module, memory: Params, graphs: Graphs) -> Tensor:
        """Return the losses; a graph without edges has pairs to keep apart only."""
        rows = graphs.apart(model.embed(graphs.whole, graphs.generator))
        return torch.stack([self._of_one(*each) for each in zip(rows, graphs.own, graphs.draws, strict=True)])

    def _of_one(self, h: Tensor, graph: GraphInput, generator: torch.Generator) -> Tensor:
        edges, number = graph.edge_index, graph.num_nodes
        if edges.shape[1] > self.max_edges:
            chosen = torch.randint(edges.shape[1], (self.max_edges,), generator=generator)
            joined = edges[:, chosen.to(edges.device)]
        else:
            joined = edges
        pairs = torch.randint(number, (2, max(joined.shape[1], 1)), generator=generator).to(edges.device)
        apart = pairs[:, ~_joined(pairs, edges, number)]
        total = h.sum() * 0.0
        for ends, sign in ((joined, -1.0), (apart, 1.0)):
            if ends.shape[1]:
                products = (h.index_select(0, ends[0]) * h.index_select(0, ends[1])).sum(dim=1)
                total = total + F.softplus(sign * products).mean()
        return total


def _joined(pairs: Tensor, edges: Tensor, number: int) -> Tensor:
    """Return which pairs are an edge, in either direction, or a node with itself, (pairs,)."""
    keys = torch.unique(torch.cat([edges[0] * number + edges[1], edges[1] * number + edges[0]]))
    wanted = pairs[0] * number + pairs[1]
    place = torch.searchsorted(keys, wanted).clamp_(max=max(len(keys) - 1, 0))
    found = keys[place] == wanted if len(keys) else torch.zeros_like(wanted, dtype=torch.bool)
    return found | (pairs[0] == pairs[1])


SELF_SUPERVISIONS: dict[str, type[SelfSupervision]] = {"bgrl": BGRL, "grace": GRACE, "dgi": DGI, "gae": GAE}

__all__ = ["BGRL", "DGI", "GAE", "GRACE", "SELF_SUPERVISIONS", "SelfSupervision"]
