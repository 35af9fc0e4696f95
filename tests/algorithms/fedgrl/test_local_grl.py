"""Every client by itself: nothing crosses, and nobody is changed by the others."""

from __future__ import annotations

import pytest

from isthmus.algorithms.fedgrl import StartEncoder, TrainOwnEncoder
from isthmus.algorithms.fedgrl.encoder_learning import FedGRLState
from isthmus.core.errors import CourseFailed
from isthmus.core.protocol import EvaluateModel, KeepBest, Kept
from isthmus.core.record import leaves
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_scenario
from isthmus.testing.traces import require_same
from tests.algorithms.fedgrl.fedgrl_toys import (
    MODES,
    SMALL,
    alone,
    encoder,
    gap,
    memory,
    parts_of,
    quick,
    traced,
    wise_client,
)
from tests.algorithms.reference import assert_equal


def test_alone_nothing_but_receipts_comes_back_after_the_setup() -> None:
    for algorithm in (alone(), alone(protocol="lp2")):
        trace = traced(algorithm)
        for message in trace.messages:
            if message.position.round and not isinstance(message.request, EvaluateModel):
                assert type(message.outcome.reply) is Kept
                assert leaves(message.outcome.reply) == {}
            if message.position.round and isinstance(message.request, TrainOwnEncoder):
                assert leaves(message.request) == {}
            if isinstance(message.request, EvaluateModel):
                assert message.request.params == {}
        assert trace.standings[trace.last].state == FedGRLState({}, {})


@pytest.mark.parametrize("name", ["lp1, alone", "lp2, alone"])
def test_alone_each_client_is_a_course_of_that_client(name: str) -> None:
    scenario, algorithm = toy_scenario(), MODES[name]
    together = traced(algorithm, scenario)
    federated = quick(protocol=algorithm.protocol)
    for client, part in scenario.parts.items():
        one = Scenario(scenario.whole, {client: part})
        single, shared = traced(algorithm, one), traced(federated, one)
        assert_equal(memory(together, client)["encoder"], memory(single, client)["encoder"])
        assert_equal(memory(together, client)["encoder"], encoder(shared))
        assert_equal(memory(together, client)["parts"], shared.standings[2].state.objective)  # type: ignore[attr-defined]
        for entry in ("objective", "optimizer", "personal"):
            require_same({entry: memory(together, client)[entry]}, {entry: memory(shared, client)[entry]}, name)
    encoders = [memory(together, client)["encoder"] for client in scenario.parts]
    assert gap(encoders[0], encoders[1]) > 1e-3 and gap(encoders[1], encoders[2]) > 1e-3


def test_alone_a_client_that_missed_the_setup_says_so() -> None:
    client, _ = wise_client()
    with pytest.raises(CourseFailed, match="no encoder of its own: it failed in the setup"):
        alone().train(TrainOwnEncoder(), client)


def test_alone_the_best_round_of_lp2_has_the_encoder_of_that_round() -> None:
    client, params = wise_client()
    algorithm = alone(protocol="lp2")
    algorithm.start(StartEncoder(params, parts_of(SMALL)), client)
    algorithm.train(TrainOwnEncoder(), client)
    whole = algorithm.client_params({}, client.state)
    algorithm.keep_best(KeepBest(), client)
    algorithm.train(TrainOwnEncoder(), client)
    assert gap(algorithm.client_params({}, client.state), whole) > 1e-4
    assert_equal(algorithm.client_params({}, algorithm.best_memory(client.state)), whole)
