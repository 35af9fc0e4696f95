"""Clients with model specs of their own: other encoders, heads, classes and batches; what is shared must fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import Course, resume, run
from isthmus.algorithms import ALGORITHMS, FedAvg
from isthmus.config.load import course_to_yaml, load_course, own_batching, own_model
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput
from isthmus.core.record import Record
from isthmus.learn.batching import FullBatch, NeighborBatch
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, LinearDecoder, LinearEncoder, MLPDecoder, MLPEncoder, ModelSpec
from isthmus.models.model import require_same_shared
from isthmus.runs.simulation import Simulation
from isthmus.testing.toys import toy_course, toy_scenario
from isthmus.testing.traces import require_same, trace_course
from tests.cli.command import call
from tests.models.test_sharing import with_own_classes
from tests.quick import by_kind, quick
from tests.runs.personal.test_own_inputs import with_fewer_features
from tests.runs.personal.wire import Wire

MODEL = ModelSpec(GCN(hidden=5, dropout=0.5), encoder=LinearEncoder(dim=4), decoder=MLPDecoder(hidden=4))
SHARED = ("*", "!encoder.*", "!decoder.*")
# One client in dotted keys, one in levels.
SETTINGS: dict[str, Any] = {
    "client-1": {"model.decoder.hidden": 7, "optimizer.lr": 0.3},
    "client-2": {"model": {"encoder": {"name": "mlp", "layers": 3, "dim": 4}, "decoder": "linear"}},
}


def course(**changes: Any) -> Course:
    fields = {"model": MODEL, "shared": SHARED, "client_settings": SETTINGS, **changes}
    return toy_course(fields.pop("algorithm", FedAvg(local_steps=2, optimizer=SGD(lr=0.1))), **fields)


# ---- what the settings say


def test_parts_that_are_not_named_are_the_courses() -> None:
    made = course()
    assert own_model(made, "client-0") is made.model and own_model(made, None) is made.model
    assert own_model(made, "client-1") == replace(MODEL, decoder=MLPDecoder(hidden=7))
    assert own_model(made, "client-2") == replace(MODEL, encoder=MLPEncoder(dim=4, layers=3), decoder=LinearDecoder())
    assert own_model(course(client_settings={"a": {"model": {"encoder": None}}}), "a") == replace(MODEL, encoder=None)
    assert own_batching(made, "client-1") == FullBatch()
    batches = {"a": {"batching": {"name": "neighbor", "batch_size": 3}}, "b": {"batching.name": "neighbor"}}
    found = course(client_settings=batches)
    assert own_batching(found, "a") == NeighborBatch(batch_size=3) and own_batching(found, "b") == NeighborBatch()


def test_a_model_may_be_given_as_an_object() -> None:
    own = replace(MODEL, decoder=LinearDecoder())
    assert own_model(course(client_settings={"client-1": {"model": own}}), "client-1") is own
    assert own_model(course(client_settings={"client-1": {"model.decoder": LinearDecoder()}}), "client-1") == own


def test_settings_of_models_survive_the_file_and_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "course.yaml"
    path.write_text(course_to_yaml(course()))
    read = load_course(path, ["client_settings.client-0.model.decoder.layers=1"])
    assert {c: own_model(read, c) for c in SETTINGS} == {c: own_model(course(), c) for c in SETTINGS}
    assert own_model(read, "client-0") == replace(MODEL, decoder=MLPDecoder(hidden=4, layers=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client-1": {"model.decodr.hidden": 3}}, r"client_settings\.client-1: model\.decodr is not a known key"),
        ({"client-1": {"model.decoder.hidden": 0}}, "hidden is 0"),
        ({"client-1": {"batching.name": "neighbour"}}, "neighbor"),
        ({"client-1": {"model": 5}}, r"client_settings\.client-1: model is 5, expected keys and values"),
        ({"client-9": {"model.decoder.hidden": 3}}, "'client-9', which is no client"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run(course(client_settings=settings), scenario=toy_scenario())


# ---- what must fit


@pytest.mark.parametrize(
    ("shared", "own", "message"),
    [
        (
            ("*", "!encoder.*"),
            {"model.decoder.hidden": 7},
            r"'decoder\.layers\.0\.weight' is shared, but in the model of client-1 it is \(5, 7\), in the course's "
            r'model \(5, 4\).*shared=\["\*", "!encoder\.\*", "!decoder\.\*"\]',
        ),
        (
            SHARED,
            {"model.gnn.hidden": 6},
            r"'gnn\.layers\.0\.weight' .* client-1 it is \(4, 6\), .* \(4, 5\).*name=local.*nothing .* fits both",
        ),
        (SHARED, {"model.gnn.layers": 3}, r"'gnn\.layers\.2\.weight' .* it is \(5, 5\), in the course's model missing"),
        (SHARED, {"model.gnn.layers": 1}, r"'gnn\.layers\.0\.weight'|'gnn\.layers\.1\.weight' .* missing"),
        (("*", "!decoder.*"), {"model.encoder": None}, r"'encoder\.layers\.0\.weight' .* client-1 it is missing"),
    ],
)
def test_what_is_shared_has_one_shape_or_the_course_does_not_start(
    shared: tuple[str, ...], own: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        run(course(shared=shared, client_settings={"client-1": own}), scenario=toy_scenario(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pattern_has_to_match_the_model_of_one_client_at_least() -> None:
    plain = ModelSpec(GCN(hidden=5), decoder=MLPDecoder(hidden=4))
    settings = {"client-1": {"model.encoder": {"name": "mlp", "dim": 6}}}  # as wide as the features of the others
    result = run(course(model=plain, client_settings=settings), scenario=toy_scenario())
    assert "encoder.layers.0.weight" in result.client_params["client-1"]
    assert "encoder.layers.0.weight" not in result.client_params["client-0"]
    with pytest.raises(BadInput, match=r"'!encoder\.\*', which matches no parameter"):
        run(course(model=plain, client_settings={}), scenario=toy_scenario())


def test_a_client_may_be_the_only_one_with_something_personal() -> None:
    plain = ModelSpec(GCN(hidden=5))
    settings = {"client-1": {"model.encoder": {"name": "mlp", "dim": 6}}}
    result = run(course(model=plain, shared=("gnn.*",), client_settings=settings), scenario=toy_scenario())
    assert set(result.metrics) == {"local_model/local_graph"} and set(result.client_params) == set(result.client_scores)
    assert result.client_params["client-1"].keys() > result.client_params["client-0"].keys() == result.params.keys()


# ---- whole courses


@pytest.mark.parametrize("name", ["fedrep", *by_kind(["fedavg", "fedprox", "scaffold", "ditto", "local", "fedavg_ft"])])
def test_loop_and_strict_give_the_same_bits(name: str) -> None:
    traces = [trace_course(course(algorithm=quick(name), runtime=kind), toy_scenario()) for kind in ("loop", "strict")]
    assert not any(report.failures for trace in traces for report in trace.exchanges)
    require_same(traces[0].values(), traces[1].values(), "loop and strict")


def test_clients_without_settings_train_as_if_nobody_had_any() -> None:
    """Nothing of the others' models reaches a client that trains alone."""
    settings = {client: {k: v for k, v in own.items() if "model" in k} for client, own in SETTINGS.items()}
    local = ALGORITHMS["local"]()
    own = run(course(algorithm=local, client_settings=settings), scenario=toy_scenario()).client_params
    plain = run(course(algorithm=local, client_settings={}), scenario=toy_scenario()).client_params
    assert all(torch.equal(own["client-0"][name], plain["client-0"][name]) for name in plain["client-0"])
    assert (
        own["client-1"]["decoder.layers.0.weight"].shape == (5, 7) and "decoder.layers.1.weight" not in own["client-2"]
    )


