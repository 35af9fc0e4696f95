"""check_attack: every attack of the package passes, and each rule catches one that breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from isthmus.algorithms import FedAvg, FedGL, FedGNN, FedSagePlus, Scaffold
from isthmus.attacks import (
    ATTACKS,
    ClassGenerator,
    EdgesByMatching,
    FeaturesByMatching,
    GraphFromGradient,
    LossThreshold,
    Vocabulary,
)
from isthmus.attacks.attack import Attack, Case, Seen
from isthmus.attacks.membership.lira import Lira
from isthmus.attacks.poisoning import POISONINGS
from isthmus.attacks.properties.from_updates import PropertyInference
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, MLP, LinearDecoder, ModelSpec
from isthmus.testing import ATTACK_CHECKS, check_attack, toy_course, toy_scenario
from tests.attacks.methods.courses import RATINGS, gfl_course, hosts_scenario, ratings_scenario
from tests.quick import quick

STEP = FedAvg(local_steps=1, optimizer=SGD(lr=0.1))
PLAIN = toy_course(STEP, rounds=2, runtime="auto", model=ModelSpec(GCN(hidden=5, dropout=0.0)))
ALONE = toy_course(STEP, rounds=1, model=ModelSpec(GCN(hidden=40, dropout=0.0), decoder=LinearDecoder(), activate=True))
SAGE = FedSagePlus(num_generated=2, pretrain_steps=2, max_nodes=6, cross_rounds=1)
VARIATES = toy_course(Scaffold(local_steps=1, optimizer=SGD(lr=0.1)), rounds=2, runtime="auto")
COURSES: dict[str, dict[str, Any]] = {
    "features_by_matching": {"course": PLAIN, "scenario": toy_scenario(3, sparse=True)},
    "edges_by_matching": {"course": PLAIN},
    "graph_from_gradient": {"course": ALONE},
    "links_from_rows": {"course": toy_course(FedGL(), rounds=2, runtime="auto")},
    "vocabulary": {"scenario": toy_scenario(3, sparse=True)},
    "property_inference": {"scenario": toy_scenario(3, sparse=True)},
    "words_of_one": {"scenario": toy_scenario(3, num_nodes=12, num_common=0, sparse=True)},
    "labels_from_rows": {"course": toy_course(FedGL(), rounds=2, runtime="auto")},
    "generated_features": {
        "course": toy_course(SAGE, rounds=1, runtime="auto"),
        "scenario": toy_scenario(3, num_nodes=12, num_common=0, sparse=True),
    },
    "generated_nodes": {"course": toy_course(SAGE, rounds=1, runtime="auto")},
    "variate_words": {"course": VARIATES, "scenario": toy_scenario(3, sparse=True)},
    "variate_labels": {"course": VARIATES},
    "peers_nearest": {"course": toy_course(SAGE, rounds=1, runtime="auto"), "scenario": toy_scenario(3, sparse=True)},
    "rated_items": {"course": toy_course(FedGNN(), num_clients=2, **RATINGS), "scenario": ratings_scenario()},
    "users_by_embeddings": {"course": toy_course(FedGNN(), num_clients=2, **RATINGS), "scenario": ratings_scenario()},
    "hidden_gradients": {"course": gfl_course(), "scenario": hosts_scenario()},
}
SMALL: dict[str, Attack] = {
    "lira": Lira(shadows=4),
    "property_inference": PropertyInference(shadows=3),
    "features_by_matching": FeaturesByMatching(steps=5),
    "edges_by_matching": EdgesByMatching(steps=5),
    "graph_from_gradient": GraphFromGradient(steps=50),
    "class_generator": ClassGenerator(every=1, steps=2),
}
COURSES |= {
    "read_rows": {
        "course": toy_course(FedAvg(local_steps=1, optimizer=SGD(lr=0.1)), model=ModelSpec(MLP(dropout=0.0)))
    },
    "wrong_gradients": {"course": toy_course(quick("fedsage_plus"), rounds=1)},
}


@pytest.mark.parametrize("name", {**ATTACKS, **POISONINGS})
def test_every_attack_keeps_to_the_rules(name: str) -> None:
    made = SMALL.get(name) or {**ATTACKS, **POISONINGS}[name]()
    assert check_attack(made, **COURSES.get(name, {})) == list(ATTACK_CHECKS)


class Thawed(LossThreshold): ...


@dataclass(frozen=True)
class Nowhere(LossThreshold):
    position: ClassVar[str] = "fly on the wall"


@dataclass(frozen=True)
class Silent(LossThreshold):
    knows: ClassVar[str] = ""


@dataclass(frozen=True)
class Impossible(LossThreshold):
    def problem(self, course: Any) -> str:
        return "there is no moon"


@dataclass(frozen=True)
class Meddling(LossThreshold):
    def wants(self, at: Any, request: Any) -> bool:
        return True


@dataclass(frozen=True)
class Cheating(LossThreshold):
    """Knows who was trained on, and calls it a guess."""

    def known(self, case: Case) -> Any:
        found = super().known(case)
        object.__setattr__(found, "truth", self.truth(case, found))
        return found

    def guess(self, seen: Seen, known: Any) -> Any:
        return known.truth.double()


@dataclass(frozen=True)
class Forgetful(LossThreshold):
    def guess(self, seen: Seen, known: Any) -> Any:
        return torch.randn(len(known.items))


@dataclass(frozen=True)
class Boastful(LossThreshold):
    def scores(self, guess: Any, truth: Any) -> dict[str, float]:
        return {**super().scores(guess, truth), "luck": 1.0}


@dataclass(frozen=True)
class Upside(LossThreshold):
    def scores(self, guess: Any, truth: Any) -> dict[str, float]:
        return {name: -value for name, value in super().scores(guess, truth).items()}


@dataclass(frozen=True)
class Clumsy(Vocabulary):
    def guess(self, seen: Seen, known: Any) -> Any:
        return {client: seen.messages[0] and known.shares > 0 for client in seen.clients}


@pytest.mark.parametrize(
    ("attack", "rule", "told"),
    [
        (Thawed(), "frozen", "is not a frozen dataclass"),
        (Nowhere(), "words", "position is 'fly on the wall'"),
        (Silent(), "words", "knows is empty"),
        (Impossible(), "applies", "there is no moon"),
        (Cheating(), "sees_only_messages", "knows more than it says"),
        (Forgetful(), "repeats", "the same messages gave"),
        (Boastful(), "scores", "'luck'"),
        (Upside(), "scores", "better than the truth's"),
        (Clumsy(), "sees_only_messages", "raise NothingSeen with the reason"),
    ],
)
def test_who_breaks_a_rule_is_caught(attack: Attack, rule: str, told: str) -> None:
    with pytest.raises(AssertionError, match=f"check '{rule}'") as caught:
        check_attack(attack, scenario=toy_scenario(3, sparse=True))
    assert told in str(caught.value)


def test_an_ear_that_changes_a_message_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.attacks.listening import Overhearing

    def spoiling(self: Any, position: Any, requests: Any, found: Any) -> None:
        for tensor in getattr(found, "params", {}).values():
            tensor += 1.0

    monkeypatch.setattr(Overhearing, "added_up", spoiling)
    with pytest.raises(AssertionError, match="check 'changes_nothing'"):
        check_attack(Meddling())


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'score'.*scores"):
        check_attack(LossThreshold(), skip=("score",))
