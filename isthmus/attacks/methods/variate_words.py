"""SCAFFOLD's control variates: the gradient of a word that a client does not have is nothing but weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.algorithms.scaffold import Scaffold, TrainCorrected
from isthmus.attacks.attack import Seen
from isthmus.attacks.inputs.words import Vocabulary
from isthmus.attacks.methods.variate_labels import first_variates
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params


@dataclass(frozen=True)
class VariateWords(Vocabulary):
    """Takes the features whose weights have a gradient in the first change of a variate for those of the client.

    All variates begin at 0, so the first change is the mean of the first round's gradients. Of a feature that is zero
    at all nodes that training looks at it has weight decay alone, a multiple of the weights that were sent.
    """

    reads: ClassVar[tuple[str, ...]] = ("variate_change",)

    def problem(self, course: Course) -> str:
        """Return why no gradients are told, or decay is no multiple of the weights that were sent."""
        if not isinstance(course.algorithm, Scaffold):
            return f"{type(course.algorithm).__name__} tells no change of a control variate (algorithm.name=scaffold)"
        return super().problem(course)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first corrected training."""
        return at.round <= 1 and issubclass(request, TrainCorrected)

    def first_told(self, seen: Seen, client: str) -> tuple[Params, Params]:
        """Return the model that a client was sent, and the gradients that it told."""
        request, reply = first_variates(seen, client)
        return request.params, reply.variate_change
