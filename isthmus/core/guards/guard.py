"""What a guard is: one frozen dataclass with a half for each side, and what each half is given.

In the order of the course's list, what leaves passes all guards; what arrives passes them the other way round
(`isthmus.core.guards.line`). What a message is made of stays what it is: a guard that codes puts bytes (uint8) in the
place of a tensor, and its other half puts the tensor back. A guard may have requests of its own, answered by its own
`@on` methods; one that `sums` takes over the exchanges whose replies are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from isthmus.core.guards.hiding import NoisySums, PrivateSteps
from isthmus.core.protocol import Client, Failure, Known, Position, Request, Requests
from isthmus.core.random import ProtectingStream, Sampling, Secret, UniformSampling
from isthmus.core.record import CPU, Record, State, moved

if TYPE_CHECKING:
    from isthmus.core.exposure import Exchange
    from isthmus.core.folds import Fold

ReplyT = TypeVar("ReplyT", bound=Record)


class Book(Protocol):
    """What a client has settled once and for all, kept where no server can roll it back, unlike its memory.

    `under_way` is what it needs for the sum that is made now: it goes with the process, and is in no file.
    """

    under_way: State

    def open(self, keys: str) -> None:
        """Begin with a new set of keys, by its name."""

    def settle(self, keys: str, what: str, value: bytes) -> None:
        """Settle something for a set of keys; raises BadMessage if something else was settled before."""

    def settle_for_good(self, what: str, value: bytes) -> None:
        """Settle something for this process and those after it; raises BadMessage if it was something else before."""

    def add_up(self, reply: str, clients: tuple[str, ...]) -> None:
        """Take note over whom a reply is added up; raises BadMessage if it was over others before."""

    def added(self, reply: str) -> tuple[str, ...]:
        """Return over whom a reply was added up; nobody if it never was."""


class OwnClient(Protocol):
    """A client of the server's own, on a graph that the server has: nobody else sees what it answers."""

    def answer(self, position: Position, request: Request[Any], memory: State) -> tuple[Record, State]:
        """Return the reply to what clients were asked, and what the client remembers then.

        Raises CourseFailed where there is no reply that could be used.
        """


# What the server's own client is called.
SERVER = "server"


class Signer(Protocol):
    """Signs what a client says to other clients by way of the server, and sees that others' words are theirs."""

    def sign(self, text: bytes) -> str:
        """Return a signature of some bytes."""

    def problem(self, client: str, text: bytes, signature: str) -> str:
        """Return what is wrong with a signature that should be a client's; empty if it is that client's."""


@dataclass(frozen=True)
class AtClient:
    """What the client half of a guard is given: its client, and a memory of its own within the client's."""

    client: Client
    entry: str

    @property
    def position(self) -> Position:
        """Where in the course the exchange stands."""
        return self.client.position

    @property
    def memory(self) -> State:
        """What the guard remembers at this client; to be replaced, never changed in place."""
        kept: State = self.client.state.get(self.entry, {})
        return kept if self.client.device == CPU else moved(kept, CPU)

    def remember(self, memory: State) -> None:
        """Put another memory in place of the one before; an empty one leaves none."""
        if memory:
            self.client.state[self.entry] = memory
        else:
            self.client.state.pop(self.entry, None)

    def protecting(self, purpose: str, guarded: Any) -> ProtectingStream:
        """Return the stream that only this client can draw, as `Client.protecting` does."""
        return self.client.protecting(f"{self.entry} {purpose}", guarded)


