"""What the feature columns of a graph mean, written down so that several silos make the same ones.

    features:
    - {name: age, type: number, mean: 41.5, std: 12.0}
    - {name: country, type: category, vocabulary: [AT, CH, DE], unknown: other}
    - {name: notes, type: text, vocabulary: [late, loan], min_count: 2, max_size: 1000}
    - {name: embedding, type: vector, size: 128}
    classes: [business, private]

Silos that follow the same schema have the same feature columns in the same order, and the same class numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import read_yaml, replace_file
from isthmus.data.conventions import misplaced
from isthmus.data.folders.schema.vocabulary import words
from isthmus.data.folders.tables.reading import ROWS_SHOWN, Problems

SCHEMA_FILE = "schema.yaml"
UNKNOWN = ("other", "drop", "refuse")
# Names that YAML takes for text as they stand, but for the words that it takes for something else.
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}", re.ASCII)
YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


@dataclass(frozen=True)
class Feature:
    """A column of the owner's table of nodes, and how it becomes columns of numbers."""

    type: ClassVar[str]

    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the feature columns that it becomes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Number(Feature):
    """A number, given on as (value - mean) / std.

    Fields:
        mean, std: what standardises it; 0 and 1 leave it as it is
        fill:      what stands for a missing number; None refuses them
        count:     how many rows mean and std were taken from, for a union with those of others; None if not told
    """

    type: ClassVar[str] = "number"

    mean: float = 0.0
    std: float = 1.0
    fill: float | None = None
    count: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """One column of the same name."""
        return (self.name,)

    @property
    def scaled(self) -> bool:
        """Whether it is given on otherwise than as it is."""
        return (self.mean, self.std) != (0.0, 1.0)


@dataclass(frozen=True)
class Category(Feature):
    """One out of a list of values: a column for each, 1 where the node has it. A missing value is all zeros.

    Fields:
        vocabulary: the values, in the order of their columns; None until it is taken from data
        unknown:    what becomes of a value not in the list: "other" (one more column), "drop" (zeros) or "refuse"
    """

    type: ClassVar[str] = "category"

    vocabulary: tuple[str, ...] | None = None
    unknown: str = "other"

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of a value is named `name=value`, that of all others `name=(other)`."""
        values = (*(self.vocabulary or ()), *(("(other)",) if self.unknown == "other" else ()))
        return tuple(f"{self.name}={value}" for value in values)


@dataclass(frozen=True)
class Text(Feature):
    """A bag of words: a column for each word of the vocabulary, with how often it occurs; other words are dropped.

    Fields:
        vocabulary: the words, in the order of their columns, as `folders/schema/vocabulary.py` cuts them; None
                    until it is taken from data
        min_count:  in how many texts a word must occur to be taken into the vocabulary
        max_size:   how many words are taken at most, the most frequent ones
        counts:     in how many rows each word occurs, for a union with those of others; None if not told
    """

    type: ClassVar[str] = "text"

    vocabulary: tuple[str, ...] | None = None
    min_count: int = 2
    max_size: int = 1000
    counts: tuple[int, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of a word is named `name:word`."""
        return tuple(f"{self.name}:{word}" for word in self.vocabulary or ())


