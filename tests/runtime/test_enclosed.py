"""Two requests in one message: as if each had come in its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.codec import decode, encode, pack
from isthmus.core.federation import Outcome
from isthmus.core.protocol import Algorithm, Client, Failure, Position, Request, on
from isthmus.core.record import Record
from isthmus.runtime.answering import MemoryStore, Silo
from isthmus.runtime.envelope import Answer, EnclosedAnswer, Enclosure, Envelope
from isthmus.runtime.reasons import Reasons
from isthmus.runtime.remote import RemoteRuntime

FIRST, SECOND, THIRD = (Position(0, 1, number) for number in range(3))


@dataclass(frozen=True)
class Sum(Record):
    value: int


@dataclass(frozen=True)
class Add(Request[Sum]):
    value: int


@dataclass(frozen=True)
class Double(Request[Sum]):
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counting(Algorithm[Sum]):
    """Clients count in their memories."""

    def setup(self, fed: Any) -> Sum:
        return Sum(0)

    def round(self, state: Sum, fed: Any) -> Sum:
        return state

    @on(Add)
    def add(self, request: Add, client: Client) -> Sum:
        client.state["value"] = client.state.get("value", 0) + request.value
        return Sum(client.state["value"])

    @on(Double)
    def double(self, request: Double, client: Client) -> Sum:
        if client.id in request.refused:
            raise RuntimeError("it will not double")
        client.state["value"] = 2 * client.state["value"]
        return Sum(client.state["value"])


class Bare(Client):
    def evaluate(self, params: Any, splits: Any) -> Any:
        return {}, {}


class Wire:
    """Silos in this process; what they are asked is written down, and what they say may be changed."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.silos = {
            name: Silo(
                "c",
                Counting(),
                lambda name=name: Bare(name),  # type: ignore[misc]
                MemoryStore(folder / name),
                reasons=Reasons(self.said.append, tell=True),
            )
            for name in ("a", "b")
        }
        self.holdings: dict[str, Any] = {}
        self.asked: list[tuple[str, Envelope]] = []
        self.change: Any = lambda name, answer: answer
        self.runtime = RemoteRuntime("c", ["a", "b"], self)

    def send(self, messages: Mapping[str, bytes], timeout_seconds: float | None) -> Iterator[Any]:
        for name, message in messages.items():
            self.asked.append((name, decode(message, Envelope)))
            answer: Answer = decode(self.silos[name].answer(message), Answer)
            yield name, encode(self.change(name, answer))

    def exchange(self, position: Position, request: Request[Any], names: str = "ab") -> dict[str, Any]:
        """Return what clients reply: numbers, or the kinds of failures."""
        outcomes: list[Outcome] = list(self.runtime.exchange(position, dict.fromkeys(names, request), None))
        assert [o.client for o in outcomes] == list(names)
        replies = {outcome.client: outcome.reply for outcome in outcomes}
        return {c: r.kind if isinstance(r, Failure) else r.value for c, r in replies.items()}  # type: ignore[attr-defined]

    def memories(self) -> dict[str, int]:
        """Return what clients remember by the names that the server has."""
        self.runtime.mark(1)
        return {
            name: self.silos[name].store.load(memory.decode()).get("value", 0)
            for name, memory in self.runtime.save_clients().items()
        }

    def kinds(self) -> list[tuple[str, str, str]]:
        """Return who was asked for what, and what was enclosed."""
        return [(name, e.kind, "" if e.enclosed is None else e.enclosed.kind) for name, e in self.asked]


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    return Wire(tmp_path)


def test_two_exchanges_in_one_message_are_the_same_as_in_two(wire: Wire, tmp_path: Path) -> None:
    wire.runtime.enclose(SECOND, Double())
    assert wire.exchange(FIRST, Add(3)) == {"a": 3, "b": 3}
    assert wire.exchange(SECOND, Double()) == {"a": 6, "b": 6}
    assert wire.kinds() == [("a", "Add", "Double"), ("b", "Add", "Double")]
    other = Wire(tmp_path / "other")
    assert (other.exchange(FIRST, Add(3)), other.exchange(SECOND, Double())) == ({"a": 3, "b": 3}, {"a": 6, "b": 6})
    assert wire.memories() == other.memories() == {"a": 6, "b": 6}


def test_what_nobody_asks_for_in_the_end_leaves_no_trace(wire: Wire) -> None:
    """The memory is that which the first reply left."""
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(3))
    assert wire.exchange(SECOND, Add(1)) == {"a": 4, "b": 4}  # another request at its place
    assert wire.memories() == {"a": 4, "b": 4}


def test_an_enclosed_request_is_for_its_own_place_and_for_the_next_exchange_only(wire: Wire) -> None:
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(3))
    assert wire.exchange(THIRD, Double()) == {"a": 6, "b": 6}
    assert wire.exchange(SECOND, Double()) == {"a": 12, "b": 12}
    assert [enclosed for _, _, enclosed in wire.kinds()] == ["Double"] * 2 + [""] * 4


