"""FedAvg: clients train the global model on their own graphs, the server averages. McMahan et al., 2017."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Algorithm, ModelState, Request, cohort, on
from isthmus.core.record import Params, Record
from isthmus.core.stacked_replies import Each, Stack
from isthmus.learn.fit import Fitted, Loss, Penalty
from isthmus.learn.graph_client import GraphClient, check_local_steps
from isthmus.learn.optimizers import SGD, Optimizer
from isthmus.learn.together.stacked_clients import GraphCohort, StackedLoss

WEIGHTINGS = ("examples", "nodes", "uniform")


@dataclass(frozen=True)
class ModelUpdate(Record):
    """A client's model after local training."""

    params: Params
    """The client's parameters; alone they would reveal much about its graph, so the server asks for their mean."""
    weight: float
    """The client's share in the mean: its number of training examples, or of nodes."""


@dataclass(frozen=True)
class TrainModel(Request[ModelUpdate]):
    """Asks a client to train the global model on its own graph."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class FedAvg(Algorithm[ModelState]):
    """Clients train the global model on their own graphs; the server averages by size.

    w <- sum_k n_k w_k / sum_k n_k, where w_k is w after `local_steps` steps on client k.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Fields:
        local_steps: steps between two messages
        step_unit:   a step is one "batch", or one "epoch" over the training examples (the same for full batches)
        optimizer:   the clients' optimiser, started anew every round
        weighting:   n_k is the number of training "examples", of "nodes", or the same for all ("uniform")
        keep_moments: whether each client's optimiser goes on from round to round; its moments are in the client's
                     memory under `optimizer`
    """

    local_steps: int = 4
    step_unit: str = "batch"
    optimizer: Optimizer = SGD(lr=0.25, weight_decay=5e-4)
    weighting: str = "examples"
    keep_moments: bool = False

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)
        if self.weighting not in WEIGHTINGS:
            raise ValueError(f"weighting is {self.weighting!r}; choose from {', '.join(WEIGHTINGS)}")

    # ---- server

    def setup(self, fed: Federation) -> ModelState:
        """Start from the course's initial model."""
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Send the model out, take the mean back."""
        mean = fed.ask_folded(TrainModel(state.params), weighted_mean)
        return ModelState(mean.params)

    # ---- client

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model; a client without training examples trains nothing and weighs nothing."""
        fitted = self.fitted(request, client, penalty=self.penalty(request, client))
        return ModelUpdate(fitted.params, self.weight(client))

    def fitted(
        self,
        request: TrainModel,
        client: GraphClient,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        prepared: Any = None,
    ) -> Fitted:
        """Return what local training gives; `penalty`, `loss` and `prepared` as in `GraphClient.fit`."""
        found = client.fit(
            request.params,
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            penalty=penalty,
            loss=loss,
            optimizer_state=client.state.get("optimizer") if self.keep_moments else None,
            prepared=self.data_of(client) if prepared is None else prepared,
        )
        if self.keep_moments:
            client.state["optimizer"] = found.optimizer_state
        return found

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> Stack:
        """Train the received model for many clients at once."""
        return self.updates(requests, clients)

    def updates(
        self,
        requests: Sequence[TrainModel],
        clients: GraphCohort,
        proximal: float = 0.0,
        loss: StackedLoss | None = None,
        alters_features: bool = False,
    ) -> Stack:
        """Return the updates of many clients; `proximal`, `loss` and `alters_features` as in `GraphCohort.fit`."""
        alike = all(request is requests[0] for request in requests)
        fitted = clients.fit(
            requests[0].params if alike else [request.params for request in requests],
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            proximal=proximal,
            loss=loss,
            alters_features=alters_features,
            optimizer_states=[client.state.get("optimizer") for client in clients] if self.keep_moments else None,
        )
        for client, kept in zip(clients, fitted.optimizer_states, strict=False):  # none, unless they are kept
            client.state["optimizer"] = kept
        return Stack.of(clients.ids, ModelUpdate, params=fitted.params, weight=Each(tuple(map(self.weight, clients))))

    def penalty(self, request: TrainModel, client: GraphClient) -> Penalty | None:
        """Return a term that is added to the local loss; FedAvg has none."""
        return None

    def weight(self, client: GraphClient) -> float:
        """Return n_k; zero for a client that has nothing to train on."""
        if client.num_examples == 0:
            return 0.0
        return {"examples": float(client.num_examples), "nodes": float(client.num_nodes), "uniform": 1.0}[
            self.weighting
        ]
