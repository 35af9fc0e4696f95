"""A schema for a table that has none: what each column is, and the vocabularies that its values make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import nearest
from isthmus.data.folders.schema.schema import Category, Feature, Number, Schema, Text, Vector
from isthmus.data.folders.schema.vocabulary import categories, word_vocabulary, words
from isthmus.data.folders.tables.reading import Table, has_vectors, is_numeric, is_text, parsed_numbers
from isthmus.data.on_demand import compute

# A text column with more distinct values is not taken for a category by itself.
MOST_CATEGORIES = 50
# A text column with as many words in a row, on average, is taken for text.
WORDS_IN_A_TEXT = 3


@dataclass(frozen=True)
class Choices:
    """What the owner says about columns; the others are judged by their values.

    Fields:
        number, category, text: columns that are to be taken as such
        ignore:      columns that are left out
        standardize: whether numbers get mean 0 and standard deviation 1 on this table
        min_count:   in how many rows a word must occur to be taken into a vocabulary
        max_words:   how many words a vocabulary has at most
    """

    number: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    standardize: bool = False
    min_count: int = 2
    max_words: int = 1000


def derive_features(table: Table, choices: Choices) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """Return a feature for each column that can be one, filled from the table, and notes on those that cannot.

    A column of numbers, or with more numbers than anything else, is a number; of lists of numbers, a vector. A text
    column is a category if it has at most `MOST_CATEGORIES` distinct values and at most half as many as rows; a text
    if it has `WORDS_IN_A_TEXT` words a row or more. Any other, such as names or days, is left out.
    """
    for option in ("number", "category", "text", "ignore"):
        for name in getattr(choices, option):
            if name not in table.columns:
                table.note(f"--{option} names {name!r}; {nearest(name, table.columns)}")
    drafts: list[Feature] = []
    notes: list[str] = []
    for name in table.columns:
        if name in choices.ignore:
            continue
        draft = _draft(table, name, choices)
        if isinstance(draft, str):
            notes.append(f"left out: {name} ({draft})")
        else:
            drafts.append(draft)
    return fill_in(table, drafts, choices.standardize), tuple(notes)


def fill_in(table: Table, drafts: Iterable[Feature], standardize: bool) -> tuple[Feature, ...]:
    """Return features with the vocabularies (and means, if numbers are to be standardised) that they lack."""
    return tuple(_filled(table, draft, standardize) if draft.name in table.columns else draft for draft in drafts)


def _draft(table: Table, name: str, choices: Choices) -> Feature | str:
    """Return what a column is to become, or why it is left out."""
    column = table.columns[name]
    if name in choices.number:
        return Number(name)
    if name in choices.category:
        return Category(name)
    if name in choices.text:
        return Text(name, min_count=choices.min_count, max_size=choices.max_words)
    if column.null_count == len(column):
        return "empty"
    if is_numeric(column):
        return Number(name)
    size = _vector_size(column)
    if size:
        return Vector(name, size)
    return _draft_of_text(table, name, choices) if is_text(column) else f"of type {column.type}"


def _draft_of_text(table: Table, name: str, choices: Choices) -> Feature | str:
    column = table.columns[name]
    given = [value.strip() for value in column.to_pylist() if value and value.strip()]
    if not given:
        return "empty"
    values, stray = parsed_numbers(column)
    # Where most are numbers, the column is meant as such, and the others will be told as mistakes.
    if 2 * len(stray) < len(given) and not np.isnan(values).all():
        return Number(name)
    distinct = len(set(given))
    if distinct <= min(MOST_CATEGORIES, table.num_rows // 2):
        return Category(name)
    if sum(len(words(value)) for value in given) >= WORDS_IN_A_TEXT * len(given):
        return Text(name, min_count=choices.min_count, max_size=choices.max_words)
    return f"{distinct} distinct values in {table.num_rows} rows; --category or --text takes it in"


def _vector_size(column: Any) -> int:
    """Return how long the lists of a column are, or 0 if it holds no lists of numbers of one length."""
    if not has_vectors(column):
        return 0
    # A row of another length is a mistake in the row, so that the most frequent length stands.
    lengths = compute.list_value_length(column).drop_null().value_counts().to_pylist()
    return int(max(lengths, key=lambda entry: entry["counts"])["values"]) if lengths else 0


def _filled(table: Table, draft: Feature, standardize: bool) -> Feature:
    if isinstance(draft, Number) and standardize and not draft.scaled:
        return _standardized(draft, parsed_numbers(table.columns[draft.name])[0])
    if not isinstance(draft, Category | Text) or draft.vocabulary is not None:
        return draft
    strings = table.text(draft.name)
    values_given = [] if strings is None else strings.to_pylist()
    if isinstance(draft, Category):
        return replace(draft, vocabulary=categories(values_given))
    return replace(draft, vocabulary=word_vocabulary(values_given, draft.min_count, draft.max_size))


def _standardized(draft: Number, values: npt.NDArray[np.float64]) -> Number:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return draft
    spread = float(finite.std())
    return replace(draft, mean=float(finite.mean()), std=spread if spread > 0 else 1.0)


def lacking(schema: Schema) -> list[str]:
    """Return the features of a draft that have no vocabulary yet."""
    return [f.name for f in schema.features if isinstance(f, Category | Text) and f.vocabulary is None]
