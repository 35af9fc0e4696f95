"""What an attack is: a position, what it knows beforehand, what it tries to learn, and how its guess is scored.

An attack is a frozen dataclass in a file of its own. It gets what its position sees (`Seen`) and what it is said to
know (`known`), never the truth; whoever audits compares its guess, and the guess of who has no messages at all
(`prior`), with the truth. What kind of guess it is says how that is scored: `Deciding`, `Naming` or `Estimating`.
Who only listens leaves every bit of a course as it is; who is malicious says what it does to it (`Tampering`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from isthmus.attacks.measures import auc, mean_of, names_found, true_positives_at
from isthmus.config.course import Course
from isthmus.core.federation import Runtime
from isthmus.core.protocol import Position, Request, Requests
from isthmus.core.random import torch_generator
from isthmus.core.record import Params, Record
from isthmus.runs.life import Result
from isthmus.runs.simulation import Scenario

CURIOUS_SERVER = "curious server"
CURIOUS_CLIENT = "curious client"
MALICIOUS_SERVER = "malicious server"
MALICIOUS_CLIENT = "malicious client"
# In `reads`: every field with a row for each of a client's nodes.
ROWS = "rows"
POSITIONS = (CURIOUS_SERVER, CURIOUS_CLIENT, MALICIOUS_SERVER, MALICIOUS_CLIENT)


@dataclass(frozen=True, eq=False)
class Message:
    """What clients were sent, as it arrives there, and what came back.

    Fields:
        at:       round and exchange
        requests: by client whose reply it is; of several where it is what theirs were folded to
        reply:    what came back; nothing but a receipt where only the request is seen
    """

    at: Position
    requests: Requests
    reply: Record

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose reply it is."""
        return tuple(self.requests)

    @property
    def request(self) -> Request[Any]:
        """What was sent; to the first, if there are several."""
        return next(iter(self.requests.values()))


@dataclass(frozen=True, eq=False)
class Seen:
    """What a position has of a course: its settings, the model that it starts and ends with, and messages in order.

    What a reply was folded to is there beside the replies, if these were seen.
    """

    course: Course
    clients: tuple[str, ...]
    initial: Params
    final: Params
    messages: tuple[Message, ...]
    shadows: tuple[Mapping[str, Tensor], ...] = ()  # what an attack noted of courses of its own
    result: Result | None = None  # what a course came to that was tampered with

    def beside(self, shadows: Sequence[Mapping[str, Tensor]]) -> Seen:
        """Return the same, with what was noted of courses of the attacker's own."""
        return replace(self, shadows=tuple(shadows))

    def about(self, client: str, *fields: str) -> list[Message]:
        """Return the messages whose replies have these fields and tell most about a client.

        Its own replies where they are seen; else what they were folded to with others'.
        """
        wanted = [m for m in self.messages if client in m.clients and all(hasattr(m.reply, name) for name in fields)]
        return [message for message in wanted if len(message.clients) == 1] or wanted


@dataclass(frozen=True, eq=False)
class Case:
    """A course that is attacked, and the truth: who holds what.

    `clean` is what it comes to where nobody tampers with it, once that is known.
    """

    course: Course
    scenario: Scenario
    clean: Result | None = None

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients."""
        return tuple(self.scenario.parts)

    def generator(self, *purpose: int | str) -> torch.Generator:
        """Return the stream of a purpose, which nothing in the course draws from."""
        return torch_generator(self.course.seed, "attack", *purpose)


@dataclass(frozen=True)
class Tampering:
    """What somebody who is malicious does to a course, at each of the places where that can be done.

    It does nothing here: one overrides the place at which it acts, what clients learn from (`of_data`), what leaves
    clients or the server (`of_course`: a guard with only one half), or what arrives (`of_runtime`).
    """

    # In a journal: how a course is told of in which it had a hand.
    mark: ClassVar[str] = "tampered with"

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return who holds what, with what is changed; the whole data, and so the scores, stay true."""
        return scenario

    def of_course(self, course: Course) -> Course:
        """Return the course with what is done to its messages."""
        return course

    def of_runtime(self, runtime: Runtime, course: Course) -> Runtime:
        """Return what carries exchanges, with what is said in the place of replies."""
        return runtime

    def among(self, scenario: Scenario, seed: int) -> Self:
        """Return the same with its clients by name; raises BadInput where one is none of the course."""
        return self


class NothingSeen(Exception):
    """What an attack needs is not among what its position sees, and why; its guess is that of the prior."""


Guess = Any  # by kind of attack: Tensor, or by client


