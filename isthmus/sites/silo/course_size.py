"""How much a course would ask of a silo, found without building or training anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from isthmus.config.course import Course
from isthmus.config.load import own_algorithm, own_batching, own_model
from isthmus.core.errors import BadInput, IsthmusError

# Layers, hops and the like: each costs work in Python before any size is known.
MAX_DEPTH_SETTING = 1_000
# Of the models of all clients together, each of which is built at a silo if only to know its parameters' names.
MAX_DEPTH_OF_ALL = 4 * MAX_DEPTH_SETTING
_DEEP = ("layers", "hops", "heads", "last_heads", "steps")
_STEPS = ("steps", "epochs", "rounds", "max_iter", "max_exponent")


def numbers(part: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every whole number in the fields of a part, with its name, those of nested parts too."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        name = f"{prefix}{each.name}"
        for inner in value if isinstance(value, tuple) else (value,):
            if type(inner) is int:
                yield name, inner
            else:
                yield from numbers(inner, f"{name}.")


def largest_steps(algorithm: Any) -> tuple[str, int]:
    """Return the largest number of steps in an algorithm's fields, and the field's name."""
    found = [(name, n) for name, n in numbers(algorithm) if name.rsplit(".", 1)[-1].endswith(_STEPS)]
    # A schedule's rounds say when a rate changes, not how much is done.
    found = [(name, n) for name, n in found if ".schedule." not in name]
    found.append(algorithm.nested_steps)
    return max(found, key=lambda pair: pair[1], default=("", 0))


def smallest_batch(course: Course) -> int | None:
    """Return the smallest batch that some client makes; None where all batches are full."""
    parts: list[Any] = [course.batching, course.algorithm]
    for client in course.client_settings:
        with suppress(BadInput):  # batches that cannot be are told when they are made
            parts.append(own_batching(course, client, allow_import=False))
    sizes = [size for part in parts if type(size := getattr(part, "batch_size", None)) is int]
    return min(sizes, default=None)


def algorithms_of(course: Course) -> Iterator[tuple[str, Any]]:
    """Yield the course's algorithm, and those of clients that have settings of their own, each with where it stands."""
    yield "algorithm", course.algorithm
    for client in course.client_settings:
        own = own_algorithm(course, client, allow_import=False)
        if own is not None:
            yield f"client_settings.{client[:40]}", own


def problem_of_sizes(course: Course, most: int) -> str:
    """Return which setting of model, batching, task or algorithm is beyond all bounds, or nothing."""
    depth = 0
    for where, part in _parts(course):
        for name, number in numbers(part, f"{where}."):
            deep = where == "model" and name.rsplit(".", 1)[-1] in _DEEP
            limit = MAX_DEPTH_SETTING if deep else most
            if abs(number) > limit and not name.endswith("seed"):
                return f"{name} is {number}, this silo allows {limit}"
            depth += abs(number) if deep else 0
    if depth > MAX_DEPTH_OF_ALL:
        return f"the models of all clients have {depth} layers and the like, this silo allows {MAX_DEPTH_OF_ALL}"
    return ""


def _parts(course: Course) -> list[tuple[str, Any]]:
    """Return what has sizes in a course, that of each client with settings of its own too, with where it stands."""
    clients = tuple(course.client_settings)
    models = [("model", own_model(course, client, allow_import=False)) for client in (None, *clients)]
    batchings = [("batching", own_batching(course, client, allow_import=False)) for client in clients]
    return [*models, ("batching", course.batching), *batchings, ("task", course.task), *algorithms_of(course)]


def num_parameters(course: Course, input_dim: int, output_dim: int, client: str | None) -> int:
    """Return how many numbers a client's model has, its method's own parts among them, without making any of them."""
    spec = own_model(course, client, allow_import=False)
    try:
        with torch.device("meta"):
            model = spec.build(input_dim, output_dim)
            sizes = [tensor.numel() for tensor in model.state_dict().values()]
            return int(sum(sizes)) + course.algorithm.num_own_parameters(model, input_dim)
    except IsthmusError:
        return 0  # it cannot be built at all, which is told when it is
    except (RuntimeError, OverflowError, MemoryError):
        return 2**63  # a size that not even a shape can have
