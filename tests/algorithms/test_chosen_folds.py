"""Where an algorithm takes a mean, another fold can be chosen."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import ALGORITHMS, FedAvg, Scaffold
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.algorithms.scaffold import CorrectedUpdate, ScaffoldState
from isthmus.config.course import Course
from isthmus.config.load import as_before, course_digest, course_to_dict, course_to_yaml, load_course
from isthmus.core.folding import FOLDS
from isthmus.core.folding.centres import GeometricMedian
from isthmus.core.folding.krum import Krum
from isthmus.core.folds import Median, TrimmedMean, WeightedMean
from isthmus.core.protocol import ModelState
from isthmus.testing import ScriptedClients, toy_course
from isthmus.testing.traces import trace_course
from tests.quick import quick
from tests.testing.hostile.worlds import world_of

FOLDING = [name for name, kind in ALGORITHMS.items() if "fold" in {field.name for field in fields(kind)}]


def test_all_but_those_without_a_mean_have_a_fold() -> None:
    assert {name for name in ALGORITHMS if name not in FOLDING} == {
        "local",
        "global",
        "local_grl",
        "fedex",
    }  # FedEx sums


@pytest.mark.parametrize("name", FOLDING)
def test_the_fold_of_a_course_is_the_one_that_its_server_uses(name: str) -> None:
    world = world_of(name)
    algorithm: Any = quick(name)
    ended = []
    for fold in (WeightedMean(), Median()):
        trace = trace_course(world.course(replace(algorithm, fold=fold), rounds=1), world.scenario)
        assert trace.ended_by is None
        ended.append(algorithm.global_params(trace.state))
    mean, middle = ended
    assert mean.keys() == middle.keys() and any(not torch.equal(mean[name], middle[name]) for name in mean)


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("name", ["scaffold", "fedgl", "gcfl", "fednova"])
def test_every_fold_by_name_folds_what_methods_with_other_messages_send(name: str, fold: str) -> None:
    world = world_of(name)
    trace = trace_course(world.course(replace(quick(name), fold=FOLDS[fold]()), rounds=2), world.scenario)
    assert trace.ended_by is None


@pytest.mark.parametrize("fold", [Median(), TrimmedMean(0.34), Krum(num_malicious=0), GeometricMedian()], ids=repr)
def test_one_client_that_sends_nonsense_does_not_move_a_robust_mean(fold: Any) -> None:
    params = {"w": torch.zeros(2)}
    sent = {"a": 1.0, "b": 1.1, "c": 1e4}
    clients = ScriptedClients({c: ModelUpdate({"w": torch.full((2,), v)}, 1.0) for c, v in sent.items()})
    after = FedAvg(fold=fold).round(ModelState(params), clients.federation(params))
    assert 0.9 < float(after.params["w"][0]) < 1.2
    assert float(FedAvg().round(ModelState(params), clients.federation(params)).params["w"][0]) > 1000.0


def test_a_robust_fold_counts_all_who_answered() -> None:
    """SCAFFOLD's c moves by the share of those that were heard, whichever of them a fold chose."""
    one, zero = {"w": torch.ones(1)}, {"w": torch.zeros(1)}
    clients = ScriptedClients({c: CorrectedUpdate(one, one, 2.0) for c in ("a", "b", "c")})
    state = ScaffoldState(zero, zero, 12.0)
    for fold in (WeightedMean(), Median(), TrimmedMean(0.1), Krum()):
        after = Scaffold(fold=fold).round(state, clients.federation(zero))
        assert float(after.variate["w"]) == pytest.approx(6.0 / 12.0)


def test_a_course_names_its_fold(tmp_path: Any) -> None:
    course = load_course(None, ["algorithm.fold.name=krum", "algorithm.fold.num_malicious=1"])
    assert course.algorithm == FedAvg(fold=Krum(num_malicious=1))
    (tmp_path / "course.yaml").write_text(course_to_yaml(course))
    assert load_course(tmp_path / "course.yaml", []).algorithm == course.algorithm
    assert load_course(None, ["algorithm.fold=median"]).algorithm == FedAvg(fold=Median())
    assert toy_course(FedAvg()).algorithm == FedAvg(fold=WeightedMean())


def test_runs_of_before_folds_could_be_chosen_keep_their_digest() -> None:
    """As it was computed then: of a course that does not speak of a fold."""
    assert course_digest(Course(algorithm=FedAvg())) == "ce871cd230c2b8fd"
    assert course_digest(Course(algorithm=Scaffold())) == "d3a5850645f5859e"
    assert course_digest(Course(algorithm=FedAvg(fold=Median()))) != "ce871cd230c2b8fd"
    assert "fold" not in as_before(course_to_dict(Course()))["algorithm"]
    assert "fold" in course_to_dict(Course())["algorithm"]
