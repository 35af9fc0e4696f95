"""FedDyn: every client's loss is changed from round to round so that the local minima meet at the global one.

Acar, Zhao, Matas, Mattina, Whatmough and Saligrama (2021), "Federated learning based on dynamic regularization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.scaffold import ClientWeight, ShareWeight
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import ModelState, on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import Pull, check_pull


@dataclass(frozen=True)
class DynState(ModelState):
    """The global model and the sum of what clients moved."""

    linear: Params
    """h, the weighted mean of all clients' linear terms; buffers have none."""
    total: float
    """The weight of all clients together."""


@dataclass(frozen=True)
class FedDyn(LocalTraining[DynState]):
    """Clients minimise their loss with a linear and a quadratic term that follow the course; the server corrects.

        setup:  server -> client  ShareWeight()
                client -> server  ClientWeight(weight)            the server sees only the sum
        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Client k goes from the received w towards the minimum, and takes the slope there into its linear term:

        w_k ~ argmin_v  F_k(v) - <h_k, v> + alpha/2 |v - w|^2
        h_k <- h_k - alpha (w_k - w)                     h_k = 0 at first

    The server, with weights n_k, S the clients that answered and N all of them:

        h <- h - alpha (sum_S n_k / sum_N n_k) (mean_S(w_k) - w)
        w <- mean_S(w_k) - h / alpha

    so h stays the weighted mean of all h_k; a client that was not asked keeps its own. At a point where nobody moves,
    h = 0, and with h_k the slope of F_k it is a stationary point of the weighted sum of all F_k. The paper has equal
    weights (`weighting="uniform"`). Buffers (batch norm statistics) are averaged and have no terms.

    The terms presume that clients come near their minimum. As alpha goes to 0, local training becomes FedAvg's, but
    h / alpha does not vanish: it is minus the sum of all mean changes so far, which the server adds on top. What holds
    it back is the clients' linear term, by local_steps x lr x alpha of it in a round; where that is far below 1, the
    model overshoots.

    A client remembers `linear`, h_k.

    Fields:
        alpha: strength of the quadratic term; with gradient descent, lr alpha must be below 2
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    # The server's h holds the h_k that the client would have forgotten, and would hold it for ever.
    starts_anew: ClassVar[bool] = False

    alpha: float = 1.0
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.alpha < float("inf"), self, "alpha", "it must be positive: the server divides by it")
        check_pull("alpha", self.alpha, self.optimizer)

    # ---- server

    def setup(self, fed: Federation) -> DynState:
        """Start from the course's initial model with h = 0."""
        total = fed.ask_folded(ShareWeight(), weighted_mean, clients=fed.all_clients).weight
        trained = {name: w for name, w in fed.initial_params.items() if name not in fed.buffers}
        return DynState(fed.initial_params, {n: torch.zeros_like(w) for n, w in trained.items()}, total)

    def round(self, state: DynState, fed: Federation) -> DynState:
        """Send the model out, take the mean back, and correct it by all that clients have moved so far."""
        mean = fed.ask_folded(TrainModel(state.params), self.fold)
        total = max(state.total, mean.weight)  # a client that missed the setup counts from now on
        params, linear = dict(mean.params), {}
        for name, h in state.linear.items():
            change = mean.params[name] - state.params[name]
            linear[name] = h - self.alpha * mean.weight / total * change
            params[name] = mean.params[name] - linear[name] / self.alpha
        return DynState(params, linear, total)

    # ---- client

    @on(ShareWeight)
    def share_weight(self, request: ShareWeight, client: GraphClient) -> ClientWeight:
        """Say how much the client counts."""
        return ClientWeight(self.weight(client))

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model on the changed loss and move the linear term by how far it went."""
        w = request.params
        fitted = self.fit(w, client, penalty=self.penalty(w, client))
        if client.num_examples:
            moved = client.combined((1.0, _linear(client, w)), (-self.alpha, fitted.params), (self.alpha, w))
            client.state["linear"] = moved
        return ModelUpdate(fitted.params, self.weight(client))

    def penalty(self, received: Params, client: GraphClient) -> Pull:
        """Return -<h_k, v> + alpha/2 |v - w|^2 over the trained parameters that are shared."""
        return Pull(self.alpha, received, client.combined((-1.0, _linear(client, received))))


def _linear(client: GraphClient, params: Params) -> Params:
    """Return the client's linear term; zero for one that has not trained yet."""
    found: Params | None = client.state.get("linear")
    if found is not None:
        return found
    trained = [name for name, slot in client.model.named_parameters() if slot.requires_grad and name in params]
    return {name: torch.zeros_like(params[name]) for name in trained}
