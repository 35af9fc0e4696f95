"""The owner's columns as features, the way a schema says; what does not fit is told by row or counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import nearest
from isthmus.data.conventions import SPARSE_DENSITY
from isthmus.data.folders.schema.schema import Category, Feature, Number, Schema, Text, Vector
from isthmus.data.folders.schema.vocabulary import words
from isthmus.data.folders.tables import number_block, reading
from isthmus.data.folders.tables.number_block import BlockColumn
from isthmus.data.folders.tables.reading import Table, counted, listed, parsed_numbers
from isthmus.data.on_demand import compute, pa, sparse

# More columns than this, or any of words or vectors, and the features go to features.npz.
MOST_COLUMNS = 200
# So many notes are told.
MOST_NOTES = 20
# So many columns of numbers are put next to each other in one go.
SIDE_BY_SIDE = 64


def encode(table: Table, schema: Schema, notes: list[str]) -> Any:
    """Return the features of a table's rows, or None after noting what keeps them from being made.

    They are (nodes, columns), float32: a numpy array, or a scipy CSR matrix when few entries are set. What was not in a
    vocabulary or filled in is added to `notes`, in words.
    """
    before = table.problems.num_found
    told: list[str] = []
    blocks = _blocks(table, schema, told)
    if table.problems.num_found > before:
        return None
    notes += told[:MOST_NOTES]
    if len(told) > MOST_NOTES:
        notes.append(f"... ({len(told)} such notes in all)")
    if not named_columns(schema) and _few_are_set(blocks, table.num_rows):
        rows = [number_block.sparse_rows_of(block) if isinstance(block, np.ndarray) else block for block in blocks]
        return sparse.hstack(rows, format="csr", dtype=np.float32)
    dense = [block if isinstance(block, np.ndarray) else block.toarray() for block in blocks]
    return dense[0] if len(dense) == 1 else np.concatenate(dense, axis=1)


def _few_are_set(blocks: Sequence[Any], num_rows: int) -> bool:
    counts = [number_block.num_set(block) if isinstance(block, np.ndarray) else block.nnz for block in blocks]
    size = num_rows * sum(block.shape[1] for block in blocks)
    return bool(sum(counts) < SPARSE_DENSITY * size)


def _blocks(table: Table, schema: Schema, notes: list[str]) -> list[Any]:
    """Return the columns of features, numbers that follow each other as one block; numpy arrays or scipy CSR."""
    blocks: list[Any] = []
    for kind, run in groupby(schema.features, key=type):
        if kind is Number:
            blocks.append(_number_block(table, list(run), notes))
        else:
            blocks += [_block(table, feature, notes) for feature in run]
    return blocks


def _is_there(table: Table, feature: Feature) -> bool:
    if feature.name in table.columns:
        return True
    what = f"no column {feature.name!r}, which the schema has as {feature.type}"
    table.note(f"{what}; {nearest(feature.name, table.columns)}")
    return False


def named_columns(schema: Schema) -> bool:
    """Return whether the features go into columns of the table of nodes."""
    return len(schema.columns) <= MOST_COLUMNS and all(isinstance(f, Number | Category) for f in schema.features)


def _block(table: Table, feature: Feature, notes: list[str]) -> Any:
    """Return the columns of one feature, (nodes, its columns)."""
    if not _is_there(table, feature):
        return None
    if isinstance(feature, Vector):
        return _vectors(table, feature)
    strings = table.text(feature.name)
    if strings is None:
        return None
    if isinstance(feature, Category):
        return _categories(table, feature, strings.to_pylist(), notes)
    assert isinstance(feature, Text)
    return _bags_of_words(feature, strings.to_pylist(), notes)


def _number_block(table: Table, features: Sequence[Feature], notes: list[str]) -> npt.NDArray[np.float32]:
    """Return numbers side by side, (nodes, features)."""
    block, others = _taken_over(table, features)
    for start in range(0, len(others), SIDE_BY_SIDE):
        group = others[start : start + SIDE_BY_SIDE]
        columns = [_numbers(table, features[place], notes) for place in group]
        found = [column for column in columns if column is not None]
        if len(found) == len(group):
            # Some at a time, so that a row's numbers are written next to each other; + 0 makes -0 a plain 0.
            block[:, group] = np.stack(found).T + np.float32(0)
    return block


def _taken_over(table: Table, features: Sequence[Feature]) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Return numbers side by side as far as they are read so and stay as they are, and the places of all others."""
    read = _staying(table, features)
    if not read:
        return np.zeros((table.num_rows, len(features)), dtype=np.float32), list(range(len(features)))
    matrix = next(iter(read.values())).matrix
    order = [column.place for column in read.values()]
    odd = set(number_block.not_finite(matrix))
    if not odd and len(read) == len(features) and order == list(range(matrix.shape[1])):
        return matrix, []
    block = np.zeros((table.num_rows, len(features)), dtype=np.float32)
    block[:, list(read)] = matrix[:, order]
    return block, [place for place in range(len(features)) if place not in read or read[place].place in odd]


def _staying(table: Table, features: Sequence[Feature]) -> dict[int, BlockColumn]:
    """Return the columns of numbers that are read side by side and stay as they are, by their features' places."""
    plain = {i: f.name for i, f in enumerate(features) if isinstance(f, Number) and not f.scaled}
    columns = {place: table.columns.get(name) for place, name in plain.items()}
    return {place: column for place, column in columns.items() if isinstance(column, BlockColumn)}


