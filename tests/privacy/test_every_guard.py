"""What every guard that is registered must keep to: by itself, at its neutral setting, and beside every other one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from isthmus.algorithms import FedAvg, FedGAP
from isthmus.config.course import Course
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.exposure import exposure
from isthmus.core.folds import WeightedMean
from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.guards.line import line_problem
from isthmus.core.protocol import Request
from isthmus.core.record import Record
from isthmus.models import GAP, MLP, ModelSpec
from isthmus.privacy import (
    GUARDS,
    ClientDP,
    Delta,
    LowRank,
    NormBound,
    Quantise,
    Quarantine,
    RandomK,
    RobustFold,
    SecureSum,
    TopK,
)
from isthmus.privacy.compression.coding import Coder
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Trace, require_close
from tests.core.guards.toys import mapped
from tests.quick import by_kind, quick
from tests.testing.hostile.worlds import world_of

# The settings with which a guard changes nothing. One that is registered without an entry fails the test: say here what
# makes it neutral, or say why nothing does.
NEUTRAL: dict[str, Mapping[str, Any] | str] = {
    "class_sanity": {"largest_share": 1.0, "least_agreement": 0.0},
    "client_dp": {"clip": None, "noise": 0.0},
    "delta": {},  # without loss
    "distance_to_median": {"times": float("inf")},
    "edge_dp": {"epsilon": None},
    "edge_response": {"epsilon": None},
    "entropy": {},  # without loss
    "example_dp": "gradients of examples are taken one by one: a full batch within rounding, by tests of private steps",
    "low_rank": {"rank": 1024, "min_numbers": 1},  # factors that would save nothing
    "no_repeats": {"remembered": 0, "copies": False},
    "node_dp": "gradients of examples are taken one by one, as with example_dp",
    "norm_bound": {"largest": None, "times_median": None},
    "quantise": {"bits": 32, "min_numbers": 1},
    "quarantine": {"after": 10**9},
    "random_k": {"fraction": 1.0, "min_numbers": 1},
    "robust_fold": {"by": WeightedMean()},
    "row_noise": {"clip": None, "noise": 0.0},
    "sane_model": {"dead": 1.0, "alike": 1.0, "times": None},
    "secure_sum": "sums are of whole multiples of a unit: the mean within K units / 2, by tests of secure sums",
    "top_k": {"fraction": 1.0, "bits": 32, "min_numbers": 1},
}
# Who has nothing to do alone stands beside one that gives it something.
BESIDE: dict[str, tuple[Guard, ...]] = {"quarantine": (NormBound(),)}


# Method and model of those that are about what these learn from.
PLACES: dict[str, dict[str, Any]] = {
    "class_sanity": {"algorithm": quick("fedgl")},
    "edge_dp": {
        "algorithm": FedGAP(local_steps=1, encoder_rounds=1, weighting="uniform"),
        "model": ModelSpec(GAP(hidden=5, dim=4)),
    },
    "example_dp": {"model": ModelSpec(MLP(hidden=5))},
    "edge_response": {"algorithm": quick("gfl_appnp")},
    "row_noise": {"algorithm": quick("fedgl")},
}
PLACES["node_dp"] = PLACES["edge_dp"]


def made(*guards: Guard, names: Iterable[str] = (), **changes: Any) -> Course:
    """Return a course with guards, whose messages have something for those that are named."""
    words = {"algorithm": FedAvg(local_steps=1, weighting="uniform"), "num_clients": 4, "rounds": 2, "runtime": "loop"}
    for name in names:
        words |= PLACES.get(name, {})
    words |= changes
    return toy_course(words.pop("algorithm"), guards=guards, **words)


def ran(*guards: Guard, names: tuple[str, ...] = (), **changes: Any) -> Trace:
    return trace_course(made(*guards, names=names, **changes), toy_scenario(4))


def models(trace: Trace) -> dict[str, Any]:
    """Return what training made, without what guards remember."""
    return {name: value for name, value in trace.values().items() if not name.startswith("the memory")}


# ---- neutral settings


def test_every_guard_has_a_neutral_setting_or_a_reason_why_not() -> None:
    assert sorted(NEUTRAL) == sorted(GUARDS), "add the guard to NEUTRAL"


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("name", [name for name, how in NEUTRAL.items() if not isinstance(how, str)])
def test_every_guard_at_its_neutral_setting_is_no_guard_to_the_bit(name: str, runtime: str) -> None:
    guard = GUARDS[name](**NEUTRAL[name])  # type: ignore[arg-type]
    plain = ran(names=(name,), runtime=runtime)
    behind = ran(*BESIDE.get(name, ()), guard, names=(name,), runtime=runtime)
    assert plain.ended_by is None
    assert behind.ended_by is None
    # Behind guards, clients that answered together are folded one by one: their sums run in another order.
    require_close(models(plain), models(behind), f"{name} and none", 1e-5 if runtime == "auto" else 0.0)


# ---- pairs


def working(name: str) -> Guard:
    """Return a guard that does something, also to models as small as the toys'."""
    kind = GUARDS[name]
    if issubclass(kind, Coder):
        return kind(min_numbers=1)
    some: dict[str, Any] = {"example_dp": {"steps": 1}, "node_dp": {"steps": 1, "cut": True}}
    return kind(**some.get(name, {}))


