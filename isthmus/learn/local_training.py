"""Algorithms whose clients train a model for some steps between two messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.core.errors import refuse
from isthmus.core.protocol import Algorithm, StateT
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.heavy_work import Fitted
from isthmus.learn.optimizers import SGD, Optimizer

STEP_UNITS = ("batch", "epoch")


def check_local_steps(local_steps: int, step_unit: str) -> None:
    """Raise ValueError unless the amount of local training makes sense."""
    if local_steps < 1:
        raise ValueError(f"local_steps is {local_steps!r}; it must be at least 1")
    if step_unit not in STEP_UNITS:
        raise ValueError(f"step_unit is {step_unit!r}; choose from {', '.join(STEP_UNITS)}")


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

    def fit(self, params: Params, client: GraphClient, *, moments: str = "optimizer", **asked: Any) -> Fitted:
        """Train from `params`; what is `asked`, as in `GraphClient.fit`, takes the place of the algorithm's own.

        Kept moments are in the client's memory under `moments`.
        """
        own: dict[str, Any] = {
            "steps": self.local_steps,
            "step_unit": self.step_unit,
            "optimizer": self.optimizer,
            "optimizer_state": client.state.get(moments) if self.keep_moments else None,
            "prepared": self.data_of(client),
        }
        given = {name: value for name, value in asked.items() if value is not None}
        fitted = client.fit(params, **{**own, **given})
        if self.keep_moments:
            client.state[moments] = fitted.optimizer_state
        return fitted

    def weight(self, client: GraphClient) -> float:
        """Return n_k; zero for a client that has nothing to train on."""
        sizes = {"examples": client.num_examples, "nodes": client.num_nodes, "uniform": 1}
        return float(sizes[self.weighting]) if client.num_examples else 0.0
