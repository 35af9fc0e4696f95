"""The order in which guards are done to what leaves and arrives, and what becomes of a reply that one cannot take."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar

import pytest

from isthmus.core.client import Client
from isthmus.core.errors import BadMessage
from isthmus.core.folds import weighted_mean
from isthmus.core.guards.guard import AtServer, Guard, Suspicious, each_once
from isthmus.core.guards.line import GuardLine, ServerSide, line_problem
from isthmus.core.protocol import Failure, Known, Position, Request
from isthmus.core.random import PoissonSampling, Secret
from isthmus.core.record import Record, State

from ..test_federation import Rest, Train, Update, update
from .toys import Adding, Affine, Boxed, Counting, Doubting, GiveUp

AT = Position(seed=3, round=2, exchange=1)


class Someone(Client):
    """A client of which guards need nothing but its memory."""

    def __init__(self, id: str = "a") -> None:
        super().__init__(id)
        self.position = AT
        self.secret = Secret.of_simulation(0, id)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def server_half(*guards: Guard, memories: dict[str, State] | None = None) -> Any:
    server = ServerSide(
        {} if memories is None else memories, Secret.of_simulation(0, "server"), Known(), lambda text: None
    )
    return GuardLine(guards).at_server(server, AT, ("a", "b"), weighted_mean)


def of(reply: Record) -> float:
    assert isinstance(reply, Update)
    return float(reply.params["w"])


def test_a_reply_passes_all_guards_in_order_and_arrives_by_the_way_back() -> None:
    guards = Affine(plus=1.0), Affine(times=4.0)
    left = GuardLine(guards).released(update(2.0), Train(1), Someone())
    assert of(left) == (2.0 + 1.0) * 4.0  # the other way round it would be 9
    assert of(server_half(*guards).accepted("a", left, Train(1))) == 2.0


def test_a_request_passes_all_guards_in_order_and_arrives_by_the_way_back() -> None:
    first, second = Affine(plus=1.0, requests=True), Affine(times=4.0, requests=True)
    asked = update(2.0)
    requests = dict.fromkeys("ab", asked)
    sent, heard = server_half(first, second).sent(requests)
    assert of(sent["a"]) == 12.0
    assert of(heard["a"]) == 2.0
    assert of(GuardLine((first, second)).received(sent["a"], Someone())) == 2.0  # type: ignore[arg-type]
    assert sent["a"] is sent["b"]
    assert heard["a"] is heard["b"]


def test_what_is_the_same_for_all_is_made_once() -> None:
    seen: list[Any] = []

    def change(request: Request[Any]) -> Request[Any]:
        seen.append(request)
        return Train(request.steps + 1)

    one, other = Train(1), Train(1)
    changed = each_once({"a": one, "b": other, "c": one}, change)
    assert len(seen) == 2
    assert changed["a"] is changed["c"]
    assert changed["a"] is not changed["b"]


def test_a_request_that_many_clients_share_is_received_once() -> None:
    class Noting(Affine):
        seen: ClassVar[list[Any]] = []

        def receive(self, request: Request[Any], at: Any) -> Request[Any]:
            self.seen.append(request)
            return super().receive(request, at)

    class Unlike(Noting):
        receives_alike: ClassVar[bool] = False

    request = Train(1)
    for kind, times in ((Noting, 1), (Unlike, 2)):
        kind.seen.clear()
        line = GuardLine((kind(),))
        for client in (Someone("a"), Someone("b")):
            line.received(request, client)
        assert len(kind.seen) == times


def test_a_guard_has_a_memory_of_its_own_at_each_client() -> None:
    client = Someone()
    line = GuardLine((Counting(), Counting()))
    for _ in range(3):
        line.released(update(0.0), Train(1), client)
    assert client.state == {"guard.0.Counting": {"replies": 3}, "guard.1.Counting": {"replies": 3}}


def test_an_empty_memory_leaves_no_entry() -> None:
    client, line = Someone(), GuardLine((Adding(held=("Train",)),))
    line.released(update(2.0, 5.0), Train(1), client)
    assert set(client.state) == {"guard.0.Adding"}
    held = line.answered(GiveUp(), client)
    assert (float(held.params["w"]), held.weight) == (2.0, 5.0)  # type: ignore[union-attr]
    assert client.state == {}


def test_the_servers_memories_are_by_guard_and_stay_with_the_course() -> None:
    memories: dict[str, State] = {}
    half = server_half(Counting(), Boxed(), Counting(), memories=memories)
    boxed = GuardLine((Boxed(),)).released(update(1.0), Train(1), Someone())
    half.accepted("a", boxed, Train(1))
    assert memories == {"guard.0.Counting": {"replies": 1}, "guard.2.Counting": {"replies": 1}}
    line = GuardLine((Counting(most=1), Boxed()))
    memories = line.round_done({}, 1)
    assert memories == {"guard.0.Counting": {"rounds": 1}}
    assert line.spent(memories) == {"rounds": 1.0}
    assert line.exhausted(memories) == "1 rounds are all there is"
    assert line.exhausted({}) == ""


def test_the_servers_stream_is_another_in_every_exchange_and_for_every_guard() -> None:
    def drawn(place: int = 0, **where: int) -> bytes:
        at = Position(**{"seed": 0, "round": 1, "exchange": 0, **where})
        line = GuardLine((Boxed(), Boxed()))
        secret = Secret.of_simulation(0, "server")
        half = line.at_server(ServerSide({}, secret, Known(), lambda text: None), at, ("a",), weighted_mean)
        return half._at[line.entries[place]].protecting("noise").take(16)  # type: ignore[no-any-return]

    draws = {drawn(), drawn(1), drawn(round=2), drawn(exchange=1), drawn(seed=1)}
    assert len(draws) == 5
    assert drawn() == drawn()


@pytest.mark.parametrize(
    ("raised", "kind", "reason"),
    [
        (Suspicious("it is too far away"), "suspicious", "it is too far away"),
        (BadMessage("a blob of 3 bytes"), "malformed", "a blob of 3 bytes"),
        (IndexError("list index"), "malformed", "IndexError: list index"),
        (MemoryError(), "malformed", "MemoryError: "),
    ],
)
def test_what_a_guard_stumbles_over_is_its_clients_failure(raised: Exception, kind: str, reason: str) -> None:
    class Stumbling(Guard):
        def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
            raise raised

    failure = server_half(Boxed(), Stumbling()).accepted("b", update(1.0), Train(1))
    assert failure == Failure("b", kind, reason)


def test_a_failure_is_no_reply_to_a_guard() -> None:
    failure = Failure("a", "late", "it took 3 s")
    assert server_half(Boxed()).accepted("a", failure, Train(1)) is failure


def test_who_is_refused_by_one_guard_is_not_shown_to_the_next() -> None:
    class Looking(Guard):
        seen: ClassVar[list[list[str]]] = []

        def review(self, replies: Any, requests: Any, at: AtServer) -> dict[str, str]:
            self.seen.append(sorted(replies))
            return {}

    replies = {"a": update(1.0), "b": update(2.0)}
    failures = server_half(Looking(), Doubting("a")).reviewed(replies, dict.fromkeys("ab", Train(1)))
    assert failures == {"a": Failure("a", "suspicious", "it lies, unlike 1 others")}
    assert Looking.seen == [["b"]]


def test_a_guard_answers_only_its_own_requests() -> None:
    line = GuardLine((Adding(),))
    assert line.kinds == (GiveUp,)
    assert line.answered(Rest(), Someone()) is None
    assert GuardLine((Boxed(),)).kinds == ()


@pytest.mark.parametrize(
    ("guards", "words"),
    [
        ((Adding(), Boxed()), ("Adding", "must be the last guard", "Boxed is after it")),
        ((Boxed(), Adding()), ("Boxed turns each reply into bytes", "Adding lets nobody see one")),
        ((Doubting(), Adding()), ("Doubting looks at single replies", "Adding lets nobody see one", "leave one out")),
        ((Adding(), Adding()), ("must be the last guard",)),
    ],
)
def test_guards_that_cannot_stand_in_their_order_are_refused(guards: tuple[Guard, ...], words: tuple[str, ...]) -> None:
    for word in words:
        assert word in line_problem(guards)


@pytest.mark.parametrize("guards", [(), (Boxed(),), (Affine(), Adding()), (Boxed(), Doubting(), Counting())])
def test_other_orders_are_fine(guards: tuple[Guard, ...]) -> None:
    assert line_problem(guards) == ""


def test_a_guard_does_nothing_by_itself() -> None:
    line, client = GuardLine((Guard(),)), Someone()
    request, reply = Train(1), update(1.0)
    assert line.received(request, client) is request
    assert line.released(reply, request, client) is reply
    assert server_half(Guard()).accepted("a", reply, request) is reply
    assert client.state == {}
    with pytest.raises(NotImplementedError, match="Guard says that it sums"):
        Guard().summed(None)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        Affine().plus = 2.0  # type: ignore[misc]


def test_a_guard_can_say_what_the_fold_of_nobody_is() -> None:
    @dataclass(frozen=True)
    class Unchanged(Guard):
        @property
        def answers_for_nobody(self) -> bool:
            return True

        def of_nobody(self, request: Request[Any], at: AtServer) -> Record:
            return update(float(len(at.everybody)))

    secret = Secret.of_simulation(0, "server")
    server = ServerSide({}, secret, Known(), lambda text: None, ("a", "b", "c"), PoissonSampling(0.1))
    plain, line = GuardLine((Adding(),)), GuardLine((Adding(), Unchanged()))
    assert line.answers_for_nobody and not plain.answers_for_nobody
    half = line.at_server(server, AT, (), weighted_mean)
    assert float(half.of_nobody(Train(0)).params["w"]) == 3.0  # type: ignore[attr-defined]
    assert [at.sampling for _, at in half._pairs()] == [PoissonSampling(0.1)] * 2
    assert all(at.fold is weighted_mean and at.folds for _, at in half._pairs())
    assert not any(at.folds for _, at in line.at_server(server, AT, (), None)._pairs())