@pytest.mark.parametrize("behind", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["behind", "before"])
@pytest.mark.parametrize("first", GUARDS)
def test_every_pair_of_guards_runs_or_is_refused_before_the_start_with_a_sentence(first: str, behind: bool) -> None:
    """The default set has half of the orders: those in which the second comes later in the table."""
    place = list(GUARDS).index(first)
    for second in list(GUARDS)[place:] if behind else list(GUARDS)[:place]:
        guards = (working(first), working(second))
        try:
            made(*guards, names=(first, second))
        except ValueError as error:
            says = str(error).removeprefix("guards: ")
            assert len(says.split()) > 6, f"{first}, {second}: {says!r} is no reason"
            assert any(type(guard).__name__ in says for guard in guards), f"{first}, {second}: {says!r} names neither"
            continue
        trace = ran(*guards, names=(first, second), rounds=1)
        assert trace.ended_by is None, f"{first}, {second}: {trace.ended_by}"
        failures = [failure for report in trace.exchanges for failure in report.failures]
        assert not failures, f"{first}, {second}: {failures[0]}"


def biting(name: str) -> Guard:
    """Return a guard that looks at something, of those that look at nothing by default."""
    return NormBound(largest=1e6, times_median=1e6) if name == "norm_bound" else working(name)


@pytest.mark.parametrize("name", by_kind())
def test_every_guard_beside_every_method_runs_or_is_refused_before_the_start_with_a_sentence(name: str) -> None:
    world = world_of(name)
    for guard in GUARDS:
        guards = (*BESIDE.get(guard, ()), biting(guard))
        try:
            course = world.course(quick(name), guards=guards, rounds=1, runtime="loop", min_replies=1)
        except ValueError as error:
            says = str(error).removeprefix("guards: ")
            assert len(says.split()) > 6 and type(guards[-1]).__name__ in says, f"{guard}: {says!r} is no reason"
            continue
        trace = trace_course(course, world.scenario)
        assert trace.ended_by is None, f"{guard}: {trace.ended_by}"


LOOKING = ("class_sanity", "distance_to_median", "no_repeats", "norm_bound", "robust_fold")
CODING = ("delta", "entropy", "low_rank", "quantise", "top_k")


@pytest.mark.parametrize("name", [*LOOKING, *CODING])
def test_under_a_secure_sum_nothing_can_look_at_single_replies_or_make_bytes_of_them(name: str) -> None:
    says = line_problem((GUARDS[name](), GUARDS["secure_sum"]()))
    why = "looks at single replies" if name in LOOKING else "turns each reply into bytes that cannot be added up"
    assert says == f"{GUARDS[name].__name__} {why}, and SecureSum lets nobody see one: leave one out"


@pytest.mark.parametrize("name", CODING)
def test_noise_cannot_stand_behind_what_leaves_no_numbers(name: str) -> None:
    says = line_problem((GUARDS[name](), GUARDS["client_dp"]()))
    kind = GUARDS[name].__name__
    assert (
        says == f"{kind} stands before ClientDP and leaves no numbers that it could protect: put ClientDP before {kind}"
    )
    assert not line_problem((GUARDS["client_dp"](), GUARDS[name]()))


