from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import Ditto, FedAvg, FedAvgFT, FedProx, FedSagePlus, FineTuned
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedsage import MendGraph, PretrainGenerator
from isthmus.core.codec import decode
from isthmus.core.protocol import EvaluateModel, KeepBest, ModelState
from isthmus.core.random import UniformSampling
from isthmus.core.record import State
from isthmus.learn.optimizers import SGD, read_params
from isthmus.models import GCN, SAGE, MLPDecoder, ModelSpec
from isthmus.runs.folder import RunFolder, load_model_file
from isthmus.testing import CHECKS, check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, trace_course

from .reference import assert_close, assert_equal, gradient_descent

HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))
TUNING = FedAvgFT(tune_steps=3, tune_optimizer=SGD(lr=0.2, weight_decay=0.01))


@dataclass(frozen=True)
class FedProxFT(FineTuned[ModelState], FedProx):
    """FedProx, fine-tuned."""


@dataclass(frozen=True)
class DittoFT(FineTuned[ModelState], Ditto):
    """Ditto, fine-tuned: from each client's own model."""


@dataclass(frozen=True)
class FedSagePlusFT(FineTuned[ModelState], FedSagePlus):
    """FedSage+, fine-tuned."""


SAGE_PLUS: dict[str, Any] = {"latent": 4, "hidden": 5, "pretrain_steps": 2, "cross_rounds": 1, "num_generated": 3}


def test_a_client_is_evaluated_with_the_global_model_after_some_steps_on_its_own_data() -> None:
    client = toy_client()
    start = read_params(client.model)
    found = TUNING.evaluate(EvaluateModel(start, ("val", "test"), "loss", False), client)
    expected = gradient_descent(client.data, start, 3, 0.2, 0.01)
    assert_close(client.state["tuned"], expected, 1e-5)
    assert found.metrics == client.evaluate(client.state["tuned"], ("val", "test"))[0]
    assert found.metrics != client.evaluate(start, ("val", "test"))[0]
    assert client.state.keys() == {"tuned"}


def test_the_tuned_model_of_the_best_round_is_kept_and_nothing_is_tuned_for_it() -> None:
    client = toy_client()
    start = read_params(client.model)
    TUNING.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    TUNING.keep_best(KeepBest(), client)
    kept = client.state["tuned"]
    TUNING.evaluate(EvaluateModel({n: t + 0.3 for n, t in start.items()}, ("val",), "loss", False), client)
    now = client.state["tuned"]
    best = TUNING.evaluate(EvaluateModel(start, ("test",), "loss", True), client)
    assert best.metrics == client.evaluate(kept, ("test",))[0]
    assert client.state["tuned"] is now and client.state["best"]["tuned"] is kept


def test_every_evaluation_tunes_the_latest_global_model_anew() -> None:
    client = toy_client()
    start = read_params(client.model)
    first = TUNING.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    again = TUNING.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    assert first == again


@pytest.mark.meet(1)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": HEADED, "shared": ("gnn.*",)},
        {"num_clients": 4, "sampling": UniformSampling(fraction=0.5)},
        {"evaluate_every": 2},
    ],
    ids=["all", "head", "half", "every second round"],
)
@pytest.mark.parametrize("runtime", ["loop", "auto"])
def test_rounds_are_those_of_the_other_algorithm_to_the_bit(runtime: str, fields: dict[str, Any]) -> None:
    scenario = toy_scenario(fields.get("num_clients", 3))
    plain = trace_course(toy_course(FedAvg(), runtime=runtime, **fields), scenario)
    tuned = trace_course(toy_course(FedAvgFT(), runtime=runtime, **fields), scenario)
    for round, standing in plain.standings.items():
        assert_equal(standing.state.params, tuned.standings[round].state.params)  # type: ignore[attr-defined]
    for client in plain.clients:
        before, after = (decode(trace.memories[trace.last][client], State) for trace in (plain, tuned))
        assert_equal(before.get("personal", {}), after.get("personal", {}))
    assert [r.evaluations for r in plain.rounds] != [r.evaluations for r in tuned.rounds]


def test_a_client_without_examples_uses_the_global_model() -> None:
    scenario = toy_scenario(client_without_training=True)
    trace = trace_course(toy_course(FedAvgFT()), scenario)
    state = trace.standings[trace.last].state
    memory: State = decode(trace.memories[trace.last]["client-2"], State)
    assert_equal(memory["tuned"], state.params)  # type: ignore[attr-defined]


