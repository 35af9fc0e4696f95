"""FedRep: a head of its own for every client, trained first, and then the body that all share.

Collins, Hassani, Mokhtari and Shakkottai (2021), "Exploiting shared representations for personalized federated
learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.errors import BadInput, refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.learn.graph_client import Fitted, GraphClient
from isthmus.learn.optimizers import only


@dataclass(frozen=True)
class FedRep(FedAvg):
    """Clients share the body phi of a model; each has a head h_k, which it fits to the body of every round first.

        round:  server -> client  TrainModel(params)              the body
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean of the bodies

    In a round client k takes

        `head_steps` steps    h_k <- h_k - lr d F_k(phi, h_k) / d h_k              with phi as it was received
        `local_steps` steps   phi_k <- phi_k - lr d F_k(phi_k, h_k) / d phi_k      with the new h_k

    The head is whatever the course does not share: by default the decoder (`shared` of the course). What stands still
    has neither decay nor moments; batch norm statistics of the body are those of the second phase. FedAvg with the same
    `shared` trains both at once: that is FedPer (Arivazhagan et al., 2019).

    A client's memory: `personal` (h_k); with `keep_moments`, `optimizer` and `head_optimizer`.

    Fields:
        head_steps:  steps of the head in a round; in `step_unit`s
        local_steps: steps of the body in a round
        optimizer:   of both phases, started anew for each
        step_unit, weighting: as in FedAvg
        keep_moments: whether both optimisers go on from round to round
    """

    keeps_heads: ClassVar[bool] = True

    head_steps: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.head_steps < 1, self, "head_steps", "it must be at least 1")

    def require_able(self, client: GraphClient) -> None:
        """Refuse clients that have no head of their own."""
        if not client.own:
            raise BadInput('with FedRep heads stay with the clients; leave shared out, or end it with "!decoder.*"')

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Fit the client's head to the received body, then train the body under it."""
        body = request.params
        self.require_able(client)
        moving = [name in body for name, slot in client.model.named_parameters() if slot.requires_grad]
        self._phase(client, body, [not moves for moves in moving], "head", self.head_steps)
        found = self._phase(client, body, moving, "fit", self.local_steps)
        return ModelUpdate(found.params, self.weight(client))

    def _phase(self, client: GraphClient, body: Params, moving: list[bool], purpose: str, steps: int) -> Fitted:
        """Train the parameters that are `moving` and no others."""
        memory = "optimizer" if purpose == "fit" else "head_optimizer"
        optimizer = only(self.optimizer, moving)
        return self.fit(body, client, steps=steps, optimizer=optimizer, purpose=purpose, moments=memory)
