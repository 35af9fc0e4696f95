"""Whose a word is under a sum: over rounds with other clients, it moves where who holds it took part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Case, Message, Naming, NothingSeen, Seen
from isthmus.attacks.inputs.layers import UPDATES, at_the_input, by_feature, made_of
from isthmus.attacks.inputs.words import Vocabulary, moved_rows, present
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request


@dataclass(frozen=True)
class WordsOfOne(Naming):
    """Names the features (words) that one client alone holds, of sums over cohorts that change from round to round.

    A sum moves the weights of every feature that somebody in the cohort holds, as `vocabulary` reads it off single
    updates. So a client does not hold what did not move in a round of its; and where a feature moved in a round in
    which all others of the cohort are known not to hold it, the one that is left does (as pooled tests are decoded). A
    feature is named for a client that is found to hold it where nobody else can. With the same clients in every round
    nothing can be told apart, unless there is only one.

    Fields:
        rounds: how many rounds of sums
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which features (words) one client alone holds, and which client that is"
    knows: ClassVar[str] = "how many features there are, and who took part in each round"
    reads: ClassVar[tuple[str, ...]] = UPDATES

    rounds: int = 50

    def __post_init__(self) -> None:
        refuse(self.rounds < 1, self, "rounds", "it must be at least 1")

    def problem(self, course: Course) -> str:
        """Return why weights of absent features would move by no common factor."""
        return Vocabulary().problem(course)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first rounds."""
        return 1 <= at.round <= self.rounds

    def known(self, case: Case) -> int:
        """Return how many features there are."""
        return int(case.scenario.whole.x.shape[1])

    def guess(self, seen: Seen, known: int) -> dict[str, Tensor]:
        """Return which features are one client's alone."""
        places = {client: place for place, client in enumerate(seen.clients)}
        tests = []
        for message in _sums(seen):
            cohort = torch.zeros(len(places), dtype=torch.bool)
            cohort[[places[client] for client in message.clients]] = True
            tests.append((cohort, _moved(message, known, _error(seen.course, len(message.clients)))))
        if not tests:
            raise NothingSeen("no sum of what clients made of a model is seen")
        alone = decoded(torch.stack([cohort for cohort, _ in tests]), torch.stack([moved for _, moved in tests]))
        return {client: alone[place] for client, place in places.items()}

    def prior(self, known: int, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return nothing: of no feature is it likely that one client alone has it."""
        return dict.fromkeys(clients, torch.zeros(known, dtype=torch.bool))

    def truth(self, case: Case, known: int) -> dict[str, Tensor]:
        """Return what each client has and nobody else."""
        held = torch.stack([present(part.x).any(dim=0) for part in case.scenario.parts.values()])
        alone = held & (held.sum(dim=0) == 1)
        return {client: alone[place] for place, client in enumerate(case.scenario.parts)}


def _sums(seen: Seen) -> Iterator[Message]:
    """Yield the fold of each exchange; where single replies are seen, these."""
    of_one: dict[Position, list[Message]] = {}
    for message in seen.messages:
        if all(made_of(message)):
            of_one.setdefault(message.at, []).append(message)
    for messages in of_one.values():
        singles = [message for message in messages if len(message.clients) == 1]
        yield from singles or messages


def _error(course: Course, number: int) -> float:
    """Return what rounding adds to each number of a sum over so many, as a rule: each adds a little, up or down."""
    bound = max((guard.mean_error(number) for guard in course.guards), default=0.0)
    return bound / math.sqrt(3.0 * number)


def _moved(message: Message, number: int, error: float) -> Tensor:
    sent, back = made_of(message)
    name = at_the_input(back, number)
    return moved_rows(by_feature(sent[name], number), by_feature(back[name], number), error)


def decoded(cohorts: Tensor, moved: Tensor) -> Tensor:
    """Return which features are one client's alone, (clients, features).

    Args:
        cohorts: (rounds, clients); who took part
        moved:   (rounds, features); what moved
    """
    # Who was there when a feature did not move does not hold it.
    cleared = (cohorts.double().t() @ (~moved).double()) > 0  # (clients, features)
    took_part = cohorts.any(dim=0).unsqueeze(1)
    possible = ~cleared & took_part
    # In which rounds that moved it only one of the cohort can hold it.
    suspects = cohorts.double() @ possible.double()  # (rounds, features)
    certain = moved & (suspects == 1)
    sure = ((cohorts.double().t() @ certain.double()) > 0) & possible
    return sure & (possible.sum(dim=0) == 1)