@dataclass(frozen=True)
class AtServer:
    """What the server half of a guard is given: where the course stands, and a memory that checkpoints keep.

    `folds` says whether the server sees but the fold of the replies, and `fold` which. `secret` is the server's own;
    that of a simulation derives from the seed. `everybody` are all clients, of whom `sampling` draws the cohorts.
    `course` is what all parties of a course between sites call it; empty in a simulation. `own` is the server's own
    client, where the course gives it a graph.
    """

    position: Position
    entry: str
    clients: tuple[str, ...]
    folds: bool
    known: Known
    secret: Secret
    note: Callable[[str], None]
    memories: dict[str, State] = field(repr=False)
    fold: Fold | None = None
    everybody: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=UniformSampling)
    course: str = ""
    own: OwnClient | None = None

    @property
    def memory(self) -> State:
        """What the guard remembers at the server; to be replaced, never changed in place."""
        return self.memories.get(self.entry, {})

    def remember(self, memory: State) -> None:
        """Put another memory in place of the one before."""
        self.memories[self.entry] = memory

    def protecting(self, purpose: str) -> ProtectingStream:
        """Return a stream that only this server can draw, for a purpose in this exchange."""
        at = self.position
        return self.secret.stream(self.entry, at.seed, at.round, at.exchange, purpose)


class Suspicious(Exception):
    """A reply that a guard does not want to count, and why; it becomes a named failure of its client."""


