"""The check for guards passes those that keep to the rules, and names the rule that one breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import Request, on
from isthmus.core.record import Record
from isthmus.testing import COURSE_CHECKS, GUARD_CHECKS, check_guard
from tests.core.guards.toys import Adding, Affine, Boxed, Counting, mapped

ONE = (FedAvg(local_steps=1),)


@pytest.mark.parametrize(
    "guard",
    [
        Boxed(),
        pytest.param(Affine(times=4.0), marks=pytest.mark.slow),
        pytest.param(Counting(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_guards_that_keep_to_the_rules_pass(guard: Guard) -> None:
    assert check_guard(guard, algorithms=ONE) == [*GUARD_CHECKS, *COURSE_CHECKS]


@pytest.mark.slow
def test_by_default_it_stands_before_fedavg_and_scaffold() -> None:
    check_guard(Boxed())


def test_a_guard_may_stand_behind_others() -> None:
    made = check_guard(Adding(), algorithms=ONE, beside=(Affine(times=2.0),), skip=("lies", "failure", "same_seed"))
    assert "lies" not in made


def test_what_is_skipped_must_be_a_check() -> None:
    with pytest.raises(ValueError, match="skip has 'resum'"):
        check_guard(Boxed(), skip=("resum",))


# ---- guards that break one rule each


class Thawed(Guard):
    """No dataclass."""


@dataclass(frozen=True)
class Listed(Guard):
    """Cannot be hashed."""

    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Unsaid(Guard):
    """A file cannot say its field."""

    scale: float = field(default=1.0, metadata={"in_file": False})


@dataclass(frozen=True)
class Boasting(Guard):
    """Protects by a field that it does not have."""

    protects: ClassVar[dict[str, Literal["more", "less"]]] = {"noise": "more"}


@dataclass(frozen=True)
class Mute(Record):
    """What nobody says anything of."""

    secret: float


@dataclass(frozen=True)
class Tell(Request[Mute]):
    """Asks."""


@dataclass(frozen=True)
class Unexplained(Guard):
    """Sends what has no docstring."""

    @on(Tell)
    def tell(self, request: Tell, at: AtClient) -> Mute:
        """Tell."""
        return Mute(1.0)


@dataclass(frozen=True)
class Forgetful(Guard):
    """Remembers in itself what should be in the client's memory."""

    seen: ClassVar[dict[str, int]] = {}

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Add more with every reply."""
        self.seen[at.client.id] = self.seen.get(at.client.id, 0) + 1
        return mapped(reply, lambda x: x + 0.25 * self.seen[at.client.id])


@dataclass(frozen=True)
class Trusting(Boxed):
    """Believes what a client says of the size of its tensors."""

    def accept(self, reply: Record, request: Request[Any], client: str, at: Any) -> Record:
        """Cut to what fits, whatever came."""
        try:
            return super().accept(reply, request, client, at)
        except Exception:
            return Mute(0.0)


@dataclass(frozen=True)
class Drawing(Guard):
    """Draws from the generator of everybody."""

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Add noise that nothing repeats."""
        return mapped(reply, lambda x: x + 0.01 * torch.randn(x.shape))


@pytest.mark.parametrize(
    ("guard", "rule"),
    [
        (Thawed(), "check 'frozen': Thawed is not a frozen dataclass"),
        (Listed(), "check 'frozen': Listed cannot be hashed"),
        (Unsaid(scale=2.0), "check 'settings': a course file would give"),
        (Boasting(), "check 'settings': protects names 'noise'"),
        (Unexplained(), "check 'docstrings': Mute.secret has no docstring"),
        (Forgetful(), "check 'loop_equals_strict'"),
        (Drawing(), "Drawing, check '"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Guard) else "",
)
def test_a_broken_rule_is_named(guard: Guard, rule: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_guard(guard, algorithms=ONE, skip=("replies",))
    assert rule in str(caught.value)


def test_a_reply_of_another_kind_is_no_way_out() -> None:
    check_guard(Trusting(), algorithms=ONE, skip=[name for name in COURSE_CHECKS if name != "lies"])
