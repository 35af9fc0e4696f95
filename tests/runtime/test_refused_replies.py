"""A reply that cannot be used leaves no trace in its client's memory, in any runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import ALGORITHMS, Scaffold
from isthmus.algorithms.scaffold import CorrectedUpdate, TrainCorrected
from isthmus.core.codec import decode, encode
from isthmus.core.protocol import EvaluateModel, Position
from isthmus.core.record import Record, leaves, non_finite_leaf
from isthmus.learn.optimizers import SGD, StepDecay, read_params
from isthmus.models import GCN, LinearDecoder, ModelSpec
from isthmus.runs.simulated import run
from isthmus.runtime.answering import MemoryStore, Silo
from isthmus.runtime.envelope import BLANK, Envelope
from isthmus.runtime.loop import LoopRuntime
from isthmus.runtime.remote import RemoteRuntime
from isthmus.runtime.strict import StrictRuntime
from isthmus.testing import toy_client, toy_course, toy_scenario

# A first round that no model survives, and sound ones after it.
ONCE = SGD(lr=1e29, schedule=StepDecay(every=1, gamma=1e-30))
HEADED = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=LinearDecoder())


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto", "strict"])
@pytest.mark.parametrize("name", ["scaffold", "moon", "fedavg"])
def test_a_client_that_diverged_once_answers_again(name: str, runtime: str) -> None:
    course = toy_course(
        ALGORITHMS[name](optimizer=SGD(lr=0.1), local_steps=2),
        model=HEADED,
        rounds=3,
        runtime=runtime,
        shared=("gnn.*",),
        client_settings={"client-0": {"optimizer": {"name": "sgd", "lr": 1e29, "schedule": _once()}}},
    )
    result = run(course, scenario=toy_scenario())
    failures = [
        (event["round"], failure["client"], failure["kind"])
        for event in result.events
        if event["event"] == "exchange" and event["request"] != EvaluateModel.__name__
        for failure in event["failures"]
    ]
    assert failures == [(1, "client-0", "not_finite")]
    assert any("client-0 failed in 1 of 3 rounds" in note for note in result.notes)
    assert all(tensor.isfinite().all() for params in result.client_params.values() for tensor in params.values())


def _once() -> dict[str, Any]:
    return {"name": "step", "every": 1, "gamma": 1e-30}


def test_between_sites_the_next_request_names_the_memory_before_the_refused_reply(tmp_path: Path) -> None:
    client = toy_client()
    algorithm = Scaffold(optimizer=ONCE)
    silo = Silo("c", algorithm, lambda: client, MemoryStore(tmp_path))
    named: list[str] = []

    class Wire:
        def send(self, messages: Any, timeout_seconds: float | None) -> Any:
            for site, message in messages.items():
                named.append(decode(message, Envelope).memory)
                yield site, silo.answer(message)

    runtime = RemoteRuntime("c", ["a"], Wire())
    params = read_params(client.model)
    request = TrainCorrected(params, {name: torch.zeros_like(tensor) for name, tensor in params.items()})

    def asked(round: int) -> Record:
        (outcome,) = runtime.exchange(Position(0, round, 0), {"a": request}, None)
        assert isinstance(outcome.reply, CorrectedUpdate)
        return outcome.reply

    assert non_finite_leaf(leaves(asked(1)))
    runtime.undo("a")
    assert not non_finite_leaf(leaves(asked(2)))
    assert not non_finite_leaf(leaves(asked(3)))
    assert named[:2] == [BLANK, BLANK] and named[2] != BLANK


def test_only_an_answer_of_the_last_exchange_is_undone() -> None:
    params = read_params(toy_client().model)
    request = TrainCorrected(params, {name: torch.zeros_like(tensor) for name, tensor in params.items()})
    algorithm = Scaffold(optimizer=SGD(lr=0.1))
    ids = ("a", "b")
    loop = LoopRuntime(algorithm, [toy_client(id=name) for name in ids])
    strict = StrictRuntime(algorithm, {name: lambda name=name: toy_client(id=name) for name in ids})
    for runtime in (loop, strict):
        list(runtime.exchange(Position(0, 1, 0), {"a": request, "b": request}, None))
        runtime.mark(1)
        after = runtime.save_clients()
        list(runtime.exchange(Position(0, 2, 0), {"b": request}, None))
        runtime.undo("a")  # which was not asked again
        runtime.undo("b")
        runtime.mark(2)
        assert runtime.save_clients() == after and after["a"] != encode({})
