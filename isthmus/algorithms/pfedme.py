"""pFedMe: the global model minimises the clients' Moreau envelopes. Dinh, Tran and Nguyen, 2020.

"Personalized federated learning with Moreau envelopes".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.protocol import ModelState, on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Envelope, check_pull


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Clients move the global model towards models of their own, each the best one near it.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    The sum over clients of the envelopes  G_k(w) = min over theta of F_k(theta) + lambda/2 |theta - w|^2  is minimised,
    whose slope is lambda (w - theta_k(w)) with theta_k(w) the minimum's place. Client k begins with the received w and
    does `local_steps` times, each with a batch of its own:

        theta_k ~ argmin_theta  F_k(theta) + lambda/2 |theta - w_k|^2       `inner_steps` steps, from w_k
        w_k <- w_k - eta lambda (w_k - theta_k)

    and the server  w <- (1 - beta) w + beta sum_k n_k w_k / sum_k n_k.  The last theta_k is the client's own model; it
    is never sent. The paper has equal weights (`weighting="uniform"`), and does not say where the search for theta_k
    begins: here at w_k, so that with one inner step of plain SGD and beta = 1 this is FedAvg with the learning rate
    eta lambda lr. Inner steps of gradient descent need lr lambda < 2, or they overshoot: more is refused. For w_k,
    eta lambda < 2 is always enough; G_k has at most the curvature L lambda / (L + lambda) where F_k has at most L, so
    more may do.

    A client that has not trained yet, or has no training examples, uses the global model. Parameters that the course
    does not share belong to theta_k alone: nothing draws on them. Buffers (batch norm statistics) are those of theta_k,
    and the server takes their mean. On other than full batches of nodes, clients answer one by one in simulation.

    A client's memory: `model` (theta_k), and `personal`, its values of what is not shared.

    Fields:
        strength:    lambda
        inner_steps: steps towards theta_k, all on one batch
        eta:         the learning rate of w_k
        beta:        how far the server goes towards the mean
        local_steps: steps of w_k in a round, counted in `step_unit`s
        optimizer:   takes the inner steps; started anew for every theta_k, so there are no moments to keep
        step_unit, weighting, fold: as in FedAvg
    """

    personal: ClassVar[tuple[str, ...]] = ("model",)

    strength: float = 1.0
    inner_steps: int = 5
    eta: float = 0.5
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("strength", "eta", "beta"):
            refuse(not 0.0 < getattr(self, name) < float("inf"), self, name, "it must be positive")
        check_pull("strength", self.strength, self.optimizer)
        refuse(self.inner_steps < 1, self, "inner_steps", "it must be at least 1")
        if self.keep_moments:
            raise ValueError("keep_moments is true, but with pFedMe the optimiser begins anew with every inner problem")

    @property
    def nested_steps(self) -> tuple[str, int]:
        """Inner steps are taken anew in each local one."""
        return "local_steps x inner_steps", self.local_steps * self.inner_steps

    # ---- server

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Send the model out and go towards the mean of what comes back."""
        mean = fed.ask_folded(TrainModel(state.params), self.fold).params
        # lerp, because it gives the mean itself for beta = 1.
        return ModelState(
            {n: w if n in fed.buffers else torch.lerp(state.params[n], w, self.beta) for n, w in mean.items()}
        )

    # ---- client

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's own model; the global one for a client that has none."""
        own: Params | None = state.get("model")
        return super().client_params(params, state) if own is None else own

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Move the received model towards the client's own one, which is found anew at every step."""
        envelope = Envelope(self.strength, self.inner_steps, self.eta * self.strength)
        fitted = self.fit(request.params, client, envelope=envelope)
        if client.num_examples:
            client.state["model"] = client.complete(fitted.params)
        return ModelUpdate(fitted.params if fitted.centre is None else fitted.centre, self.weight(client))
