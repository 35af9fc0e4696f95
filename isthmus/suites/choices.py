"""Some cells of a suite, named by choices on some of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.core.errors import nearest

Choices = Mapping[str, tuple[str, ...]]


def agrees(cell: Mapping[str, str], choices: Choices) -> bool:
    """Return whether a cell has, on every axis that is named, one of the choices named there."""
    return all(cell[axis] in allowed for axis, allowed in choices.items())


def read_choices(raw: Any, axes: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, tuple[str, ...]]:
    """Return `{axis: choice or list of choices}` as it stands in a suite file; a ValueError names `where`, its key."""
    if not isinstance(raw, Mapping) or not raw:
        raise ValueError(f"{where} is {raw!r}, expected axes and choices, for example: {_example(axes)}")
    found: dict[str, tuple[str, ...]] = {}
    for key, value in raw.items():
        axis = str(key)
        if axis not in axes:
            raise ValueError(f"{where} names the axis {axis!r}; {nearest(axis, axes)}")
        values = value if isinstance(value, list | tuple) else [value]
        if not values or any(isinstance(item, list | tuple | Mapping) for item in values):
            raise ValueError(f"{where}.{axis} is {value!r}, expected a choice or a list of choices")
        for choice in map(str, values):
            if choice not in axes[axis]:
                raise ValueError(f"{where} names {axis} {choice!r}; {nearest(choice, axes[axis])}")
        found[axis] = tuple(map(str, values))
    return found


def _example(axes: Mapping[str, Mapping[str, Any]]) -> str:
    axis, choices = next(iter(axes.items()))
    return f"{{{axis}: {next(iter(choices))!r}}}"
