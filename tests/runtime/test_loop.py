from __future__ import annotations

import pytest
import torch

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.protocol import Failure
from isthmus.core.record import State
from isthmus.runtime.loop import LoopRuntime

from .toys import AT, Toy, ToyClient, Train, Unknown, Update, one, train


@pytest.fixture
def loop() -> LoopRuntime:
    return LoopRuntime(Toy(), [ToyClient(name) for name in ("b", "a", "c")])


def test_clients_keep_the_order_given(loop: LoopRuntime) -> None:
    assert loop.clients == ("b", "a", "c")


def test_each_client_answers_its_own_request_with_its_own_memory(loop: LoopRuntime) -> None:
    requests = {"c": Train({"w": torch.tensor([1.0])}), "a": Train({"w": torch.tensor([2.0])})}
    one(loop, train(), "a")
    outcomes = list(loop.exchange(AT, requests, None))
    assert [outcome.client for outcome in outcomes] == ["c", "a"]
    assert [outcome.reply.params["w"].item() for outcome in outcomes] == [2.0, 4.0]  # type: ignore[union-attr]


def test_sizes_are_those_of_the_encoded_messages(loop: LoopRuntime) -> None:
    outcome = one(loop, train())
    assert outcome.bytes_down == len(encode(train()))
    assert outcome.bytes_up == len(encode(outcome.reply))
    lost = one(loop, train("raises"))
    assert (lost.bytes_down, lost.bytes_up) == (len(encode(train("raises"))), 0)


def test_one_failing_client_does_not_keep_the_others_from_answering(loop: LoopRuntime) -> None:
    outcomes = list(loop.exchange(AT, {"b": train(), "a": train("raises"), "c": train()}, None))
    assert [isinstance(outcome.reply, Update) for outcome in outcomes] == [True, False, True]
    reply = outcomes[1].reply
    assert isinstance(reply, Failure) and reply.client == "a" and "in raises, line" in reply.reason


def test_an_unknown_request_and_a_late_answer_are_failures(loop: LoopRuntime) -> None:
    assert one(loop, Unknown()).reply == Failure("a", "error", "Toy has no handler for Unknown")
    late = one(loop, train("dawdles"), timeout_seconds=0.01).reply
    assert isinstance(late, Failure) and late.kind == "late"
    assert loop.sites["a"].client.state == {}


def test_a_reply_that_cannot_be_encoded_is_malformed(loop: LoopRuntime) -> None:
    reply = one(loop, train("replies_with_a_list")).reply
    assert isinstance(reply, Failure) and reply.kind == "malformed" and "cannot encode a list" in reply.reason


def test_a_request_that_cannot_be_encoded_is_the_servers_error(loop: LoopRuntime) -> None:
    with pytest.raises(BadMessage, match="cannot encode a list"):
        one(loop, Train({"w": [1.0]}))  # type: ignore[dict-item]


def test_abandoning_a_round_puts_memories_back_to_the_mark(loop: LoopRuntime) -> None:
    one(loop, train())
    loop.mark(7)
    one(loop, train())
    one(loop, train(), "b")
    assert loop.abandon_round() == 7
    assert loop.sites["a"].client.state["calls"] == 1
    assert loop.sites["a"].client.state["params"]["w"].item() == 11.0
    assert loop.sites["b"].client.state == {}
    one(loop, train())
    assert loop.abandon_round() == 7 and loop.sites["a"].client.state["calls"] == 1


def test_what_is_saved_are_the_memories_of_the_mark(loop: LoopRuntime) -> None:
    one(loop, train())
    loop.mark(1)
    one(loop, train())
    saved = {client: decode(data, State) for client, data in loop.save_clients().items()}
    assert list(saved) == ["b", "a", "c"]
    assert saved["a"]["calls"] == 1 and saved["b"] == {}


def test_loaded_memories_go_on_where_they_were(loop: LoopRuntime) -> None:
    one(loop, train())
    loop.mark(1)
    other = LoopRuntime(Toy(), [ToyClient(name) for name in ("a", "b", "c")])
    other.load_clients(loop.save_clients())
    assert one(other, train()).reply.params["w"].item() == 12.0  # type: ignore[union-attr]


def test_memories_of_other_clients_are_refused_by_name(loop: LoopRuntime) -> None:
    with pytest.raises(BadInput, match=r"the checkpoint has the clients \['x'\], this course has \['a', 'b', 'c'\]"):
        loop.load_clients({"x": encode({})})


def test_a_damaged_memory_changes_no_client(loop: LoopRuntime) -> None:
    good = encode({"calls": 8})
    with pytest.raises(BadMessage):
        loop.load_clients({"b": good, "a": good, "c": b"garbage"})
    assert all(site.client.state == {} for site in loop.sites.values())
