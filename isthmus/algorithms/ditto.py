"""Ditto: every client has a model of its own, drawn towards the global one. Li, Hu, Beirami and Smith, 2021.

"Ditto: fair and robust federated learning through personalization".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.errors import refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import check_pull, proximal


@dataclass(frozen=True)
class Ditto(FedAvg):
    """Clients train the global model as in FedAvg, and beside it a model of their own that is never sent.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Client k takes `local_steps` steps from the received w, which go into the mean, and `personal_steps` steps from its
    own v_k, towards

        v_k ~ argmin_v  F_k(v) + lambda/2 |v - w|^2

    with w as it was received. With lambda = 0, v_k is what `local` trains, if every client is asked in every round; the
    larger lambda, the nearer v_k is to w. The global model is FedAvg's in any case. Steps of gradient descent need
    lr lambda < 2, or they overshoot: more is refused.

    A client that trains for the first time begins v_k with the model it received. One that has not trained yet, or has
    no training examples, uses the global model. Both trainings of a round draw the same batches and the same dropout.

    Where the course shares only some parameters, w has the client's own values in the others, trained along with it and
    kept as always; v_k is a whole model beside it, and lambda draws on what is shared.

    A client's memory: `model` (v_k), `own_optimizer` (its moments, if they are kept), and what FedAvg keeps.

    Fields:
        strength:       lambda
        personal_steps: steps of v_k in a round; None for as many as `local_steps`
        local_steps, step_unit, optimizer, weighting: as in FedAvg; v_k has the same optimiser
        keep_moments:   whether the optimisers of both models go on from round to round
    """

    personal: ClassVar[tuple[str, ...]] = ("model",)

    strength: float = 0.1
    personal_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.strength < float("inf"), self, "strength", "it must be at least 0")
        check_pull("strength", self.strength, self.optimizer)
        if self.personal_steps is not None and self.personal_steps < 1:
            raise ValueError(f"personal_steps is {self.personal_steps!r}; it must be at least 1, or null")

    # ---- client

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's own model; the global one for a client that has none."""
        own: Params | None = state.get("model")
        return super().client_params(params, state) if own is None else own

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model for the server and the client's own model for the client."""
        start = _own_model(client, request.params)
        update = super().train(request, client)
        if client.num_examples:
            pull = proximal(self.strength, request.params)
            fitted = self.fit(start, client, penalty=pull, steps=self.personal_steps, moments="own_optimizer")
            client.state["model"] = fitted.params
        return update


def _own_model(client: GraphClient, received: Params) -> Params:
    """Return the client's own model; the received one, whole, for a client that has not trained yet."""
    found: Params | None = client.state.get("model")
    if found is not None:
        return found
    whole = client.complete(received)
    return {name: whole[name] for name in client.model.state_dict()}
