from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from isthmus.core.client import Client
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Algorithm, Failure
from isthmus.core.record import State
from isthmus.runtime.loop import LoopRuntime
from isthmus.runtime.strict import StrictRuntime

from .toys import AT, AttributeCheat, InPlaceCheat, Toy, ToyClient, Train, Unknown, Update, one, train

NAMES = ("a", "b")


def strict_of(algorithm: Algorithm[Any], **options: Any) -> StrictRuntime:
    return StrictRuntime(algorithm, {name: lambda name=name: ToyClient(name) for name in NAMES}, **options)


def loop_of(algorithm: Algorithm[Any]) -> LoopRuntime:
    return LoopRuntime(algorithm, [ToyClient(name) for name in NAMES])


@pytest.fixture
def strict() -> StrictRuntime:
    return strict_of(Toy())


def history(runtime: Any, rounds: int = 3) -> list[float]:
    """Return what client a answers, round after round, to one request that goes to both clients."""
    params, seen = {"w": torch.tensor([10.0])}, []
    for _ in range(rounds):
        outcomes = list(runtime.exchange(AT, dict.fromkeys(NAMES, Train(params)), None))
        seen += [outcome.reply.params["w"].item() for outcome in outcomes]
    return seen


def test_an_honest_algorithm_gives_the_same_in_both_runtimes() -> None:
    assert history(loop_of(Toy())) == history(strict_of(Toy())) == [11, 11, 12, 12, 13, 13]


def test_an_attribute_on_the_client_does_not_survive_the_request() -> None:
    assert history(loop_of(AttributeCheat())) == [11, 11, 12, 12, 13, 13]
    assert history(strict_of(AttributeCheat())) == [11] * 6


def test_tensors_that_a_client_changes_in_place_are_its_own() -> None:
    # In the loop both clients, and the server, hold one and the same tensor.
    assert history(loop_of(InPlaceCheat())) == [12, 12, 14, 14, 16, 16]
    assert history(strict_of(InPlaceCheat())) == [11] * 6


def test_a_reply_shares_nothing_with_the_clients_memory(strict: StrictRuntime) -> None:
    one(strict, train()).reply.params["w"].fill_(99.0)  # type: ignore[union-attr]
    strict.mark(1)
    assert decode(strict.save_clients()["a"], State)["params"]["w"].item() == 11.0


def test_every_request_meets_a_client_that_was_just_started() -> None:
    started: list[Client] = []

    def start() -> Client:
        started.append(ToyClient("a"))
        return started[-1]

    runtime = StrictRuntime(Toy(), {"a": start})
    for calls in (1, 2, 3):
        assert one(runtime, train()).reply.weight == calls  # type: ignore[union-attr]
    assert len({id(client) for client in started}) == 3


def test_sizes_are_those_of_the_messages(strict: StrictRuntime) -> None:
    outcome = one(strict, train())
    assert outcome.bytes_down == len(encode(train())) and outcome.bytes_up == len(encode(outcome.reply))
    assert one(strict, train("raises")).bytes_up == 0


def test_garbage_for_a_request_is_a_named_failure_and_touches_no_memory(strict: StrictRuntime) -> None:
    one(strict, train())
    good = encode(train())
    draw = random.Random(0)
    garbage = [b"", b"garbage", good[:-1], good + b"\0", encode(Unknown()), encode({"params": 1})]
    garbage += [draw.randbytes(draw.randrange(200)) for _ in range(100)]
    garbage += [good[:16] + draw.randbytes(len(good) - 16) for _ in range(100)]
    for message in garbage:
        outcome = strict.answer_bytes("a", AT, message, Train)
        assert isinstance(outcome.reply, Failure)
        assert (outcome.reply.client, outcome.reply.kind) == ("a", "malformed")
        assert (outcome.bytes_down, outcome.bytes_up) == (len(message), 0)
    assert one(strict, train()).reply.weight == 2.0  # type: ignore[union-attr]


def test_messages_above_the_limit_are_refused_on_either_side() -> None:
    small = strict_of(Toy(), max_bytes=len(encode(train())) - 1)
    unread = one(small, train())
    assert isinstance(unread.reply, Failure) and unread.reply.kind == "malformed"
    assert "above the limit" in unread.reply.reason and unread.bytes_up == 0
    large = strict_of(Toy(), max_bytes=1000)
    answered = one(large, train("replies_at_length"))
    assert isinstance(answered.reply, Failure) and "above the limit of 1000 bytes" in answered.reply.reason
    assert answered.bytes_up > 4000


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("replies_with_a_list", "cannot encode a list"),
        ("replies_with_another_record", "found the record 'Train', expected Update"),
    ],
)
def test_a_reply_that_is_not_what_the_request_is_owed_is_malformed(
    strict: StrictRuntime, how: str, reason: str
) -> None:
    reply = one(strict, train(how)).reply
    assert isinstance(reply, Failure) and reply.kind == "malformed" and reason in reply.reason


@pytest.mark.parametrize(
    "how", ["raises", "refuses", "remembers_a_list", "remembers_an_object", "remembers_a_complex_tensor"]
)
def test_failures_are_the_same_as_in_the_loop_and_leave_the_memory(how: str) -> None:
    runtimes: list[Any] = [strict_of(Toy()), loop_of(Toy())]
    for runtime in runtimes:
        one(runtime, train())
    strict, loop = (one(runtime, train(how)).reply for runtime in runtimes)
    assert isinstance(strict, Failure) and strict.kind == "error"
    assert strict.reason.split("(")[0] == loop.reason.split("(")[0]  # type: ignore[union-attr]
    for runtime in runtimes:
        runtime.mark(1)
        assert decode(runtime.save_clients()["a"], State)["calls"] == 1


def test_a_late_answer_leaves_the_memory(strict: StrictRuntime) -> None:
    late = one(strict, train("dawdles"), timeout_seconds=0.01).reply
    assert isinstance(late, Failure) and late.kind == "late"
    assert one(strict, train()).reply.weight == 1.0  # type: ignore[union-attr]


def test_abandoning_a_round_puts_memories_back_to_the_mark(strict: StrictRuntime) -> None:
    one(strict, train())
    strict.mark(4)
    one(strict, train())
    assert strict.abandon_round() == 4
    assert one(strict, train()).reply.weight == 2.0  # type: ignore[union-attr]
    assert decode(strict.save_clients()["a"], State)["calls"] == 1


def test_memories_move_between_the_runtimes(strict: StrictRuntime) -> None:
    one(strict, train())
    strict.mark(1)
    loop = loop_of(Toy())
    loop.load_clients(strict.save_clients())
    reply = one(loop, train()).reply
    assert isinstance(reply, Update) and reply.weight == 2.0
    loop.mark(2)
    again = strict_of(Toy())
    again.load_clients(loop.save_clients())
    assert one(again, train()).reply.weight == 3.0  # type: ignore[union-attr]


def test_memories_of_other_clients_are_refused_by_name(strict: StrictRuntime) -> None:
    with pytest.raises(BadInput, match=r"the checkpoint has the clients \['a'\], this course has \['a', 'b'\]"):
        strict.load_clients({"a": encode({})})
