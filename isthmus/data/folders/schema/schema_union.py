"""One schema for several silos: the union of theirs, the same whoever makes it and in whatever order they come.

What silos give each other for it is a schema, not data: `of_folder` says what a folder's columns are, with how many
rows have seen them, so that means can be pooled and words be ranked.

    features   those of any silo, by name. All the same and in one order: that order; else the alphabet's
    number     means and deviations pooled by rows, over the silos that standardise it; all the same weight where one
               does not say its rows. Nobody standardises: as it is. A `fill` that only some have is taken
    category   the values of all, in the order of `vocabulary.categories`. `unknown`: other before drop before refuse
    text       the words of all, in alphabetical order; with a limit, those in most rows, or in most silos where one
               does not say its rows. `min_count` is the smallest of all
    vector     must be of one size
    classes    all the same and in one order: that order; else that of `vocabulary.categories`
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from isthmus.data.features import scipy_rows
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.folders.schema.schema import UNKNOWN, Category, Feature, Number, Schema, Text, Vector
from isthmus.data.folders.schema.vocabulary import categories
from isthmus.data.folders.tables.reading import Problems, listed

Kind = TypeVar("Kind", bound=Feature)
# So near to mean 0 and deviation 1 are columns that their own schema standardised: float32 and nothing else.
NEARLY = 1e-4


def of_folder(path: str | Path, counts: bool = True) -> Schema:
    """Return the schema of a graph folder, with the rows that have seen its numbers and words if `counts`.

    A folder without schema.yaml has its columns as numbers, as they are, or a vector where they have no names.
    """
    read = read_graph_folder(path, undirected=False)
    schema = without_counts(read.schema or schema_of(read.graph))
    if not counts:
        return schema
    features, place, matrix = [], 0, scipy_rows(read.graph.x).tocsc()
    for feature in schema.features:
        width = len(feature.columns)
        features.append(_counted(feature, matrix[:, place : place + width]))
        place += width
    return replace(schema, features=tuple(features))


def schema_of(graph: Any) -> Schema:
    """Return a schema for a graph whose owner has none: every column as it is, named as in a folder."""
    width, dense = graph.num_features, graph.x.layout != torch.sparse_csr
    names = graph.feature_names or (tuple(f"x{number}" for number in range(width)) if dense else ())
    features: tuple[Feature, ...] = tuple(Number(name) for name in names) or (Vector("x", width),)
    return Schema(features, graph.class_names)


def _counted(feature: Feature, block: Any) -> Feature:
    """Return a feature with what the rows of a folder tell of it; `block` are its columns, a CSC matrix of scipy."""
    if isinstance(feature, Text):
        return replace(feature, counts=tuple(np.asarray((block != 0).sum(axis=0)).ravel().tolist()))
    if not isinstance(feature, Number):
        return feature
    counted = replace(feature, count=int(block.shape[0]))
    if not feature.scaled:
        return counted
    values = block.toarray().astype(np.float64).ravel()
    mean, std = float(values.mean()), float(values.std())
    if std == 0.0 or (abs(mean) < NEARLY and abs(std - 1.0) < NEARLY):
        return counted  # they were standardised by this very folder's mean and deviation
    return replace(counted, mean=_short(feature.mean + feature.std * mean), std=_short(feature.std * std))


def union(schemas: Mapping[str, Schema], max_words: int | None = None, common: bool = False) -> Schema:
    """Return the union of schemas, given by what errors call them; raises one BadInput with all that contradicts.

    With `common`, features that not all have are left out.
    """
    problems = Problems(f"no union of {listed(sorted(schemas))}")
    owners = dict(sorted(schemas.items()))
    held = _held(owners)
    taken = [name for name, by_owner in held.items() if not common or len(by_owner) == len(owners)]
    features = [_joint(name, held[name], max_words, problems) for name in taken]
    classes = _names([schema.classes for schema in owners.values() if schema.classes], categories)
    problems.raise_if_any()
    return Schema(tuple(features), classes)


def _held(owners: Mapping[str, Schema]) -> dict[str, dict[str, Feature]]:
    """Return for the name of each feature, in the order of the union, who has one of that name, and which."""
    own = {who: {feature.name: feature for feature in schema.features} for who, schema in owners.items()}
    names = _names([tuple(feature.name for feature in schema.features) for schema in owners.values()], sorted)
    return {name: {who: features[name] for who, features in own.items() if name in features} for name in names}


def _names(lists: Sequence[tuple[str, ...]], ordered: Callable[[set[str]], Sequence[str]]) -> tuple[str, ...]:
    """Return the names of all lists: in their order where that is one, else in an order of their own."""
    if len(set(lists)) <= 1:
        return lists[0] if lists else ()
    return tuple(ordered({name for names in lists for name in names}))


def _joint(name: str, held: Mapping[str, Feature], max_words: int | None, problems: Problems) -> Feature:
    """Return what becomes of a feature; any of those that are held after noting why they cannot become one."""
    features = list(held.values())
    wrong = _contradiction(held)
    if wrong:
        problems.add(f"feature {name!r}", wrong)
        return features[0]
    if isinstance(features[0], Number):
        return _number(name, _only(features, Number), problems)
    if isinstance(features[0], Category):
        of_values = _only(features, Category)
        values = _names([feature.vocabulary or () for feature in of_values], categories)
        rules = {feature.unknown for feature in of_values}
        return Category(name, values, next(rule for rule in UNKNOWN if rule in rules))
    return _text(_only(features, Text), max_words) if isinstance(features[0], Text) else features[0]


def _contradiction(held: Mapping[str, Feature]) -> str:
    """Return why features of one name cannot become one; nothing if they can."""
    if len({type(feature) for feature in held.values()}) > 1:
        told = ", ".join(f"{feature.type} in {who}" for who, feature in held.items())
        return f"is {told}; let all have one type, or different names (--rename)"
    draft = [who for who, f in held.items() if isinstance(f, Category | Text) and f.vocabulary is None]
    if draft:
        return f"has no vocabulary in {listed(draft)}: that is a draft; import data with it first"
    sizes = sorted({vector.size for vector in _only(list(held.values()), Vector)})
    return f"has vectors of {' and '.join(map(str, sizes))} numbers; one size is needed" if len(sizes) > 1 else ""


def _only(features: Sequence[Feature], kind: type[Kind]) -> list[Kind]:
    return [feature for feature in features if isinstance(feature, kind)]


def _number(name: str, features: Sequence[Number], problems: Problems) -> Number:
    fills = sorted({feature.fill for feature in features if feature.fill is not None})
    if len(fills) > 1:
        told = " and ".join(f"{fill:g}" for fill in fills)
        problems.add(f"feature {name!r}", f"fill is {told}; agree on one")
    mean, std = _pooled([feature for feature in features if feature.scaled])
    counts = _counts(features)
    return Number(name, mean, std, fills[0] if fills else None, None if counts is None else sum(counts))


def _counts(features: Sequence[Number]) -> list[int] | None:
    """Return how many rows each has; None where one does not say."""
    counts = [feature.count for feature in features if feature.count is not None]
    return counts if len(counts) == len(features) else None


def _pooled(features: Sequence[Number]) -> tuple[float, float]:
    """Return the mean and deviation of all rows together: of as many in each where one does not say how many it has."""
    if len({(feature.mean, feature.std) for feature in features}) <= 1:
        return (features[0].mean, features[0].std) if features else (0.0, 1.0)
    counts = _counts(features) or []
    weights = [float(count) for count in counts] if any(counts) else [1.0] * len(features)
    total = math.fsum(weights)
    # fsum is exact, so that the order of the silos does not change a bit.
    mean = math.fsum(w * f.mean for w, f in zip(weights, features, strict=True)) / total
    spread = [w * (f.std**2 + (f.mean - mean) ** 2) for w, f in zip(weights, features, strict=True)]
    return _short(mean), _short(math.sqrt(math.fsum(spread) / total)) or 1.0


def _short(value: float) -> float:
    return float(f"{value:.9g}")


def _text(features: Sequence[Text], max_words: int | None) -> Text:
    silos: Counter[str] = Counter(word for feature in features for word in feature.vocabulary or ())
    rows = _rows_with_words(features)
    rank = silos if rows is None else rows
    words = sorted(sorted(silos, key=lambda word: (-rank[word], word))[:max_words])
    return Text(
        features[0].name,
        tuple(words),
        min(feature.min_count for feature in features),
        max_words or max(len(words), *(feature.max_size for feature in features)),
        None if rows is None else tuple(rows[word] for word in words),
    )


def _rows_with_words(features: Sequence[Text]) -> Counter[str] | None:
    """Return in how many rows each word occurs; None where one does not say."""
    rows: Counter[str] = Counter()
    for feature in features:
        if feature.counts is None:
            return None
        rows.update(dict(zip(feature.vocabulary or (), feature.counts, strict=False)))
    return rows


def gained(union: Schema, own: Schema) -> list[str]:
    """Return in words what a silo lacks of the union: columns that it will have, with nothing or little in them."""
    theirs = {feature.name: feature for feature in own.features}
    lines = [line for feature in union.features for line in _gained(feature, theirs.get(feature.name))]
    return [*lines, *_not_seen("classes", union.classes, own.classes or union.classes)]


def _gained(feature: Feature, mine: Feature | None) -> list[str]:
    if mine is None:
        return [f"{feature.name}: has no such column; it needs one, or the feature has to go (--common)"]
    if not isinstance(feature, Category | Text):
        return []
    return _not_seen(feature.name, feature.vocabulary or (), getattr(mine, "vocabulary", None) or ())


def _not_seen(what: str, values: Sequence[str], seen: Sequence[str]) -> list[str]:
    known = set(seen)
    new = [value for value in values if value not in known]
    return [f"{what}: {len(new)} it has not seen: {listed(new, 5)}"] if new else []


def without_counts(schema: Schema) -> Schema:
    """Return a schema that does not say how many rows have seen what."""
    blank: dict[type[Feature], dict[str, Any]] = {Number: {"count": None}, Text: {"counts": None}}
    return replace(schema, features=tuple(replace(f, **blank.get(type(f), {})) for f in schema.features))
