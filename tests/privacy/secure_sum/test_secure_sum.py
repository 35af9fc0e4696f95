"""Secure sums as a guard: whole courses in every runtime, and what cannot be combined."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import ALGORITHMS, FedAvg, FedEx, FedGL
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.client import Client
from isthmus.core.errors import BadInput, BadMessage, CourseFailed, TooFewReplies
from isthmus.core.exposure import exposure
from isthmus.core.federation import Federation
from isthmus.core.folding.krum import Krum
from isthmus.core.folds import Median, weighted_mean
from isthmus.core.guards.guard import AtClient
from isthmus.core.protocol import EvaluateModel, Evaluation, ModelState, Position
from isthmus.core.random import Secret, UniformSampling
from isthmus.core.training import EVERYBODY
from isthmus.learn.optimizers import SGD
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.secure_sum import SecureSum
from isthmus.privacy.secure_sum.scores import ScoreSums, evaluation_of, misfit, summands
from isthmus.privacy.secure_sum.stages import MaskedWords, PublicKeys
from isthmus.runs.at_workers import at_workers
from isthmus.runs.simulated import run
from isthmus.runtime.cluster import Crew
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Fault, Trace, require_close, require_same
from tests.core.guards.toys import Affine, Boxed, Doubting
from tests.quick import quick
from tests.sites.sums.watching import Watch, watched

# A model after some rounds of sums that are each off by K units / 2, units of 2^-24, and its training on that.
TOLERANCE = 1e-5
SUMS = SecureSum()
# Decay changes every number at every client, and nothing would be left that few hold.
UNDECAYED = FedAvg(local_steps=2, weighting="uniform", optimizer=SGD(weight_decay=0.0))
# Those whose server looks at single replies; `problem` says which.
LOOKING = {"fedgl", "fedgnn", "fedsage_plus", "gcfl", "gcfl_plus", "gfl_appnp"}
POOLED = {"global"}
UNDER_SUMS = [
    name if name in ("fedavg", "scaffold", "fedgrl", "fedrep") else pytest.param(name, marks=pytest.mark.slow)
    for name in ALGORITHMS
    if name not in LOOKING | POOLED
]


def course(name: str = "fedavg", guard: SecureSum | None = None, **changes: Any) -> Any:
    guards = () if guard is None else (guard,)
    return toy_course(quick(name), **{"num_clients": 4, "guards": guards, **changes})


def traced(name: str = "fedavg", guard: SecureSum | None = None, fault: Fault | None = None, **changes: Any) -> Trace:
    return trace_course(course(name, guard, **changes), toy_scenario(4), fault=fault)


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("name", UNDER_SUMS)
def test_a_course_under_secure_sums_is_the_plain_one(name: str, runtime: str) -> None:
    plain, secure = traced(name, runtime=runtime), traced(name, SecureSum(), runtime=runtime)
    assert plain.ended_by is None and secure.ended_by is None
    assert not any(report.failures for report in secure.exchanges)
    require_close({"it": plain.state}, {"it": secure.state}, "a course under secure sums and the plain one", TOLERANCE)
    for before, after in zip(plain.rounds, secure.rounds, strict=True):
        assert before.metrics.keys() == after.metrics.keys()
        for metric, value in before.metrics.items():
            assert math.isclose(after.metrics[metric], value, abs_tol=1e-4), metric
        assert tuple(after.evaluations) == (EVERYBODY,)


def test_loop_and_strict_are_the_same_to_the_bit() -> None:
    """Masks come off without a trace, so that not even the last bit depends on them."""
    loop, strict = traced(guard=SecureSum(), runtime="loop"), traced(guard=SecureSum(), runtime="strict")
    require_same(loop.values(), strict.values(), "loop and strict")


def test_words_of_64_bits_are_nearer() -> None:
    plain = traced("fedavg")
    near = traced("fedavg", SecureSum(bits=64))
    require_close({"it": plain.state}, {"it": near.state}, "64 bits and plain", 1e-7)


def test_what_reaches_the_server_are_keys_shares_and_words_but_no_reply() -> None:
    secure = traced(guard=SecureSum(), runtime="loop")
    kinds = {type(message.outcome.reply).__name__ for message in secure.messages}
    assert kinds == {"ModelUpdate", "Evaluation", "PublicKeys", "SealedShares", "MaskedWords", "RevealedShares"}
    for message in secure.messages:
        reply: Any = message.outcome.reply
        if type(reply).__name__ == "ModelUpdate":
            assert all(tensor.numel() == 0 for tensor in reply.params.values()) and reply.weight == 0.0
        elif isinstance(reply, Evaluation):
            assert reply == Evaluation({}, {})
        elif isinstance(reply, PublicKeys):
            assert reply.keys.public.dtype == torch.uint8
        elif isinstance(reply, MaskedWords):
            assert not reply.narrow.is_floating_point() and not reply.wide.is_floating_point()


def test_exchanges_of_the_guard_do_not_shift_those_of_the_algorithm() -> None:
    plain, secure = traced("scaffold"), traced("scaffold", SecureSum())
    asked = [
        [r.position for r in t.exchanges if r.request in ("TrainCorrected", "EvaluateModel")] for t in (plain, secure)
    ]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("round", [1, 2])
def test_a_resume_goes_on_with_the_same_bits(round: int) -> None:
    made = course(guard=SecureSum())
    whole = trace_course(made, toy_scenario(4))
    again = trace_course(made, toy_scenario(4), resume_from=(whole, round))
    require_same(whole.values(), again.values(), f"resumed after round {round}")


# ---- who is lost


def test_clients_that_fail_before_the_sum_are_left_out_of_it() -> None:
    fault = Fault("client-1", 2, 0, "after")
    plain, secure = traced(fault=fault), traced(guard=SecureSum(), fault=fault)
    require_close({"it": plain.state}, {"it": secure.state}, "secure and plain, each without client-1", TOLERANCE)
    assert secure.rounds[1].missing == ("client-1",)


def test_too_few_for_a_sum_end_the_course_with_words() -> None:
    secure = traced(guard=SecureSum(min_cohort=4), fault=Fault("client-1", 2, 0, "after"))
    assert isinstance(secure.ended_by, TooFewReplies)
    assert "round 2, the secure sum of ModelUpdate: 3 clients made keys for it, 4 are needed" in str(secure.ended_by)
    assert secure.last == 1


def test_the_courses_own_least_number_holds_for_the_sum() -> None:
    secure = traced(guard=SecureSum(), min_replies=4, fault=Fault("client-1", 2, 0, "after"))
    assert isinstance(secure.ended_by, TooFewReplies)


def test_an_evaluation_that_cannot_be_added_up_is_noted_and_the_course_goes_on() -> None:
    secure = traced(guard=SecureSum(min_cohort=4), fault=Fault("client-1", 2, 1, "before"))
    assert secure.ended_by is None and secure.last == 3
    assert secure.rounds[1].score is None and not secure.rounds[1].is_best
    assert len(secure.rounds[1].unscored) == 4
    assert any("how the model does could not be added up" in text for text in secure.said)


# ---- scores


def test_nobody_learns_how_a_single_clients_model_does_unless_the_course_says_so() -> None:
    folded = traced(guard=SecureSum())
    each = traced(guard=SecureSum(fold_scores=False))
    assert set(folded.rounds[0].evaluations) == {EVERYBODY}
    assert set(each.rounds[0].evaluations) == {f"client-{number}" for number in range(4)}
    assert folded.rounds[0].scorers == (EVERYBODY,)
    assert folded.rounds[0].counts == (sum(each.rounds[0].counts),)
    assert math.isclose(folded.rounds[0].score or 0.0, each.rounds[0].score or 1.0, abs_tol=1e-6)


def test_the_best_round_is_the_same() -> None:
    plain, secure = traced(rounds=6), traced(guard=SecureSum(), rounds=6)
    assert [report.is_best for report in plain.rounds] == [report.is_best for report in secure.rounds]


def test_sums_of_scores_give_the_mean_over_those_that_have_a_metric() -> None:
    request = EvaluateModel({}, ("train", "val"), "accuracy", False, ("accuracy", "loss"))
    each = [
        Evaluation({"train": {"accuracy": 0.5, "loss": 1.0}, "val": {"accuracy": 1.0}}, {"train": 10, "val": 4}),
        Evaluation({"train": {"accuracy": 1.0, "loss": 3.0}, "val": {}}, {"train": 30, "val": 0}),
    ]
    parts = [summands(evaluation, request) for evaluation in each]
    assert all(misfit(part, request) == "" for part in parts)
    fields = zip(*(vars(part).values() for part in parts), strict=True)
    mean = ScoreSums(*(tuple((a + b) / 2 for a, b in zip(first, second, strict=True)) for first, second in fields))
    found = evaluation_of(mean, 2, request)
    assert found.counts == {"train": 40, "val": 4}
    assert found.metrics == {"train": {"accuracy": 0.875, "loss": 2.5}, "val": {"accuracy": 1.0}}


def test_the_form_of_scores_is_that_which_was_asked_for() -> None:
    request = EvaluateModel({}, ("train", "val"), "accuracy", False, ("accuracy", "loss"))
    assert "4 numbers" not in misfit(ScoreSums((0.0,) * 4, (0.0,) * 4, (0.0,) * 2), request)
    assert "(3, 4, 2)" in misfit(ScoreSums((0.0,) * 3, (0.0,) * 4, (0.0,) * 2), request)


@pytest.mark.parametrize("names", [("loss", "loss"), tuple(f"m{number}" for number in range(33))])
def test_a_request_that_names_scores_again_and_again_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(BadMessage, match="names of scores that are added up are each there once, and 32 at most"):
        summands(Evaluation({}, {}), EvaluateModel({}, ("train",), "loss", False, names))


# ---- what a client sees to itself


class Bare(Client):
    """A client without data."""

    def evaluate(self, params: Any, splits: Any) -> Any:
        return {}, {}


def released(reply: Any, guard: SecureSum = SUMS, secret: Secret | None = None) -> Any:
    client = Bare("client-0")
    client.secret = secret or Secret.of_simulation(0, "client-0")
    request = TrainModel({"w": torch.zeros(2)})
    client.begin(Position(0, 1, 0), request)
    found = guard.release(ModelUpdate(*reply), request, AtClient(client, "guard.0.SecureSum"))
    return found, client.state


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (({"w": torch.tensor([1.0, math.nan])}, 1.0), "NaN"),
        (({"w": torch.zeros(3)}, 1.0), "shape"),
        (({"v": torch.zeros(2)}, 1.0), "in the request or in the reply only"),
        (({"w": torch.zeros(2)}, -1.0), "weight is -1"),
        (({"w": torch.tensor([0.0, 101.0])}, 1.0), "beyond 100"),
    ],
)
def test_a_client_holds_nothing_that_a_server_would_refuse(reply: Any, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        released(reply)


def test_a_client_keeps_to_the_norm() -> None:
    guard = SecureSum(max_norm=5.0)
    assert released(({"w": torch.tensor([3.0, 4.0])}, 1.0), guard)
    with pytest.raises(BadMessage, match=r"the reply is 5\.1 from what was sent, max_norm is 5"):
        released(({"w": torch.tensor([5.1, 0.0])}, 1.0), guard)


def test_a_client_with_a_secret_of_its_own_needs_a_book() -> None:
    with pytest.raises(BadMessage, match="no book of what it settled"):
        released(({"w": torch.zeros(2)}, 1.0), secret=Secret(bytes(32)))


def test_what_is_held_is_in_the_clients_memory_and_not_in_what_leaves() -> None:
    found, memory = released(({"w": torch.tensor([3.0, 4.0])}, 7.0))
    assert found.params["w"].numel() == 0 and found.weight == 0.0
    assert memory["guard.0.SecureSum"]["held"]["weight"] == 7.0


# ---- what cannot be


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"threshold": 0.5}, "threshold is 0.5"),
        ({"threshold": 1.1}, "threshold is 1.1"),
        ({"bits": 16}, "bits is 16"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"max_norm": 0.0}, "max_norm is 0.0"),
        ({"min_cohort": 1}, "a sum of one is no secret"),
        ({"min_holders": 0}, "min_holders is 0"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SecureSum(**fields)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm": FedAvg(fold=Median())}, r"algorithm.fold is Median.*compares single replies"),
        ({"algorithm": FedAvg(fold=Krum())}, r"set algorithm\.fold=weighted_mean"),
        ({"algorithm": FedGL()}, r"FedGL looks at each client's NodeList \(its request ShareNodes\)"),
        ({"num_clients": 2}, "2 clients take part in a round, and min_cohort is 3"),
        ({"sampling": UniformSampling(0.4)}, "2 clients take part in a round, and min_cohort is 3"),
        ({"guards": (SecureSum(min_holders=6),)}, "5 clients take part in a round, and min_holders is 6"),
        (
            {"guards": (SecureSum(min_holders=2),)},
            r"min_holders is 2, and algorithm\.optimizer\.weight_decay is 0\.0005, which changes every number at every",
        ),
        (
            {"guards": (SecureSum(min_holders=2),), "algorithm": FedEx(inner=UNDECAYED, decays=(0.0, 0.01))},
            r"algorithm\.decays is 0\.01.*set it to 0, or min_holders to 1",
        ),
        (
            {"guards": (ClientDP(mode="distributed"), SecureSum(min_holders=2)), "algorithm": UNDECAYED},
            "ClientDP adds noise to every number at every client.*leave ClientDP out",
        ),
        ({"guards": (SecureSum(clip=1e7),)}, "words of 32 bits have a unit of"),
        ({"guards": (SecureSum(), Affine())}, r"SecureSum adds up what clients hold, so it must be the last guard"),
        ({"guards": (Boxed(), SecureSum())}, "Boxed turns each reply into bytes that cannot be added up"),
        ({"guards": (Doubting(), SecureSum())}, "Doubting looks at single replies"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_the_start_with_the_reason(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        isthmus.Course(**{"guards": (SecureSum(),), **changes})


@pytest.mark.parametrize("name", sorted(LOOKING))
def test_each_algorithm_that_looks_at_single_replies_is_refused_by_the_request(name: str) -> None:
    with pytest.raises((ValueError, BadInput), match=r"looks at each client's \w+ \(its request \w+\)"):
        course(name, SecureSum())


def test_a_course_in_words_has_secure_sums_by_name() -> None:
    from isthmus.config.load import load_course

    made = load_course({}, ["dataset.name=csbm", "num_clients=4", "guards=[{name: secure_sum, threshold: 0.75}]"])
    assert made.guards == (SecureSum(threshold=0.75),)


def test_people_are_shown_what_is_on_the_wire() -> None:
    by_name = {exchange.request: exchange for exchange in exposure(FedAvg, (SecureSum(threshold=0.75),))}
    assert by_name["TrainModel"].wire_up.startswith("words under masks")
    assert "75% of the clients, and 3, at least" in by_name["TrainModel"].wire_up
    assert by_name["EvaluateModel"].server_sees == "only the fold"
    each = {exchange.request: exchange for exchange in exposure(FedAvg, (SecureSum(fold_scores=False),))}
    assert each["EvaluateModel"].server_sees == "each client's"


def test_guards_before_it_are_undone_on_the_mean() -> None:
    plain, behind = traced(), trace_course(replace(course(), guards=(Affine(times=4.0), SecureSum())), toy_scenario(4))
    require_close({"it": plain.state}, {"it": behind.state}, "behind another guard", TOLERANCE)


# ---- in whole runs


def test_a_run_has_scores_and_no_word_of_single_clients_on_the_way(tmp_path: Any) -> None:
    found = run(
        replace(course(), algorithm=UNDECAYED, guards=(SecureSum(min_holders=2),), rounds=2),
        scenario=toy_scenario(4),
        run_dir=tmp_path / "run",
    )
    rounds = [event for event in found.events if event["event"] == "round"]
    assert rounds[0]["score"] is not None
    assert not found.missing


def test_clients_at_workers_are_added_up_likewise(crew: Crew) -> None:
    made = course(guard=SecureSum(), runtime="auto")
    here = trace_course(made, toy_scenario(4))
    there = trace_course(made, toy_scenario(4), place=lambda simulation: at_workers(simulation, crew, 2))
    assert there.ended_by is None
    require_close(here.values(), there.values(), "clients at workers and here")


# ---- each sum by itself


NAMED = ("fedavg", "fedprox", "fedopt", "scaffold", "fednova", "feddyn", "fedgrl", "fedrep")


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", NAMED)
def test_each_sum_is_the_plain_weighted_mean_within_half_a_unit_for_each_client(name: str, bits: int) -> None:
    """Of every message of an algorithm, against a mean in double precision of what clients held back."""
    guard, watch = SecureSum(bits=bits), Watch()
    with watched(watch):
        assert traced(name, guard, rounds=2).ended_by is None
    watch.check(guard.rules)
    kinds = {each.place[3] for each in watch.sums}
    assert len(watch.sums) >= 4 and "ScoreSums" in kinds and len(kinds) >= 2


def test_what_rounding_adds_to_a_mean_is_bounded_by_what_the_guard_says() -> None:
    guard = SecureSum(clip=1e4)
    plain, secure = traced(rounds=1).state, traced("fedavg", guard, rounds=1).state
    off = max(float((secure.params[name] - plain.params[name]).abs().max()) for name in plain.params)
    assert guard.mean_error(4) / 100.0 < off < guard.mean_error(4)


# ---- a server that asks clients for different things


@dataclass(frozen=True)
class Isolating(FedAvg):
    """All but one client are sent another model."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        other = TrainModel({name: tensor + 1.0 for name, tensor in state.params.items()})
        first, *rest = fed.clients
        requests = {first: TrainModel(state.params), **dict.fromkeys(rest, other)}
        return ModelState(fed.ask_folded(requests, weighted_mean).params)