def test_who_was_not_in_the_first_exchange_or_said_nothing_is_asked_in_a_message_of_its_own(wire: Wire) -> None:
    wire.exchange(FIRST, Add(1))
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(3), "a")
    assert wire.exchange(SECOND, Double()) == {"a": 8, "b": 2}
    assert wire.kinds()[-1] == ("b", "Double", "")
    wire.change = lambda name, answer: replace(answer, enclosed=None)
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(0))
    assert wire.exchange(SECOND, Double()) == {"a": 16, "b": 4}


def test_a_failure_of_the_second_leaves_the_memory_of_the_first(wire: Wire) -> None:
    wire.runtime.enclose(SECOND, Double(("a",)))
    assert wire.exchange(FIRST, Add(3)) == {"a": 3, "b": 3}
    assert wire.exchange(SECOND, Double(("a",))) == {"a": "error", "b": 6}
    wire.runtime.undo("a")
    assert wire.memories() == {"a": 3, "b": 6}
    assert any("Double" in text and "it will not double" in text for text in wire.said)


def test_the_second_is_undone_without_the_first(wire: Wire) -> None:
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(3))
    wire.exchange(SECOND, Double())
    wire.runtime.undo("b")
    assert wire.memories() == {"a": 6, "b": 3}


def test_after_a_failure_of_the_first_there_is_no_second(wire: Wire) -> None:
    wire.exchange(FIRST, Add(3))
    wire.runtime.enclose(THIRD, Add(5))
    assert wire.exchange(SECOND, Double(("a",))) == {"a": "error", "b": 6}
    assert wire.exchange(THIRD, Add(5), "b") == {"b": 11}
    assert wire.memories() == {"a": 3, "b": 11}


def test_an_exchange_that_is_interrupted_takes_its_enclosure_along(wire: Wire) -> None:
    """Else the next one, of another round, would bring an old question."""
    wire.runtime.enclose(SECOND, Double())
    next(wire.runtime.exchange(FIRST, dict.fromkeys("ab", Add(3)), None))
    wire.runtime.abandon_round()
    assert wire.exchange(FIRST, Add(3)) == {"a": 3, "b": 3}
    assert [enclosed for _, _, enclosed in wire.kinds()] == ["Double", "", ""]
    assert wire.exchange(SECOND, Double()) == {"a": 6, "b": 6}
    assert wire.kinds()[-1] == ("b", "Double", "")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda said: replace(said, memory="../../elsewhere"),
        lambda said: replace(said, payload=pack(b"nothing")),
        lambda said: replace(said, payload=pack(encode(Double()))),
    ],
)
def test_what_is_no_answer_to_the_second_is_a_named_failure_of_the_second_alone(wire: Wire, wrong: Any) -> None:
    wire.change = lambda name, answer: replace(answer, enclosed=wrong(answer.enclosed)) if name == "a" else answer
    wire.runtime.enclose(SECOND, Double())
    assert wire.exchange(FIRST, Add(3)) == {"a": 3, "b": 3}
    assert wire.exchange(SECOND, Double()) == {"a": "malformed", "b": 6}
    assert wire.memories() == {"a": 3, "b": 6}


def test_an_answer_that_nobody_asked_for_counts_for_nothing(wire: Wire) -> None:
    lie = EnclosedAnswer(pack(encode(Sum(99))), None, "")
    wire.change = lambda name, answer: replace(answer, enclosed=lie)
    assert wire.exchange(FIRST, Add(3)) == {"a": 3, "b": 3}
    wire.change = lambda name, answer: answer
    assert wire.exchange(SECOND, Double()) == {"a": 6, "b": 6}


def test_a_silo_refuses_an_enclosed_request_that_is_none_and_answers_the_first(wire: Wire) -> None:
    for kind, payload in (("Halve", encode(Double())), ("Double", b"nothing"), ("Double", encode(Add(1)))):
        enclosed = Enclosure(SECOND, kind, pack(payload))
        asked = Envelope("c", FIRST, "Add", pack(encode(Add(3))), "", (), "q", enclosed)
        answer: Answer = decode(wire.silos["a"].answer(encode(asked)), Answer)
        assert answer.failure is None and answer.enclosed is not None and answer.enclosed.failure is not None
        assert answer.enclosed.failure.kind == "malformed" and answer.enclosed.memory == answer.memory


def test_both_memories_of_a_message_are_kept_until_the_next_one(wire: Wire) -> None:
    """The server may go on from either."""
    wire.runtime.enclose(SECOND, Double())
    wire.exchange(FIRST, Add(3), "a")
    store = wire.silos["a"].store
    values = sorted(store.load(path.name)["value"] for path in store.folder.iterdir())
    assert values == [3, 6]
