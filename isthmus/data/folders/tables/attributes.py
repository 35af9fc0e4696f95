"""Attributes in own folders: columns that are no features but facts to split by; how they are read and written.

A column of text that has no other use is an attribute. One of numbers would be taken for a feature or a task, so it is
called `attribute.<name>`; whatever such a column holds, it is the attribute `<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus.data.folders.tables.reading import Table, is_numeric, is_text, numbers
from isthmus.data.on_demand import pa, torch

PREFIX = "attribute."


def stated_attributes(table: Table) -> tuple[str, ...]:
    """Return the columns of a table that are attributes by their names."""
    return tuple(name for name in table.columns if name.startswith(PREFIX))


def read_attributes(table: Table, reserved: tuple[str, ...], numeric: bool) -> dict[str, Any]:
    """Return the `attributes` in a table and, of those of text, the names of the categories, `attribute_names`.

    A column of text, days or times has a number for each distinct value, in alphabetical order, an empty one among
    them. Whole numbers are taken as such. Of columns that do not say in their names that they are attributes, numbers
    are taken where `numeric` says so, and columns of other kinds (lists) are not.
    """
    found: dict[str, torch.Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    for column_name, column in table.columns.items():
        if column_name in reserved or not _is_attribute(column_name, column, numeric):
            continue
        name = column_name.removeprefix(PREFIX)
        if name in found:
            table.note(f"has the attribute {name!r} twice, as {name!r} and {PREFIX + name!r}; remove one, or rename it")
        elif is_numeric(column):
            found[name] = _numbers(column)
        else:
            strings = table.text(column_name)
            told = [] if strings is None else strings.to_pylist()  # what is wrong with it has been noted
            values, codes = np.unique(np.asarray(told, dtype=str), return_inverse=True)
            found[name], names[name] = torch.from_numpy(codes.astype(np.int64)), tuple(values.tolist())
    return {"attributes": found, "attribute_names": names}


def _is_attribute(name: str, column: Any, numeric: bool) -> bool:
    if name.startswith(PREFIX):
        return True
    if is_numeric(column):
        return numeric
    days = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
    return is_text(column) or any(kind(column.type) for kind in days)


def _numbers(column: Any) -> torch.Tensor:
    """Return a column of numbers, as whole ones if they are."""
    if pa.types.is_signed_integer(column.type) and column.null_count == 0:
        return torch.from_numpy(column.to_numpy().astype(np.int64))  # floats would not hold large ones
    values = numbers(column)
    whole = len(values) > 0 and bool((np.isfinite(values) & (values == np.round(values))).all())
    return torch.from_numpy(values.astype(np.int64) if whole else values)


def attribute_columns(attributes: Mapping[str, torch.Tensor], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the attributes that have one value for each item as columns: names of categories, or numbers."""
    return {PREFIX + key: _column(value, names.get(key, ())) for key, value in attributes.items() if value.dim() == 1}


def _column(values: torch.Tensor, names: tuple[str, ...]) -> Any:
    if not names:
        return pa.array(values.numpy())
    return pa.array([names[code] if 0 <= code < len(names) else None for code in values.tolist()], pa.string())
