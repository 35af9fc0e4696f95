"""Robust folds in whole courses: of every method, in every runtime, between sites; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import ALGORITHMS, FedAvg, Scaffold
from isthmus.attacks.poisoning import RandomUpdate, SignFlip
from isthmus.config.course import Course
from isthmus.core.exposure import exposure
from isthmus.core.folding import FOLDS, FLTrust, FoolsGold, GeometricMedian, Krum, Median, WeightedMean
from isthmus.core.folding.changes import change_of
from isthmus.core.folds import Fold
from isthmus.core.random import UniformSampling
from isthmus.privacy import NormBound, RobustFold
from isthmus.testing import check_guard, toy_course, toy_scenario, toy_world, trace_course, trace_sites
from isthmus.testing.hostile.siege import known_here
from isthmus.testing.traces import Trace, require_close, require_same
from tests.quick import quick
from tests.testing.hostile.worlds import world_of

FOLDING = [name for name, kind in ALGORITHMS.items() if "fold" in kind.__dataclass_fields__]
# FedEx folds, and by the mean alone.
NOTHING = [name for name in ALGORITHMS if name not in (*FOLDING, "fedex")]


def folded(name: str, guards: Any = (), fold: Fold | None = None, **changes: Any) -> Trace:
    world = world_of(name)
    algorithm: Any = quick(name) if fold is None else replace(quick(name), fold=fold)  # type: ignore[call-arg]
    words = {"rounds": 2, "runtime": "loop", "guards": guards, **changes}
    trace = trace_course(world.course(algorithm, **words), world.scenario)
    assert trace.ended_by is None, trace.ended_by
    return trace


def course(*guards: Any, **changes: Any) -> Course:
    return toy_course(FedAvg(local_steps=1), **{"num_clients": 4, "rounds": 3, "guards": guards, **changes})


# ---- every method, every fold, every runtime


@pytest.mark.parametrize("name", FOLDING)
def test_a_method_behind_the_guard_is_the_method_with_that_fold_to_the_bit(name: str) -> None:
    mean, chosen = folded(name), folded(name, fold=Median())
    # FedSage+ folds gradients of generators by a mean of its own, which the guard would take the place of as well.
    behind = folded(name, (RobustFold(Median(), ("TrainModel",) if name == "fedsage_plus" else ()),))
    require_same({"it": chosen.state}, {"it": behind.state}, f"{name} with the fold, and behind the guard")
    with pytest.raises(AssertionError):
        require_close({"it": mean.state}, {"it": behind.state}, "the mean and the median", 1e-7)


@pytest.mark.parametrize("name", NOTHING)
def test_a_method_that_folds_nothing_is_refused(name: str) -> None:
    kind = ALGORITHMS[name].__name__
    with pytest.raises(ValueError, match=f"RobustFold: {kind} folds nothing of what clients send: leave it out"):
        world_of(name).course(quick(name), guards=(RobustFold(),))


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("fold", FOLDS)
def test_every_fold_by_name_is_reached_in_every_runtime(fold: str, runtime: str) -> None:
    loop = folded("scaffold", (RobustFold(FOLDS[fold]()),))
    found = folded("scaffold", (RobustFold(FOLDS[fold]()),), runtime=runtime)
    differs = 1e-4 if runtime == "auto" else 0.0
    require_close({"it": loop.state}, {"it": found.state}, f"{fold} in {runtime} and in the loop", differs)


@pytest.mark.parametrize("fold", ["median", "krum", "foolsgold"])
def test_between_sites_it_is_the_simulation_to_the_bit(fold: str, tmp_path: Path) -> None:
    world = toy_world()
    with known_here(RobustFold):
        made = world.course(FedAvg(local_steps=1), guards=(RobustFold(FOLDS[fold]()),), runtime="loop")
        found = trace_sites(made, world.silos(tmp_path), tmp_path / "run")
    assert found.ended_by is None
    loop = trace_course(made, world.scenario)
    kept: Any = loop.standings[loop.last].best_state
    require_same(dict(kept.params), dict(found.params), "between sites and here")


# ---- what it holds against


@pytest.mark.parametrize(
    "fold", [Median(), GeometricMedian(), Krum(), FOLDS["trimmed_mean"](trim_fraction=0.25)], ids=repr
)  # type: ignore[call-arg]
@pytest.mark.parametrize("runtime", ["loop", "auto"])
def test_one_of_four_that_sends_noise_moves_the_model_no_farther_than_the_others(runtime: str, fold: Fold) -> None:
    scenario = toy_scenario(4)
    wrong = RandomUpdate(("client-2",), scale=1e6)
    honest = trace_course(course(runtime="loop"), scenario)
    farthest = max(
        float(change_of(m.outcome.reply, m.request).norm())  # type: ignore[arg-type]
        for m in honest.messages
        if m.position.round == 1 and type(m.request).__name__ == "TrainModel"
    )
    for guards, holds in (((wrong,), False), ((wrong, RobustFold(fold)), True)):
        trace = trace_course(course(*guards, rounds=1, runtime=runtime), scenario)
        state: Any = trace.state
        moved = torch.cat([(state.params[n].double() - start).reshape(-1) for n, start in trace.initial.items()])
        assert (float(moved.norm()) <= 2.0 * farthest) is holds


def test_only_the_requests_that_are_named_are_folded_by_it() -> None:
    for requests, same_as in (((), Median()), (("TrainCorrected",), Median()), (("ShareWeight",), WeightedMean())):
        found = folded("scaffold", (RobustFold(Median(), requests),))
        require_same({"it": folded("scaffold", fold=same_as).state}, {"it": found.state}, f"{requests} and {same_as}")


def test_foolsgold_remembers_over_rounds_and_a_resume_goes_on_with_the_same_bits() -> None:
    made = course(RobustFold(FoolsGold()), runtime="loop", rounds=4)
    whole = trace_course(made, toy_scenario(4))
    sums = whole.standings[4].guards["guard.0.RobustFold"]["TrainModel"]["sums"]
    total = {client: 0.0 for client in whole.clients}
    for message in whole.messages:
        if type(message.request).__name__ == "TrainModel":
            total[message.client] = total[message.client] + change_of(message.outcome.reply, message.request)  # type: ignore[arg-type, assignment]
    assert sums.keys() == total.keys()
    assert all(torch.allclose(sums[client], total[client]) for client in sums)  # type: ignore[arg-type]
    for round in range(4):
        again = trace_course(made, toy_scenario(4), resume_from=(whole, round))
        require_same(whole.values(), again.values(), f"resumed after round {round}")


def test_what_is_shown_is_that_each_reply_is_compared() -> None:
    (train,) = (e for e in exposure(FedAvg, (RobustFold(Median()),)) if e.request == "TrainModel")
    assert train.server_sees == "only the fold; each client's is looked at by RobustFold"
    assert exposure(FedAvg, (RobustFold(WeightedMean()),)) == exposure(FedAvg)


@pytest.mark.slow
def test_it_keeps_to_the_rules_of_guards() -> None:
    skip = ("stacked_equals_loop", "partial_participation")
    check_guard(RobustFold(Median()), algorithms=(FedAvg(local_steps=1), Scaffold(local_steps=1)), skip=skip)


# ---- what cannot be


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: RobustFold(object()), "by is .*; choose one that ships with the package, or derive from Gathered"),  # type: ignore[arg-type]
        (
            lambda: course(RobustFold(Krum(1)), num_clients=4),
            r"the fold Krum\(num_malicious=1.* needs 5 replies, and a ",
        ),
        (
            lambda: course(RobustFold(), sampling=UniformSampling(fraction=0.5)),
            "needs 3 replies, and a round may have but 2",
        ),
        (lambda: course(RobustFold(), RobustFold(Median())), "there are two, and each would take the other's place"),
        (lambda: course(RobustFold(requests=("TrainModl",))), "requests names 'TrainModl', which FedAvg does not send"),
        (
            lambda: replace(course(RobustFold(Median())), algorithm=FedAvg(fold=Krum())),
            r"algorithm.fold is Krum\(.*, and this guard would put Median\(\) in its place: leave one out",
        ),
        (
            lambda: course(RobustFold(FLTrust("client-0")), sampling=UniformSampling(fraction=0.5)),
            "'client-0' must answer every time: set sampling.fraction=1",
        ),
        (lambda: course(RobustFold(FLTrust("server"))), "the server has none: set server_share=0.05 or so"),
        (
            lambda: toy_course(quick("fedgl"), guards=(RobustFold(FLTrust("server")),), server_share=0.3),
            r"clients of FedGL are asked more than what is folded \(ShareNodes\)",
        ),
        (
            lambda: replace(course(), algorithm=FedAvg(fold=FLTrust("server")), server_share=0.3),
            "a fold cannot ask the server's own graph by itself: .* add {name: robust_fold",
        ),
        (lambda: course(server_share=1.5), "server_share is 1.5; a share is from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


def test_the_same_fold_in_both_places_is_no_contradiction_and_checks_stand_beside_it() -> None:
    assert replace(course(RobustFold(Median())), algorithm=FedAvg(fold=Median())).guards
    trace = trace_course(
        course(SignFlip(("client-1",), times=200.0), NormBound(times_median=9.0), RobustFold()), toy_scenario(4)
    )
    assert {f.client for report in trace.exchanges for f in report.failures} == {"client-1"}
    assert trace.ended_by is None
