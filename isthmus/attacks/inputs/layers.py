"""Which parameters stand at a model's ends, and how a client moved them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from isthmus.attacks.attack import Message, NothingSeen, Seen
from isthmus.config.course import Course
from isthmus.core.record import Params
from isthmus.learn.batching import FullBatch
from isthmus.learn.optimizers import SGD

# The fields of replies that say what a client made of a model: itself, or how it changed in each of some steps.
UPDATES = ("params", "change")


def at_the_input(params: Params, num_features: int) -> str:
    """Return the name of the first matrix with a row or a column for each feature."""
    for name, each in params.items():
        if each.ndim == 2 and num_features in each.shape:
            return name
    raise NothingSeen(f"no matrix of what clients share has a row for each of the {num_features} features")


def at_the_output(params: Params, num_classes: int) -> str:
    """Return the name of the last vector with a number for each class."""
    ends = [name for name, each in params.items() if each.shape == (num_classes,)]
    if not ends:
        raise NothingSeen(f"no vector of what clients share has a number for each of the {num_classes} classes")
    return ends[-1]


def weights_of(params: Params, bias: str) -> list[str]:
    """Return the names of the matrices, (inputs, outputs), that give what a bias is added to: those of its layer."""
    layer, outputs = bias.rpartition(".")[0], params[bias].shape
    return [
        name
        for name, each in params.items()
        if name.rpartition(".")[0] == layer and name.endswith("weight") and each.ndim == 2 and each.shape[1:] == outputs
    ]


def by_feature(matrix: Tensor, num_features: int) -> Tensor:
    """Return a matrix as (features, outputs), in double precision."""
    return (matrix if matrix.shape[0] == num_features else matrix.t()).double()


def first_update(seen: Seen, client: str) -> tuple[Params, Params]:
    """Return the parameters that a client was sent first, and what it made of them; others' too, if it is a fold."""
    for _, sent, back in updates(seen, client):
        return sent, back
    raise NothingSeen("the replies that it would read are held back, or hold no parameters")


def updates(seen: Seen, client: str) -> Iterator[tuple[Message, Params, Params]]:
    """Yield what a client was sent each time, and what it made of it; others' too, where it is a fold."""
    for field in UPDATES:
        for message in seen.about(client, field):
            sent, back = made_of(message)
            if sent and back:
                yield message, sent, back


def made_of(message: Message) -> tuple[Params, Params]:
    """Return the parameters that were sent, and those that came back; of changes in each step, what they add up to."""
    sent, reply = getattr(message.request, "params", None) or {}, message.reply
    steps, change = getattr(reply, "steps", 1.0), getattr(reply, "change", {})
    moved = {name: sent[name] + steps * each for name, each in change.items() if name in sent}
    return sent, getattr(reply, "params", None) or moved


def steps_problem(course: Course, wanted: Sequence[int] | None = None) -> str:
    """Return why an update is not the sum of a known number of gradients of the whole data; empty if it is."""
    optimizer, steps = getattr(course.algorithm, "optimizer", None), getattr(course.algorithm, "local_steps", None)
    if type(optimizer) is not SGD or optimizer.momentum:
        return "it reads gradients off an update, which only algorithm.optimizer.name=sgd without momentum leaves in it"
    if steps is None or not isinstance(course.batching, FullBatch):
        return "it has to know how many steps lie in an update: only with algorithm.local_steps and full batches"
    if wanted is not None and steps not in wanted:
        return f"it needs updates of {' or '.join(map(str, wanted))} step, here are {steps} (algorithm.local_steps)"
    return ""


def without_decay(before: Tensor, after: Tensor, course: Course) -> Tensor:
    """Return what gradients moved of a parameter: the change that is no weight decay, in double precision.

    Decay shrinks between the steps, so for several the gradients' part is off by less than that of one step's decay.
    """
    algorithm: Any = course.algorithm
    shrunk = (1.0 - algorithm.optimizer.lr * algorithm.optimizer.weight_decay) ** algorithm.local_steps
    return after.double() - float(shrunk) * before.double()
