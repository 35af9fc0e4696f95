"""SCAFFOLD's control variates: gradients are told as they are, so they say how labels are shared, by any optimiser."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from isthmus.algorithms.scaffold import CorrectedUpdate, Scaffold, TrainCorrected
from isthmus.attacks.attack import NothingSeen, Seen
from isthmus.attacks.inputs.label_shares import LabelShares, Moved
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.learn.batching import FullBatch
from isthmus.learn.optimizers import AdamW


@dataclass(frozen=True)
class VariateLabels(LabelShares):
    """Reads the shares of labels off the first change of a client's control variate.

    All variates begin at 0, so the first change is the mean of the gradients of the first round, with weight decay as a
    part of them. What `label_shares` has to find out of how parameters moved, which momentum and Adam hide, is told
    here.
    """

    reads: ClassVar[tuple[str, ...]] = ("variate_change",)

    def problem(self, course: Course) -> str:
        """Return why no gradients of the whole data are told, or there are no shares."""
        if not isinstance(course.algorithm, Scaffold):
            return f"{type(course.algorithm).__name__} tells no change of a control variate (algorithm.name=scaffold)"
        if not course.task.outputs_are_classes:
            return f"it is about shares of classes, and the task {type(course.task).__name__} has none"
        if course.algorithm.step_unit != "batch" or not isinstance(course.batching, FullBatch):
            return "it has to know of what gradients are the mean: of the whole data only with full batches"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first corrected training."""
        return at.round <= 1 and issubclass(request, TrainCorrected)

    def first_moves(self, seen: Seen, client: str) -> dict[str, Moved]:
        """Return how a client first moved each parameter, with the gradients that it told."""
        request, reply = first_variates(seen, client)
        algorithm: Any = seen.course.algorithm
        optimizer, steps = algorithm.optimizer, algorithm.local_steps
        decay = 0.0 if isinstance(optimizer, AdamW) else optimizer.weight_decay  # AdamW's is no part of gradients
        found = {}
        for name, told in reply.variate_change.items():
            moved = Moved(request.params[name].double(), reply.params[name].double(), told.double())
            middle = moved.at((steps - 1) / (2 * steps))  # of where the steps began
            found[name] = replace(moved, gradient=moved.gradient - decay * middle)
        return found


def first_variates(seen: Seen, client: str) -> tuple[TrainCorrected, CorrectedUpdate]:
    """Return what a client was first sent, and its reply, with others' if it is a fold."""
    for message in seen.about(client, "variate_change"):
        if isinstance(message.request, TrainCorrected) and isinstance(message.reply, CorrectedUpdate):
            return message.request, message.reply
    raise NothingSeen("the changes of variates that it would read are held back")
