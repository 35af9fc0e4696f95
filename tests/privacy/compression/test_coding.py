from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedGAP
from isthmus.config.course import Course
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import EvaluateModel
from isthmus.core.record import State
from isthmus.core.training import UniformSampling
from isthmus.privacy.compression.blob import Kind, is_blob, write_since
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK
from isthmus.runs.at_workers import at_workers
from isthmus.runtime.cluster import Crew
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Fault, Trace, require_close, require_same
from tests.core.guards.toys import Adding, Doubting
from tests.core.toys import same
from tests.privacy.compression.toys import ALL, LOSSY, NEUTRAL, Answer, Pair, Question, coders, model
from tests.quick import by_kind, quick


def guarded(*guards: Guard, name: str = "fedavg", **changes: Any) -> Trace:
    course = toy_course(quick(name), **{"num_clients": 4, "guards": guards, **changes})
    trace = trace_course(course, toy_scenario(4))
    assert trace.ended_by is None, trace.ended_by
    return trace


def models(trace: Trace) -> dict[str, Any]:
    values = trace.values()
    return {name: values[name] for name in values if not name.startswith("the memory")}


def failures(trace: Trace) -> list[Any]:
    return [failure for report in trace.exchanges for failure in report.failures]


# ---- whole courses


def lines_and_names(lines: Iterable[str], everywhere: str) -> list[Any]:
    """Return lines with names of algorithms: all for one line, and in the slow set for all; else FedAvg alone."""
    found = []
    for line in lines:
        for each in by_kind():
            name = each if isinstance(each, str) else each.values[0]
            default = isinstance(each, str) and (line == everywhere or name == "fedavg")
            found.append((line, name) if default else pytest.param(line, name, marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("line", "name"), lines_and_names(NEUTRAL, "delta, entropy"))
def test_what_loses_nothing_is_no_guard_to_the_bit(line: str, name: str) -> None:
    plain, behind = guarded(name=name, runtime="loop"), guarded(*NEUTRAL[line], name=name, runtime="loop")
    require_same(models(plain), models(behind), f"{name} behind {line} and plain")
    assert not failures(behind)


@pytest.mark.parametrize(("line", "name"), lines_and_names(LOSSY, "top_k"))
def test_loop_strict_and_together_are_the_same_course(line: str, name: str) -> None:
    loop, strict = (guarded(*LOSSY[line], name=name, runtime=runtime) for runtime in ("loop", "strict"))
    require_same(loop.values(), strict.values(), f"{name} behind {line}, loop and strict")
    assert [r.bytes_up for r in loop.exchanges] == [r.bytes_up for r in strict.exchanges]
    assert [r.bytes_down for r in loop.exchanges] == [r.bytes_down for r in strict.exchanges]
    assert not failures(loop)


@pytest.mark.parametrize("line", ["quantise", "random_k"])
def test_clients_that_answer_together_are_coded_one_by_one(line: str) -> None:
    # Rounding may put a number on the other side of a level, so that only what is near can be asked for.
    loop, auto = (guarded(*LOSSY[line], runtime=runtime, rounds=2) for runtime in ("loop", "auto"))
    require_close({"it": loop.state}, {"it": auto.state}, f"behind {line}, loop and together", 0.1)
    assert auto.together["TrainModel"] == 8


@pytest.mark.parametrize(
    "line", [name if at % 2 == 0 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(LOSSY)]
)
def test_a_resumed_course_goes_on_with_the_same_bits(line: str) -> None:
    course = toy_course(quick("fedavg"), num_clients=4, guards=LOSSY[line], runtime="strict")
    whole = trace_course(course, toy_scenario(4))
    for round in (0, 1, 2):
        again = trace_course(course, toy_scenario(4), resume_from=(whole, round))
        require_same(whole.values(), again.values(), f"{line} resumed after round {round}")
        assert same(again.standings[3].guards, whole.standings[3].guards)


def test_what_clients_lacked_is_in_their_memory() -> None:
    trace = guarded(*LOSSY["top_k"])
    for memory in trace.memories[3].values():
        mine = decode(memory, State)["guard.0.TopK"]
        assert mine["lacked"].keys() == {f"TrainModel.params[{name!r}]" for name in trace.initial}
        assert any(float(entry["lack"].abs().max()) > 0.0 for entry in mine["lacked"].values())
    assert "meant" not in trace.standings[3].guards["guard.0.TopK"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("line", LOSSY)
def test_who_fails_is_sent_the_whole_model_and_goes_on(line: str, when: str) -> None:
    course = toy_course(quick("fedavg"), num_clients=4, guards=LOSSY[line], runtime="loop")
    trace = trace_course(course, toy_scenario(4), fault=Fault("client-0", 2, 0, when))  # type: ignore[arg-type]
    assert trace.ended_by is None
    assert [(f.client, f.kind) for f in failures(trace)] == [("client-0", "error")]
    at_server = trace.standings[3].guards[f"guard.0.{type(LOSSY[line][0]).__name__}"]
    held: State = decode(trace.memories[3]["client-0"], State)[f"guard.0.{type(LOSSY[line][0]).__name__}"]
    if "who" in at_server:
        assert at_server["who"]["client-0"] == held["tags"]


def test_who_is_not_believed_is_sent_the_whole_model() -> None:
    trace = guarded(TopK(fraction=0.2, **ALL), Doubting("client-1", "review", from_round=2), min_replies=1)
    assert {(f.client, f.kind) for f in failures(trace)} == {("client-1", "suspicious")}
    sent = [m.request for m in trace.messages if m.client == "client-1" and hasattr(m.request, "params")]
    assert not any(is_blob(t, Kind.SINCE) for t in sent[-1].params.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", LOSSY)
def test_clients_that_are_asked_now_and_then_catch_up(line: str) -> None:
    trace = guarded(*LOSSY[line], rounds=6, sampling=UniformSampling(fraction=0.5), evaluate_every=3, runtime="strict")
    assert not failures(trace)


@pytest.mark.parametrize("line", ["top_k", "top_k down, quantise up, entropy"])
def test_clients_at_workers_code_as_they_do_here(line: str, crew: Crew) -> None:
    course = toy_course(quick("fedavg"), num_clients=4, guards=LOSSY[line], runtime="loop")
    here = trace_course(course, toy_scenario(4))
    there = trace_course(course, toy_scenario(4), place=lambda simulation: at_workers(simulation, crew, 2))
    assert there.ended_by is None
    require_same(here.values(), there.values(), f"{line} at workers and here")


def test_random_places_go_through_a_sum() -> None:
    # A sum has exchanges of its own, after which requests have other places; replies of training have the same.
    line = (RandomK(fraction=0.3, direction="up", **ALL),)
    plain, added = guarded(*line), guarded(*line, Adding())
    require_close({"it": plain.state}, {"it": added.state}, "added up and one by one", 1e-5)
    assert not failures(guarded(RandomK(fraction=0.3, **ALL), Adding()))


# ---- one exchange after the other


@pytest.mark.parametrize("guard", coders(), ids=repr)
def test_server_and_client_have_the_same_and_it_nears_what_was_meant(guard: Coder) -> None:
    guard = replace(guard, max_drift=1e9, direction="both")
    pair, target = Pair(guard), model(0)
    pair.down({"a": Question(target)})
    near = model(1, near=target["w"])["w"]
    gaps = []
    for count in range(60):
        target = {"w": near + 1e-6 * count}  # the same again would be left as it is
        found = pair.down({"a": Question(target)})["a"]
        assert same(found, pair.believed["a"])
        assert is_blob(pair.leaving["a"].params["w"], Kind.SINCE)  # type: ignore[attr-defined]
        gaps.append(float((found.params["w"] - target["w"]).norm()))  # type: ignore[attr-defined]
    assert gaps[0] < float((near - model(0)["w"]).norm())
    assert gaps[-1] < 0.1 * gaps[0] + 1e-4


def test_who_is_sent_the_same_again_has_the_same_again_for_next_to_nothing() -> None:
    pair, target = Pair(TopK(fraction=0.1, max_drift=1e9), ("a", "b")), model(1, near=model(0)["w"])
    pair.down({"a": Question(model(0))})
    pair.down({"a": Question(model(0))})
    assert pair.leaving["a"].params["w"].numel() < 60  # type: ignore[attr-defined]
    first = pair.down({"a": Question(target)})["a"]
    again = pair.down({"a": EvaluateModel(dict(target), (), "loss", best=False), "b": Question(target)})
    assert same(again["a"].params, first.params)  # type: ignore[attr-defined]
    assert pair.leaving["a"].params["w"].numel() < 60  # type: ignore[attr-defined]
    assert same(again["b"].params, target)  # type: ignore[attr-defined]
    assert same(pair.down({"a": Question(model(0))})["a"], pair.believed["a"])


@pytest.mark.parametrize("guard", [g for g in coders() if g.error_feedback], ids=repr)
def test_what_replies_lack_comes_later(guard: Coder) -> None:
    guard = replace(guard, direction="up")
    pair, sent, total = Pair(guard), Question(model(0)), torch.zeros(20, 30)
    answer = model(1, near=sent.params["w"])
    for _ in range(100):
        pair.down({"a": sent})
        total += pair.up("a", Answer(answer, {})).params["w"]
    lack = pair.clients["a"].state["guard.0.G"]["lacked"]["Question.params['w']"]["lack"]
    assert torch.allclose(total + lack, 100 * answer["w"], atol=1e-2)
    # What is still to come stays bounded, so that the mean of what came is right in the end.
    assert float((total / 100 - answer["w"]).norm()) < 0.2 * float((answer["w"] - sent.params["w"]).norm())


@pytest.mark.parametrize("guard", [g for g in coders() if not g.error_feedback], ids=repr)
def test_without_feedback_nothing_is_remembered(guard: Coder) -> None:
    pair = Pair(replace(guard, direction="up"))
    pair.down({"a": Question(model(0))})
    pair.up("a", Answer(model(1), {}))
    lacked = pair.clients["a"].state.get("guard.0.G", {}).get("lacked", {})
    assert all("lack" not in entry for entry in lacked.values())


def test_a_reply_is_a_change_of_the_model_that_the_server_has() -> None:
    pair = Pair(TopK(fraction=0.1, bits=32, max_drift=1e9))
    pair.down({"a": Question(model(0))})
    target = model(1, near=model(0)["w"])
    found = pair.down({"a": Question(target)})["a"]
    assert not same(found.params, target)  # type: ignore[attr-defined]
    trained = {"w": found.params["w"].clone()}  # type: ignore[attr-defined]
    trained["w"][3, 4] += 5.0
    expected = target["w"].clone()
    expected[3, 4] += 5.0
    assert torch.allclose(pair.up("a", Answer(trained, {})).params["w"], expected, atol=1e-5)


def test_replies_that_are_not_coded_are_changes_of_that_model_too() -> None:
    pair = Pair(TopK(fraction=0.1, bits=32, max_drift=1e9, direction="down"))
    pair.down({"a": Question(model(0))})
    target = model(1, near=model(0)["w"])
    found = pair.down({"a": Question(target)})["a"]
    trained = {"w": found.params["w"] + 1.0}  # type: ignore[attr-defined]
    came = pair.up("a", Answer(trained, trained))
    assert same(pair.wire, Answer(trained, trained))
    assert torch.allclose(came.params["w"], target["w"] + 1.0, atol=1e-5)
    assert same(came.gradients, trained)  # no model, and no change of one


def test_a_field_that_the_request_does_not_have_is_coded_from_nothing() -> None:
    pair = Pair(TopK(fraction=0.5, bits=32))
    pair.down({"a": Question(model(0))})
    gradients = {"w": torch.arange(600.0).view(20, 30), "other": torch.ones(20, 30)}
    came = pair.up("a", Answer(model(0), gradients))
    assert torch.equal(came.gradients["w"], gradients["w"].where(gradients["w"] >= 300, 0.0))
    assert pair.wire.gradients["other"] is gradients["other"]  # the request has no such name
    odd = {"w": torch.ones(3)}
    assert pair.up("a", Answer(model(0), odd)).gradients["w"] is odd["w"]


def test_small_tensors_cross_as_they_are() -> None:
    pair = Pair(TopK(fraction=0.1, min_numbers=601))
    pair.down({"a": Question(model(0))})
    pair.down({"a": Question(model(1))})
    assert pair.leaving["a"].params["w"].dtype == torch.float32  # type: ignore[attr-defined]
    answer = Answer(model(2), {})
    assert same(pair.up("a", answer), answer) and pair.wire.params["w"] is answer.params["w"]


@pytest.mark.parametrize("guard", coders(), ids=repr)
def test_numbers_that_are_none_cross_so_that_they_are_named(guard: Coder) -> None:
    pair = Pair(replace(guard, direction="up"))
    pair.down({"a": Question(model(0))})
    broken = model(1)
    broken["w"][0, 0] = torch.nan
    assert bool(torch.isnan(pair.up("a", Answer(broken, {})).params["w"][0, 0]))
    assert not pair.clients["a"].state.get("guard.0.G", {}).get("lacked")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("guard", coders(), ids=repr)
def test_floats_of_other_types_keep_their_type(guard: Coder, dtype: torch.dtype) -> None:
    pair = Pair(replace(guard, direction="both", max_drift=1e9))
    for seed in (0, 1):
        found = pair.down({"a": Question({"w": model(seed)["w"].to(dtype)})})["a"]
        assert found.params["w"].dtype == dtype  # type: ignore[attr-defined]
        came = pair.up("a", Answer({"w": model(5)["w"].to(dtype)}, {}))
        assert came.params["w"].dtype == dtype


# ---- who has what


def test_who_is_new_failed_or_too_far_off_is_sent_all_of_it() -> None:
    pair = Pair(TopK(fraction=0.1, bits=32, max_drift=0.3), ("a", "b", "c"))

    def whole(params: Any, *names: str) -> list[bool]:
        pair.down(dict.fromkeys(names, Question(params)))
        return [not is_blob(pair.leaving[name].params["w"], Kind.SINCE) for name in names]  # type: ignore[attr-defined]

    start = model(0)
    assert whole(start, "a", "b") == [True, True]
    near = model(1, near=start["w"], by=0.01)
    assert whole(near, "a", "b", "c") == [False, False, True]
    pair.guard.failed("b", pair.at_server())
    assert whole(near, "a", "b", "c") == [False, True, False]
    assert whole(model(2), "a", "b", "c") == [True, True, True]
    assert whole({"w": model(2)["w"].view(30, 20)}, "a") == [True]
    pair.guard.failed("nobody", pair.at_server())


def test_the_model_that_is_kept_is_scored_as_it_is() -> None:
    pair, best = Pair(TopK(fraction=0.1, max_drift=1e9)), model(3)
    pair.down({"a": Question(model(0))})
    for exact in (True, False):
        request = EvaluateModel(best, ("test",), "accuracy", best=exact)
        found = pair.down({"a": request})["a"]
        assert same(found.params, best) == exact or not exact  # type: ignore[attr-defined]
        best = model(4, near=best["w"])
    assert not same(found.params, model(4, near=model(3)["w"]))  # type: ignore[attr-defined]


def test_clients_with_the_same_get_one_object_and_the_server_keeps_it_once() -> None:
    pair = Pair(Quantise(bits=8), ("a", "b", "c"))
    pair.down(dict.fromkeys("ab", Question(model(0))))
    pair.down(dict.fromkeys("abc", Question(model(1, near=model(0)["w"], by=0.01))))
    assert pair.leaving["a"] is pair.leaving["b"] is not pair.leaving["c"]
    assert pair.believed["a"] is pair.believed["b"]
    assert len(pair.server["guard.0.G"]["held"]) == 2
    pair.down(dict.fromkeys("abc", EvaluateModel(model(5), (), "accuracy", best=True)))
    assert len(pair.server["guard.0.G"]["held"]) == 1  # what nobody has any more is let go of
    encode(pair.server)
    encode(pair.clients["a"].state)


def test_tensors_of_equal_bytes_are_not_mixed_up() -> None:
    pair = Pair(RandomK(fraction=0.5, min_numbers=1, max_drift=1e9))
    zeros = {"v": torch.zeros(4, 6), "w": torch.zeros(6, 4), "x": torch.zeros(24)}
    ones = {name: torch.ones_like(tensor) for name, tensor in zeros.items()}
    pair.down({"a": Question(zeros)})
    for _ in range(3):
        found = pair.down({"a": Question(ones)})["a"]
        assert same(found, pair.believed["a"])
        assert {n: t.shape for n, t in found.params.items()} == {n: t.shape for n, t in ones.items()}  # type: ignore[attr-defined]


def test_long_names_have_a_place_in_memories_too() -> None:
    pair = Pair(Quantise(bits=8, error_feedback=True))
    for seed in (0, 1):
        pair.down({"a": Question({"w" * 190: model(seed)["w"]})})
        pair.up("a", Answer({"w" * 190: model(5)["w"]}, {}))
    encode(pair.clients["a"].state)
    encode(pair.server)


def test_a_client_that_has_another_state_says_so() -> None:
    pair = Pair(Quantise(bits=8))
    pair.down({"a": Question(model(0))})
    pair.clients["a"].state.clear()
    with pytest.raises(BadMessage, match="a state that this client does not have"):
        pair.down({"a": Question(model(1, near=model(0)["w"]))})
    pair = Pair(Quantise(bits=8))
    pair.down({"a": Question(model(0))})
    stranger = Question({"w": write_since(bytes(8), torch.zeros(10, dtype=torch.uint8))})
    with pytest.raises(BadMessage, match="a state that this client does not have"):
        pair.guard.receive(stranger, pair.at_client("a"))


def test_bytes_that_are_no_code_are_left_alone() -> None:
    pair, bytes_of = Pair(Quantise(bits=8)), {"flags": torch.arange(255, dtype=torch.uint8)}
    assert same(pair.down({"a": Question(bytes_of)})["a"].params, bytes_of)  # type: ignore[attr-defined]
    assert same(pair.up("a", Answer(bytes_of, {})).params, bytes_of)


def test_a_mean_is_a_change_of_what_all_were_sent() -> None:
    pair = Pair(RandomK(fraction=0.5, min_numbers=1), ("a", "b"))
    shared = Question(model(0))
    pair.down({"a": shared, "b": shared})
    wires = [
        pair.guard.release(Answer(model(seed), {}), pair.found[name], pair.at_client(name))
        for seed, name in ((1, "a"), (2, "b"))
    ]
    mean = Answer({"w": (wires[0].params["w"] + wires[1].params["w"]) / 2}, {})  # type: ignore[attr-defined]
    each = [
        pair.guard.accept(wire, pair.believed[name], name, pair.at_server())
        for wire, name in zip(wires, "ab", strict=True)
    ]
    expected = (each[0].params["w"] + each[1].params["w"]) / 2  # type: ignore[attr-defined]
    found: Any = pair.guard.accept(mean, pair.believed["a"], "", pair.at_server())
    assert torch.allclose(found.params["w"], expected, atol=1e-6)
    pair.down({"a": Question(model(0)), "b": Question(model(1))})
    with pytest.raises(CourseFailed, match="each client was sent another model"):
        pair.guard.accept(mean, pair.believed["a"], "", pair.at_server())


# ---- what cannot be


@pytest.mark.parametrize(
    ("guards", "words"),
    [
        ((TopK(), Quantise()), "TopK and Quantise code the same messages"),
        ((TopK(direction="down"), Delta()), "code the same messages"),
        ((Quantise(), Quantise()), "code the same messages"),
        ((TopK(), Adding()), "TopK turns each reply into bytes that cannot be added up"),
        ((Quantise(), Adding()), "cannot be added up"),
        ((Entropy(), Adding()), "cannot be added up"),
    ],
)
def test_guards_that_cannot_stand_together_are_refused_before_the_start(guards: tuple[Guard, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Course(guards=guards)


def test_guards_that_can_stand_together_are_taken() -> None:
    Course(guards=(TopK(direction="down"), Quantise(direction="up"), Entropy()))
    Course(guards=(RandomK(), Adding()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(direction="sideways"),
        lambda: TopK(max_drift=-1.0),
        lambda: TopK(max_drift=float("nan")),
        lambda: TopK(min_numbers=0),
        lambda: TopK(fraction=0.0),
        lambda: TopK(fraction=1.1),
        lambda: TopK(bits=3),
        lambda: RandomK(fraction=0.0),
        lambda: Quantise(bits=16),
        lambda: Quantise(bucket=0),
        lambda: Quantise(bucket=2**21),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"it must be|choose|known:"):
        make()


def test_which_direction_is_shown() -> None:
    from isthmus.core.exposure import exposure

    (train, *_) = exposure(FedAvg, (TopK(direction="up"), Entropy()))
    assert train.wire_down == "the request as it is, packed"
    assert train.wire_up.endswith("its parameters coded by TopK, which hides nothing, packed")


def test_messages_without_parameters_are_not_said_to_be_coded() -> None:
    from isthmus.core.exposure import exposure

    coded = {
        exchange.request: ("coded" in exchange.wire_down, "coded" in exchange.wire_up)
        for method in (FedAvg, FedGAP)
        for exchange in exposure(method, (TopK(direction="both"),))
    }
    assert coded == {
        "TrainModel": (True, True),
        "SumNeighbors": (True, False),
        "EvaluateModel": (True, False),
        "KeepBest": (False, False),
    }
