"""FedAvg: clients train the global model on their own graphs, the server averages. McMahan et al., 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import ModelState, Request, on
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import Penalty


@dataclass(frozen=True)
class ModelUpdate(Record):
    """A client's model after local training."""

    params: Params
    """The client's parameters. A single client's tell which features its nodes have, how its labels are shared, and who
    was trained on; the mean of many tells it of all together."""
    weight: float
    """The client's share in the mean: its number of training examples, or of nodes."""


@dataclass(frozen=True)
class TrainModel(Request[ModelUpdate]):
    """Asks a client to train the global model on its own graph."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class FedAvg(LocalTraining[ModelState]):
    """Clients train the global model on their own graphs; the server averages by size.

    w <- sum_k n_k w_k / sum_k n_k, where w_k is w after `local_steps` steps on client k.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Fields:
        local_steps:  steps between two messages
        step_unit:    a step is one "batch", or one "epoch" over the training examples (the same for full batches)
        optimizer:    the clients' optimiser, started anew every round
        weighting:    n_k is the number of training "examples", of "nodes", or the same for all ("uniform")
        keep_moments: whether each client's optimiser goes on from round to round; its moments are in the client's
                      memory under `optimizer`
        fold:         how the clients' models become one: their weighted mean, or a robust fold
    """

    # Of this very class: all that leaves a client but its scores is made of what `fit` gave (guard example_dp).
    tells_only_models: ClassVar[bool] = True

    fold: Fold = weighted_mean

    # ---- server

    def setup(self, fed: Federation) -> ModelState:
        """Start from the course's initial model."""
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Send the model out, take the mean back."""
        return ModelState(fed.ask_folded(TrainModel(state.params), self.fold).params)

    # ---- client

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model; a client without training examples trains nothing and weighs nothing."""
        fitted = self.fit(request.params, client, penalty=self.penalty(request, client))
        return ModelUpdate(fitted.params, self.weight(client))

    def penalty(self, request: TrainModel, client: GraphClient) -> Penalty | None:
        """Return a term that is added to the local loss; FedAvg has none."""
        return None