@dataclass(frozen=True)
class Vector(Feature):
    """A list of as many numbers in every row, such as an embedding, given on as it is.

    Fields:
        size: how many numbers
    """

    type: ClassVar[str] = "vector"

    size: int = 1

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns are named `name[0]`, `name[1]`, ..."""
        return tuple(f"{self.name}[{number}]" for number in range(self.size))


TYPES: dict[str, type[Feature]] = {kind.type: kind for kind in (Category, Number, Text, Vector)}


@dataclass(frozen=True)
class Schema:
    """The features of a graph's nodes in their order, and the names of the classes in the order of their numbers."""

    features: tuple[Feature, ...]
    classes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all feature columns."""
        return tuple(column for feature in self.features for column in feature.columns)

    @property
    def digest(self) -> str:
        """A short text that differs between schemas that differ in what columns mean, not in how many rows saw them."""
        plain = self.plain()
        plain["features"] = [{k: v for k, v in f.items() if k not in ("count", "counts")} for f in plain["features"]]
        # A letter in front, or YAML would take one in two thousand for a number.
        return "s" + hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:15]

    def plain(self) -> dict[str, Any]:
        """Return the schema as plain values, as the file has them."""
        features = []
        for feature in self.features:
            values = {f.name: getattr(feature, f.name) for f in fields(feature) if f.name != "name"}
            given = {key: value for key, value in values.items() if value is not None}
            plain = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
            features.append({"name": feature.name, "type": feature.type, **plain})
        return {"features": features, "classes": list(self.classes)}


def to_yaml(schema: Schema) -> str:
    """Return the text of a schema file."""
    head = "# What the feature columns mean. Silos that follow the same file have the same columns in the same order.\n"
    plain = schema.plain()
    if not plain["features"]:
        return head + _dumped(plain)
    # Of thousands of numbers, each line is what the dumper would make of it, in a hundredth of the time.
    lines = [_plain_line(entry) or _dumped({"": [entry]}).partition("\n")[2] for entry in plain["features"]]
    return head + "features:\n" + "".join(lines) + _dumped({"classes": plain["classes"]})


def _dumped(plain: dict[str, Any]) -> str:
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    body: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return body


def _plain_line(entry: dict[str, Any]) -> str:
    """Return the line of a number that is given on as it is and has a name that YAML takes for text; else nothing."""
    name = entry["name"]
    same = entry == {"name": name, "type": Number.type, "mean": 0.0, "std": 1.0}
    if not same or not PLAIN_NAME.fullmatch(name) or name.lower() in YAML_WORDS:
        return ""
    return f"- {{name: {name}, type: number, mean: 0.0, std: 1.0}}\n"


def write_schema(schema: Schema, path: str | Path) -> None:
    """Write a schema file, all of it or nothing; a file that is there is left alone."""
    path = Path(path)
    if path.exists():
        raise BadInput(f"{path} exists already; choose another file, or follow it with --schema {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, to_yaml(schema).encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from None


def read_schema(path: str | Path) -> Schema:
    """Return the schema in a file, or raise one BadInput that tells everything that is wrong with it."""
    path = Path(path)
    return parse_schema(read_yaml(path), str(path))


def digest_at(folder: Path) -> str:
    """Return the digest of the schema in a folder; nothing where it has none that can be read."""
    try:
        return read_schema(folder / SCHEMA_FILE).digest if (folder / SCHEMA_FILE).is_file() else ""
    except BadInput:  # whoever reads the folder says so
        return ""


def parse_schema(raw: Any, source: str) -> Schema:
    """Return the schema that plain values describe; `source` is what errors name."""
    problems = Problems(source)
    if not isinstance(raw, dict) or not isinstance(raw.get("features"), list):
        raise BadInput(f"{source}: is no schema; a list of features is needed, each with a name and a type")
    for key in raw:
        if key not in ("features", "classes"):
            problems.add(str(key), f"is not a known key; {nearest(str(key), ('features', 'classes'))}")
    found = [_feature(entry, f"features[{place}]", problems) for place, entry in enumerate(raw["features"])]
    classes = _names(raw.get("classes") or [], "classes", problems)
    problems.raise_if_any()
    schema = Schema(tuple(feature for feature in found if feature is not None), classes or ())
    _note_repeated(schema, problems)
    problems.raise_if_any()
    return schema


def _note_repeated(schema: Schema, problems: Problems) -> None:
    for what, names in (("features", [f.name for f in schema.features]), ("columns", schema.columns)):
        for name in repeated(names)[:1]:
            problems.add(what, f"more than one has the name {name!r}")


def _feature(raw: Any, where: str, problems: Problems) -> Feature | None:
    if not isinstance(raw, dict):
        problems.add(where, f"is {raw!r}; a name and a type are needed, as in {{name: age, type: number}}")
        return None
    name, kind = raw.get("name"), raw.get("type")
    if not isinstance(name, str) or not name:
        problems.add(where, f"name is {name!r}; the name of a column is needed, in quotes if it is a number")
        return None
    where = f"feature {name!r}"
    if not isinstance(kind, str) or kind not in TYPES:
        problems.add(where, f"type is {kind!r}; {nearest(str(kind), TYPES)}")
        return None
    return _checked(TYPES[kind], _values(raw, TYPES[kind], where, problems), where, problems)


def _values(raw: dict[Any, Any], kind: type[Feature], where: str, problems: Problems) -> dict[str, Any]:
    """Return what is said of a feature, lists as tuples, after noting keys that its kind does not have."""
    values: dict[str, Any] = {}
    known = [f.name for f in fields(kind)]
    for key, value in raw.items():
        if key == "type":
            continue
        if key not in known:
            problems.add(where, f"{key} is not a known key; {nearest(str(key), [*known, 'type'])}")
        elif key == "counts":
            values[key] = tuple(value) if isinstance(value, list) else value
        elif key == "vocabulary":
            values[key] = None if value is None else _names(value, f"{where}: vocabulary", problems)
        else:
            values[key] = value
    return values


def _checked(kind: type[Feature], values: dict[str, Any], where: str, problems: Problems) -> Feature | None:
    scale: dict[str, Any] = {key: values[key] for key in ("mean", "std") if key in values}
    if values.get("fill") is not None:
        scale["fill"] = values["fill"]
    wrong = [*_wrong_scale(scale), *_wrong_counts(values)]
    if kind is Text:
        wrong += _wrong_words(values.get("counts"), values.get("vocabulary") or ())
    unknown = values.get("unknown", "other")
    if unknown not in UNKNOWN:
        wrong.append(f"unknown is {unknown!r}; {nearest(str(unknown), UNKNOWN)}")
    for what in wrong:
        problems.add(where, what)
    return None if wrong else kind(**values | {key: float(value) for key, value in scale.items()})


def _wrong_scale(scale: dict[str, Any]) -> Iterator[str]:
    for key, value in scale.items():
        if not _is_finite(value):
            yield f"{key} is {value!r}; a finite number is needed"
        elif key == "std" and value <= 0:
            yield f"std is {value!r}; a number above 0 is needed"


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float holds; of whole ones some are too large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _wrong_counts(values: dict[str, Any]) -> Iterator[str]:
    for key in ("min_count", "max_size", "size"):
        value = values.get(key, 1)
        if not _is_whole(value, 1):
            yield f"{key} is {value!r}; a whole number from 1 is needed"
    count = values.get("count")
    if count is not None and not _is_whole(count, 0):
        yield f"count is {count!r}; a number of rows is needed"


def _wrong_words(counts: Any, vocabulary: tuple[str, ...]) -> Iterator[str]:
    each = isinstance(counts, tuple) and all(_is_whole(number, 0) for number in counts)
    if counts is not None and not (each and len(counts) == len(vocabulary)):
        yield f"counts has not one number of rows for each of the {len(vocabulary)} words"
    for odd in [word for word in vocabulary if words(word) != [word]][:1]:
        yield f"vocabulary has {odd!r}, which no text is cut into; one word in small letters is needed"


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _names(raw: Any, where: str, problems: Problems) -> tuple[str, ...] | None:
    if not isinstance(raw, list):
        problems.add(where, f"is {raw!r}; a list is needed")
        return None
    odd = [value for value in raw if isinstance(value, bool) or not isinstance(value, str | int) or value == ""]
    if odd:
        # YAML takes NO for a truth value, 2026-01-31 for a day and 1.0 for a number.
        problems.add(where, f"has {odd[0]!r}; write it in quotes if it is meant as text")
        return None
    names = tuple(str(value) for value in raw)
    for name in repeated(names)[:1]:
        problems.add(where, f"has {name!r} more than once")
        return None
    return names


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def compare_columns(own: tuple[str, ...], wanted: tuple[str, ...], where: str, problems: Problems) -> None:
    """Note column by column where a folder's feature columns are not those of a schema."""
    missing, extra, moved = misplaced(own, wanted)
    _note(problems, where, missing, lambda i: f"column {wanted[i]!r} is missing; it is number {i + 1} of the schema")
    _note(problems, where, extra, lambda i: f"column {own[i]!r} (number {i + 1}) is not in the schema")
    place = {name: number for number, name in enumerate(own)}
    told = "column {!r} is number {}, number {} in the schema"
    _note(problems, where, moved, lambda i: told.format(wanted[i], place[wanted[i]] + 1, i + 1))


