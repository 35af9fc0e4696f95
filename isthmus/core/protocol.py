"""What an algorithm is: requests with the replies they are owed, client handlers, and a server half."""

from __future__ import annotations

import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from isthmus.core.record import Params, Record, State

if TYPE_CHECKING:
    from isthmus.core.federation import Federation

ReplyT = TypeVar("ReplyT", bound=Record)
StateT = TypeVar("StateT", bound=Record)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Request(Record, Generic[ReplyT]):
    """A record that the server sends; its type parameter names the reply that every client owes."""

    def problem(self, reply: ReplyT) -> str:
        """Return what is wrong with a reply of the right type, such as a shape; nothing when it can be used."""
        return ""


@dataclass(frozen=True)
class Failure(Record):
    """Why a client gave no usable reply."""

    client: str
    """Who."""
    kind: str
    """One of "error" (the handler raised), "malformed", "not_finite", "late", "lost"."""
    reason: str
    """What happened, in words; comes from the client's side."""


def told(failures: Iterable[Failure]) -> list[str]:
    """Return a line for each reason of failures, with the clients that give it; of many, the first three."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        by_reason.setdefault((failure.kind, failure.reason), []).append(failure.client)
    lines = []
    for (kind, reason), clients in by_reason.items():
        more = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
        lines.append(f"{', '.join(clients[:3])}{more}: {kind}: {reason}")
    return lines


@dataclass(frozen=True)
class ModelState(Record):
    """The state of a server that keeps one global model and nothing else."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class Evaluation(Record):
    """How a client's model does on the client's own graph: a few numbers per split."""

    metrics: dict[str, dict[str, float]]
    """Value by split and metric; says how well the model fits this client's data."""
    counts: dict[str, int]
    """Number of examples by split; reveals the size of the client's data."""


@dataclass(frozen=True)
class EvaluateModel(Request[Evaluation]):
    """Asks each client to evaluate the model it would use now on its own graph."""

    params: Params
    """The global model; empty for algorithms without one."""
    splits: tuple[str, ...]
    """The parts of the client's data to evaluate on."""
    metric: str
    """What the course selects its best round by."""
    best: bool
    """Whether this is about the best round, with the personal parts kept then."""


@dataclass(frozen=True)
class Kept(Record):
    """Nothing but a receipt."""


@dataclass(frozen=True)
class KeepBest(Request[Kept]):
    """Tells each client that the course is at its best so far: keep the personal parts of now."""


LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})


def improves(metric: str, score: float, best: float | None) -> bool:
    """Whether a metric's value is strictly better than the best so far; NaN never is."""
    if math.isnan(score):
        return False
    if best is None:
        return True
    return score < best if metric in LOWER_IS_BETTER else score > best


def on(request_type: type[Request[Any]]) -> Callable[[HandlerT], HandlerT]:
    """Mark a method as the client's handler of a request type: `handler(self, request, client) -> reply`."""

    def mark(handler: HandlerT) -> HandlerT:
        handler.__handles__ = request_type  # type: ignore[attr-defined]
        return handler

    return mark


def cohort(request_type: type[Request[Any]]) -> Callable[[HandlerT], HandlerT]:
    """Mark a method that answers a request for many simulated clients at once: `handler(self, requests, clients)`.

    `requests` is a tuple with one request for each of `clients`; it returns a `Stack`, or a sequence of replies. It
    stands beside the plain handler of the same class and must give the same replies within rounding. It is never
    inherited: a subclass that changed the plain handler would otherwise be simulated as its parent.
    """

    def mark(handler: HandlerT) -> HandlerT:
        handler.__handles_cohort__ = request_type  # type: ignore[attr-defined]
        return handler

    return mark


def reply_type(request_type: type[Request[Any]]) -> type[Record]:
    """Return the reply type that a request type owes: R in `class X(Request[R])`."""
    for kind in request_type.__mro__:
        for parent in getattr(kind, "__orig_bases__", ()):
            if typing.get_origin(parent) is Request:
                found = typing.get_args(parent)[0]
                if isinstance(found, type) and issubclass(found, Record):
                    return found
    raise TypeError(f"{request_type.__name__} does not say which reply it is owed; write Request[ReplyType]")