@pytest.mark.parametrize("mode", ["central", "local"])
@pytest.mark.parametrize(
    "coder",
    [
        TopK(),
        LowRank(),
        RandomK(),  # larger by the inverse of its chance
        RandomK(error_feedback=True),
        Quantise(error_feedback=True),
        Delta(),
    ],
    ids=repr,
)
def test_a_clipped_change_that_coding_makes_longer_is_no_lie(coder: Guard, mode: str) -> None:
    trace = ran(ClientDP(clip=0.05, mode=mode), replace(coder, min_numbers=1), rounds=6)  # type: ignore[call-arg]
    assert trace.ended_by is None
    assert not [failure for report in trace.exchanges for failure in report.failures]


@pytest.mark.parametrize(
    ("guard", "refused"),
    [
        (GUARDS["robust_fold"](), True),
        (RobustFold(WeightedMean()), False),
        (NormBound(times_median=3.0), True),
        (NormBound(largest=3.0), False),  # each reply by itself
        (GUARDS["distance_to_median"](), True),
        (GUARDS["no_repeats"](), True),
        (GUARDS["quarantine"](), False),
    ],
    ids=repr,
)
def test_noise_of_the_servers_hides_no_client_where_one_decides_what_becomes_of_others(
    guard: Guard, refused: bool
) -> None:
    beside = (NormBound(largest=9.0),) if isinstance(guard, Quarantine) else ()
    noise = GUARDS["client_dp"]()
    course = made()
    if not refused:
        assert replace(course, guards=(noise, *beside, guard)).guards
        return
    with pytest.raises(ValueError, match=f"ClientDP: {type(guard).__name__} looks at all replies .* set mode=local"):
        replace(course, guards=(noise, guard))
    assert replace(course, guards=(replace(noise, mode="local"), guard)).guards  # type: ignore[call-arg]


def test_random_places_of_all_clients_are_added_up_as_they_are_told_apart() -> None:
    some = RandomK(fraction=0.5, min_numbers=1, direction="up")
    alone, summed = ran(some), ran(some, SecureSum())
    assert summed.ended_by is None
    require_close({"the model": alone.state}, {"the model": summed.state}, "summed and not", 1e-5)


@dataclass(frozen=True)
class Cutting(Guard):
    """Leaves out the end of every tensor, and puts it back; or another one, or nothing."""

    keeps_form: ClassVar[bool] = False

    back: str = "right"

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        return mapped(reply, lambda x: x.reshape(-1)[:-1])  # type: ignore[no-any-return]

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        if self.back == "unread":
            raise BadMessage("it has no head")
        return request if self.back == "right" else reply


@pytest.mark.parametrize(
    ("back", "told"),
    [
        ("wrong", "the sum of the replies to TrainModel has another form: params"),
        ("unread", "what the replies to TrainModel add up to cannot be read: it has no head"),
    ],
)
def test_a_sum_that_is_no_model_when_it_is_decoded_ends_the_course_with_words(back: str, told: str) -> None:
    trace = ran(Cutting(back), SecureSum(), rounds=1)
    assert isinstance(trace.ended_by, CourseFailed)
    assert str(trace.ended_by).startswith(told)


@pytest.mark.parametrize("name", ["fedgl", "gcfl", "fedgnn"])
def test_a_method_that_must_see_individuals_is_refused_under_a_secure_sum_and_the_request_is_named(name: str) -> None:
    asks = [e.request for e in exposure(type(quick(name))) if e.server_sees == "each client's" and not e.describes]
    with pytest.raises(ValueError, match=rf"looks at each client's \w+ \(its request {asks[0]}\), and under a secure"):
        toy_course(quick(name), guards=(GUARDS["secure_sum"](),))


# ---- what people are told


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_says_what_is_seen_with_it(name: str) -> None:
    algorithm = type(made(names=(name,)).algorithm)
    plain, guarded = exposure(algorithm), exposure(algorithm, (working(name),))
    assert [exchange.request for exchange in guarded] == [exchange.request for exchange in plain]
    if name in ("quarantine", "sane_model"):  # one acts on what others found, one refuses what it is asked
        assert guarded == plain
    elif name in LOOKING and name != "class_sanity":
        (train,) = (exchange for exchange in guarded if exchange.request == "TrainModel")
        assert train.server_sees == f"only the fold; each client's is looked at by {GUARDS[name].__name__}"
    elif name != "class_sanity":  # FedGL looks at each client's view itself
        assert guarded != plain
