"""The guards that a silo requires: what a policy file may ask, and which courses have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from isthmus import __version__
from isthmus.algorithms import FedAvg, FedGL
from isthmus.config.load import check_client_settings, course_to_yaml, weaker
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, refuse
from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import Request
from isthmus.core.record import Record
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.secure_sum import SecureSum
from isthmus.sites.courses.messages import Proposal, Terms
from isthmus.sites.silo.policy import Policy, load_policy
from isthmus.testing.hostile.siege import known_here
from tests.core.guards.toys import Adding, Affine, Boxed, Doubting, mapped
from tests.sites.in_process import fake_hub, site_course
from tests.sites.silo.test_protection import Server, silo_of

Direction = Literal["more", "less"]
SITES = ("client-0", "client-1", "client-2")


@dataclass(frozen=True)
class Blurring(Guard):
    """Rounds what leaves; says of each field in which direction it would protect."""

    protects: ClassVar[dict[str, Direction]] = {"epsilon": "less", "step": "more", "whole": "more"}
    epsilon: float | None = None
    step: float = 0.0
    whole: bool = False
    kind: str = "soft"

    def __post_init__(self) -> None:
        refuse(self.kind not in ("soft", "hard", "harder"), self, "kind", "choose from soft, hard, harder")
        refuse(self.step > 1.0, self, "step", "it must be at most 1")

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        return mapped(reply, lambda x: x - x % self.step) if self.step else reply  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Summing(Adding):
    """Adds up, if enough are there."""

    protects: ClassVar[dict[str, Direction]] = {"threshold": "more", "cohort": "more"}
    threshold: int = 2
    cohort: int = 2


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with known_here(Blurring, Summing, Boxed, Affine, Doubting):
        yield


def refusal(required: dict[str, dict[str, Any]], *guards: Guard, **changes: Any) -> str:
    course = site_course(**{"guards": guards, "min_replies": 3, "num_clients": 3, **changes})
    return Policy(required_guards=required, min_examples=1).refusal(course, SITES)


# ---- a file with mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{blurrin: {}}",
            "required_guards has 'blurrin', and there is no such guard; known: .* Did you mean 'blurring'",
        ),
        ("{blurring: {epsilo: 1}}", "required_guards.blurring has 'epsilo'; .* Did you mean 'epsilon'"),
        ("{blurring: {kind_of_it: 1}}", "required_guards.blurring has 'kind_of_it'; known: epsilon, kind, step, whole"),
        ("{blurring: {epsilon: .nan}}", "required_guards.blurring.epsilon is nan, which is no bound"),
        ("{blurring: {epsilon: true}}", "required_guards.blurring.epsilon is True, expected a number"),
        ("{blurring: {whole: 1}}", "required_guards.blurring.whole is 1.*, expected true or false"),
        ("{blurring: {epsilon: low}}", "required_guards.blurring.epsilon is 'low', expected a number"),
        ("{blurring: {kind: 1}}", "required_guards.blurring.kind is 1.*, expected a text, or a list of texts"),
        ("{blurring: {kind: sort}}", "asks for what no guard can be: .*kind is 'sort'; choose from soft"),
        ("{blurring: {kind: [hard, sort]}}", "asks for what no guard can be: .*kind is 'sort'; choose from soft"),
        ("{blurring: {step: 3}}", "asks for what no guard can be: .*step is 3.0; it must be at most 1"),
        ("{blurring: {epsilon: null}}", "required_guards.*null|None.*, expected"),
        ("{'os:system': {}}", "required_guards has 'os:system', and there is no such guard"),
        ("[blurring]", "required_guards is .*, expected"),
    ],
)
def test_a_policy_that_asks_for_what_no_guard_has_is_refused_at_the_start(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"required_guards: {text}\n")
    with pytest.raises(BadInput, match=message) as caught:
        load_policy(path)
    assert "policy.yaml" in str(caught.value)


def test_a_policy_file_is_read_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("required_guards: {blurring: {epsilon: 4, whole: true}, summing: {threshold: 3}, boxed: {}}\n")
    policy = load_policy(path)
    assert policy.required_guards == {
        "blurring": {"epsilon": 4, "whole": True},
        "summing": {"threshold": 3},
        "boxed": {},
    }
    assert policy.lines()[-1].strip() == (
        "a course must have the guards blurring with epsilon 4 or less and whole true, summing with threshold 3 "
        "or more, boxed of any settings"
    )
    assert "only what the server folds" in policy.lines()[0]
    assert policy.fewest_examples == 10
    assert Policy(required_guards={"blurring": {}}).fewest_examples == 1


# ---- courses


@pytest.mark.parametrize(
    ("required", "guards", "part"),
    [
        ({}, (), ""),
        ({"blurring": {}}, (Blurring(),), ""),
        (
            {"blurring": {}},
            (),
            "requires the guard blurring of any settings, which the course does not have: add {name: blurring} to",
        ),
        ({"blurring": {}}, (Boxed(),), "which the course does not have"),
        (
            {"blurring": {"epsilon": 4.0, "whole": True}},
            (),
            "blurring with epsilon 4 or less and whole true, which the course does not have: "
            "add {name: blurring, epsilon: 4, whole: true} to its guards",
        ),
        ({"blurring": {"epsilon": 4.0}}, (Blurring(epsilon=4.0),), ""),
        ({"blurring": {"epsilon": 4.0}}, (Blurring(epsilon=0.0),), ""),
        ({"blurring": {"epsilon": 4.0}}, (Blurring(epsilon=8.0),), "the course's has epsilon=8: 4 or less is needed"),
        ({"blurring": {"epsilon": 4.0}}, (Blurring(),), "the course's has epsilon=null: 4 or less is needed"),
        ({"blurring": {"epsilon": 4.0}}, (Blurring(epsilon=float("nan")),), "epsilon=nan: 4 or less is needed"),
        ({"blurring": {"step": 0.5}}, (Blurring(step=0.25),), "the course's has step=0.25: 0.5 or more is needed"),
        ({"blurring": {"step": 0.5}}, (Blurring(step=float("nan")),), "step=nan: 0.5 or more is needed"),
        ({"blurring": {"step": 0.5}}, (Blurring(step=0.5),), ""),
        ({"blurring": {"kind": "hard"}}, (Blurring(kind="hard"),), ""),
        ({"blurring": {"kind": ("hard", "harder")}}, (Blurring(kind="harder"),), ""),
        ({"blurring": {"kind": "hard"}}, (Blurring(),), "the course's has kind=soft: hard is needed"),
        ({"blurring": {"kind": ("hard", "harder")}}, (Blurring(),), "kind=soft: hard or harder is needed"),
        ({"blurring": {"kind": ("hard", "harder")}}, (), "add {name: blurring, kind: hard} to its guards"),
        ({"blurring": {"whole": True}}, (Blurring(),), "the course's has whole=false: true is needed"),
        ({"blurring": {"whole": True}}, (Blurring(whole=True),), ""),
        ({"blurring": {"whole": False}}, (Blurring(),), ""),
        ({"blurring": {"step": 0.5}}, (Blurring(), Blurring(step=0.5)), ""),  # one of two is enough
        ({"blurring": {"step": 0.5, "epsilon": 1.0}}, (Blurring(step=0.5), Blurring(epsilon=1.0)), "epsilon=null"),
        ({"summing": {"threshold": 3}}, (Summing(threshold=2),), "threshold=2: 3 or more is needed"),
        ({"summing": {"threshold": 3, "cohort": 3}}, (Summing(threshold=3),), "cohort=2: 3 or more is needed"),
        ({"summing": {"threshold": 3}}, (Blurring(), Summing(threshold=3)), ""),
        ({"blurring": {}, "summing": {}}, (Blurring(), Summing()), ""),
        ({"blurring": {}, "summing": {}}, (Summing(),), "requires the guard blurring of any settings, which the"),
    ],
)
def test_a_course_must_have_the_guards_and_none_weaker(
    required: dict[str, Any], guards: tuple[Guard, ...], part: str
) -> None:
    found = refusal(required, *guards)
    assert part in found if part else not found


@pytest.mark.parametrize(
    ("guards", "part"),
    [
        ((Boxed(), Blurring()), "boxed stands before it and leaves no numbers that it could protect: put blurring"),
        ((Affine(), Boxed(), Blurring()), "put blurring before boxed"),
        ((Blurring(), Boxed()), ""),
        ((Affine(), Blurring()), ""),
        ((Doubting(), Blurring()), ""),  # only looks at what arrives
        ((Boxed(), Blurring(), Blurring()), "boxed stands before it"),
    ],
)
def test_a_guard_that_finds_no_numbers_any_more_protects_nothing(guards: tuple[Guard, ...], part: str) -> None:
    found = refusal({"blurring": {}}, *guards)
    assert part in found if part else not found
    assert refusal({"boxed": {}} if Boxed() in guards else {}, *guards) == ""  # where the other guard is not asked for


def test_a_required_sum_is_worth_nothing_where_the_algorithm_looks_at_single_replies() -> None:
    shown = refusal({"summing": {}}, Summing(), algorithm=FedGL())
    assert "its policy lets the server see only folds; fedgl shows it each client's reply to" in shown
    assert refusal({"blurring": {}}, Blurring(), algorithm=FedGL()) == ""
    own = refusal({"summing": {}}, Summing(), client_settings={"client-1": {"local_steps": 3}})
    assert "other settings for 'client-1'" in own


def test_settings_of_one_client_cannot_change_its_guards() -> None:
    for key in ("guards", "algorithm.guards"):
        course = site_course(client_settings={"client-1": {key: []}}, guards=(Blurring(),), min_replies=3)
        with pytest.raises(BadInput):
            check_client_settings(course, SITES)


def test_nothing_is_sent_of_a_course_without_its_guards_and_the_reason_is_told(tmp_path: Path) -> None:
    policy = Policy(required_guards={"blurring": {"epsilon": 4.0}})
    hub = fake_hub(tmp_path, policies={"client-0": policy}, tell_reasons=False)
    silo = hub.silos["client-0"]
    for guards in ((), (Blurring(epsilon=8.0),), (Boxed(), Blurring(epsilon=1.0))):
        assert Server(silo, site_course(guards=guards)).refusal.startswith("policy: ")
        assert silo._last is None
        assert silo.handle("exchange", b"anything") == b"isthmus: not agreed"
    assert "requires the guard blurring with epsilon 4 or less" in hub.said[0]
    assert "add {name: blurring, epsilon: 4}" in hub.said[0]
    assert "4 or less is needed" in hub.said[1]
    assert "put blurring before boxed" in hub.said[2]
    assert Server(silo, site_course(guards=(Blurring(epsilon=4.0), Boxed()))).refusal == ""


def test_a_guard_that_is_not_installed_at_the_silo_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Elsewhere(Guard):
        """Only the server has it."""

    silo = silo_of(tmp_path)
    with known_here(Elsewhere):
        text = course_to_yaml(site_course(guards=(Elsewhere(),)))
    assert "elsewhere" in text
    proposal = Proposal("ab" * 16, text, __version__, SITES)
    terms: Terms = decode(silo.handle("propose", encode(proposal)), Terms)
    assert terms.refusal.startswith("course: ")


@pytest.mark.parametrize(
    ("guards", "part"),
    [
        ((), "requires the guard client_dp with mode distributed or local and clip 1 or less and noise 1 or more"),
        ((SecureSum(min_cohort=3),), "requires the guard client_dp"),
        ((ClientDP(mode="distributed"), SecureSum(min_cohort=2)), "the course's has min_cohort=2: 3 or more is needed"),
        ((ClientDP(), SecureSum(min_cohort=3)), "the course's has mode=central: distributed or local is needed"),
        (
            (ClientDP(mode="distributed", clip=None, noise=0.0), SecureSum(min_cohort=3)),
            "clip=null: 1 or less is needed",
        ),
        ((ClientDP(mode="distributed", noise=0.5), SecureSum(min_cohort=3)), "noise=0.5: 1 or more is needed"),
        ((ClientDP(mode="distributed"), SecureSum(min_cohort=3)), ""),
        ((ClientDP(mode="local", noise=2.0), SecureSum(min_cohort=3)), ""),
    ],
)
def test_what_ships_can_be_required(guards: tuple[Guard, ...], part: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "required_guards:\n"
        "  client_dp: {mode: [distributed, local], clip: 1, noise: 1}\n"
        "  secure_sum: {min_cohort: 3}\n"
        "min_examples: 1\n"
    )
    course = site_course(FedAvg(weighting="uniform"), guards=guards, min_replies=3, num_clients=3)
    found = load_policy(path).refusal(course, SITES)
    assert part in found if part else not found


@pytest.mark.parametrize(
    ("value", "least", "expected"),
    [(1.0, 2.0, False), (2.0, 2.0, False), (3.0, 2.0, True), (None, 2.0, True), (0.0, 2.0, False), (2.0, None, False)],
)
def test_less_can_protect_more(value: Any, least: Any, expected: bool) -> None:
    assert weaker(Blurring(), "epsilon", value, least) is expected
