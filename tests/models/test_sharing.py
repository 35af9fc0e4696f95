"""Personal parameters: what is shared, what stays, and that no message holds what stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import Course, resume, run
from isthmus.algorithms import ALGORITHMS, FedAvg, FedProx, Local
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput
from isthmus.core.protocol import EvaluateModel
from isthmus.core.random import UniformSampling
from isthmus.core.record import Record, leaves
from isthmus.data.graph import Graph
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.models.model import check_patterns, names_by_classes, shared_names
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import check_algorithm
from isthmus.testing.toys import toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, require_same, trace_course
from tests.quick import by_kind, quick
from tests.runs.personal.wire import Wire

MODEL = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4, dropout=0.0))
HEAD = ("decoder.layers.0.weight", "decoder.layers.0.bias", "decoder.layers.1.weight", "decoder.layers.1.bias")
NAMES = tuple(MODEL.build(6, 3).state_dict())


def course(algorithm: Any = None, **changes: Any) -> Course:
    fields = {"model": MODEL, "shared": ("gnn.*",), "rounds": 4, **changes}
    return toy_course(algorithm or FedAvg(optimizer=Adam(lr=0.05)), **fields)


def with_own_classes(scenario: Scenario) -> Scenario:
    """Return the same clients, of which the last knows only two classes, by other numbers."""
    last = list(scenario.parts)[-1]

    def fewer(part: Graph) -> Graph:
        y = torch.where(part.y == 2, 0, part.y)
        return replace(part, y=y, num_classes=2, class_names=("left", "right"))

    return replace(scenario, parts={n: fewer(p) if n == last else p for n, p in scenario.parts.items()})


# ---- patterns


def test_patterns_add_and_take_away_and_the_last_decides() -> None:
    names = ("gnn.layers.0.weight", "gnn.norms.0.weight", "decoder.bias")
    assert shared_names(("*",), names) == set(names)
    assert shared_names(("gnn.*",), names) == set(names[:2])
    assert shared_names(("*", "!gnn.norms.*"), names) == {names[0], names[2]}
    assert shared_names(("*", "!gnn.*", "gnn.norms.*"), names) == {names[1], names[2]}


def test_a_pattern_that_matches_nothing_lists_the_names() -> None:
    with pytest.raises(BadInput, match=r"'encoder\.\*', which matches no parameter of the model: a\.b, c"):
        shared_names(("encoder.*",), ("a.b", "c"))
    with pytest.raises(BadInput, match="leaves nothing to share of a"):
        shared_names(("*", "!*"), ("a",))
    with pytest.raises(BadInput, match=r"shared has 'gnm\.\*', which matches no parameter"):
        run(course(shared=("gnm.*",)), scenario=toy_scenario())


@pytest.mark.parametrize(
    ("patterns", "message"),
    [((), "shared is empty"), (("",), "write a parameter's name"), (("!",), "write"), (("!a",), "begins with the exc")],
)
def test_patterns_without_sense_are_refused(patterns: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_patterns(patterns)


def test_names_by_classes_are_those_of_the_last_layer_and_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    assert names_by_classes(MODEL, 6) == HEAD[2:]
    assert names_by_classes(ModelSpec(GCN(hidden=5)), 6) == ("gnn.layers.1.weight", "gnn.layers.1.bias")
    assert torch.equal(before, torch.random.get_rng_state())


# ---- a client


def test_missing_parameters_are_trained_and_stay_and_given_ones_come_back() -> None:
    client = toy_client(model=MODEL)
    whole = {name: slot.clone() for name, slot in client.model.state_dict().items()}
    client.own = {name: whole[name] for name in HEAD}
    given = {name: tensor for name, tensor in whole.items() if name not in HEAD}
    fitted = client.fit(given, steps=2, optimizer=SGD(lr=0.1))
    assert fitted.params.keys() == given.keys() and client.state["personal"].keys() == set(HEAD)
    other = toy_client(model=MODEL)
    expected = other.fit(whole, steps=2, optimizer=SGD(lr=0.1))
    for name, tensor in expected.params.items():
        assert torch.equal(tensor, {**fitted.params, **client.state["personal"]}[name]), name
    assert client.evaluate(fitted.params, ("val",)) == other.evaluate(expected.params, ("val",))
    assert torch.equal(client.predict(fitted.params).probabilities, other.predict(expected.params).probabilities)
    assert "personal" not in other.state


# ---- whole courses


# Hidden representations are those of the whole encoder.
PARTLY_SHARED = by_kind(name for name in ALGORITHMS if name != "gfl_appnp")


@pytest.mark.parametrize("name", PARTLY_SHARED)
def test_no_message_of_any_algorithm_holds_a_personal_parameter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Record] = []
    monkeypatch.setattr(Wire, "seen", seen, raising=False)
    monkeypatch.setattr("isthmus.runs.simulation.LoopRuntime", Wire)
    fields = {"clip": None, "noise": 0.0} if name == "fedgnn" else {}  # which perturbs no batch norm
    run(course(quick(name, **fields)), scenario=toy_scenario())
    assert seen
    for record in seen:
        assert not [place for place in leaves(record) if "decoder" in place], type(record)
        assert b"decoder" not in encode(record)


def with_own_heads(name: str, **changes: Any) -> Course:
    """Return a course of an algorithm, with little of everything, whose clients keep their heads."""
    algorithm: Any = quick(name)
    if hasattr(algorithm, "optimizer"):
        algorithm = replace(algorithm, optimizer=SGD(lr=0.01))
    model = ModelSpec(GCN(hidden=5, dropout=0.5), decoder=MLPDecoder(hidden=4))
    return toy_course(algorithm, model=model, shared=("gnn.*",), **changes)


@pytest.mark.parametrize("name", PARTLY_SHARED)
def test_heads_of_every_algorithm_are_trained_kept_as_bytes_and_the_same_together(name: str) -> None:
    """What a head that stays can break; the rest is held without one for every algorithm, and here in the slow set."""
    course, scenario = with_own_heads(name, rounds=2), toy_scenario()
    loop, strict, together = (trace_course(replace(course, runtime=r), scenario) for r in ("loop", "strict", "auto"))
    assert loop.ended_by is None and not [failure for report in loop.exchanges for failure in report.failures]
    require_same(loop.everything(), strict.everything(), "loop and strict")
    require_close(loop.everything(sizes=False), together.everything(sizes=False), "alone and together")
    many = {kind.__name__: handler for kind, handler in type(course.algorithm).cohort_handlers().items()}
    assert many.keys() <= together.together.keys() and not together.notes.keys() & set(many.values())
    models = loop.models(course.algorithm)
    own = Simulation(course, scenario).clients["all" if course.algorithm.pooled else "client-0"].own
    assert own.keys() == set(HEAD)
    for slot, start in own.items():
        assert not any(torch.equal(model[slot], start) for model in models.values()), slot


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTLY_SHARED)
def test_every_algorithm_passes_its_checks_when_the_head_is_personal(name: str) -> None:
    course = with_own_heads(name)
    check_algorithm(course.algorithm, course, skip=("same_seed",))


def test_heads_differ_and_the_rest_is_one() -> None:
    result = run(course(), scenario=toy_scenario())
    models = result.client_params
    assert result.params.keys() == {name for name in NAMES if name.startswith("gnn.")}
    assert len({tuple(model[HEAD[2]].flatten().tolist()) for model in models.values()}) == len(models)
    for model in models.values():
        assert all(torch.equal(model[name], tensor) for name, tensor in result.params.items())
    assert set(result.metrics) == {"local_model/global_graph", "local_model/local_graph"}
    with pytest.raises(ValueError, match="share only a part"):
        _ = result.model
    assert result.client_models.keys() == models.keys()


def test_sharing_everything_is_the_same_course_as_before() -> None:
    shared = run(course(shared=("*",)), scenario=toy_scenario())
    named = run(course(shared=NAMES), scenario=toy_scenario())
    assert all(torch.equal(shared.params[name], named.params[name]) for name in NAMES)
    assert shared.metrics == named.metrics and not shared.client_params


def test_local_training_does_not_ask_what_is_shared() -> None:
    one, other = (run(course(Local(), shared=shared), scenario=toy_scenario()) for shared in (("*",), ("gnn.*",)))
    assert one.client_scores == other.client_scores
    for client, params in one.client_params.items():
        assert all(torch.equal(params[name], other.client_params[client][name]) for name in NAMES)


def test_normalisation_that_stays_differs_by_client_and_is_averaged_otherwise() -> None:
    result = run(course(shared=("*", "!*.norm*")), scenario=toy_scenario())
    means = [params["gnn.norms.0.running_mean"] for params in result.client_params.values()]
    assert not torch.equal(means[0], means[1]) and not [name for name in result.params if "norms" in name]


def test_the_proximal_term_holds_what_is_shared_only() -> None:
    client = toy_client(model=MODEL)
    whole = {name: slot.clone() for name, slot in client.model.state_dict().items()}
    client.own = {name: whole[name] for name in HEAD}
    given = {name: tensor for name, tensor in whole.items() if name not in HEAD}
    far = FedProx(mu=1e6, local_steps=3, optimizer=SGD(lr=1e-7))
    live = {name: slot for name, slot in client.model.named_parameters()}
    penalty = far.penalty(type("R", (), {"params": given})(), client)  # type: ignore[arg-type]
    assert penalty is not None
    moved = {name: tensor.detach() + 1.0 for name, tensor in live.items()}
    expected = 0.5e6 * sum(tensor.numel() for name, tensor in live.items() if name not in HEAD)
    assert float(penalty(moved)) == pytest.approx(expected)


def test_an_absent_client_keeps_its_head() -> None:
    simulation = Simulation(course(), toy_scenario())
    client = simulation.clients["client-0"]
    algorithm = simulation.course.algorithm
    start = simulation.initial.params
    assert isinstance(algorithm, FedAvg)
    algorithm.train(type("R", (), {"params": start})(), client)  # type: ignore[arg-type]
    kept = client.state["personal"]
    algorithm.evaluate(EvaluateModel(start, ("val",), "accuracy", False), client)
    assert client.state["personal"] is kept


def test_sampled_clients_and_resume_give_the_same_bits(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"sampling": UniformSampling(0.7)}
    scenario = toy_scenario()
    whole = run(course(rounds=6, **changes), scenario=scenario)
    import isthmus.runs.simulated as runs

    first = run(course(rounds=3, **changes), scenario=scenario, run_dir=tmp_path / "run")
    assert first.num_rounds == 3
    patched = pytest.MonkeyPatch()
    try:
        patched.setattr(runs, "load_scenario", lambda course, root: scenario)
        second = resume(tmp_path / "run", overrides=["rounds=6"])
    finally:
        patched.undo()
    for client, params in whole.client_params.items():
        assert all(torch.equal(params[name], second.client_params[client][name]) for name in params)


def test_the_model_files_are_whole_and_say_their_sizes(tmp_path: Path) -> None:
    from isthmus.runs.folder import RunFolder, load_model_file

    scenario = with_own_classes(toy_scenario())
    run(course(), scenario=scenario, run_dir=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    params, facts = load_model_file(folder.client_model("client-2"))
    assert set(params) == set(NAMES) and facts["output_dim"] == "2" and facts["class_names"] == '["left", "right"]'
    assert load_model_file(folder.client_model("client-0"))[1]["output_dim"] == "3"
    assert set(load_model_file(folder.model)[0]) == {name for name in NAMES if name not in HEAD}


# ---- other classes


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_clients_may_have_classes_of_their_own(runtime: str) -> None:
    scenario = with_own_classes(toy_scenario(5))
    algorithm = FedAvg(optimizer=SGD(lr=0.1))
    result = run(course(algorithm, num_clients=5, runtime=runtime), scenario=scenario)
    assert result.client_params["client-4"][HEAD[2]].shape == (4, 2)
    assert result.client_params["client-0"][HEAD[2]].shape == (4, 3)
    assert set(result.metrics) == {"local_model/local_graph"}
    assert result.client_models["client-4"].state_dict()[HEAD[3]].shape == (2,)
    alike = run(course(algorithm, num_clients=5, runtime="loop"), scenario=scenario)
    for client, params in alike.client_params.items():
        for name, tensor in params.items():
            assert torch.allclose(tensor, result.client_params[client][name], atol=1e-5), (client, name)


def test_other_classes_with_a_shared_head_say_what_to_declare() -> None:
    scenario = with_own_classes(toy_scenario())
    with pytest.raises(BadInput, match=r"different classes \(client-0: 3; .*client-2: 2\).*\"!decoder\.\*\""):
        run(course(shared=("*",)), scenario=scenario)
    with pytest.raises(BadInput, match=r"model\.decoder\.name=linear"):
        run(course(shared=("*",), model=ModelSpec(GCN(hidden=5))), scenario=scenario)
    run(course(model=ModelSpec(GCN(hidden=5), decoder=LinearDecoder())), scenario=scenario)
