"""SCAFFOLD's first control variates are gradients: they say words and labels, whatever the optimiser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, Scaffold
from isthmus.algorithms.scaffold import CorrectedUpdate, TrainCorrected
from isthmus.attacks import LabelShares, VariateLabels, VariateWords, Vocabulary
from isthmus.attacks.attack import Attack, Case, Message, NothingSeen, Seen
from isthmus.attacks.listening import heard
from isthmus.core.protocol import Position
from isthmus.learn.batching import FullBatch, MiniBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_scenario
from tests.attacks.inputs.test_inputs import trained_on_everywhere, with_features, words_of

ATTACKS = [VariateWords(), VariateLabels()]
SMALL = ModelSpec(GCN(hidden=8, dropout=0.0))


def case_of(scenario: Scenario, algorithm: Any, **changes: Any) -> Case:
    return Case(toy_course(algorithm, **{"num_clients": 3, "rounds": 2, "model": SMALL, **changes}), scenario)


def guessed(attack: Attack, case: Case) -> Any:
    return attack.guess(heard(attack, case), attack.known(case))


@pytest.mark.parametrize("optimizer", [SGD(lr=0.2), SGD(lr=0.1, momentum=0.9), Adam(lr=0.01), AdamW(lr=0.01)])
def test_words_are_named_without_error(optimizer: Optimizer) -> None:
    scenario = trained_on_everywhere(toy_scenario(3, sparse=True))
    found = guessed(VariateWords(), case_of(scenario, Scaffold(local_steps=2, optimizer=optimizer)))
    for client, named in found.items():
        words = set(named.nonzero().flatten().tolist())
        assert words <= words_of(scenario, client) and len(words) >= 0.9 * len(words_of(scenario, client))


def test_by_one_plain_step_they_say_what_parameters_say() -> None:
    case = case_of(toy_scenario(3, sparse=True), Scaffold(local_steps=1, optimizer=SGD(lr=0.1, weight_decay=0.1)))
    for by_variate, by_params in ((VariateWords(), Vocabulary()), (VariateLabels(), LabelShares())):
        mine, plain = guessed(by_variate, case), guessed(by_params, case)
        assert all(torch.allclose(mine[c].double(), plain[c].double(), atol=1e-5) for c in case.clients)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9, weight_decay=0.1), Adam(weight_decay=0.1), AdamW()])
def test_momentum_and_adam_hide_no_shares(optimizer: Optimizer) -> None:
    # Adam's first steps are all as long, so no bias says how large its gradient was.
    scenario = toy_scenario(3)
    scenario = with_features(scenario, 0.1 * scenario.whole.x)  # the model says nearly the same of all nodes
    case = case_of(scenario, Scaffold(local_steps=1, optimizer=optimizer))
    assert LabelShares().problem(case.course)
    attack = VariateLabels()
    known = attack.known(case)
    truth = attack.truth(case, known)
    assert attack.scores(guessed(attack, case), truth)["distance"] < 0.02
    assert attack.scores(attack.prior(known, case.clients), truth)["distance"] > 0.05


def test_words_are_those_whose_gradients_are_told() -> None:
    x = torch.eye(3)
    sent, back = {"w": torch.rand(3, 4)}, {"w": torch.rand(3, 4)}
    told = CorrectedUpdate(back, {"w": x[1].unsqueeze(1) * torch.rand(3, 4)}, 1.0)
    message = Message(Position(0, 1, 0), {"a": TrainCorrected(sent, {"w": torch.zeros(3, 4)})}, told)
    seen = Seen(toy_course(Scaffold()), ("a",), sent, {}, (message,))
    known = VariateWords().known(Case(seen.course, toy_scenario(2, sparse=True)))
    found = VariateWords().guess(seen, replace(known, shares=torch.zeros(3).double()))
    assert found["a"].tolist() == [False, True, False]


def test_decay_is_taken_out_of_gradients_but_not_adamws() -> None:
    before, after = {"b": torch.tensor([1.0, 2.0])}, {"b": torch.tensor([3.0, 2.0])}
    reply = CorrectedUpdate(after, {"b": torch.tensor([0.5, 0.5])}, 1.0)
    message = Message(Position(0, 1, 0), {"a": TrainCorrected(before, {"b": torch.zeros(2)})}, reply)
    for optimizer, expected in ((Adam(weight_decay=0.1), [0.35, 0.3]), (AdamW(weight_decay=0.1), [0.5, 0.5])):
        course = toy_course(Scaffold(local_steps=2, optimizer=optimizer))  # steps begin at 1 and, about, at 2
        found = VariateLabels().first_moves(Seen(course, ("a",), before, {}, (message,)), "a")["b"]
        assert found.gradient.tolist() == pytest.approx(expected)
        assert found.at(0.5).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_under_a_secure_sum_all_clients_are_told_alike(attack: Attack) -> None:
    case = case_of(toy_scenario(3, sparse=True), Scaffold(local_steps=1), guards=(SecureSum(),))
    first, *others = guessed(attack, case).values()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_what_is_not_told_is_said(attack: Attack) -> None:
    case = case_of(toy_scenario(3), Scaffold())
    assert "FedAvg tells no change of a control variate" in attack.problem(toy_course(FedAvg()))
    with pytest.raises(NothingSeen, match="held back"):
        attack.guess(Seen(case.course, case.clients, {}, {}, ()), attack.known(case))


def test_what_would_be_read_wrongly_is_refused() -> None:
    assert not VariateLabels().problem(toy_course(Scaffold(), batching=FullBatch()))
    assert "only with full batches" in VariateLabels().problem(toy_course(Scaffold(), batching=MiniBatch(8)))
    assert "Adam's weight decay" in VariateWords().problem(toy_course(Scaffold(optimizer=Adam(weight_decay=0.1))))
