"""What a table of graphs says of each: one class, or yes or no or a number for each of several tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isthmus.data.folders.tables import columns
from isthmus.data.folders.tables.attributes import stated_attributes
from isthmus.data.folders.tables.reading import Table, is_numeric, is_text, listed, parsed_numbers

TARGETS = ("class", "binary", "value")
NO_TASKS = ("id", "split")


def read_targets(graphs: Table, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the labels and splits of a table of graphs, as a `GraphSet` has them.

    `names` are those of the classes or tasks, where they are stated.
    """
    if kind == "class":
        y, names = columns.labels(graphs, names)
        masks = columns.split_masks(graphs, y)
        return {"y": torch.from_numpy(y), "masks": masks, **columns.class_facts(y, names)}
    tasks = _task_columns(graphs, kind, names)
    values = np.full((graphs.num_rows, len(tasks)), np.nan)
    for number, name in enumerate(tasks):
        if name in graphs.columns:
            values[:, number] = _task_values(graphs, name, kind)
    known = np.where(np.isnan(values).all(axis=1), -1, 0)
    masks = columns.split_masks(graphs, known)
    labels = torch.from_numpy(values.astype(np.float32))
    return {"y": labels, "num_classes": len(tasks), "class_names": tasks, "masks": masks}


def _task_columns(graphs: Table, kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the tasks: those stated, or else all columns that hold numbers."""
    if names:
        missing = [name for name in names if name not in graphs.columns]
        if 0 < len(missing) < len(names):  # without any of them, nothing is known of the graphs
            graphs.note(f"no column {listed(missing)} for a task; columns found: {listed(graphs.columns)}")
        return names
    others = (*NO_TASKS, *stated_attributes(graphs))
    found = tuple(n for n, c in graphs.columns.items() if n not in others and (is_numeric(c) or _mostly_numbers(c)))
    if not found:
        graphs.note(f"no column of numbers for a task of the target {kind!r}; columns found: {listed(graphs.columns)}")
    return found


def _mostly_numbers(column: Any) -> bool:
    return is_text(column) and 2 * len(parsed_numbers(column)[1]) < len(column) and any(column.to_pylist())


def _task_values(graphs: Table, name: str, kind: str) -> npt.NDArray[np.float64]:
    """Return a task's labels, NaN where there is none."""
    column = graphs.columns[name]
    values, stray = parsed_numbers(column)
    wanted = "0 or 1 is needed, or nothing" if kind == "binary" else "a finite number is needed, or nothing"
    graphs.note_rows(stray, lambda row: f"{name} is {column[row].as_py()!r}; {wanted}")
    with np.errstate(over="ignore"):
        fits = np.isin(values, (0, 1)) if kind == "binary" else np.isfinite(values.astype(np.float32))
    graphs.note_rows(~fits & ~np.isnan(values), lambda row: f"{name} is {values[row]:g}; {wanted}")
    return values


def likely_target(graphs: Table) -> str:
    """Return what the labels of a table seem to be, where nobody says so."""
    label = graphs.columns.get("label")
    if label is not None and not _fractions(label):
        return "class"
    no_tasks = (*NO_TASKS, *stated_attributes(graphs))
    tasks = [c for n, c in graphs.columns.items() if n not in no_tasks and (is_numeric(c) or n == "label")]
    if not tasks:
        return "class"
    values = np.concatenate([parsed_numbers(column)[0] for column in tasks])
    return "binary" if np.isin(values[~np.isnan(values)], (0, 1)).all() else "value"


def _fractions(column: Any) -> bool:
    """Return whether a column holds numbers that are not all whole, and so no classes."""
    values, stray = parsed_numbers(column)
    given = values[~np.isnan(values)]
    return not stray and bool((given != np.floor(given)).any())
