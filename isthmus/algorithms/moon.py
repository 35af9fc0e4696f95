"""MOON: representations are drawn towards the global model's and away from the client's own of the round before.

Li, He and Song (2021), "Model-contrastive federated learning".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.client import NotTogether
from isthmus.core.errors import BadInput, refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.metrics.classification import Examples
from isthmus.learn.optimizers import BothWays
from isthmus.learn.tasks.node_classification import NodeBatch, NodeClassification
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.layouts import replaced
from isthmus.learn.together.stacked_clients import Frozen, GraphCohort, StackedLoss
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import Part

# No vector is divided by less than this, however short it is.
NO_LENGTH = 1e-8


@dataclass(frozen=True)
class MOON(FedAvg):
    """Clients learn with a contrast between the received model and what they made of an earlier one.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    In every local step a client minimises, over the examples of its batch,

        L = L_task + mu mean_i log(1 + exp((cos(z_i, p_i) - cos(z_i, g_i)) / tau))

    which is the paper's -log( e^(cos(z, g) / tau) / (e^(cos(z, g) / tau) + e^(cos(z, p) / tau)) ). z is the
    representation by the model in training, g by the received model and p by the client's own model at the end of the
    last round in which it trained; both are frozen and run without dropout. A representation is what the model's last
    part sees: the row of a node, or of a graph after a readout; for other tasks every node of the batch counts. The
    paper puts a projection head before the classifier; here that is a matter of the model (a decoder).

    A client that trains for the first time has no model of its own yet. The paper's start, where it is the received
    one, has a contrast without slope; so the term is left out. With mu = 0 this is FedAvg. Nothing more is sent than in
    FedAvg.

    A client remembers `previous`, the model it trained last.

    Fields:
        mu:  strength of the contrast; 0 leaves it out
        tau: its temperature
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.mu < float("inf"), self, "mu", "it must be at least 0")
        refuse(not 0.0 < self.tau < float("inf"), self, "tau", "a temperature is above 0")

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model with the contrast and remember the outcome."""
        fitted = self.fit(request.params, client, loss=self.loss(request.params, client))
        if self.mu and client.num_examples:
            client.state["previous"] = fitted.params
        return ModelUpdate(fitted.params, self.weight(client))

    def loss(self, received: Params, client: GraphClient) -> BothWays | None:
        """Return the loss with the contrast; the task's own when there is nothing to contrast."""
        previous: Params | None = client.state.get("previous")
        if not self.mu or previous is None:
            return None
        sides = frozen_sides(client, received, previous)

        def loss(model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
            watched = Watched(model)
            total = client.task.loss(watched, batch, generator)
            rows = batch.index if isinstance(batch, NodeBatch) else slice(None)
            toward, away = (side[rows] for side in sides(batch.graph))
            return total + self.mu * contrast(watched.seen[rows], toward, away, self.tau).mean()

        return BothWays(loss, self.loss_together, (received, previous))

    def loss_together(self, clients: GraphCohort, models: Sequence[tuple[Params, Params]]) -> StackedLoss:
        """Return what `loss` does for many clients side by side."""
        if type(clients.task) is not NodeClassification:
            raise NotTogether(f"which rows are examples of {type(clients.task).__name__} is not known for many clients")
        index, labels, sizes = clients.data.splits["train"]
        toward, away = (_stacked_representations(clients, each)[index] for each in zip(*models, strict=True))
        gap, examples = gap_between(toward, away), Examples.of(index, labels, sizes)

        def loss(model: nn.Module, data: StackedData, streams: Streams, frozen: Frozen) -> Tensor:
            watched = Watched(model)
            total = clients.task.stacked_loss(watched, data, streams)  # (clients,)
            each = contrast_along(gap, watched.seen.index_select(0, index), self.tau)
            return total.index_add(0, examples.owner, each * examples.weights, alpha=self.mu)  # each client's mean

        return loss


def contrast(z: Tensor, toward: Tensor, away: Tensor, tau: float) -> Tensor:
    """Return log(1 + exp((cos(z_i, away_i) - cos(z_i, toward_i)) / tau)) of every row, (rows,)."""
    return contrast_along(gap_between(toward, away), z, tau)


def gap_between(toward: Tensor, away: Tensor) -> Tensor:
    """Return the difference of the directions of two sides, which stay what they are while z is trained."""
    return functional.normalize(away, dim=1, eps=NO_LENGTH) - functional.normalize(toward, dim=1, eps=NO_LENGTH)


def contrast_along(gap: Tensor, z: Tensor, tau: float) -> Tensor:
    """Return `contrast`, where cos(z, away) - cos(z, toward) is <z, gap> / |z|."""
    length = torch.linalg.vector_norm(z, dim=1).clamp_min(NO_LENGTH)
    return functional.softplus((z * gap).sum(dim=1) / (length * tau))


def frozen_sides(client: GraphClient, *models: Params) -> Callable[[GraphInput], list[Tensor]]:
    """Return what gives the representations of a graph by each of some models, without gradient or dropout.

    Those of the last graph are kept: with full batches it is the same in every step.
    """
    _require_able(client)
    kept: list[tuple[GraphInput, list[Tensor]]] = []

    def sides(graph: GraphInput) -> list[Tensor]:
        if not kept or kept[0][0] is not graph:
            complete = [client.complete(params) for params in models]
            kept[:] = [(graph, [_representations(client.model, params, graph) for params in complete])]
        return kept[0][1]

    return sides


def _representations(model: nn.Module, params: Params, graph: GraphInput) -> Tensor:
    with torch.no_grad(), replaced(model, params):
        return _seen_by(model, graph)


def _stacked_representations(clients: GraphCohort, models: Sequence[Params]) -> Tensor:
    """Return the representations of all clients' graphs by each one's model, (nodes of all, width)."""
    with torch.no_grad(), clients.holding(models) as data:
        return _seen_by(clients.model, data.graph)


def _seen_by(model: nn.Module, graph: GraphInput) -> Tensor:
    """Return what the model's last part sees."""
    assert isinstance(model, Model)
    h = model.embed(graph, None)
    return h if model.readout is None else model.readout(graph, h, None)


def _require_able(client: GraphClient) -> None:
    if type(client.model) is not Model:
        raise BadInput(
            f"MOON needs a model in two pieces, representations and classifier; {type(client.model).__name__} is none "
            "of this package's"
        )


class Watched(Model):
    """A model, made of another's parts, that keeps the representations its last part saw in `seen`."""

    seen: Tensor

    def __init__(self, model: nn.Module) -> None:
        assert isinstance(model, Model)
        super().__init__(model.encoder, model.gnn, model.readout, model.decoder, model.activation)

    def embed(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the nodes' representations."""
        self.seen = super().embed(graph, generator)
        return self.seen

    def classify(self, graph: GraphInput, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return scores; after a readout, the graphs' rows are what was seen."""
        if self.readout is None or not isinstance(self.decoder, Part):
            return super().classify(graph, h, generator)
        self.seen = self.readout(graph, h, generator)
        return self.decoder(graph, self.seen, generator)

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `classify` of `embed`; no shorter way, for it would not pass the representations."""
        return self.classify(graph, self.embed(graph, generator), generator)