def test_the_stacked_runtime_lets_them_answer_alone_and_agrees() -> None:
    scenario = toy_scenario(5)
    made = course(num_clients=5, runtime="auto")
    simulation = Simulation(made, scenario)
    blocks, alone = simulation.blocks(list(simulation.clients.values()))
    assert {client.id for client in alone} >= set(SETTINGS)
    assert {client.id for block in blocks for client in block} <= {"client-0", "client-3", "client-4"}
    found, expected = run(made, scenario=scenario), run(replace(made, runtime="loop"), scenario=scenario)
    for client, params in expected.client_params.items():
        for name, tensor in params.items():
            assert torch.allclose(tensor, found.client_params[client][name], atol=1e-5), (client, name)


def test_no_message_holds_what_only_one_client_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Record] = []
    monkeypatch.setattr(Wire, "seen", seen, raising=False)
    monkeypatch.setattr("isthmus.runs.simulation.LoopRuntime", Wire)
    run(course(), scenario=toy_scenario())
    sent = b"".join(encode(record) for record in seen)
    assert b"gnn.layers" in sent and b"coder" not in sent


def test_other_features_and_classes_go_with_specs_of_ones_own() -> None:
    scenario = with_fewer_features(with_own_classes(toy_scenario()), 5)
    models = run(course(), scenario=scenario).client_models
    assert models["client-2"].state_dict()["encoder.layers.0.weight"].shape == (5, 4)
    assert models["client-2"].state_dict()["decoder.layers.0.weight"].shape == (5, 2)
    assert models["client-1"].state_dict()["decoder.layers.1.weight"].shape == (7, 3)