def compare_schemas(own: Schema, wanted: Schema, where: str, problems: Problems) -> None:
    """Note feature by feature where the schema a folder was made by is not the one wanted."""
    compare_columns(own.columns, wanted.columns, where, problems)
    theirs = {feature.name: feature for feature in wanted.features}
    for feature in own.features:
        other = theirs.get(feature.name)
        if other is None or feature == other:
            continue
        if type(feature) is not type(other):
            problems.add(where, f"feature {feature.name!r} is of type {feature.type}, {other.type} in the schema")
            continue
        for key in ("mean", "std", "fill", "unknown"):
            here, there = getattr(feature, key, None), getattr(other, key, None)
            if here != there:
                problems.add(where, f"feature {feature.name!r}: {key} is {here!r}, {there!r} in the schema")
    _compare_classes(own.classes, wanted.classes, where, problems)


def _compare_classes(mine: tuple[str, ...], others: tuple[str, ...], where: str, problems: Problems) -> None:
    _note(problems, where, [c for c in others if c not in mine], lambda c: f"class {c!r} is missing")
    _note(problems, where, [c for c in mine if c not in others], lambda c: f"class {c!r} is not in the schema")
    if mine != others and set(mine) == set(others):
        problems.add(where, f"classes are in the order {', '.join(mine)}; in the schema {', '.join(others)}")


def _note(problems: Problems, where: str, items: list[Any], tell: Any) -> None:
    for item in items[:ROWS_SHOWN]:
        problems.add(where, tell(item))
    if len(items) > ROWS_SHOWN:
        problems.lines.append(f"{where}: {len(items) - ROWS_SHOWN} more like these")
        problems.num_found += len(items) - ROWS_SHOWN
