"""Clients that are first asked after the best round end with what they had in it: the part they began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import Course, FedAvg, Result, run
from isthmus.algorithms import APFL, GCFL, Ditto, FedAvgFT, FedGRL, FedRep, GCFLPlus, LocalGRL, PFedMe
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.core.protocol import KeepBest
from isthmus.core.random import UniformSampling
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, MLPDecoder, ModelSpec
from isthmus.runs.folder import load_model_file
from isthmus.testing import toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_same
from tests.sites.in_process import fake_hub, scenario, site_course
from tests.sites.test_own_heads import on_sites

HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))
OWN_HEADS = {"model": HEADED, "shared": ("gnn.*",)}
WISE: dict[str, Any] = {"downstream": Finetune(steps=3), "optimizer": SGD(lr=0.05)}
# Each with a seed that has a client join after the best round.
LATE: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "ditto": (Ditto(), 0, {}),
    "ditto, own heads": (Ditto(), 0, OWN_HEADS),
    "pfedme": (PFedMe(), 0, {}),
    "pfedme, own heads": (PFedMe(), 0, OWN_HEADS),
    "apfl": (APFL(alpha_lr=0.1), 1, {}),
    "apfl, own heads": (APFL(), 0, OWN_HEADS),
    "fedavg, own heads": (FedAvg(), 0, OWN_HEADS),
    "fedrep": (FedRep(), 0, OWN_HEADS),
    "fedavg_ft": (FedAvgFT(), 0, {}),
    "fedavg_ft, own heads": (FedAvgFT(), 0, OWN_HEADS),
    "gcfl": (GCFL(eps_1=0.3, eps_2=0.3, min_clients=2, warmup_rounds=1), 1, {}),
    "gcfl, own heads": (GCFL(eps_1=0.3, eps_2=0.3, min_clients=2, warmup_rounds=1), 0, OWN_HEADS),
    "gcfl_plus": (GCFLPlus(), 1, {}),
    "fedgrl, lp1": (FedGRL(**WISE), 0, OWN_HEADS),
    "fedgrl, lp2": (FedGRL(protocol="lp2", **WISE), 0, OWN_HEADS),
    "local_grl, lp1": (LocalGRL(**WISE), 0, OWN_HEADS),
    "local_grl, lp2": (LocalGRL(protocol="lp2", **WISE), 0, OWN_HEADS),
}
# Those of the default set: every way in which a part of a client's own is kept.
SOME = ("ditto", "apfl, own heads", "fedavg, own heads", "gcfl", "fedgrl, lp1", "local_grl, lp2")


def sampled(case: str, runtime: str) -> Course:
    algorithm, seed, changes = LATE[case]
    return toy_course(
        algorithm,
        **{
            "rounds": 10,
            "seed": seed,
            "num_clients": 5,
            "sampling": UniformSampling(0.2),
            "runtime": runtime,
            **changes,
        },
    )


def first_rounds(result: Result) -> dict[str, int]:
    """The round in which each client was first asked."""
    found: dict[str, int] = {}
    for event in result.events:
        if event["event"] == "round":
            for client in event["cohort"]:
                found.setdefault(client, event["round"])
    return found


def late_clients(result: Result) -> list[str]:
    return [client for client, first in first_rounds(result).items() if first > result.best_round]


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize(
    "case", [case if case in SOME else pytest.param(case, marks=pytest.mark.slow) for case in LATE]
)
def test_a_sampled_course_ends_with_what_it_had_when_cut_at_its_best_round(case: str, runtime: str) -> None:
    course = sampled(case, runtime)
    whole = run(course, scenario=toy_scenario(5))
    assert whole.best_round > 1 and late_clients(whole), "no client is late with this seed"
    cut = run(replace(course, rounds=whole.best_round), scenario=toy_scenario(5))
    assert cut.best_round == whole.best_round
    assert whole.client_scores == cut.client_scores and whole.metrics == cut.metrics
    require_same({"models": whole.client_params}, {"models": cut.client_params}, case)


@pytest.mark.parametrize("case", ["ditto", "fedavg, own heads"])
def test_a_late_silo_ends_with_what_it_had_in_the_best_round(case: str, tmp_path: Path) -> None:
    algorithm, seed, changes = LATE[case]
    course = site_course(algorithm, rounds=6, seed=seed, sampling=UniformSampling(0.34), **changes)
    whole = on_sites(course, hub := fake_hub(tmp_path / "silos"), tmp_path / "whole")
    (late, *_) = late_clients(whole)
    cut = on_sites(replace(course, rounds=whole.best_round), other := fake_hub(tmp_path / "others"), tmp_path / "cut")
    assert whole.client_scores == cut.client_scores
    simulated = run(course, scenario=scenario())
    assert simulated.client_scores == whole.client_scores
    for silos in (hub.silos, other.silos):
        (path,) = (silos[late].state / "models").glob("*.safetensors")
        require_same({"model": load_model_file(path)[0]}, {"model": simulated.client_params[late]}, late)


def test_the_best_memory_has_no_part_that_came_later_and_all_that_is_not_personal() -> None:
    client, algorithm = toy_client(), Ditto()
    client.state = {"optimizer": {"step": 1}}
    assert algorithm.best_memory(client.state) is client.state
    algorithm.keep_best(KeepBest(), client)
    client.state |= {"model": {"w": torch.ones(1)}, "optimizer": {"step": 2}}
    assert algorithm.best_memory(client.state).keys() == {"optimizer", "best"}
    assert algorithm.best_memory(client.state)["optimizer"] == {"step": 2}


def test_a_client_that_failed_in_the_setup_of_local_grl_has_no_model_though_it_has_a_head() -> None:
    client, algorithm = toy_client(model=HEADED), LocalGRL(**WISE)
    client.own = {name: slot for name, slot in client.model.state_dict().items() if name.startswith("decoder")}
    algorithm.keep_best(KeepBest(), client)
    assert client.state["best"].keys() == {"personal"}
    assert algorithm.client_params({}, algorithm.best_memory(client.state)) == {}
