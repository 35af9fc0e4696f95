"""Malicious clients as attacks: what became of a course that they spoiled, beside the same course without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import MALICIOUS_CLIENT, Attack, Case, NothingSeen, Seen
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.learn.optimizers import load_params
from isthmus.runs.life import Result
from isthmus.runs.simulation import build_model, dims_of

SUCCESS, CLEAN_ACCURACY = MEASURES = ("success", "clean accuracy")


@dataclass(frozen=True)
class Spoiling(Attack):
    """An attack that is no guess: it changes a course, and what the course came to is its score.

    The prior is the same of the course without anybody malicious. Measured are, of the model that is kept,

        success:        the share of items on which the attackers have what they want; here, test items that are wrong
        clean accuracy: on the true test items, for honest clients

    of the global model on the whole data; where clients have models or generators of their own, of each honest
    client's on its own data, all items together.
    """

    position: ClassVar[str] = MALICIOUS_CLIENT
    learns: ClassVar[str] = "nothing: it changes what the model says"
    knows: ClassVar[str] = "its own data, and what it is sent"
    measures: ClassVar[tuple[str, ...]] = MEASURES

    @property
    def malicious_clients(self) -> tuple[str, ...]:
        """Whose own scores are no part of it."""
        return ()

    def problem(self, course: Course) -> str:
        """Return why there is no class that a test item could wrongly be."""
        if course.task.outputs_are_classes:
            return ""
        return f"it counts test items of a wrong class, and the task {type(course.task).__name__} has no classes"

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that no message is kept."""
        return False

    def scored(self, result: Result, case: Case) -> dict[str, float]:
        """Return what a course came to."""
        accuracy = self.accuracy(result, case)
        return {SUCCESS: 1.0 - accuracy, CLEAN_ACCURACY: accuracy}

    def accuracy(self, result: Result, case: Case) -> float:
        """Return the share of true test items that are right."""
        right = []
        for name, data in honest_data(result, case, self.malicious_clients):
            items = tested(data)
            right.append(said_of(result, case, name, data)[items] == data.labels[items])
        return share_of(right)

    # ---- as an attack

    def known(self, case: Case) -> Any:
        """Return the case, with what the course came to where nobody tampered with it."""
        tamperings = self.tampering(case)
        return tamperings[0] if tamperings else self, case

    def guess(self, seen: Seen, known: Any) -> dict[str, float]:
        """Return what the course came to."""
        if seen.result is None:
            raise NothingSeen("there is no course that was tampered with")
        spoiling, case = known
        found: dict[str, float] = spoiling.scored(seen.result, case)
        return found

    def prior(self, known: Any, clients: Sequence[str]) -> dict[str, float]:
        """Return what it comes to without malicious clients."""
        spoiling, case = known
        found: dict[str, float] = dict.fromkeys(MEASURES, 0.0)
        return found if case.clean is None else spoiling.scored(case.clean, case)

    def truth(self, case: Case, known: Any) -> dict[str, float]:
        """Return the most that there can be."""
        return dict.fromkeys(MEASURES, 1.0)

    def scores(self, guess: Mapping[str, float], truth: Mapping[str, float]) -> dict[str, float]:
        """Return the shares."""
        return dict(guess)


def honest_data(result: Result, case: Case, malicious: Sequence[str]) -> Iterator[tuple[str | None, Any]]:
    """Yield what models are scored on: the whole, or where clients differ each honest client's, with its name."""
    if result.params and not result.client_params and not result.client_parts:
        yield None, case.scenario.whole
        return
    for name, part in case.scenario.parts.items():
        if name not in malicious and (name in result.client_params or result.params):
            yield name, part


def tested(data: Any) -> Tensor:
    """Return the test items that have a class, (items,)."""
    found: Tensor = (data.mask("test") & (data.labels >= 0)).nonzero().flatten()
    return found


def said_of(result: Result, case: Case, client: str | None, data: Any) -> Tensor:
    """Return the class of each item of some data, (items,), to a client's model or the global one; -1 for no number."""
    course = case.course
    model = build_model(course, *dims_of(course, data, client or "the attacker"), client)
    params = result.client_params.get(client or "", result.params)
    load_params(model, {**model.state_dict(), **params})
    parts = result.client_parts.get(client or "", {})
    said: Tensor = course.algorithm.predict_with(parts, course.task, model, data).probabilities
    return torch.where(said.isfinite().all(dim=1), said.argmax(dim=1), -1)


def share_of(hits: Sequence[Tensor]) -> float:
    """Return the share of what is true; NaN of nothing."""
    every = torch.cat([hit.double() for hit in hits]) if hits else torch.zeros(0)
    return float(every.mean()) if len(every) else float("nan")
