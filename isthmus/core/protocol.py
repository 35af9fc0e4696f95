"""What an algorithm is: requests and the replies they are owed, client handlers with their client, a server half."""

from __future__ import annotations

import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch

from isthmus.core.outside import MAX_NAME, named, some
from isthmus.core.random import ProtectingStream, Secret, digest, torch_generator
from isthmus.core.record import CPU, Params, Record, State, Value, largest

if TYPE_CHECKING:
    from isthmus.core.client import Work
    from isthmus.core.federation import Federation
    from isthmus.core.guards.guard import Book, Signer
    from isthmus.core.guards.line import GuardLine

ReplyT = TypeVar("ReplyT", bound=Record)
StateT = TypeVar("StateT", bound=Record)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


# Within one round, training does not make a model's largest number this many times larger: it has diverged. Honest
# clients that are about to diverge were seen to grow a billion times, and may yet come back.
MAX_GROWTH = 1e10
# Beyond this, statistics that no gradient moves are no numbers that a model could use.
MAX_STATISTIC = 1e30


@dataclass(frozen=True)
class Position(Record):
    """Where in a course an exchange stands; with the client's id it names every random stream."""

    seed: int
    round: int  # 0 is the setup
    exchange: int  # counted from 0 within the round


@dataclass(frozen=True)
class Holdings(Record):
    """How much data a client has, as it agreed before the course: what it may count for is bounded by that."""

    nodes: int
    """Number of nodes."""
    examples: dict[str, int]
    """Number of examples by split."""


@dataclass(frozen=True, eq=False)
class Known:
    """What the server knows beside the requests: what clients say they hold, and the first model with its buffers."""

    holdings: Mapping[str, Holdings] = field(default_factory=dict)
    params: Params = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Request(Record, Generic[ReplyT]):
    """A record that the server sends; its type parameter names the reply that every client owes.

    The methods say what a reply must be, so that one client cannot spoil what the others get: a reply that is not so is
    a failure with its client's name. That numbers are finite, and that weights are not negative, is seen to anyway.
    """

    # Whether replies describe the course's own parts, such as how wide a model is, and are the same whatever data a
    # client has: guards of what data tell let them pass.
    describes: ClassVar[bool] = False

    def misfit(self, reply: ReplyT, known: Known) -> str:
        """Return what is wrong with names, shapes and types in a reply, but of no numbers: many are looked at as one.

        Here `params` of a reply must be those of the request, if both have some.
        """
        sent, back = getattr(self, "params", None), getattr(reply, "params", None)
        return unlike("params", back, sent) if isinstance(sent, dict) and isinstance(back, dict) and sent else ""

    def problem(self, reply: ReplyT) -> str:
        """Return what else is wrong with a reply, such as a number out of its range; it is looked at by itself then."""
        return ""

    def common(self, reply: ReplyT) -> Hashable:
        """Return what a reply must share with most, such as the number of classes; None for one without a say."""
        return None

    def num_nodes(self, reply: ReplyT) -> int:
        """Return how many of the client's nodes a reply has rows for: not more than it agreed to hold.

        What the server makes of them may grow with the square of that number. Here 0: it is about none in particular.
        """
        return 0

    def limits(self, known: Known) -> Mapping[str, float]:
        """Return the largest number that fields of a reply may hold; others may hold 1e18. Here `params` may grow."""
        sent = getattr(self, "params", None)
        return {"params": grown(sent)} if isinstance(sent, dict) else {}

    def max_weight(self, held: Holdings) -> float:
        """Return the largest weight of a client's reply: its number of nodes, or of training examples, or 1."""
        return float(max(1, held.nodes, held.examples.get("train", 0)))


Requests: TypeAlias = Mapping[str, Request[Any]]  # by client


def unlike(name: str, found: Params, sent: Params) -> str:
    """Return how parameters in a reply's field differ from others in names, shapes or types; nothing if they do not."""
    if sent.keys() != found.keys():
        odd = sorted(sent.keys() ^ found.keys())
        return f"{name}: {named(odd[0])} is in the request or in the reply only"
    for key, tensor in sent.items():
        back = found[key]
        if tensor.shape != back.shape or tensor.dtype != back.dtype:
            return (
                f"{name}[{named(key)}] has shape {tuple(back.shape)} of {back.dtype}, "
                f"sent was {tuple(tensor.shape)} of {tensor.dtype}"
            )
    return ""


def grown(params: Params) -> float:
    """Return how large the numbers of a model may be after a round that began with this one."""
    return MAX_GROWTH * (1.0 + max((largest(tensor) for tensor in params.values()), default=0.0))


@dataclass(frozen=True)
class Failure(Record):
    """Why a client gave no usable reply."""

    client: str
    """Who."""
    kind: str
    """One of "error" (the handler raised), "malformed", "not_finite", "late", "lost", "refused", "memory"; or
    "suspicious": a guard would not have it counted."""
    reason: str
    """What happened, in words; comes from the client's side."""


