"""Local training: what a client does between two messages of most algorithms, and how much it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.core.errors import refuse
from isthmus.core.protocol import Algorithm, StateT
from isthmus.core.record import Params
from isthmus.core.replies import Each
from isthmus.learn.graph_client import Fitted, GraphClient, Loss, Penalty, check_local_steps
from isthmus.learn.optimizers import SGD, Optimizer
from isthmus.learn.together.stacked_clients import GraphCohort, StackedFit, StackedLoss

WEIGHTINGS = ("examples", "nodes", "uniform")


@dataclass(frozen=True)
class LocalTraining(Algorithm[StateT]):
    """An algorithm whose clients train a model for some steps; which messages go to and fro is each algorithm's own.

    Fields: see FedAvg, the simplest one.
    """

    local_steps: int = 4
    step_unit: str = "batch"
    optimizer: Optimizer = SGD(lr=0.25, weight_decay=5e-4)
    weighting: str = "examples"
    keep_moments: bool = False

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)
        refuse(self.weighting not in WEIGHTINGS, self, "weighting", f"choose from {', '.join(WEIGHTINGS)}")

    def fit(
        self,
        params: Params,
        client: GraphClient,
        *,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        prepared: Any = None,
        steps: int | None = None,
        moments: str = "optimizer",
    ) -> Fitted:
        """Train from `params`; `penalty`, `loss` and `prepared` as in `GraphClient.fit`.

        `steps` takes the place of `local_steps`; kept moments are in the client's memory under `moments`.
        """
        fitted = client.fit(
            params,
            steps=self.local_steps if steps is None else steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            penalty=penalty,
            loss=loss,
            optimizer_state=client.state.get(moments) if self.keep_moments else None,
            prepared=self.data_of(client) if prepared is None else prepared,
        )
        if self.keep_moments:
            client.state[moments] = fitted.optimizer_state
        return fitted

    def fit_together(
        self,
        params: Params | Sequence[Params],
        clients: GraphCohort,
        *,
        proximal: float = 0.0,
        drifts: Sequence[Params] | None = None,
        loss: StackedLoss | None = None,
        alters_features: bool = False,
        steps: int | None = None,
        moments: str = "optimizer",
    ) -> StackedFit:
        """Train many clients at once, from the same parameters or each from its own; the rest as in `GraphCohort.fit`.

        `steps` and `moments` as in `fit`.
        """
        fitted = clients.fit(
            params,
            steps=self.local_steps if steps is None else steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            proximal=proximal,
            drifts=drifts,
            loss=loss,
            alters_features=alters_features,
            optimizer_states=[client.state.get(moments) for client in clients] if self.keep_moments else None,
        )
        for client, kept in zip(clients, fitted.optimizer_states, strict=False):  # none, unless they are kept
            client.state[moments] = kept
        return fitted

    def weight(self, client: GraphClient) -> float:
        """Return n_k; zero for a client that has nothing to train on."""
        sizes = {"examples": client.num_examples, "nodes": client.num_nodes, "uniform": 1}
        return float(sizes[self.weighting]) if client.num_examples else 0.0

    def weights(self, clients: GraphCohort) -> Each:
        """Return n_k of many clients."""
        return Each(tuple(map(self.weight, clients)))