@dataclass(frozen=True)
class Guard:
    """One protection of a course's messages; its fields are its settings, and it is shared by all and never changes.

    Every method does nothing here: a guard overrides what it needs.
    """

    # Fields that protect, and whether a larger or a smaller value protects more, as `Algorithm.protects`: what a silo
    # may ask for at least. A field that is null or false protects least, one that must be true is a "more".
    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {}
    # Whether it takes over the exchanges whose replies are added up (`summed`); only the last of the list can.
    sums: ClassVar[bool] = False
    # Whether `accept` may be done to a mean of replies as to each reply: else it cannot stand before one that sums.
    linear: ClassVar[bool] = True
    # Whether what leaves has the names, shapes and types of what came; only `accept` finds them again else.
    keeps_form: ClassVar[bool] = True
    # Whether its client half works on the numbers of what leaves: then no guard before it may make bytes of them.
    works_on_numbers: ClassVar[bool] = False
    # Whether what `receive` makes of a request depends on the request alone: then it is done once for many clients.
    receives_alike: ClassVar[bool] = True

    def problem(self, course: Any) -> str:
        """Return why a course cannot have this guard beside its other parts, with what would do; empty if it can."""
        return ""

    @property
    def asks_alike(self) -> bool:
        """Whether clients that are sent the same understand the same, to the bit."""
        return self.receives_alike

    @property
    def compares(self) -> bool:
        """Whether what becomes of one reply depends on the others: then one client moves more than its own part."""
        return type(self).review is not Guard.review or type(self).fold is not Guard.fold

    @property
    def keeps_models(self) -> bool:
        """Whether a course comes to the same models with it as without it, but for rounding."""
        return False

    @property
    def restores(self) -> bool:
        """Whether `accept` makes of a reply, which changes what was heard, one that changes what was meant."""
        return False

    @property
    def changes_every_number(self) -> bool:
        """Whether each client's reply, as it leaves, differs from what was sent at every number, as under noise."""
        return False

    @property
    def sums_scores(self) -> bool:
        """Whether it adds up how the clients' models do as well: then nobody is told how a single one does."""
        return False

    def mean_error(self, num_clients: int) -> float:
        """Return how far each number of a mean over so many clients may be off by how it is added up."""
        return 0.0

    @property
    def private_steps(self) -> PrivateSteps | None:
        """How clients take the steps of their training, where examples are hidden from what becomes of it."""
        return None

    @property
    def noisy_sums(self) -> NoisySums | None:
        """How clients add up over edges, where edges or nodes are hidden from what becomes of it."""
        return None

    @property
    def least_clients(self) -> int:
        """With fewer clients a course with this guard cannot go on."""
        return 1

    def shown(self, exchange: Exchange) -> Exchange:
        """Return an exchange as it is with this guard, for people: who sees what by contract, and on the wire."""
        return exchange

    # ---- server

    def barred(self, memory: State, round: int) -> Collection[str]:
        """Return the clients that are not asked in a round."""
        return ()

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Return the requests that leave; who is sent the same object should get one object again (`each_once`)."""
        return requests

    def heard(self, requests: Requests, at: AtServer) -> Requests:
        """Return what clients make of requests that left: what `receive` gives them, known at the server too."""
        return requests

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        """Return a reply as it was before `release`; raises BadMessage or Suspicious where it cannot be taken."""
        return reply

    def failed(self, client: str, at: AtServer) -> None:
        """Take note that a client gave no usable reply: it remembers what it did before the exchange, if anything."""

    def told_of(self, failure: Failure, at: AtServer) -> None:
        """Take note of a failure as people are told of it, whichever guard or check it comes from."""

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        """Return the clients whose replies are not to count, with the reason, once all are there."""
        return {}

    def fold(self, fold: Fold, at: AtServer) -> Fold:
        """Return what folds the replies of an exchange."""
        return fold

    def folded(self, reply: ReplyT, requests: Requests, num_replies: int, at: AtServer) -> ReplyT:
        """Return what the algorithm is given as the fold of so many replies."""
        return reply

    @property
    def answers_for_nobody(self) -> bool:
        """Whether rounds of nobody are carried out, with what `of_nobody` says: else they are left out."""
        return False

    def of_nobody(self, request: Request[Any], at: AtServer) -> Record:
        """Return what the fold of no replies is, where nobody was drawn."""
        raise NotImplementedError(f"{type(self).__name__} says that it answers for nobody, and has no answer")

    def following(self, at: AtServer) -> Request[Any] | None:
        """Return its own first request of an exchange that it sums, for a message that can bring two; if it sums."""
        return None

    def form_of_held(self, reply: Record) -> Hashable:
        """Return what the replies in whose place others are held have in common: an odd one is a failure; if it sums.

        None has no say.
        """
        return None

    def summed(self, stages: Stages) -> Record:
        """Return the weighted mean of the replies that clients hold, by exchanges of its own; if it `sums`."""
        raise NotImplementedError(f"{type(self).__name__} says that it sums, and has no way to")

    def round_done(self, round: int, memory: State) -> State:
        """Return the guard's memory at the server after a round."""
        return memory

    def spent(self, memory: State) -> Mapping[str, float]:
        """Return what is used up so far, by name, for the journal: {"epsilon": 1.2}."""
        return {}

    def exhausted(self, memory: State) -> str:
        """Return why the course has to end after the rounds so far; empty if it may go on."""
        return ""

    # ---- client

    def receive(self, request: Request[Any], at: AtClient) -> Request[Any]:
        """Return a request as it was before `send`, or as near as that can be."""
        return request

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return what leaves the client of a reply to a request, which is as its handler got it."""
        return reply


# Says of the replies of an exchange, once all are there, whose are not usable, and why: these are named failures.
Review: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, str]]


class Asking(Protocol):
    """Carries one more exchange, of a guard's own requests."""

    def __call__(self, requests: Mapping[str, Request[Any]], review: Review | None = None) -> Mapping[str, Any]:
        """Return the usable replies by client."""


class Stages:
    """An exchange whose replies the clients hold back, as the guard that adds them up sees it.

    `requests` are the algorithm's own, as clients understand them; `holding` are those who have a reply. `ask` carries
    one more exchange, of the guard's own requests. `num_replies` is how many are in the sum: all that are held, unless
    the guard says that it is fewer. `reshaped` says whether guards before it have changed the form of what is held, and
    `alike` whether clients that are sent the same understand the same.
    `following` is the request that the guard said would follow, which may have gone along with the algorithm's.
    """

    reshaped = False
    alike = True
    following: Request[Any] | None = None

    def __init__(
        self,
        requests: Requests,
        holding: tuple[str, ...],
        ask: Asking,
        min_replies: int,
        at: AtServer,
    ) -> None:
        self.requests, self.holding, self.ask, self.min_replies, self.at = requests, holding, ask, min_replies, at
        self.num_replies = len(holding)


def each_once(requests: Requests, change: Callable[[Request[Any]], Request[Any]]) -> Requests:
    """Return requests with each distinct one changed once."""
    distinct = {id(request): request for request in requests.values()}
    changed = {key: change(request) for key, request in distinct.items()}
    return {client: changed[id(request)] for client, request in requests.items()}