def told(failures: Iterable[Failure]) -> list[str]:
    """Return a line for each reason of failures, with the clients that give it; of many, the first three."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        by_reason.setdefault((failure.kind, failure.reason), []).append(failure.client)
    return [f"{some(clients)}: {kind}: {reason}" for (kind, reason), clients in by_reason.items()]


@dataclass(frozen=True)
class ModelState(Record):
    """The state of a server that keeps one global model and nothing else."""

    params: Params
    """The global model."""


# Metrics of one split that a client may report.
MAX_METRICS = 64
# What metrics can be, by name; another one can be any number.
_SHARES = ("accuracy", "f1", "f1_micro", "f1_macro", "roc_auc", "auc", "ap", "hits@1", "hits@5", "hits@10", "mrr")
RANGES = dict.fromkeys(_SHARES, (0.0, 1.0)) | dict.fromkeys(("rmse", "mae"), (0.0, math.inf))


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
    names: tuple[str, ...] = ()
    """The metrics, where a guard adds them up over clients; empty where each client tells its own."""

    def __post_init__(self) -> None:
        if len(set(self.splits)) != len(self.splits):  # each would be measured as often as it is named
            raise ValueError(f"splits names {len(self.splits)}, of which {len(set(self.splits))} are different")

    def misfit(self, reply: Evaluation, known: Known) -> str:
        """Return which splits were not asked for, and whether there are too many metrics to be real ones."""
        for name, found in (("metrics", reply.metrics), ("counts", reply.counts)):
            odd = next((split for split in found if split not in self.splits), None)
            if odd is not None:
                return f"{name} has {named(odd)}; asked for were {', '.join(self.splits)}"
        for split, values in reply.metrics.items():
            if len(values) > MAX_METRICS:
                return f"metrics[{named(split)}] holds {len(values)} metrics, the limit is {MAX_METRICS}"
            long = next((name for name in values if len(name) > MAX_NAME), None)
            if long is not None:
                return f"metrics[{named(split)}] has the name {named(long)} of {len(long)} characters"
        return ""

    def problem(self, reply: Evaluation) -> str:
        """Return which number is outside its range."""
        for split, count in reply.counts.items():
            if count < 0:
                return f"counts[{named(split)}] is {count}"
        for split, values in reply.metrics.items():
            for name, value in values.items():
                low, high = RANGES.get(name, (-math.inf, math.inf))
                # Means in floating point may be a little off; NaN and infinity are told by others.
                if math.isfinite(value) and not low - 1e-6 <= value <= high + 1e-6:
                    return f"metrics[{named(split)}][{named(name)}] is {value:g}; it is from {low:g} to {high:g}"
        return ""


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
    return best is None or (score < best if metric in LOWER_IS_BETTER else score > best)


def on(request_type: type[Request[Any]]) -> Callable[[HandlerT], HandlerT]:
    """Mark a method as the client's handler of a request type: `handler(self, request, client) -> reply`."""
    return _marking("__handles__", request_type)


def cohort(request_type: type[Request[Any]]) -> Callable[[HandlerT], HandlerT]:
    """Mark a method that answers a request for many simulated clients at once: `handler(self, requests, clients)`.

    With one request for each client, it returns a `Stack` or a sequence of replies, within rounding those of the plain
    handler of the same class. It is never inherited: a subclass may have changed the plain handler.
    """
    return _marking("__handles_cohort__", request_type)


def _marking(attribute: str, request_type: type[Request[Any]]) -> Callable[[HandlerT], HandlerT]:
    def mark(handler: HandlerT) -> HandlerT:
        setattr(handler, attribute, request_type)
        return handler

    return mark


def handlers_of(kind: type[Any]) -> dict[type[Request[Any]], str]:
    """Return the request types that a class has handlers for (`@on`), each with the handler's name."""
    found: dict[type[Request[Any]], str] = {}
    for owner in reversed(kind.__mro__):
        for name, member in vars(owner).items():
            if hasattr(member, "__handles__"):
                found[member.__handles__] = name
    # A subclass may use a handler's name for another request; the request it answered before has no handler then.
    return {asked: name for asked, name in found.items() if getattr(getattr(kind, name), "__handles__", asked) is asked}


def reply_type(request_type: type[Request[Any]]) -> type[Record]:
    """Return the reply type that a request type owes: R in `class X(Request[R])`."""
    found: type[Record] | None = vars(request_type).get("_reply_type")
    if found is None:
        found = request_type._reply_type = _owed(request_type)  # type: ignore[attr-defined]
    return found


def _owed(request_type: type[Request[Any]]) -> type[Record]:
    for kind in request_type.__mro__:
        for parent in getattr(kind, "__orig_bases__", ()):
            if typing.get_origin(parent) is Request:
                found = typing.get_args(parent)[0]
                if isinstance(found, type) and issubclass(found, Record):
                    return found
    raise TypeError(f"{request_type.__name__} does not say which reply it is owed; write Request[ReplyType]")


