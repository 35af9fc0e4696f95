"""Representatives of classes: near the truth where the model is a known one, and nothing without a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedavg import TrainModel
from isthmus.attacks.attack import Case, Message, NothingSeen, Seen
from isthmus.attacks.inputs.class_generator import ClassGenerator, models_of
from isthmus.attacks.inputs.class_inversion import ClassInversion
from isthmus.attacks.inputs.class_means import Features, asked, log_odds
from isthmus.attacks.measures import auc
from isthmus.core.protocol import Kept, Position
from isthmus.models import MLP, ModelSpec
from isthmus.testing import toy_course, toy_scenario

COURSE = toy_course(FedAvg(), model=ModelSpec(MLP(layers=1, dropout=0.0)))
KNOWN = Features(torch.full((8,), 0.25).double(), 0.0, 1.0, 2)


def linear() -> dict[str, Tensor]:
    """Return a model of one linear map in which features 0 and 1 speak for class 0, and 2 and 3 for class 1."""
    weight = torch.zeros(8, 2)
    weight[:2, 0] = weight[2:4, 1] = 2.0
    names = asked(COURSE, KNOWN, {}).state_dict()
    return {name: weight if each.ndim == 2 else torch.zeros(2) for name, each in names.items()}


def seen(params: dict[str, Tensor], rounds: int = 0) -> Seen:
    messages = [Message(Position(0, r, 0), {"a": TrainModel(params)}, Kept()) for r in range(1, rounds + 1)]
    return Seen(COURSE, ("a",), params, params, tuple(messages))


def test_inversion_climbs_along_what_speaks_for_a_class() -> None:
    found = ClassInversion(steps=5, rate=0.1).guess(seen(linear()), KNOWN)
    # Each step has the length 0.1, in the direction of the weights' difference.
    step = 0.5 / 2.0
    up, down, rest = [0.25 + step] * 2, [0.0] * 2, [0.25] * 4
    assert found[0].tolist() == pytest.approx(up + down + rest, abs=1e-6)
    assert found[1].tolist() == pytest.approx(down + up + rest, abs=1e-6)


def test_the_generator_makes_what_speaks_for_a_class() -> None:
    attack = ClassGenerator(every=1, steps=40, rate=0.02, nearness=0.1)
    found = attack.guess(seen(linear(), rounds=3), KNOWN)
    assert float(found[0, :2].min()) > 0.3 > 0.2 > float(found[0, 2:4].max())
    assert float(found[1, 2:4].min()) > 0.3 > 0.2 > float(found[1, :2].max())
    assert torch.equal(found, attack.guess(seen(linear(), rounds=3), KNOWN))


def test_a_model_that_says_the_same_of_all_tells_nothing() -> None:
    blank = {name: torch.zeros_like(each) for name, each in linear().items()}
    assert torch.equal(ClassInversion().guess(seen(blank), KNOWN), ClassInversion().prior(KNOWN, ("a",)))


def test_without_a_model_nothing_is_seen() -> None:
    nothing = Seen(COURSE, ("a",), {}, {}, ())
    with pytest.raises(NothingSeen, match="no whole model"):
        ClassInversion().guess(nothing, KNOWN)
    with pytest.raises(NothingSeen, match="was sent no model"):
        ClassGenerator().guess(nothing, KNOWN)


def test_each_rounds_model_counts_once() -> None:
    twice = seen(linear(), rounds=2)
    again = Seen(COURSE, ("a",), {}, {}, (*twice.messages, *twice.messages))
    assert len(list(models_of(again))) == 2
    wanted = [r for r in range(12) if ClassGenerator(every=5).wants(Position(0, r, 0), TrainModel)]
    assert wanted == [1, 6, 11]


def test_the_truth_is_each_class_mean_and_the_prior_that_of_all() -> None:
    scenario = toy_scenario(3)
    attack: Any = ClassInversion()
    case = Case(toy_course(FedAvg()), scenario)
    known = attack.known(case)
    x, y = scenario.whole.x.double().tolist(), scenario.whole.y.tolist()
    truth = attack.truth(case, known)
    for each in range(3):
        own = [row for row, label in zip(x, y, strict=True) if label == each]
        assert truth[each].tolist() == pytest.approx([sum(column) / len(own) for column in zip(*own, strict=True)])
        assert attack.prior(known, ())[each].tolist() == pytest.approx([sum(col) / 48 for col in zip(*x, strict=True)])


def test_features_that_tell_a_class_are_ranked_by_what_is_above_the_mean_of_classes() -> None:
    truth = torch.rand(3, 8, generator=torch.Generator().manual_seed(0)).double()
    guess = torch.rand(3, 8, generator=torch.Generator().manual_seed(1)).double()
    expected = []
    for each in range(3):
        above = [float(truth[each, k] - truth[:, k].mean()) for k in range(8)]
        best = sorted(above)[-2:]  # a quarter of them
        found = torch.tensor([float(guess[each, k] - guess[:, k].mean()) for k in range(8)])
        expected.append(auc(found, torch.tensor([value in best for value in above])))
    assert ClassInversion().scores(guess, truth)["words auc"] == pytest.approx(sum(expected) / 3)
    same = torch.rand(8, generator=torch.Generator().manual_seed(2)).double().expand(3, -1)
    assert ClassInversion().scores(same, truth)["words auc"] == 0.5
    assert ClassInversion().scores(truth, truth) == pytest.approx({"words auc": 1.0, "cosine": 1.0})


def test_log_odds_are_of_nodes_without_edges() -> None:
    x = torch.eye(8).double()
    found = log_odds(asked(COURSE, KNOWN, linear()), x)
    assert found[0].tolist() == pytest.approx(torch.tensor([2.0, 0.0]).log_softmax(0).tolist())
