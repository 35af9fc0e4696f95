"""Who sees what with guards, on the command line: each of them, and what is refused."""

from __future__ import annotations

import json

import pytest

from isthmus.privacy import GUARDS
from tests.cli.command import call


def test_every_guard_is_listed_with_what_it_is() -> None:
    listed = json.loads(call("list", "guards", "--json")[1])["guards"]
    assert set(GUARDS) <= set(listed)
    assert all(listed[name] for name in GUARDS)


@pytest.mark.parametrize("name", GUARDS)
def test_an_algorithm_is_shown_with_every_guard(name: str) -> None:
    found = json.loads(call("show", "algorithm", "fedavg", "--guards", name, "--json")[1])
    assert [message["request"] for message in found["messages"]] == ["TrainModel", "EvaluateModel", "KeepBest"]
    assert {"server_sees", "wire_down", "wire_up"} <= found["messages"][0].keys()


def test_by_contract_and_by_wire_are_two_things() -> None:
    shown = call("show", "algorithm", "fedavg", "--guards", "{name: robust_fold, by: {name: median}}")[1]
    assert "the server sees only the fold; each client's is looked at by RobustFold" in shown
    assert "on the wire       down: the request as it is; up: each client's reply as it is" in shown
    hidden = call("show", "algorithm", "fedavg", "--guards", "secure_sum")[1]
    assert "the server sees only the fold\n" in hidden
    assert "up: words under masks, and what they add up to over 67% of the clients" in hidden


def test_what_cannot_stand_together_is_refused_and_what_a_method_cannot_have_is_told_with_its_request() -> None:
    both = call("show", "algorithm", "fedavg", "--guards", "robust_fold", "--guards", "secure_sum")
    assert both[0] != 0
    assert "RobustFold looks at single replies, and SecureSum lets nobody see one: leave one out" in both[1]
    told = json.loads(call("show", "algorithm", "fedgl", "--guards", "secure_sum", "--json")[1])
    assert "looks at each client's NodeList (its request ShareNodes), and under a secure sum" in told["refused"]
    words = " ".join(call("show", "algorithm", "fedgl", "--guards", "secure_sum")[1].split())
    assert "A course of it with these guards and defaults else is refused: guards: SecureSum: FedGL looks" in words
    fine = json.loads(call("show", "algorithm", "fedavg", "--guards", "secure_sum", "--json")[1])
    assert "refused" not in fine and "refused" not in json.loads(call("show", "algorithm", "fedgl", "--json")[1])
