"""FedOpt: the mean change of the clients is a gradient for a server optimiser. Reddi et al., 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import ModelState, on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient, LocalTraining

SERVER_OPTIMIZERS = ("sgd", "adam", "yogi", "adagrad")


@dataclass(frozen=True)
class OptimizedState(ModelState):
    """The global model and the server optimiser's moments."""

    momentum: Params
    """First moment m of the mean change."""
    second: Params
    """Second moment v of the mean change; empty for SGD."""


@dataclass(frozen=True)
class FedOpt(LocalTraining[OptimizedState]):
    """The server takes an optimiser step along the clients' mean change d = mean_k(w_k) - w (Algorithm 2 of the paper).

        m <- beta1 m + (1 - beta1) d                          (sgd: m <- beta1 m + d, i.e. momentum as usual)
        v <- v + d^2                                          adagrad
        v <- v - (1 - beta2) d^2 sign(v - d^2)                yogi
        v <- beta2 v + (1 - beta2) d^2                        adam
        w <- w + lr m / (sqrt(v) + tau)                       (sgd: w <- w + lr m)

    v starts at tau^2 and there is no bias correction, as in the paper. Buffers (batch norm statistics) take the plain
    mean. With the server's SGD at lr 1 and beta1 = 0 it is FedAvg.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Fields:
        server:    "sgd", "adam", "yogi" or "adagrad"
        server_lr: lr above
        beta1, beta2, tau: as above
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    # Of this very class: all that leaves a client but its scores is made of what `fit` gave (guard example_dp).
    tells_only_models: ClassVar[bool] = True

    server: str = "sgd"
    server_lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.server not in SERVER_OPTIMIZERS, self, "server", f"choose from {', '.join(SERVER_OPTIMIZERS)}")
        if not self.server_lr > 0 or not self.tau > 0:
            raise ValueError(f"server_lr is {self.server_lr!r} and tau {self.tau!r}; both must be positive")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"beta1 is {self.beta1!r} and beta2 {self.beta2!r}; both must be in [0, 1)")

    # ---- server

    def setup(self, fed: Federation) -> OptimizedState:
        """Start from the course's initial model with m = 0 and v = tau^2."""
        trained = {name: w for name, w in fed.initial_params.items() if name not in fed.buffers}
        second = {} if self.server == "sgd" else {n: torch.full_like(w, self.tau**2) for n, w in trained.items()}
        return OptimizedState(fed.initial_params, {n: torch.zeros_like(w) for n, w in trained.items()}, second)

    def round(self, state: OptimizedState, fed: Federation) -> OptimizedState:
        """Send the model out, take a server step along the mean change."""
        mean = fed.ask_folded(TrainModel(state.params), self.fold).params
        params, momentum, second = dict(mean), {}, {}
        for name, m in state.momentum.items():
            change = mean[name] - state.params[name]
            fresh = 1.0 if self.server == "sgd" else 1.0 - self.beta1
            momentum[name] = self.beta1 * m + fresh * change
            step = momentum[name]
            if self.server != "sgd":
                second[name] = self.second_moment(state.second[name], change)
                step = step / (second[name].sqrt() + self.tau)
            params[name] = state.params[name] + self.server_lr * step
        return OptimizedState(params, momentum, second)

    # ---- client

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model, as FedAvg does."""
        return ModelUpdate(self.fit(request.params, client).params, self.weight(client))

    # ---- formulas

    def second_moment(self, v: Tensor, change: Tensor) -> Tensor:
        """Return the next second moment of one parameter."""
        square = change.square()
        if self.server == "adagrad":
            return v + square
        if self.server == "yogi":
            return v - (1.0 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1.0 - self.beta2) * square
