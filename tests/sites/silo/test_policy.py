"""A policy means what people think it means, and its bounds hold without one."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.algorithms import ALGORITHMS, GFLAPPNP, Ditto, FedGNN, FedGRL, FedProGAP, FedRep, FedSagePlus
from isthmus.algorithms.fedavg import TrainModel
from isthmus.config.load import check_client_settings, own_algorithm
from isthmus.core.errors import BadInput
from isthmus.core.random import PoissonSampling, UniformSampling
from isthmus.data.dividing import PerClassSplit, RatioSplit
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Cosine
from isthmus.models import GAP, GAT, GCN, MLP, MLPDecoder, ModelSpec, ProGAP
from isthmus.privacy import ExampleDP
from isthmus.sites.silo.patience import TookTooLong, time_limit
from isthmus.sites.silo.policy import Policy, largest_steps, load_policy, num_parameters
from isthmus.testing import toy_course, toy_graph
from tests.limits import within
from tests.quick import quick
from tests.sites.in_process import CLASSES, site_course
from tests.sites.silo.test_protection import Server, silo_of, start

SITES = ("client-0", "client-1", "client-2")
CAREFUL = Policy(algorithms=("fedavg",), min_sites=3, only_folded=True)


def careful(**changes: Any) -> ist.Course:
    """A course that the careful policy takes part in, with changes."""
    fields: dict[str, Any] = {"min_replies": 3, "num_clients": 3, **changes}
    return site_course(**fields)


# ---- a file with mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithms: [fedagv]", "there is no algorithm 'fedagv'; known: .* Did you mean 'fedavg'?"),
        ("algorithms: [fedavg, FedSage]", "no algorithm 'FedSage'.* Did you mean 'fedsage_plus'?"),
        ("protections: {fedgn: {noise: 1}}", "no algorithm 'fedgn'.* Did you mean 'fedgnn'?"),
        ("protections: {fedgnn: {noize: 1}}", "protections.fedgnn has 'noize'; .* Did you mean 'noise'?"),
        ("protections: {fedavg: {noise: 1}}", "protections.fedavg has 'noise'; there are none"),
        ("max_steps: 0", "max_steps is 0; it must be positive"),
        ("min_examples: -1", "min_examples is -1; it must be positive"),
        ("max_request_seconds: .nan", "max_request_seconds is nan"),
        ("max_step: 5", "is not a known key; known: .* Did you mean 'max_steps'?"),
        ("- a", "expected keys and values|expected key"),
    ],
)
def test_a_policy_file_with_a_mistake_is_refused_at_the_start(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text + "\n")
    with pytest.raises(BadInput, match=message) as caught:
        load_policy(path)
    assert "policy.yaml" in str(caught.value)


def test_the_policy_in_force_is_told_in_a_few_lines() -> None:
    text = "\n".join(CAREFUL.lines())
    assert "only fedavg; 3 sites at least; the server may ask for only what the server folds" in text
    assert "10 examples at least, 10000 rounds" in text
    assert "any installed algorithm; 1 sites" in "\n".join(Policy().lines()) and len(Policy().lines()) == 2


# ---- who is in a mean


@pytest.mark.parametrize(
    ("course", "sites", "part"),
    [
        (careful(), SITES, ""),
        (careful(), ("client-0", "client-1"), "this course has 2"),
        (careful(), ("client-0", "client-1", "client-1"), "'client-1' twice"),
        (careful(), ("client-0", *["client-0"] * 9), "'client-0' twice"),
        (careful(min_replies=2), SITES, "min_replies=2"),
        (
            careful(sampling=UniformSampling(fraction=0.01)),
            SITES,
            "sampling.fraction=0.01 a round of this course has 1",
        ),
        (careful(sampling=UniformSampling(fraction=0.5)), SITES, "a round of this course has 2"),
        (careful(sampling=PoissonSampling(fraction=0.9)), SITES, "a round of this course may have nobody"),
        (careful(sampling=UniformSampling(fraction=0.01, num_min=3)), SITES, ""),
        (careful(client_settings={"client-1": {"optimizer.lr": 1e-30}}), SITES, "other settings for 'client-1'"),
        (careful(client_settings={"client-1": {"model.gnn.hidden": 3}}), SITES, "other settings for 'client-1'"),
        (careful(batching=NeighborBatch(batch_size=1)), SITES, "a batch of the course has 1 examples"),
        (careful(algorithm=ist.Local()), SITES, "allows the algorithms fedavg, not local"),
    ],
)
def test_nobody_stands_alone_in_a_mean(course: ist.Course, sites: tuple[str, ...], part: str) -> None:
    found = CAREFUL.refusal(course, sites)
    assert part in found if part else not found


def test_settings_of_single_clients_can_be_allowed_and_forbidden() -> None:
    course = careful(client_settings={"client-1": {"local_steps": 3}})
    assert replace(CAREFUL, own_settings=True).refusal(course, SITES) == ""
    assert Policy().refusal(course, SITES) == ""
    assert "other settings" in Policy(own_settings=False).refusal(course, SITES)


@pytest.mark.parametrize(
    ("counts", "refused"),
    [
        ({"train": 10, "val": 10, "test": 10}, ""),
        ({"train": 1, "val": 10, "test": 10}, "for train"),
        ({"train": 10, "val": 9, "test": 10}, "for val"),
        ({"train": 10, "val": 10, "test": 1}, "for test"),
        ({"train": 0, "val": 0, "test": 0}, ""),  # it only looks on
    ],
)
def test_training_sets_and_held_out_ones_below_min_examples_are_refused(counts: dict[str, int], refused: str) -> None:
    found = CAREFUL.refusal_of_data(counts)
    assert refused in found if refused else not found
    assert Policy().refusal_of_data(counts) == ""  # nothing was promised
    assert Policy(min_examples=11).refusal_of_data({"train": 10})
    for secret in map(str, counts.values()):
        assert secret not in found.replace("10", "")  # a refusal does not count for the server


def test_the_course_that_trains_one_silo_on_one_node_is_refused(tmp_path: Path) -> None:
    """A mean of one silo that trained on one node is that node: label and features could be read off it."""
    made = replace(toy_graph(60), masks={}, class_names=CLASSES)  # the course draws the split
    silo = silo_of(tmp_path, "client-2")
    silo.policy = CAREFUL
    shutil.rmtree(silo.data)
    write_graph_folder(made, silo.data)
    share = 1.2 / made.num_nodes
    attack = site_course(
        ist.FedAvg(local_steps=1),
        model=ModelSpec(MLP(hidden=4, dropout=0.0)),
        masks=RatioSplit(train=share, val=0.4, test=0.4),
        sampling=UniformSampling(fraction=0.01),
        num_clients=3,
        min_replies=3,
    )
    assert Server(silo, attack).refusal
    assert Server(silo, replace(attack, sampling=UniformSampling())).refusal  # one node alone is enough
    assert Server(silo, replace(attack, masks=PerClassSplit(num_per_class=1, num_val=12, num_test=None))).refusal
    assert Server(silo, replace(attack, sampling=UniformSampling(), masks=RatioSplit(0.4, 0.3, 0.3))).refusal == ""
    silo.policy = Policy()  # what it asked for is what it gets
    assert Server(silo, attack).refusal == ""


# ---- bounds that always hold


@pytest.mark.parametrize(
    ("course", "part"),
    [
        (site_course(ist.FedAvg(local_steps=10**9)), "algorithm.local_steps is 1000000000, its policy allows 10000"),
        (site_course(Ditto(personal_steps=10**6)), "algorithm.personal_steps is 1000000"),
        (site_course(FedSagePlus(pretrain_steps=10**7)), "algorithm.pretrain_steps"),
        (
            site_course(FedRep(head_steps=20_000), model=ModelSpec(GCN(hidden=4), decoder=MLPDecoder(4))),
            "head_steps",
        ),
        (site_course(rounds=10**8), "100000000 rounds, its policy allows 10000"),
        (site_course(model=ModelSpec(GCN(hidden=10**10))), "model.gnn.hidden is 10000000000"),
        (site_course(model=ModelSpec(GCN(layers=10**9))), "model.gnn.layers is 1000000000"),
        (site_course(model=ModelSpec(GAT(hidden=10**6, heads=10**6))), "model.gnn.heads is 1000000"),
        (site_course(client_settings={"client-0": {"model.gnn.layers": 10**7}}), "model.gnn.layers is 10000000"),
        (site_course(FedGNN(pseudo_items=10**9)), "algorithm.pseudo_items is 1000000000"),
        (site_course(model=ModelSpec(GAP(encoder_layers=10**5))), "model.gnn.encoder_layers is 100000"),
        (site_course(model=ModelSpec(ProGAP(hops=0, base_layers=1500))), "model.gnn.base_layers is 1500"),
        (site_course(FedProGAP(stage_rounds=10**6)), "algorithm.stage_rounds is 1000000"),
        (
            site_course(
                ist.FedAvg(local_steps=1, step_unit="epoch", weighting="uniform"),
                model=ModelSpec(MLP()),
                guards=(ExampleDP(fraction=1e-6, steps=10**6),),
            ),
            "steps of the guard example_dp is 1000000, its policy allows 10000",
        ),
    ],
)
def test_a_course_without_bounds_is_refused_before_anything_is_built(course: ist.Course, part: str) -> None:
    started = time.process_time()
    assert part in Policy().refusal(course, SITES)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "course",
    [
        site_course(model=ModelSpec(GCN(hidden=40_000_000))),
        site_course(model=ModelSpec(GCN(hidden=9000, layers=9))),
        site_course(client_settings={"client-1": {"model.gnn.hidden": 40_000_000}}),
        site_course(FedSagePlus(latent=10_000, hidden=10_000, num_generated=100)),
        site_course(
            FedGRL(objective=replace(FedGRL().objective, hidden=40_000_000)),
            model=ModelSpec(GCN(hidden=8), decoder=MLPDecoder(4)),
        )
        if hasattr(FedGRL().objective, "hidden")
        else site_course(model=ModelSpec(GCN(hidden=40_000_000))),
    ],
    ids=["wide", "deep", "another client's", "generator", "objective"],
)
def test_a_model_that_is_too_large_is_refused_without_being_built(
    course: ist.Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = silo_of(tmp_path)
    said: list[str] = []
    silo.say = said.append
    monkeypatch.setattr("isthmus.runs.simulation.own_model", lambda *a, **k: pytest.fail("a model was built"))
    assert Server(silo, course).refusal
    assert any("parameters, its policy allows 50000000" in text for text in said)


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.pooled])
def test_the_number_of_parameters_is_that_of_the_model_that_is_built(name: str) -> None:
    course = toy_course(quick(name))
    model = course.model.build(7, 3)
    wanted = sum(tensor.numel() for tensor in model.state_dict().values())
    found = num_parameters(course, 7, 3, None) - course.algorithm.num_own_parameters(model, 7)
    assert found == wanted > 0
    assert largest_steps(course.algorithm)[1] <= Policy().max_steps


def test_a_generators_size_is_that_of_the_one_that_is_built() -> None:
    algorithm = FedSagePlus(latent=6, hidden=5, num_generated=3)
    built = sum(slot.numel() for slot in algorithm._build(11).parameters())
    assert algorithm.num_own_parameters(None, 11) == pytest.approx(built, rel=0.2)


def test_rounds_of_a_schedule_are_no_steps() -> None:
    algorithm = ist.FedAvg(local_steps=3, optimizer=SGD(lr=0.1, schedule=Cosine(rounds=10**6)))
    assert largest_steps(algorithm) == ("local_steps", 3)


# ---- time


@within()
def test_work_that_takes_too_long_is_given_up_wherever_it_is() -> None:
    def busy() -> None:
        try:
            while True:
                sum(range(1000))
        except Exception:  # as a handler's own would be
            pytest.fail("it was kept")

    started = time.perf_counter()
    with pytest.raises(TookTooLong), time_limit(0.05):
        busy()
    assert time.perf_counter() - started < 5.0


def test_a_limit_that_was_kept_leaves_nothing_behind() -> None:
    for _ in range(200):  # some of these limits strike just when the work is done
        with contextlib.suppress(TookTooLong), time_limit(0.001):
            sum(range(100))
    deadline = time.perf_counter() + 0.05
    while time.perf_counter() < deadline:  # a limit of before would strike here
        sum(range(1000))
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and thread.is_alive()]


def test_limits_hold_in_threads_beside_the_main_one() -> None:
    caught: list[bool] = []

    def work() -> None:
        try:
            with time_limit(0.05):
                end = time.monotonic() + 20.0  # without the limit the thread must end too, or the process would not
                while time.monotonic() < end:
                    sum(range(1000))
        except TookTooLong:
            caught.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10.0)
    assert caught == [True]


@within()
def test_an_answer_that_takes_too_long_is_late_and_the_silo_goes_on(tmp_path: Path) -> None:
    course = site_course(ist.FedAvg(local_steps=10_000))
    silo = silo_of(tmp_path)
    silo.policy = Policy(max_request_seconds=0.3)
    silo.say = lambda text: None
    server = Server(silo, course)
    params = start(course, silo)
    with pytest.raises(AssertionError, match="kind='late'"):
        server.ask(TrainModel(params))
    quick_course = site_course(ist.FedAvg(local_steps=1))
    silo.policy = Policy()
    assert Server(silo, quick_course, "cd" * 16).ask(TrainModel(params))[0].weight > 0


# ---- what single clients' settings may not weaken


@pytest.mark.parametrize(
    ("algorithm", "settings", "refused"),
    [
        (FedGNN(), {"noise": 0.0}, True),
        (FedGNN(), {"noise": 0.3}, False),
        (FedGNN(), {"clip": None}, True),
        (FedGNN(), {"clip": 0.2}, True),
        (FedGNN(), {"clip": 0.05}, False),
        (FedGNN(clip=None), {"clip": 0.05}, False),
        (FedGNN(), {"pseudo_items": 10}, True),
        (FedGNN(embedding_noise=0.1), {"embedding_noise": 0.0}, True),
        (FedGNN(), {"local_steps": 3}, False),
        (GFLAPPNP(noise_std=1.0), {"noise_std": 0.5}, True),
        (GFLAPPNP(), {"noise_std": 0.5}, False),
        (GFLAPPNP(), {"min_sources": 1}, True),
        (FedSagePlus(), {"latent": 128}, True),
    ],
)
def test_settings_of_one_client_may_only_protect_it_more(
    algorithm: Any, settings: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    course = site_course(algorithm, client_settings={"client-0": settings})
    if not refused:
        assert own_algorithm(course, "client-0") is not None
        check_client_settings(course, SITES)
        return
    key = next(iter(settings))
    with pytest.raises(BadInput, match=f"client_settings.client-0.{key} is .*protects this client less"):
        check_client_settings(course, SITES)  # before the start
    assert Server(silo_of(tmp_path), course).refusal  # and at the silo, whatever the server checked


def test_every_field_that_is_said_to_protect_is_one() -> None:
    for name, kind in ALGORITHMS.items():
        for key, direction in kind.protects.items():
            assert hasattr(quick(name), key) and direction in ("more", "less")


@pytest.mark.parametrize(
    ("least", "algorithm", "refused"),
    [
        ({"noise": 0.2}, FedGNN(noise=0.1), True),
        ({"noise": 0.2}, FedGNN(noise=0.2), False),
        ({"clip": 0.1}, FedGNN(clip=0.2), True),
        ({"clip": 0.1}, FedGNN(clip=None), True),
        ({"clip": 0.1, "noise": 0.1}, FedGNN(clip=0.1, noise=0.1), False),
    ],
)
def test_a_policy_can_ask_for_least_protection(least: dict[str, float], algorithm: Any, refused: bool) -> None:
    policy = Policy(protections={"fedgnn": least})
    found = policy.refusal(site_course(algorithm), SITES)
    assert ("or what protects more" in found) == refused
    assert policy.refusal(site_course(), SITES) == ""  # about FedGNN only