def test_heads_of_ones_own_are_tuned_as_well_and_stay_what_they_were_for_training() -> None:
    client = toy_client(model=HEADED)
    whole = read_params(client.model)
    client.own = {name: tensor for name, tensor in whole.items() if name.startswith("decoder.")}
    shared = {name: tensor for name, tensor in whole.items() if name not in client.own}
    FedAvgFT().train(TrainModel(shared), client)
    head = client.state["personal"]
    FedAvgFT().evaluate(EvaluateModel(shared, ("val",), "loss", False), client)
    assert client.state["personal"] is head
    assert client.state["tuned"].keys() == whole.keys()
    assert not torch.equal(client.state["tuned"]["decoder.layers.0.weight"], head["decoder.layers.0.weight"])


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"model": ModelSpec(SAGE(hidden=5, batch_norm=True))}, {"model": HEADED, "shared": ("*", "!decoder.*")}],
    ids=["gcn", "batch norm", "head"],
)
def test_clients_that_answer_together_give_what_they_would_alone(fields: dict[str, Any], sparse: bool) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse, client_without_training=True)
    algorithm = FedAvgFT(optimizer=SGD(lr=0.1), tune_optimizer=SGD(lr=0.05, momentum=0.9))
    course = toy_course(algorithm, num_clients=5, rounds=2, **fields)
    loop = trace_course(course, scenario)
    together = trace_course(replace(course, runtime="auto"), scenario)
    assert together.together["TrainModel"] > 0 and together.together["EvaluateModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


OTHERS = {"fedprox": FedProxFT(mu=0.1, tune_steps=2), "ditto": DittoFT(strength=0.3, tune_steps=2)}


@pytest.mark.parametrize("name", OTHERS)
def test_other_algorithms_can_be_tuned_too(name: str) -> None:
    """What they and tuning remember beside each other lasts, and clients together have it as each alone."""
    course = toy_course(OTHERS[name], rounds=2)
    for check in ("loop_equals_strict", "resume"):
        CHECKS[check](OTHERS[name], course)
    loop, together = (trace_course(replace(course, runtime=runtime), toy_scenario()) for runtime in ("loop", "auto"))
    assert together.together["TrainModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_algorithms_that_are_tuned_pass_all_checks(name: str) -> None:
    check_algorithm(OTHERS[name])


def test_tuning_begins_with_the_model_that_the_other_algorithm_has_for_the_client() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = DittoFT(tune_steps=2, tune_optimizer=SGD(lr=0.1))
    algorithm.train(TrainModel(start), client)
    own = client.state["model"]
    algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    assert_close(client.state["tuned"], gradient_descent(client.data, own, 2, 0.1), 1e-5)
    assert client.state["model"] is own
    algorithm.keep_best(KeepBest(), client)
    assert client.state["best"].keys() == {"tuned", "model"}


def test_tuning_is_on_the_graph_that_the_other_algorithm_trains_on() -> None:
    course = toy_course(FedSagePlusFT(**SAGE_PLUS))
    trace = trace_course(course, toy_scenario())
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    client = toy_client()
    start = read_params(client.model)
    algorithm = FedSagePlusFT(**SAGE_PLUS, tune_steps=3, tune_optimizer=SGD(lr=0.2))
    algorithm.pretrain(PretrainGenerator(start), client)
    memory = client.state["neighgen"]
    # a generator that gives each node neighbours
    client.state["neighgen"] = {**memory, "params": {**memory["params"], "number.bias": torch.tensor([1.6])}}
    algorithm.mend(MendGraph(), client)
    mended = algorithm.data_of(client).data
    assert mended.num_nodes > client.num_nodes
    algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    assert_close(client.state["tuned"], gradient_descent(mended, start, 3, 0.2), 1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_clients_with_other_data_than_their_own_are_tuned_together_on_that(sparse: bool) -> None:
    scenario = toy_scenario(5, num_nodes=70, sparse=sparse)
    course = toy_course(FedSagePlusFT(**SAGE_PLUS), num_clients=5, rounds=2)
    loop = trace_course(course, scenario)
    together = trace_course(replace(course, runtime="auto"), scenario)
    assert together.together["TrainModel"] > 0 and together.together["EvaluateModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "on mended graphs")


def test_tuned_models_are_in_the_result_and_in_the_run_folder(tmp_path: Path) -> None:
    result = run(toy_course(FedAvgFT(), evaluate_every=2), scenario=toy_scenario(), run_dir=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    for client, params in result.client_params.items():
        assert_equal(load_model_file(folder.client_model(client))[0], params)
        assert not torch.equal(params["gnn.layers.0.weight"], result.params["gnn.layers.0.weight"])
    assert {"global_model/global_graph", "local_model/local_graph"} <= result.metrics.keys()


def test_without_an_optimizer_of_its_own_tuning_has_the_algorithms() -> None:
    client = toy_client()
    start = read_params(client.model)
    algorithm = FedAvgFT(optimizer=SGD(lr=0.03), tune_steps=2)
    algorithm.evaluate(EvaluateModel(start, ("val",), "loss", False), client)
    assert_close(client.state["tuned"], gradient_descent(client.data, start, 2, 0.03), 1e-5)

    @dataclass(frozen=True)
    class Bare(FineTuned[ModelState]):
        """An algorithm that trains nothing."""

        def setup(self, fed: Any) -> ModelState:
            return ModelState(fed.initial_params)

        def round(self, state: ModelState, fed: Any) -> ModelState:
            return state

    with pytest.raises(ValueError, match="tune_optimizer is null, but Bare has no optimizer of its own; give one"):
        Bare()
    assert Bare(tune_optimizer=SGD(lr=0.1)).tune_steps == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"tune_steps": 0}, "tune_steps is 0; it must be at least 1"), ({"local_steps": 0}, "local_steps is 0")],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedAvgFT(**fields)


def test_what_either_algorithm_lists_as_personal_goes_back_with_the_best_round() -> None:
    assert set(Ditto.personal) and DittoFT.personal == ("tuned", *Ditto.personal)
