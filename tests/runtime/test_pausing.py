"""Handlers that run side by side: who pauses where, what is done as one, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from isthmus.core.client import Client, NotTogether, Work
from isthmus.runtime.loop import Pausing


class Someone(Client):
    """A client that knows its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"client-{number}")
        self.number = number

    def evaluate(self, params: Any, splits: Any) -> Any:
        raise NotImplementedError


class Block:
    """Some clients."""

    def __init__(self, clients: Sequence[Someone]) -> None:
        self.clients = list(clients)

    def __iter__(self) -> Any:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, clients: Sequence[Someone]) -> Block:
        return Block(clients)


@dataclass(frozen=True)
class Double(Work):
    """Doubles a number; together with those of others where `how` is the same."""

    value: float
    how: str = "usual"

    def kind(self) -> Hashable:
        return self.how

    def alone(self, client: Someone) -> tuple[str, float]:
        if self.value < 0:
            raise ValueError(f"{client.id} has {self.value}")
        return "alone", 2 * self.value

    @staticmethod
    def together(clients: Block, works: Sequence[Double]) -> list[tuple[str, float]]:
        if works[0].how == "apart":
            raise NotTogether("these are better off apart")
        if any(work.value < 0 for work in works):
            raise ValueError("somebody has less than nothing")
        assert [client.number for client in clients] == sorted(client.number for client in clients)
        assert torch.is_grad_enabled()
        return [(f"with {len(works)}", 2 * work.value) for work in works]


def block(number: int = 4) -> Block:
    return Block([Someone(k) for k in range(number)])


def run(clients: Block, handler: Any, pausing: Pausing | None = None) -> list[Any]:
    handlers = {client.id: partial(handler, client) for client in clients}
    return list((pausing or Pausing()).run(clients, handlers).values())  # type: ignore[arg-type]


def test_work_of_one_kind_is_done_as_one_and_each_goes_on_with_its_own_result() -> None:
    pausing = Pausing()

    def handler(client: Someone) -> float:
        how, first = client.do(Double(client.number))
        assert how == "with 4"
        how, second = client.do(Double(first + 1))
        assert how == "with 4"
        return float(second)

    assert run(block(), handler, pausing) == [2.0, 6.0, 10.0, 14.0]
    assert pausing.together == {"Double": 8} and not pausing.alone and not pausing.reasons


def test_results_come_in_the_order_of_the_handlers_whoever_ends_first() -> None:
    def handler(client: Someone) -> int:
        for _ in range(4 - client.number):
            client.do(Double(1.0))
        return client.number

    found = Pausing().run(clients := block(), {c.id: partial(handler, c) for c in reversed(clients.clients)})  # type: ignore[arg-type]
    assert found == {f"client-{k}": k for k in range(4)}


def test_handlers_that_ask_for_nothing_just_run() -> None:
    assert run(block(), lambda client: client.number) == [0, 1, 2, 3]


def test_other_kinds_are_done_apart_and_one_alone_is_no_company() -> None:
    pausing = Pausing()
    found = run(block(), lambda c: c.do(Double(1.0, "odd" if c.number == 3 else "usual")), pausing)
    assert [how for how, _ in found] == ["with 3", "with 3", "with 3", "alone"]
    assert pausing.together == {"Double": 3} and pausing.alone == {"Double": 1} and not pausing.reasons


def test_what_cannot_be_done_together_is_done_alone_and_the_reason_is_kept() -> None:
    pausing = Pausing()
    assert run(block(), lambda c: c.do(Double(c.number, "apart"))[1], pausing) == [0.0, 2.0, 4.0, 6.0]
    assert pausing.reasons == {"Double": "these are better off apart"} and pausing.alone == {"Double": 4}
    assert not pausing.broken


def test_an_error_is_told_to_the_handler_whose_work_it_was() -> None:
    pausing = Pausing()

    def handler(client: Someone) -> str:
        try:
            return str(client.do(Double(-1.0 if client.number == 2 else 1.0)))
        except ValueError as error:
            return str(error)

    assert run(block(), handler, pausing) == ["('alone', 2.0)"] * 2 + ["client-2 has -1.0", "('alone', 2.0)"]
    assert pausing.reasons == {"Double": "ValueError: somebody has less than nothing"}
    assert pausing.broken == {"Double"}


def test_a_handler_without_gradients_stops_nobody_elses() -> None:
    def handler(client: Someone) -> tuple[bool, bool]:
        if client.number % 2:
            with torch.no_grad():
                client.do(Double(1.0))
                within = torch.is_grad_enabled()
        else:
            client.do(Double(1.0))
            within = torch.is_grad_enabled()
        return within, torch.is_grad_enabled()

    assert run(block(), handler) == [(True, True), (False, True)] * 2
    assert torch.is_grad_enabled()


def test_an_interruption_ends_everybody_and_leaves_no_desk_behind() -> None:
    ended = []

    @dataclass(frozen=True)
    class Interrupted(Double):
        @staticmethod
        def together(clients: Block, works: Sequence[Double]) -> list[Any]:
            raise KeyboardInterrupt

    def handler(client: Someone) -> None:
        try:
            client.do(Interrupted(1.0))
        finally:
            ended.append(client.number)

    clients = block()
    with pytest.raises(KeyboardInterrupt):
        run(clients, handler)
    assert sorted(ended) == [0, 1, 2, 3] and all(client.desk is None for client in clients)
    assert run(clients, lambda client: client.do(Double(1.0))[0]) == ["with 4"] * 4


def test_without_a_desk_work_is_done_at_once() -> None:
    assert Someone(1).do(Double(3.0)) == ("alone", 6.0)
