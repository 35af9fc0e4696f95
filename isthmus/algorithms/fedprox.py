"""FedProx: FedAvg with a proximal term that keeps clients near the global model. Li et al., 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.algorithms.fedavg import FedAvg, TrainModel
from isthmus.core.errors import refuse
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Penalty, check_pull, proximal


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Clients minimise F_k(w) + mu/2 |w - w_global|^2; the server averages as in FedAvg. With mu = 0 it is FedAvg.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Fields:
        mu: strength of the proximal term; with gradient descent, lr mu must be below 2
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

    # Of this very class: all that leaves a client but its scores is made of what `fit` gave (guard example_dp).
    tells_only_models: ClassVar[bool] = True

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.mu < 0, self, "mu", "it must be at least 0")
        check_pull("mu", self.mu, self.optimizer)

    def penalty(self, request: TrainModel, client: GraphClient) -> Penalty | None:
        """Return mu/2 |w - w_global|^2 over the trainable parameters that are shared."""
        return proximal(self.mu, request.params)