@dataclass(frozen=True)
class Attack(ABC):
    """Somebody in a position tries to learn something; its fields are its settings."""

    position: ClassVar[str]
    # In words: what it tries to learn, and what it has beside messages.
    learns: ClassVar[str]
    knows: ClassVar[str]
    # The fields of replies that it reads, or of requests; none where it reads the model alone that all have at the end.
    reads: ClassVar[tuple[str, ...]] = ()
    # What its scores are called, the one that counts most first; a larger one is a better guess, but for those in LESS.
    measures: ClassVar[tuple[str, ...]]

    def problem(self, course: Course) -> str:
        """Return why nobody in its position could do this to a course, with what would do; empty if it can be tried."""
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Whether it looks at the messages of an exchange: others are not kept."""
        return True

    def tampering(self, case: Case) -> tuple[Tampering, ...]:
        """Return what it does to the course that it then sees; nothing where it only listens."""
        return ()

    @abstractmethod
    def known(self, case: Case) -> Any:
        """Return what it has beside messages, as `knows` says."""

    @abstractmethod
    def guess(self, seen: Seen, known: Any) -> Guess:
        """Return what it makes of what its position sees."""

    @abstractmethod
    def prior(self, known: Any, clients: Sequence[str]) -> Guess:
        """Return the guess of somebody who knows as much and sees nothing."""

    @abstractmethod
    def truth(self, case: Case, known: Any) -> Guess:
        """Return what is so."""

    @abstractmethod
    def scores(self, guess: Guess, truth: Guess) -> dict[str, float]:
        """Return how good a guess is, by measure."""


@dataclass(frozen=True, eq=False)
class Shadow:
    """A course that an attacker runs by itself; `drawn` is what was drawn for it."""

    course: Course
    scenario: Scenario
    drawn: Tensor


def seed_of_shadow(course: Course, other: int) -> int:
    """Return the seed of a shadow: the course's own, which all in it have, so that it starts and drops out alike.

    Where something that protects is drawn, which only a simulation draws from the course's seed, it is another one.
    """
    protected = course.guards or getattr(course.algorithm, "protecting_streams", ())
    return other if protected else course.seed


@dataclass(frozen=True)
class Shadowed(Attack):
    """Runs courses like the one that is attacked, of which it knows everything, and compares."""

    @property
    @abstractmethod
    def num_shadows(self) -> int:
        """How many courses it runs."""

    def imitated(self, course: Course) -> Course:
        """Return the course that shadows are like: who reads the last model alone leaves out what does not change it.

        An attacker needs no secure sum among clients of its own. So the same shadows serve with and without such a
        guard, and they may begin as the course does, as nothing that protects is drawn in them.
        """
        if self.reads:
            return course
        return replace(course, guards=tuple(guard for guard in course.guards if not guard.keeps_models))

    @abstractmethod
    def shadow(self, case: Case, known: Any, number: int) -> Shadow:
        """Return one of them."""

    @abstractmethod
    def gist(self, shadow: Shadow, known: Any, result: Result) -> dict[str, Tensor]:
        """Return what it notes of one that has run."""


@dataclass(frozen=True)
class Deciding(Attack):
    """Guesses for each of many items how much speaks for a yes: (items,) numbers; the truth is (items,) booleans."""

    measures: ClassVar[tuple[str, ...]] = ("auc", "tpr@1%", "tpr@0.1%")

    def scores(self, guess: Tensor, truth: Tensor) -> dict[str, float]:
        """Return the area under the curve, and the true positives where few others are taken for one."""
        return {
            "auc": auc(guess, truth),
            "tpr@1%": true_positives_at(guess, truth, 0.01),
            "tpr@0.1%": true_positives_at(guess, truth, 0.001),
        }


@dataclass(frozen=True)
class Naming(Attack):
    """Names for each client some of many items: by client (items,) booleans."""

    measures: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall", "false positives")

    def scores(self, guess: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> dict[str, float]:
        """Return them in the mean over clients, each over those of whom it can be said."""
        each = [names_found(guess[client], truth[client]) for client in truth]
        return {name: mean_of([one[name] for one in each]) for name in self.measures}


@dataclass(frozen=True)
class Estimating(Attack):
    """Guesses for each client shares that add up to one: by client (parts,)."""

    measures: ClassVar[tuple[str, ...]] = ("distance", "largest right")

    def scores(self, guess: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> dict[str, float]:
        """Return half of the absolute differences' sum, and how often the largest share is the largest."""
        distances = [0.5 * float((guess[client] - shares).abs().sum()) for client, shares in truth.items()]
        right = [float(guess[client].argmax() == shares.argmax()) for client, shares in truth.items()]
        return {"distance": mean_of(distances), "largest right": mean_of(right)}


# Measures of which less is better for whoever attacks.
LESS = frozenset({"distance", "false positives"})
