"""GRACE: the two views of a node are told apart from all other nodes' views. Zhu et al. (2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.selfsup.objective import SelfSupervision
from isthmus.core.record import Params
from isthmus.learn.augment import Augmentation
from isthmus.learn.contrast import directions
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import Perceptron, require_count


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
        if not 0.0 < self.tau < float("inf"):
            raise ValueError(f"tau is {self.tau!r}; a temperature is above 0")

    def build(self, width: int) -> nn.Module:
        """Return the perceptron."""
        return nn.ModuleDict({"projector": Perceptron([width, self.hidden, width])})

    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss."""
        assert isinstance(own, nn.ModuleDict)
        views = self.first.view(graph, generator), self.second.view(graph, generator)
        number = graph.num_nodes
        chosen = None
        if number > self.max_nodes:
            chosen = torch.randperm(number, generator=generator)[: self.max_nodes]
        pointing = []
        for view in views:
            h = model.embed(view, generator)
            h = h if chosen is None else h.index_select(0, chosen)
            pointing.append(directions(own["projector"](view, h, generator)))
        u, v = pointing
        return 0.5 * (self._told_apart(u, v) + self._told_apart(v, u))

    def _told_apart(self, u: Tensor, v: Tensor) -> Tensor:
        between = u @ v.t() / self.tau  # (nodes, nodes)
        within = (u @ u.t() / self.tau).fill_diagonal_(-torch.inf)
        return (torch.cat([between, within], dim=1).logsumexp(dim=1) - between.diagonal()).mean()