def test_batches_of_ones_own_are_drawn() -> None:
    settings = {"client-1": {"batching": {"name": "neighbor", "batch_size": 2, "fanouts": [2, 2]}}}
    results = [
        run(course(client_settings=settings, runtime=runtime), scenario=toy_scenario())
        for runtime in ("loop", "strict")
    ]
    plain = run(course(client_settings={}), scenario=toy_scenario())
    name = "gnn.layers.0.weight"
    assert torch.equal(results[0].params[name], results[1].params[name])
    assert not torch.equal(results[0].params[name], plain.params[name])


def test_monitors_of_models_are_refused_where_models_differ() -> None:
    with pytest.raises(BadInput, match="client-1 has a model of its own kind"):
        run(course(monitors=("cka",)), scenario=toy_scenario())


# ---- results, run folders, predictions

WORDS = [
    *("num_clients=3", "model.encoder=linear", "model.encoder.dim=8", "model.gnn.hidden=8", "model.decoder=linear"),
    *('shared=["*", "!encoder.*", "!decoder.*"]', "client_settings.client-2.model.decoder={name: mlp, hidden: 5}"),
]


def test_a_run_goes_on_and_predicts_with_each_clients_own_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call("run", *WORDS, "rounds=1", "--out", "run")
    assert code == 0, output
    longer = resume("run", overrides=["rounds=2"])
    whole = run(load_course(None, [*WORDS, "rounds=2"]))
    for client, params in whole.client_params.items():
        assert all(torch.equal(tensor, longer.client_params[client][name]) for name, tensor in params.items())
    assert longer.client_params["client-2"]["decoder.layers.0.weight"].shape == (8, 5)
    assert "decoder.layers.1.weight" not in longer.client_params["client-0"]
    for client in ("client-0", "client-2"):
        code, output = call("predict", "run", "--graph", "cora", "--client", client, "--out", f"{client}.csv")
        assert code == 0, output
        assert len((tmp_path / f"{client}.csv").read_text().splitlines()) == 2709


def test_all_that_differs_is_named_at_once_in_what_would_do() -> None:
    ours = {
        "gnn.layers.0.weight": torch.zeros(4, 5),
        "gnn.layers.1.weight": torch.zeros(5, 3),
        "decoder.w": torch.zeros(2),
    }
    theirs = {
        "gnn.layers.0.weight": torch.zeros(4, 6),
        "gnn.layers.1.weight": torch.zeros(6, 3),
        "decoder.w": torch.zeros(2),
    }
    hint = r'shared=\["\*", "!gnn\.layers\.0\.\*", "!gnn\.layers\.1\.\*"\]$'
    with pytest.raises(BadInput, match=rf"'gnn\.layers\.0\.weight' .* of c it is \(4, 6\).*{hint}"):
        require_same_shared(("*",), ours, "c", theirs)


def test_other_classes_of_the_same_number_are_told_as_such() -> None:
    scenario = toy_scenario()
    name, part = next(iter(scenario.parts.items()))
    parts = {**scenario.parts, name: replace(part, class_names=("x", "y", "z"))}
    others = {n: replace(p, class_names=("a", "b", "c")) if n != name else p for n, p in parts.items()}
    with pytest.raises(BadInput, match=r"clients have different classes .*let each keep its own"):
        run(toy_course(FedAvg()), scenario=replace(scenario, parts=others))