def test_clients_that_are_sent_different_models_are_in_no_sum_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest server says so; where one does not look, and mixes them, clients are in none with others."""
    made = toy_course(Isolating(), guards=(SecureSum(),), num_clients=4, runtime="loop", evaluate_every=1000)
    ended = trace_course(made, toy_scenario(4)).ended_by
    assert isinstance(ended, CourseFailed) and "sent TrainModel with different contents, and a secure sum" in str(ended)
    monkeypatch.setattr("isthmus.privacy.secure_sum._refuse_different", lambda requests: None)
    trace = trace_course(made, toy_scenario(4))
    assert trace.ended_by is None
    whys = {failure.client: failure.reason for report in trace.exchanges for failure in report.failures}
    assert whys == {"client-0": "it says that it was asked for something else than most were"}


@pytest.mark.parametrize(("direction", "compared"), [("up", True), ("both", False)])
def test_where_requests_are_coded_by_client_it_is_not_seen_to_that_all_have_the_same(
    direction: str, compared: bool
) -> None:
    """Who was away is sent a whole model, and others what changed: they are left with models that nearly agree."""
    guards = (RandomK(fraction=0.5, min_numbers=1, direction=direction), SecureSum())
    trace = trace_course(
        replace(course(runtime="loop"), guards=guards), toy_scenario(4), fault=Fault("client-1", 2, 0, "after")
    )
    assert trace.ended_by is None and trace.last == 3
    told = {
        bytes(message.outcome.reply.keys.asked.tolist())
        for message in trace.messages
        if isinstance(message.outcome.reply, PublicKeys)
    }
    assert (bytes(32) not in told) == compared and (len(told) == 1) == (not compared)