def _numbers(table: Table, feature: Feature, notes: list[str]) -> npt.NDArray[np.float32] | None:
    if not _is_there(table, feature):
        return None
    assert isinstance(feature, Number)
    name, column = table.name(feature.name), table.columns[feature.name]
    if not (reading.is_numeric(column) or reading.is_text(column)):
        table.note(f"column {name!r} is of type {column.type}; numbers are needed")
        return None
    values, stray = parsed_numbers(column)
    table.note_rows(stray, lambda row: f"{name} is {column[row].as_py()!r}; a number is needed")
    missing = np.isnan(values)
    missing[stray] = False
    if feature.fill is not None and missing.any():
        values[missing] = feature.fill
        notes.append(f"{name}: {counted(int(missing.sum()), 'missing number')}, filled in with {feature.fill:g}")
    with np.errstate(over="ignore"):
        scaled = ((values - feature.mean) / feature.std).astype(np.float32)
    wrong = ~np.isfinite(scaled)
    wrong[stray] = False
    table.note_rows(wrong, lambda row: f"{name} is {values[row]}; a finite number is needed")
    return scaled


def _vectors(table: Table, feature: Vector) -> npt.NDArray[np.float32] | None:
    name, column = table.name(feature.name), table.columns[feature.name]
    if not reading.has_vectors(column):
        table.note(f"column {name!r} is of type {column.type}; lists of numbers are needed")
        return None
    lengths = compute.fill_null(compute.list_value_length(column), -1).to_numpy()
    odd = lengths != feature.size
    table.note_rows(
        odd,
        lambda row: (
            f"{name} is {'missing' if lengths[row] < 0 else f'of length {lengths[row]}'}; "
            f"{feature.size} numbers are needed"
        ),
    )
    if odd.any():
        return None
    values = _side_by_side(column, feature.size)
    finite = [np.isfinite(piece).all(axis=1) for piece in number_block.pieces(values)]
    wrong = ~np.concatenate([np.ones(0, dtype=bool), *finite])
    table.note_rows(wrong, lambda row: f"{name} holds a value that is not finite")
    return values


def _side_by_side(column: Any, size: int) -> npt.NDArray[np.float32]:
    """Return lists of `size` numbers as rows; it may be the column's own memory."""
    if column.num_chunks == 1:
        only = _flat(column.chunk(0))
        if only.dtype == np.float32:
            return only.reshape(len(column), size)
    values = np.empty((len(column), size), dtype=np.float32)
    start = 0
    for chunk in column.chunks:
        with np.errstate(over="ignore"):
            values[start : start + len(chunk)] = _flat(chunk).reshape(len(chunk), size)
        start += len(chunk)
    return values


def _flat(lists: Any) -> npt.NDArray[np.floating[Any]]:
    """Return the numbers of lists one after the other; of single precision where they are."""
    flat = lists.flatten()
    single = pa.types.is_float32(flat.type) and flat.null_count == 0
    found: npt.NDArray[np.floating[Any]] = flat.to_numpy() if single else number_block.read_only_numbers(flat)
    return found


def _categories(table: Table, feature: Category, values: list[str], notes: list[str]) -> npt.NDArray[np.float32]:
    place = {value: number for number, value in enumerate(feature.vocabulary or ())}
    block = np.zeros((len(values), len(feature.columns)), dtype=np.float32)
    number = np.array([place.get(value, -1) for value in values], dtype=np.int64)
    known = np.flatnonzero(number >= 0)
    block[known, number[known]] = 1.0
    unknown = [row for row in np.flatnonzero(number < 0).tolist() if values[row]]
    if feature.unknown == "refuse":
        name = table.name(feature.name)
        table.note_rows(
            unknown, lambda row: f"{name} is {values[row]!r}, which is none of the schema's values {listed(place)}"
        )
        return block
    if feature.unknown == "other":
        block[unknown, -1] = 1.0
    if unknown:
        notes.append(_note_of_unknown(feature, values, unknown))
    missing = values.count("")
    if missing:
        notes.append(f"{feature.name}: {counted(missing, 'missing value')}, given on as zeros")
    return block


def _note_of_unknown(feature: Category, values: list[str], unknown: list[int]) -> str:
    fate = f"counted in {feature.columns[-1]!r}" if feature.unknown == "other" else "dropped"
    most = _most(values[row] for row in unknown)
    return f"{feature.name}: {counted(len(unknown), 'value')} not in the vocabulary, {fate}: {most}"


def _bags_of_words(feature: Text, texts: list[str], notes: list[str]) -> Any:
    place = {word: number for number, word in enumerate(feature.vocabulary or ())}
    known: Counter[tuple[int, int]] = Counter()
    unknown: Counter[str] = Counter()
    for row, value in enumerate(texts):
        for word in words(value):
            if word in place:
                known[row, place[word]] += 1
            else:
                unknown[word] += 1
    if unknown:
        total = sum(unknown.values()) + sum(known.values())
        most = _most(unknown.elements())
        notes.append(f"{feature.name}: {unknown.total()} of {total} words not in the vocabulary, dropped: {most}")
    entries = np.asarray(list(known), dtype=np.int64).reshape(-1, 2)
    counts = np.asarray(list(known.values()), dtype=np.float32)
    return sparse.csr_matrix((counts, (entries[:, 0], entries[:, 1])), shape=(len(texts), len(place)))


def _most(values: Any) -> str:
    """Return the most frequent values with their counts, for a note."""
    counts = Counter(values)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{value!r} {count}" for value, count in ordered[:5])
    return f"{shown}, ... ({len(ordered)} in all)" if len(ordered) > 5 else shown
