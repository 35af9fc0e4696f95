"""Faults at any stage of a secure sum between sites: lost messages, silos and servers that die and come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal

from isthmus.core.codec import decode, opened
from isthmus.core.protocol import Failure
from isthmus.privacy.secure_sum.stages import ConfirmView, RevealShares, SendMasked
from isthmus.runs.simulation import Scenario
from isthmus.runtime.envelope import Envelope
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.testing import toy_scenario
from tests.sites.in_process import CLASSES, FakeHub, fake_hub
from tests.sites.silo.test_consent import identity

# What a client goes through in a sum, from the request that makes it hold a reply, which asks for its keys too.
STAGES = ("TrainModel", "ShareSecrets", "SendMasked 1", "RevealShares 1")
# And where it is counted who holds what.
COUNTING = ("TrainModel", "ShareSecrets", "SendMasked 0", "RevealShares 0", "SendMasked 1", "RevealShares 1")
# What is asked only where somebody was lost: keys for a sum that is begun anew, or who is left.
SELDOM = ("MakeKeys", "ConfirmView 0", "ConfirmView 1")
# Those who are lost at these are in no sum; at the others what they sent counts.
OUT = frozenset(COUNTING) - {"RevealShares 0", "RevealShares 1"}
HASTE = Patience(start_seconds=1.0, pause_seconds=5.0, retry_seconds=0.0)

How = Literal["unasked", "unheard", "killed before", "killed after"]
HOWS: tuple[How, ...] = ("unasked", "unheard", "killed before", "killed after")
_WITH_PART = {kind.__name__: kind for kind in (SendMasked, ConfirmView, RevealShares)}


def stage_of(envelope: Envelope) -> str:
    """Return what a message asks for: MakeKeys, ..., SendMasked 0 or 1."""
    kind = _WITH_PART.get(envelope.kind)
    if kind is None:
        return envelope.kind
    request: Any = decode(opened(envelope.payload), kind)
    return f"{envelope.kind} {request.which}"


@dataclass(frozen=True)
class Strike:
    """What hits a silo, or the server, the first time that a stage of a round is reached.

    `unasked` never gets the message, `unheard` answers in vain; who is killed has its folders only, and is back at
    once. With `gone` a silo is away until the round is over, or begins anew.
    """

    round: int
    stage: str
    who: str
    how: How = "unasked"
    gone: bool = False


@dataclass
class Struck:
    """Silos in this process, and what happens to their messages."""

    hub: FakeHub
    strikes: Mapping[tuple[int, str, str], Strike]
    done: list[Strike] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    log: list[tuple[int, str, str]] = field(default_factory=list)  # what every silo was asked

    def __post_init__(self) -> None:
        self.hub.hook = self.hook

    def hook(self, site: str, kind: str, data: bytes) -> bytes | Failure | None:
        """Decide what becomes of a message."""
        if kind != "exchange":
            return None
        envelope: Envelope = decode(data, Envelope)
        stage, round = stage_of(envelope), envelope.position.round
        self.log.append((round, stage, site))
        if stage == STAGES[0]:
            self.away.discard(site)
        self._strike_server(round, stage)
        strike = self._taken((round, stage, site))
        if strike is None:
            return Failure(site, "lost", "it is away") if site in self.away else None
        if strike.gone:
            self.away.add(site)
        if strike.how in ("unheard", "killed after"):
            self.hub.silos[site].handle(kind, data)
        if strike.how.startswith("killed"):
            self.hub.restart(site)
        return Failure(site, "lost", f"{strike.how} at {stage}")

    def _strike_server(self, round: int, stage: str) -> None:
        strike = self._taken((round, stage, "server"))
        if strike is not None:
            self.away.clear()
            raise KeyboardInterrupt

    def _taken(self, place: tuple[int, str, str]) -> Strike | None:
        strike = self.strikes.get(place)
        if strike is None or strike in self.done:
            return None
        self.done.append(strike)
        return strike


def struck(folder: Path, strikes: list[Strike], number: int) -> Struck:
    """Return certified silos, with secrets of their own, and what will hit them."""
    hub = fake_hub(folder, made=scenario_of(number))
    for name, silo in hub.silos.items():
        silo.identity = identity(folder / "keys", name)
    return Struck(hub, {(strike.round, strike.stage, strike.who): strike for strike in strikes})


def scenario_of(number: int) -> Scenario:
    """Return toy silos whose classes have names."""
    from dataclasses import replace

    made = toy_scenario(number)
    parts = {name: replace(part, class_names=CLASSES) for name, part in made.parts.items()}
    return Scenario(replace(made.whole, class_names=CLASSES), parts)


def carried_out(course: Any, world: Struck, folder: Path, most: int = 20) -> tuple[Any, int]:
    """Carry a course out, going on whenever the server was killed; return the result and how often that was."""

    def made() -> SiteCourse:
        return SiteCourse(course, world.hub, tuple(world.hub.silos), folder, patience=HASTE, say=world.hub.said.append)

    for number in range(most):
        try:
            return (made().run() if number == 0 else made().resume()), number
        except KeyboardInterrupt:
            continue
    raise AssertionError(f"the server was killed {most} times")


def drawn(seed: int, rounds: int, names: list[str], most: int, stages: tuple[str, ...] = STAGES) -> list[Strike]:
    """Return random faults: in each round up to so many, of any kind, at any stages."""
    draw, found = Random(seed), []
    for round in range(1, rounds + 1):
        places = list(product((*stages, *SELDOM), [*names, "server"]))
        for stage, who in draw.sample(places, draw.randint(0, most)):
            found.append(Strike(round, stage, who, draw.choice(HOWS), draw.random() < 0.5))
    return found