@dataclass(frozen=True)
class Algorithm(ABC, Generic[StateT]):
    """A federated method: one frozen dataclass, both halves in one file, hyper-parameters as fields.

    The server half is `setup` and `round`; the client half is one `@on(Request)` handler per request type. The object
    is frozen and shared, so neither half can leave notes on it for the other; a client remembers only `client.state`.
    """

    # Entries of `client.state` that make up a client's personal model; KeepBest saves them with the best round. The
    # entry "personal" is always one: parameters that the course does not share.
    personal: ClassVar[tuple[str, ...]] = ()
    # True for methods whose clients keep heads of their own: a course shares all but the decoder unless it says else.
    keeps_heads: ClassVar[bool] = False
    # True for the centralised upper bound: the course gives one client the whole graph.
    pooled: ClassVar[bool] = False

    # ---- server

    @abstractmethod
    def setup(self, fed: Federation) -> StateT:
        """Return the server's first state; may hold exchanges of its own."""

    @abstractmethod
    def round(self, state: StateT, fed: Federation) -> StateT:
        """Do one round and return the next state."""

    def global_params(self, state: StateT) -> Params:
        """Return the global model in a state; empty when the method has none."""
        params = getattr(state, "params", {})
        return typing.cast(Params, params)

    # ---- client

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the model a client would use, made of the global one and its memory.

        By default that is the global one with the client's personal parameters, if it has trained any.
        """
        personal: Params = state.get("personal", {})
        return {**params, **personal} if personal else params

    def best_memory(self, state: State) -> State:
        """Return a client's memory with the personal parts of the best round.

        A part that it had not yet then is missing, whatever it has got since; a client that was never told of a best
        round remembers what it has.
        """
        if "best" not in state:
            return state
        others = {name: entry for name, entry in state.items() if name not in ("personal", *self.personal)}
        best: State = state["best"]
        return {**others, **best}

    def require_able(self, client: Any) -> None:
        """Raise BadInput if a client's task, model or batches are none that this works with; a simulation asks first.

        Between sites nobody asks, so handlers see to it themselves.
        """

    def data_of(self, client: Any) -> Any:
        """Return what a client's models are trained and scored on, as its task has prepared it: its own data."""
        return client.prepared

    def client_parts(self, state: Mapping[str, Any]) -> Params:
        """Return what a client needs beside its model to predict, made of its memory; results and run folders keep it.

        A method that gives something here says in `predict_with` what is done with it.
        """
        return {}

    def predict_with(self, parts: Params, task: Any, model: Any, data: Any) -> Any:
        """Return what a task predicts of data by a model, at a client with these parts; empty ones stand for none."""
        return task.predict(model, task.prepare(data))

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: Any) -> Evaluation:
        """Evaluate the client's model on its own graph."""
        memory: State = self.best_memory(client.state) if request.best else client.state
        metrics, counts = client.evaluate(self.client_params(request.params, memory), request.splits)
        return Evaluation(metrics, counts)

    @cohort(EvaluateModel)
    def evaluate_together(self, requests: Sequence[EvaluateModel], clients: Any) -> list[Evaluation]:
        """Evaluate many clients' models at once."""
        if len({request.splits for request in requests}) > 1:
            raise ValueError("clients are asked for different splits")
        models = []
        for request, client in zip(requests, clients, strict=True):
            memory: State = self.best_memory(client.state) if request.best else client.state
            models.append(self.client_params(request.params, memory))
        return [Evaluation(metrics, counts) for metrics, counts in clients.evaluate(models, requests[0].splits)]

    @on(KeepBest)
    def keep_best(self, request: KeepBest, client: Any) -> Kept:
        """Keep the personal parts of this moment as the best."""
        kept = ("personal", *self.personal)
        best = {name: client.state[name] for name in kept if name in client.state}
        if own := getattr(client, "own", None):  # those of a client that has not trained: later ones are not the best's
            best.setdefault("personal", own)
        client.state["best"] = best
        return Kept()

    # ---- what the parts above amount to

    @classmethod
    def handlers(cls) -> dict[type[Request[Any]], str]:
        """Return the request types this algorithm's clients answer, each with the name of its handler."""
        found: dict[type[Request[Any]], str] = {}
        for kind in reversed(cls.__mro__):
            for name, member in vars(kind).items():
                if hasattr(member, "__handles__"):
                    found[member.__handles__] = name
        # A subclass may use a handler's name for another request; the request it answered before has no handler then.
        return {kind: name for kind, name in found.items() if getattr(getattr(cls, name), "__handles__", kind) is kind}

    @classmethod
    def cohort_handlers(cls) -> dict[type[Request[Any]], str]:
        """Return the request types that this very class answers for many clients at once, with the handlers' names.

        The evaluation that comes with every algorithm counts as its own as long as it is not changed.
        """
        found: dict[type[Request[Any]], str] = {}
        plain = getattr(cls, cls.handlers().get(EvaluateModel, ""), None)
        if plain is Algorithm.evaluate and cls.evaluate_together is Algorithm.evaluate_together:
            found[EvaluateModel] = "evaluate_together"
        for name, member in vars(cls).items():
            if hasattr(member, "__handles_cohort__"):
                found[member.__handles_cohort__] = name
        return found

    def scored_by_clients(self, memories: Iterable[State]) -> bool:
        """Whether clients with such memories predict by more than their model, so that only they know how well.

        What neighbours sent is an example. `memories` are those of all clients in the best round.
        """
        return False

    @property
    def learns_without_labels(self) -> bool:
        """Whether a client without training examples may train something, and count in a mean."""
        return False

    @property
    def has_personal_models(self) -> bool:
        """Whether clients may end with models that differ from the global one."""
        return type(self).client_params is not Algorithm.client_params

    @classmethod
    def state_type(cls) -> type[Record]:
        """Return the record type of the server's state: what `setup` is annotated to return."""
        try:
            found = typing.get_type_hints(cls.setup, localns={"Federation": Any}).get("return")
        except NameError as error:
            raise TypeError(
                f"{cls.__name__}.setup has an annotation that names nothing its module has: {error}"
            ) from None
        if isinstance(found, type) and issubclass(found, Record):
            return found
        raise TypeError(f"{cls.__name__}.setup does not say which record it returns; annotate it: -> MyState")
