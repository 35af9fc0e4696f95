"""Local: no federation at all. Every client trains alone on its own graph; the baseline that a federation must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.core.errors import CourseFailed
from isthmus.core.federation import Federation
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, Kept, Request, improves, on
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient, check_local_steps
from isthmus.learn.optimizers import SGD, Optimizer


@dataclass(frozen=True)
class Nothing(Record):
    """The state of a server that knows nothing."""


@dataclass(frozen=True)
class StartFrom(Request[Kept]):
    """Gives every client the same initial model."""

    params: Params
    """The initial model."""


@dataclass(frozen=True)
class TrainAlone(Request[Kept]):
    """Tells a client to go on training its own model."""


@dataclass(frozen=True)
class Local(Algorithm[Nothing]):
    """Every client trains its own model on its own graph and keeps the one that does best on its own validation nodes.

        setup:  server -> client  StartFrom(params)
                client -> server  Kept()
        round:  server -> client  TrainAlone()
                client -> server  Kept()                           the server sees nothing but a receipt

    A client's memory: `running` (the model in training), `optimizer` (its moments, which go on from round to round),
    `params` (the best so far) and `score`. As long as no model had a score, as without validation nodes, the latest is
    kept; a model without one, such as a diverged one, never takes the place of a model that has. The course ends when
    no client has improved for its patience.

    Fields:
        local_steps: steps per round
        step_unit:   a step is one "batch", or one "epoch" over the training examples
        optimizer:   the clients' optimiser
    """

    # The one place where a client's model lies is its memory, and only the setup gives it a start.
    starts_anew: ClassVar[bool] = False

    local_steps: int = 1
    step_unit: str = "batch"
    optimizer: Optimizer = SGD(lr=0.25, weight_decay=5e-4)

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)

    # ---- server

    def setup(self, fed: Federation) -> Nothing:
        """Give everybody the same start."""
        fed.ask(StartFrom(fed.initial_params), clients=fed.all_clients)
        return Nothing()

    def round(self, state: Nothing, fed: Federation) -> Nothing:
        """Let everybody train for a while."""
        fed.ask(TrainAlone())
        return state

    # ---- client

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's best own model; a client that failed in the setup has none."""
        best: Params = state.get("params", {})
        return best

    @on(StartFrom)
    def start(self, request: StartFrom, client: GraphClient) -> Kept:
        """Begin with the given model."""
        params = client.complete(request.params)
        client.state = {"running": params, "params": params, "optimizer": None, "score": None}
        return Kept()

    @on(TrainAlone)
    def train(self, request: TrainAlone, client: GraphClient) -> Kept:
        """Train the running model a little further."""
        _require_start(client)
        fitted = client.fit(
            client.state["running"],
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            optimizer_state=client.state["optimizer"],
        )
        client.state["running"] = fitted.params
        client.state["optimizer"] = fitted.optimizer_state
        return Kept()

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Keep the running model if it is the best so far on the client's validation nodes; report the kept one."""
        _require_start(client)
        if not request.best:
            metrics, _ = client.evaluate(client.state["running"], ("val",))
            _keep_if_best(client, request.metric, metrics["val"].get(request.metric))
        metrics, counts = client.evaluate(client.state["params"], request.splits)
        return Evaluation(metrics, counts)


def _require_start(client: GraphClient) -> None:
    if "running" not in client.state:
        raise CourseFailed("this client has no model of its own: it failed in the setup")


def _keep_if_best(client: GraphClient, metric: str, score: float | None) -> None:
    best: float | None = client.state["score"]
    if best is None if score is None else improves(metric, score, best):
        client.state["params"], client.state["score"] = client.state["running"], score


@dataclass(frozen=True)
class Pooled(Local):
    """One client holds the whole graph and trains alone on it, with its own validation nodes.

        setup:  server -> client  StartFrom(params)
                client -> server  Kept()
        round:  server -> client  TrainAlone()
                client -> server  Kept()

    Fields: as in Local.
    """

    pooled: ClassVar[bool] = True
