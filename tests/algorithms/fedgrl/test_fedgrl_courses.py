"""Whole courses of FedGRL, and of its clients alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import resume, run
from isthmus.algorithms import FedGRL, LocalGRL
from isthmus.algorithms.fedgrl import EncoderUpdate, StartEncoder, TrainEncoder, TrainOwnEncoder
from isthmus.algorithms.fedgrl.downstream import Downstream, Finetune, Freeze
from isthmus.algorithms.fedgrl.encoder_learning import DescribeEncoder, EncoderWidth
from isthmus.algorithms.fedgrl.selfsup import DGI, GAE, GRACE
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, TooFewReplies
from isthmus.core.protocol import EvaluateModel, Evaluation, KeepBest, Kept, Position
from isthmus.core.random import UniformSampling
from isthmus.core.record import leaves
from isthmus.core.training import EarlyStopping
from isthmus.learn.optimizers import AdamW
from isthmus.learn.tasks import NodeClassification
from isthmus.models import GCN, MLPDecoder, ModelSpec
from isthmus.testing import CHECKS, check_algorithm, toy_course, toy_scenario
from isthmus.testing.traces import require_same, trace_course
from tests.algorithms.fedgrl.fedgrl_toys import (
    HEAD,
    LP1,
    LP2,
    MODEL,
    MODES,
    OBJECTIVES,
    PROBE,
    SHORT,
    SMALL,
    STILL,
    alone,
    encoder,
    gap,
    memory,
    parts_of,
    quick,
    traced,
    unlabelled,
    wise_client,
    with_client_without_classes,
    with_idle,
    with_own_classes,
    without_last,
)
from tests.algorithms.reference import assert_equal

# Both protocols, with and without others, with a gate and without; the slow set has the rest.
SOME = [
    name if name in ("lp1", "lp2, gated", "lp2, alone") else pytest.param(name, marks=pytest.mark.slow)
    for name in MODES
]

# ---- heads stay


@pytest.mark.parametrize("name", SOME)
def test_no_message_holds_a_head(name: str) -> None:
    """Neither by its name, nor its numbers at any time, in the bytes of any record that passes."""
    trace = traced(MODES[name])
    heads = set()
    for round in trace.memories:
        for client in trace.clients:
            known = memory(trace, client, round)
            for model in (known.get("personal", {}), known.get("model", {})):
                heads |= {t.numpy().tobytes() for n, t in model.items() if n.startswith(HEAD) and t.any()}
    assert len(heads) > 4
    records = [record for m in trace.messages for record in (m.request, m.outcome.reply)]
    kinds = {type(record) for record in records}
    wanted = {DescribeEncoder, EncoderWidth, EvaluateModel, Evaluation, KeepBest, Kept}
    wanted |= (
        {TrainEncoder, EncoderUpdate} if not isinstance(MODES[name], LocalGRL) else {StartEncoder, TrainOwnEncoder}
    )
    assert kinds == wanted
    for record in records:
        assert not [place for place in leaves(record) if "decoder" in place], type(record)
        sent = encode(record)
        assert b"decoder" not in sent and not any(head in sent for head in heads), type(record)
    state = trace.standings[trace.last].state
    assert b"decoder" not in encode(state) and not any(head in encode(state) for head in heads)


@pytest.mark.parametrize("name", SOME)
def test_every_client_ends_with_a_head_of_its_own_and_with_the_shared_encoder(name: str) -> None:
    algorithm = MODES[name]
    trace = traced(algorithm)
    models = trace.models(algorithm)
    assert len({encode({"p": {n: t for n, t in m.items() if n.startswith(HEAD)}}) for m in models.values()}) == 3
    for client, model in models.items():
        assert model.keys() == STILL.build(6, 3).state_dict().keys()
        if not isinstance(algorithm, LocalGRL) and algorithm.protocol == "lp2":
            assert_equal({n: model[n] for n in encoder(trace)}, encoder(trace))
        if isinstance(algorithm, LocalGRL) and algorithm.protocol == "lp2":
            own = memory(trace, client)["encoder"]
            assert_equal({n: model[n] for n in own}, own)


def test_in_lp1_a_client_is_evaluated_with_what_the_downstream_makes_of_the_current_encoder() -> None:
    client, params = wise_client()
    client.state = {"personal": dict(client.own), "optimizer": {"step": 3}}
    client.position = Position(4, 3, 1)
    reply = LP1.evaluate(EvaluateModel(params, ("val", "test"), "accuracy", False), client)
    model = SHORT.train(client, params)
    assert_equal(client.state["model"], model)
    assert reply == Evaluation(*client.evaluate(model, ("val", "test")))
    assert client.state["optimizer"] == {"step": 3}
    LP1.keep_best(KeepBest(), client)
    kept = client.state["best"]["model"]
    LP1.evaluate(EvaluateModel({n: t + 0.3 for n, t in params.items()}, ("val",), "accuracy", False), client)
    assert gap(client.state["model"], kept) > 0.01
    now = client.state["model"]
    best = LP1.evaluate(EvaluateModel(params, ("test",), "accuracy", True), client)
    assert best == Evaluation(*client.evaluate(kept, ("test",)))
    assert client.state["model"] is now  # nothing is trained for the best, which is there already


def test_in_lp2_an_evaluation_trains_nothing() -> None:
    client, params = wise_client()
    LP2.train(TrainEncoder(params, parts_of(SMALL)), client)
    before = encode(client.state)
    reply = LP2.evaluate(EvaluateModel(params, ("val",), "accuracy", False), client)
    assert encode(client.state) == before
    assert reply == Evaluation(*client.evaluate({**params, **client.state["personal"]}, ("val",)))


def test_evaluations_leave_the_encoder_alone() -> None:
    """How often the course looks, and what the clients make of the encoder, changes nothing of it."""
    often = traced(LP1)
    assert_equal(encoder(often), encoder(traced(LP1, evaluate_every=2)))
    longer = replace(LP1, downstream=Finetune(steps=9))
    assert_equal(encoder(often), encoder(traced(longer)))
    probed = traced(replace(LP1, downstream=Freeze()), model=PROBE, evaluate_every=2)
    tuned = traced(LP1, model=PROBE, evaluate_every=2)
    assert_equal(encoder(probed), encoder(tuned))
    assert gap(*(next(iter(t.models(LP1).values())) for t in (probed, tuned))) > 1e-3


@pytest.mark.parametrize("make", [quick, alone], ids=["together", "alone"])
@pytest.mark.parametrize(
    ("downstream", "metrics", "why"),
    [
        (Freeze(), ("accuracy",), "a frozen encoder gets a linear head; set model.decoder.name=linear"),
        (Freeze(), ("f1_micro", "loss"), "accuracy among its metrics"),
        (SHORT, ("f1_micro", "loss"), "accuracy among its metrics"),
    ],
)
def test_a_downstream_that_does_not_fit_ends_the_course_before_anything_is_trained(
    make: Any, downstream: Downstream, metrics: tuple[str, ...], why: str
) -> None:
    fields: dict[str, Any] = {"model": MODEL, "task": NodeClassification(metrics), "rounds": 1}
    fields["stopping"] = EarlyStopping(metric=metrics[0])
    with pytest.raises(TooFewReplies, match=re.escape(why)) as caught:
        run(toy_course(make(downstream=downstream), **fields), scenario=toy_scenario())
    assert "round 0, DescribeEncoder" in str(caught.value)
    done = run(toy_course(make(protocol="lp2", downstream=downstream), **fields), scenario=toy_scenario())
    assert done.num_rounds == 1  # "lp2" has no use for it


# ---- clients without labels


@pytest.mark.parametrize(
    ("algorithm", "counts"),
    [
        (LP1, True),
        (LP2, True),
        (quick(protocol="lp2", strength=0.1, copy_gate=True), True),
        (quick(protocol="lp2", strength=0.0), False),
    ],
    ids=["lp1", "lp2", "gated", "supervised only"],
)
def test_a_client_without_labels_takes_part_where_something_is_learned_without_them(
    algorithm: FedGRL, counts: bool
) -> None:
    scenario = with_idle()
    trace = traced(algorithm, scenario)
    replies = [
        m.outcome.reply for m in trace.messages if m.client == "client-2" and isinstance(m.request, TrainEncoder)
    ]
    assert len(replies) == 2
    nodes = float(scenario.parts["client-2"].num_nodes)
    assert {reply.weight for reply in replies} == {nodes if counts else 0.0}  # type: ignore[union-attr]
    without = traced(algorithm, without_last(scenario))
    difference = gap(encoder(trace), encoder(without))
    assert difference > 1e-4 if counts else difference == 0.0
    assert algorithm.learns_without_labels == counts
    request = next(m.request for m in trace.messages if isinstance(m.request, TrainEncoder))
    moved = gap(replies[0].params, request.params)  # type: ignore[union-attr]
    assert moved > 1e-4 if counts else moved == 0.0


def test_a_client_without_labels_ends_with_the_head_it_began_with() -> None:
    scenario = with_idle()
    for algorithm in (LP1, LP2):
        models = traced(algorithm, scenario).models(algorithm)
        fresh = traced(quick(local_steps=0, protocol="lp2"), scenario, rounds=1)
        start = memory(fresh, "client-2")["personal"]
        assert_equal({n: models["client-2"][n] for n in start}, start)
        assert gap({n: models["client-0"][n] for n in start}, start) > 1e-4


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("algorithm", [LP1, LP2, alone(), quick(objective=DGI())], ids=["lp1", "lp2", "alone", "dgi"])
def test_a_client_that_knows_of_no_classes_takes_part_and_has_no_score(algorithm: FedGRL, runtime: str) -> None:
    scenario = with_client_without_classes(toy_scenario())
    course = toy_course(algorithm, model=MODEL, runtime=runtime, rounds=2)
    result = run(course, scenario=scenario)
    assert not [f for event in result.events if event["event"] == "exchange" for f in event["failures"]]
    assert result.client_scores["client-2"] == {} and result.client_scores["client-0"]
    assert result.client_params["client-2"]["decoder.layers.1.weight"].shape == (4, 1)
    fresh = run(replace(course, algorithm=quick(local_steps=0, protocol="lp2"), rounds=1), scenario=scenario)
    head = {n: t for n, t in fresh.client_params["client-2"].items() if n.startswith(HEAD)}
    assert_equal({n: result.client_params["client-2"][n] for n in head}, head)
    others = run(course, scenario=without_last(scenario))
    if result.params:
        assert gap(result.params, others.params) > 1e-4
    else:
        assert gap({n: t for n, t in result.client_params["client-2"].items() if n not in head}, fresh.params) > 1e-4


def test_the_classes_of_others_change_nothing_at_a_client_without_labels() -> None:
    """Whether it knows of them or not, it sends the same."""
    for algorithm in (LP1, LP2):
        ignorant = traced(algorithm, with_client_without_classes(toy_scenario()))
        assert_equal(encoder(ignorant), encoder(traced(algorithm, with_idle())))


def test_without_the_self_supervised_term_a_client_without_classes_is_refused_in_words() -> None:
    course = toy_course(quick(protocol="lp2", strength=0.0), model=MODEL)
    with pytest.raises(BadInput, match=r"client-2 has no label among .* nodes and no names of classes.*fedgrl needs"):
        run(course, scenario=with_client_without_classes(toy_scenario()))


@pytest.mark.parametrize(
    ("usual", "own"),
    [(1.0, 0.3), (1.0, 0.0)],
)
def test_a_client_may_have_a_strength_of_its_own(usual: float, own: float) -> None:
    """lambda_c: what this client sends is what it would send in a course in which all have its strength."""
    fields = {"client_settings": {"client-0": {"strength": own}}, "rounds": 1}
    found, plain, alike = (
        traced(quick(protocol="lp2", strength=strength), **more)
        for strength, more in ((usual, fields), (usual, {"rounds": 1}), (own, {"rounds": 1}))
    )
    for client in found.clients:
        sent, before, wanted = (
            next(
                m.outcome.reply.params for m in t.messages if m.client == client and isinstance(m.request, TrainEncoder)
            )  # type: ignore[union-attr]
            for t in (found, plain, alike)
        )
        assert_equal(sent, wanted if client == "client-0" else before)
        assert gap(wanted, before) > 1e-4


@pytest.mark.parametrize("strength", [0.0, 7.0])
def test_a_strength_changes_nothing_where_the_encoder_learns_without_labels(strength: float) -> None:
    """lambda_c weighs the two terms of "lp2" against each other; "lp1" has one term, which counts in full."""
    usual, other = traced(quick()), traced(quick(strength=strength))
    assert_equal(usual.standings[usual.last].state.params, other.standings[other.last].state.params)
    assert_equal(usual.standings[usual.last].state.objective, other.standings[other.last].state.objective)
    mine, theirs = usual.models(LP1), other.models(LP1)
    for client in usual.clients:
        assert_equal(mine[client], theirs[client])
    settings = {"client-0": {"strength": strength}}
    alone = traced(quick(), client_settings=settings)
    assert_equal(alone.standings[alone.last].state.params, usual.standings[usual.last].state.params)


def test_a_strength_where_the_course_has_none_is_refused_with_what_would_do() -> None:
    settings = {"client-0": {"strength": 1.0}}
    course = toy_course(quick(protocol="lp2", strength=0.0), model=MODEL, client_settings=settings, rounds=1)
    trace = trace_course(course, toy_scenario())
    (failure,) = [failure for report in trace.exchanges for failure in report.failures]
    assert failure.client == "client-0" and "give the course a strength above 0" in failure.reason


def test_nobody_with_labels_is_a_course_of_lp1_and_an_error_where_only_labels_count() -> None:
    scenario = toy_scenario()
    scenario = replace(scenario, parts={n: unlabelled(p) for n, p in scenario.parts.items()})
    start = toy_course(LP1, model=MODEL, rounds=2)
    trace = trace_course(start, scenario)
    assert trace.ended_by is None and gap(encoder(trace), trace.initial) > 1e-3
    with pytest.raises(BadInput, match="no client can train"):
        trace_course(replace(start, algorithm=quick(protocol="lp2", strength=0.0)), scenario)


# ---- whole courses


def test_the_gate_leaves_the_encoder_of_lp1_while_heads_move() -> None:
    plain = traced(LP1)
    gated = traced(quick(protocol="lp2", copy_gate=True))
    for round in (1, 2):
        first, second = plain.standings[round].state, gated.standings[round].state
        assert_equal(first.params, second.params)  # type: ignore[attr-defined]
        assert_equal(first.objective, second.objective)  # type: ignore[attr-defined]
    for client in plain.clients:
        kept = memory(plain, client)
        assert_equal(kept["objective"], memory(gated, client)["objective"])
        assert gap(memory(gated, client)["personal"], kept["personal"]) > 1e-3
    assert gap(encoder(plain), encoder(traced(LP2))) > 1e-4


def test_without_steps_the_shared_encoder_is_the_initial_one_and_heads_are_still_made() -> None:
    for name in ("lp1", "lp1, alone"):
        algorithm = replace(MODES[name], local_steps=0)
        trace = traced(algorithm)
        for model in trace.models(algorithm).values():
            assert model.keys() > trace.initial.keys()
        found = encoder(trace) if not isinstance(algorithm, LocalGRL) else memory(trace, "client-1")["encoder"]
        assert_equal(found, trace.initial)
        heads = [m["decoder.layers.1.weight"] for m in trace.models(algorithm).values()]
        assert not torch.equal(heads[0], heads[1])


HALF = {"sampling": UniformSampling(fraction=0.5), "rounds": 4}


@pytest.mark.parametrize("name", SOME)
def test_target_moments_and_head_survive_absence(name: str) -> None:
    """Nothing of a client changes in a round without it, and it goes on from there."""
    trace = traced(MODES[name], with_idle(4), **HALF)
    away = 0
    for report in trace.rounds:
        for client in trace.clients:
            before, after = (memory(trace, client, round) for round in (report.round - 1, report.round))
            steps = [state.get("optimizer", {"step": 0})["step"] for state in (before, after)]
            if client in report.cohort:
                idle = client == "client-3" and name == "lp2, supervised only"
                assert steps[1] == steps[0] + (0 if idle else 2)
                continue
            away += bool(steps[0])
            for entry in ("objective", "optimizer", "personal", "encoder", "parts"):
                require_same({entry: before.get(entry)}, {entry: after.get(entry)}, f"{client} was away")
    assert away > 1


@pytest.mark.meet(1)
@pytest.mark.parametrize(("fields", "num_clients"), [(HALF, 4), ({}, 3)], ids=["half", "all"])
@pytest.mark.parametrize("name", SOME)
def test_a_course_can_be_resumed_in_the_middle_of_its_schedules(
    name: str, fields: dict[str, Any], num_clients: int
) -> None:
    algorithm, scenario = MODES[name], with_idle(num_clients)
    whole = traced(algorithm, scenario, **fields)
    course = toy_course(algorithm, **{"model": MODEL, "num_clients": num_clients, "rounds": 2, **fields})
    resumed = trace_course(course, scenario, resume_from=(whole, whole.last // 2))
    assert min(report.round for report in resumed.rounds) == whole.last // 2 + 1
    require_same(whole.values(), resumed.values(), "whole and resumed")


@pytest.mark.parametrize("protocol", ["lp1", "lp2"])
def test_a_run_that_is_resumed_from_its_folder_gives_the_same_bits(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import isthmus.runs.simulated as runs

    scenario = toy_scenario()
    course = toy_course(quick(protocol=protocol), model=MODEL, sampling=UniformSampling(0.7), rounds=4)
    whole = run(course, scenario=scenario)
    run(replace(course, rounds=2), scenario=scenario, run_dir=tmp_path / "run")
    monkeypatch.setattr(runs, "load_scenario", lambda course, root: scenario)
    second = resume(tmp_path / "run", overrides=["rounds=4"])
    assert_equal(second.params, whole.params)
    for client, params in whole.client_params.items():
        assert_equal(second.client_params[client], params)
    assert second.client_scores == whole.client_scores


@pytest.mark.meet(1)
@pytest.mark.parametrize("fields", [HALF, {}], ids=["half", "all"])
@pytest.mark.parametrize("name", SOME)
def test_clients_that_forget_all_but_their_memory_end_the_same(name: str, fields: dict[str, Any]) -> None:
    scenario = with_idle(4)
    loop = traced(MODES[name], scenario, **fields)
    strict = traced(MODES[name], scenario, runtime="strict", **fields)
    require_same({**loop.values(), **loop.history()}, {**strict.values(), **strict.history()}, "loop and strict")


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("name", SOME)
def test_clients_may_have_classes_of_their_own(name: str, runtime: str) -> None:
    algorithm = MODES[name]
    result = run(
        toy_course(algorithm, model=MODEL, runtime=runtime, rounds=1), scenario=with_own_classes(toy_scenario())
    )
    assert result.client_params["client-2"]["decoder.layers.1.weight"].shape == (4, 2)
    assert result.client_params["client-0"]["decoder.layers.1.weight"].shape == (4, 3)
    assert set(result.metrics) == {"local_model/local_graph"}
    assert not [name for name in result.params if name.startswith(HEAD)]


def test_a_probe_serves_clients_with_classes_of_their_own() -> None:
    algorithm = quick(downstream=Freeze())
    result = run(toy_course(algorithm, model=PROBE, rounds=1), scenario=with_own_classes(toy_scenario()))
    assert result.client_params["client-2"]["decoder.layers.0.weight"].shape == (5, 2)
    assert set(result.client_scores) == {"client-0", "client-1", "client-2"}


def test_norms_may_stay_with_the_clients_too() -> None:
    trace = traced(LP1, shared=("*", "!decoder.*", "!*norm*"))
    assert not [name for name in encoder(trace) if "norm" in name]
    kept = [memory(trace, client)["personal"]["gnn.norms.0.running_mean"] for client in trace.clients]
    assert not torch.equal(kept[0], kept[1])
    assert "gnn.norms.0.running_mean" in memory(trace, "client-0")["objective"]


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "bgrl"])
@pytest.mark.parametrize("protocol", ["lp1", "lp2"])
def test_every_objective_makes_a_course(name: str, protocol: str) -> None:
    trace = traced(quick(objective=OBJECTIVES[name], protocol=protocol), with_idle())
    still = [n for n, t in encoder(trace).items() if torch.equal(t, trace.initial[n])]
    assert still == []


# ---- the rules of all algorithms


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        LP2,
        quick(protocol="lp2", strength=0.0),
        alone(objective=GAE()),
        quick(objective=GRACE(hidden=7, max_nodes=9), weighting="uniform"),
    ],
    ids=["lp2", "supervised", "alone", "grace"],
)
def test_configurations_pass_the_checks_of_all_algorithms(algorithm: FedGRL) -> None:
    """But one, which has a test of its own: a batch norm takes out what the bias before it adds."""
    check_algorithm(algorithm, toy_course(algorithm, model=MODEL), skip=("parameters_move",))


@pytest.mark.parametrize("name", SOME)
def test_all_parameters_move_that_something_reaches(name: str) -> None:
    algorithm = replace(MODES[name], optimizer=AdamW(lr=0.02, weight_decay=0.0))
    plain = ModelSpec(GCN(hidden=5, dropout=0.5), decoder=MLPDecoder(hidden=4))
    CHECKS["parameters_move"](algorithm, toy_course(algorithm, model=plain, rounds=2))
