"""What the checks look at: places where notes could be left, other configurations, global generators."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.config.build import Builder, describe
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Record, field_types, nested_records

# What can hold a note, among the attributes of a class or a module.
NOTEWORTHY = (list, dict, set, bytearray, Tensor, np.ndarray, bool, int, float, str, type(None))


def places_for_notes(algorithm: Algorithm[Any]) -> dict[str, Any]:
    """Return copies of everything that outlives a request and is not client.state, by name."""
    found: dict[str, Any] = {f"the attribute {k!r} of the algorithm": repr(v) for k, v in vars(algorithm).items()}
    for kind in type(algorithm).__mro__[:-1]:
        if kind.__module__.startswith("isthmus.core.") or kind.__module__ in ("abc", "typing"):
            continue
        module = sys.modules.get(kind.__module__)  # None for a class that was made by hand
        for holder, space in ((kind.__name__, vars(kind)), (kind.__module__, vars(module) if module else {})):
            for name, value in space.items():
                if not name.startswith("__") and isinstance(value, NOTEWORTHY):
                    found[f"{name!r} of {holder}"] = repr(value)
    return found


def require_frozen(part: Any) -> None:
    """Check that a part is a frozen, hashable dataclass, and can be copied."""
    kind = type(part)
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise AssertionError(f"{kind.__name__} is not a frozen dataclass; write @dataclass(frozen=True) above it")
    try:
        hash(part)
    except TypeError as error:
        raise AssertionError(f"{kind.__name__} cannot be hashed: {error}; use tuples in place of lists") from None
    if copy.deepcopy(part) != part:
        raise AssertionError(f"a copy of {part!r} is not equal to it")


def require_sayable(part: Any, where: str) -> None:
    """Check that a file can say all of a part's fields."""
    plain = {key: value for key, value in describe(part).items() if key != "name"}
    again = Builder().fields(type(part), plain, where)
    if again != part:
        raise AssertionError(f"a course file would give {again!r} in place of {part!r}")


def variants(value: Any) -> Iterator[Any]:
    """Yield values of the same kind that differ from `value` a little."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value + 0.125
        yield value / 2 + 1e-3
    elif isinstance(value, tuple) and value:
        yield value[:-1]
        yield from ((other, *value[1:]) for other in variants(value[0]))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _with_variants(value, field.name)


def _with_variants(value: Any, name: str) -> Iterator[Any]:
    for other in variants(getattr(value, name)):
        with suppress(ValueError):
            yield dataclasses.replace(value, **{name: other})


def with_nested(roots: Iterable[type[Record]]) -> list[type[Record]]:
    """Return the record types and all that their fields can hold, each once."""
    found: list[type[Record]] = []
    waiting = list(roots)
    while waiting:
        kind = waiting.pop(0)
        if kind not in found:
            found.append(kind)
            for annotation in field_types(kind).values():
                waiting.extend(nested_records(annotation))
    return found


def has_source(kind: type[Any]) -> bool:
    """Whether a class was written in a file that can be read, not typed into a console."""
    try:
        return bool(inspect.getsource(kind))
    except (OSError, TypeError):
        return False


@contextmanager
def global_generators(seed: int) -> Iterator[dict[str, Any]]:
    """Run with all global generators seeded, then restore them; gives their states."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield generator_states()
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators by name."""
    keys: Any = np.random.get_state()
    return {
        "torch's global generator": bytes(torch.get_rng_state().numpy().data),
        "numpy's global generator": (keys[1].tobytes(), keys[2]),
        "Python's global generator": random.getstate(),
    }