class Client(ABC):
    """One client as its handlers see it. All that it remembers between two requests is `state`.

    `algorithm` has the client's own settings, where there are some. `guards` are done to all that comes and leaves.
    `secret` is what its protecting streams are drawn from, no part of the memory and of no message. `course` is what it
    calls a course between sites, `book` what it settled there once and for all, and `signer` its hand; a simulation has
    none. `desk` takes heavy work while the client is simulated together with others. All that a handler is given lies
    on `device`; what it returns is taken from there.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.device = CPU
        self.algorithm: Algorithm[Any] | None = None
        self.guards: GuardLine | None = None
        self.secret: Secret | None = None
        self.course = ""
        self.book: Book | None = None
        self.signer: Signer | None = None
        self.state: State = {}
        self.position = Position(0, 0, 0)
        self._asked: tuple[Request[Any] | None, State] = (None, {})
        self._asked_digest: bytes | None = None
        self.desk: Callable[[Work], Any] | None = None

    def do(self, work: Work) -> Any:
        """Return the result of some work, done here and now, or with that of others where there is a desk for it."""
        return work.alone(self) if self.desk is None else self.desk(work)

    def begin(self, position: Position, request: Request[Any]) -> None:
        """Take note of what is asked, where in the course, and of the memory that it is answered from."""
        self.position = position
        # Handlers put new values into the memory and never change one, so a shallow copy is what was there.
        self._asked, self._asked_digest = (request, dict(self.state)), None

    def generator(self, purpose: str) -> torch.Generator:
        """Return this client's stream for a purpose in this exchange; the server can draw it too: see `protecting`."""
        at = self.position
        return torch_generator(at.seed, at.round, at.exchange, self.id, purpose)

    def protecting(self, purpose: str, guarded: Value) -> ProtectingStream:
        """Return the stream that protects `guarded`, for a purpose in this exchange; only this client can draw it.

        The same request at the same place, answered from the same memory, gets the same stream, for a resume. Another
        request, memory or value gets another: else the difference of two replies would be without noise.
        """
        if self.secret is None:
            raise RuntimeError(f"{self.id} has no secret to draw {purpose!r} from; set client.secret")
        at = self.position
        place = (self.id, at.seed, at.round, at.exchange, purpose)
        if self.secret.simulated:
            return self.secret.stream(*place)
        if self._asked_digest is None:
            request, memory = self._asked
            kind = type(request).__name__
            self._asked_digest = digest({"kind": kind, "request": request, "memory": memory})
        return self.secret.stream(*place, self._asked_digest, digest({"guarded": guarded}))

    @abstractmethod
    def evaluate(self, params: Params, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return metrics and example counts per split of a model on the client's own data."""


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
    # Fields that protect a client, and whether a larger or a smaller value protects more ("more", "less"; null is the
    # weakest). Settings of a single client may make them stronger than the course's, never weaker.
    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {}
    # Whether a client that has lost its memory in mid-course goes on from a blank one, like a client that comes late.
    # False where that would break what server and clients keep together, or where a memory holds what only the setup
    # gives: such a client leaves the course.
    starts_anew: ClassVar[bool] = True

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
        """Return the model a client would use: here the global one, with the personal parameters it has trained."""
        personal: Params = state.get("personal", {})
        return {**params, **personal} if personal else params

    def best_memory(self, state: State) -> State:
        """Return a client's memory with the personal parts of the best round, as far as it had them then.

        A client that was never told of a best round remembers what it has.
        """
        if "best" not in state:
            return state
        others = {name: entry for name, entry in state.items() if name not in ("personal", *self.personal)}
        best: State = state["best"]
        return {**others, **best}

    def require_able(self, client: Any) -> None:
        """Raise BadInput in a simulation if a client's task, model or batches are none that this works with."""

    def data_of(self, client: Any) -> Any:
        """Return what a client's models are trained and scored on, as its task has prepared it: its own data."""
        return client.prepared

    def client_parts(self, state: Mapping[str, Any]) -> Params:
        """Return what a client needs beside its model to predict, for `predict_with`; run folders keep it."""
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
        return handlers_of(cls)

    @classmethod
    def cohort_handlers(cls) -> dict[type[Request[Any]], str]:
        """Return the request types that this very class answers for many clients at once, with the handlers' names."""
        members = vars(cls).items()
        return {m.__handles_cohort__: name for name, m in members if hasattr(m, "__handles_cohort__")}

    def num_own_parameters(self, model: Any, input_dim: int) -> int:
        """Return how many numbers a client's own parts of the method have, beside a model that has no values here."""
        return 0

    @property
    def nested_steps(self) -> tuple[str, int]:
        """Fields whose steps are taken within each other, by name, and how many of them one answer takes in all."""
        return "", 0

    @property
    def protecting_streams(self) -> tuple[str, ...]:
        """The purposes that clients draw from their own secrets for, with these fields: noise, what is hidden."""
        return ()

    def scored_by_clients(self, memories: Iterable[State]) -> bool:
        """Whether clients with such memories predict by more than their model, such as by what neighbours sent."""
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
            why = f"{cls.__name__}.setup has an annotation that names nothing its module has: {error}"
            raise TypeError(why) from None
        if isinstance(found, type) and issubclass(found, Record):
            return found
        raise TypeError(f"{cls.__name__}.setup does not say which record it returns; annotate it: -> MyState")
