"""From the owner's tables to a graph folder: who is what, features by a schema, labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import nearest
from isthmus.data.folders.schema.derive import Choices, derive_features, fill_in, lacking
from isthmus.data.folders.schema.encoding import encode, named_columns
from isthmus.data.folders.schema.schema import Feature, Number, Schema, Vector, repeated
from isthmus.data.folders.schema.vocabulary import categories, is_whole
from isthmus.data.folders.tables import columns, reading
from isthmus.data.folders.tables.columns import PREFIX, stated_attributes
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table, as_table, counted, parsed_numbers
from isthmus.data.folders.tables.writing import write_folder
from isthmus.data.imports.two_tables import Reading
from isthmus.data.on_demand import compute, pa

REPEATED = ("refuse", "sum", "mean", "max")
UNKNOWN_ENDS = ("refuse", "drop")
# With more features than this, kinds of them are told and not each; so many of their names are.
MOST_LINES = 20
NAMES_SHOWN = 3


@dataclass(frozen=True)
class Roles:
    """Which of the owner's columns is what; None stands for the column of that very name, if there is one."""

    id: str | None = None
    label: str | None = None
    split: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None


@dataclass(frozen=True)
class EdgeRules:
    """What becomes of edges that are not as a graph has them.

    Fields:
        directed:     whether an edge and its reverse are two edges
        repeated:     weights of an edge told more than once: "refuse" if they differ, or "sum", "mean", "max" of them
        unknown_ends: an edge to a node that is not in the table of nodes: "refuse" or "drop"
    """

    directed: bool = False
    repeated: str = "refuse"
    unknown_ends: str = "refuse"


@dataclass(frozen=True)
class Prepared:
    """A graph ready to be written: the tables of a graph folder, features, the schema they follow, and notes."""

    nodes: Any
    edges: Any
    features: Any
    schema: Schema
    notes: tuple[str, ...]

    def num_edges(self, directed: bool) -> int:
        """Return the number of edges; unless they are directed, an edge told in both directions is one."""
        if directed or self.edges.num_rows == 0:
            return int(self.edges.num_rows)
        places = (compute.index_in(self.edges[name], value_set=self.nodes["id"]) for name in columns.EDGE_COLUMNS)
        ends = np.stack([place.to_numpy().astype(np.int64) for place in places])  # (2, edges)
        return len(np.unique(columns.edge_keys(ends, self.nodes.num_rows, undirected=True)))

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes that nodes have."""
        return tuple(name.removeprefix(PREFIX) for name in self.nodes.column_names if name.startswith(PREFIX))

    def write(self, path: str | Path, format: str = "parquet") -> None:
        """Write the graph folder, all of it or nothing."""
        write_folder(path, {"nodes": self.nodes, "edges": self.edges}, self.features, self.schema, format)


@dataclass(frozen=True)
class Wishes:
    """How a graph is to be imported.

    Fields:
        roles:   which column is what
        schema:  the schema to follow; None to derive one from the data
        fill:    whether the vocabularies that the schema lacks are taken from the data
        choices: what the owner says about columns, where a schema is derived
        classes: the names of the classes in the order of their numbers, where a schema is derived
        renamed: the owner's names of columns of nodes -> the names that the schema has for them
        attributes: columns of nodes that are kept to split by; no features, unless schema or choices say so
        edge_rules: what becomes of odd edges
    """

    roles: Roles = field(default_factory=Roles)
    schema: Schema | None = None
    fill: bool = False
    choices: Choices = field(default_factory=Choices)
    classes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    edge_rules: EdgeRules = field(default_factory=EdgeRules)


def reading_of(wishes: Wishes) -> Reading:
    """Return how the columns of nodes are read: those that may become numbers as numbers, all others as told."""
    told = {getattr(wishes.roles, role) or role for role in columns.NODE_COLUMNS}
    told |= {*columns.NODE_COLUMNS, *wishes.choices.category, *wishes.choices.text}
    owners = {new: old for old, new in wishes.renamed.items()}
    told |= {owners.get(name, name) for name in wishes.attributes}
    scaled = wishes.choices.standardize
    if wishes.schema is not None:
        features = wishes.schema.features
        told |= {owners.get(f.name, f.name) for f in features if not isinstance(f, Number | Vector)}
        scaled |= any(f.scaled for f in features if isinstance(f, Number))
    return Reading(frozenset(told), single=not scaled)


def prepare(raw: RawGraph | None, wishes: Wishes, problems: Problems) -> Prepared:
    """Return a graph ready to be written, or raise one BadInput that tells all problems by row."""
    if raw is None:
        problems.raise_if_any()
    assert raw is not None  # or a problem has been noted
    notes = list(raw.notes)
    nodes = _with_roles(raw.nodes, wishes.roles, columns.NODE_COLUMNS, ("id",))
    links = _with_roles(raw.edges, wishes.roles, (*columns.EDGE_COLUMNS, "weight"), columns.EDGE_COLUMNS)
    if nodes.num_rows == 0:
        nodes.note("the table is empty; at least one node is needed")
        problems.raise_if_any()
    ids = columns.node_ids(nodes) if "id" in nodes.columns else None
    before = problems.num_found
    others, attributes = _without_attributes(_features_of(raw.nodes, nodes, wishes.renamed), wishes)
    nodes, labels = _labels(nodes)
    schema = _schema(others, labels, wishes, notes)
    encoded = _encoded(others, schema, notes) if problems.num_found == before else None
    if labels and not schema.classes:
        nodes.note(f"has labels ({nodes.name('label')}), but the schema names no classes")
        nodes = _unlabelled(nodes)
    y, class_names = columns.labels(nodes, schema.classes)
    splits = columns.split_names(nodes, y)
    table = _edges_table(links, ids, nodes.file, wishes.edge_rules, notes)
    problems.raise_if_any()
    assert encoded is not None and table is not None  # or a problem has been noted
    named = dict(zip(schema.columns, encoded.T, strict=True)) if named_columns(schema) else {}
    written = _nodes_table(ids, y, class_names, splits, attributes | named)
    return Prepared(written, table, None if named else encoded, schema, tuple(notes))


def _nodes_table(
    ids: Any,
    y: columns.Integers,
    class_names: tuple[str, ...],
    splits: npt.NDArray[np.object_] | None,
    others: dict[str, Any],
) -> Any:
    """Return the nodes as a graph folder has them, `others` after ids, labels and splits."""
    written: dict[str, Any] = {"id": ids}
    if class_names:
        written["label"] = pa.array([class_names[c] if c >= 0 else None for c in y.tolist()], pa.string())
    if splits is not None:
        written["split"] = pa.array([split or None for split in splits.tolist()], pa.string())
    return pa.table(written | others)


def _with_roles(table: Table, roles: Roles, known: tuple[str, ...], needed: tuple[str, ...]) -> Table:
    """Return the columns that have a role under the role's name; a wanted one that is not there is noted."""
    found: dict[str, Any] = {}
    called = dict(table.called)
    for role in known:
        wanted = getattr(roles, role)
        # A source that has renamed a column to its role knows it under both names.
        name = role if wanted is None or called.get(role) == wanted else wanted
        if name in table.columns:
            found[role] = table.columns[name]
            called.setdefault(role, name)
        elif role in needed or wanted is not None:
            remedy = "" if wanted else f" Name the column that has it: --{role} COLUMN"
            table.note(f"no column {name!r}; {nearest(name, table.columns)}{remedy}")
    return replace(table, columns=found, called=called)


def _features_of(table: Table, taken: Table, renamed: Mapping[str, str]) -> Table:
    """Return the columns that have no role, under the names that a schema has for them."""
    used = {id(column) for column in taken.columns.values()}
    rest = {name: column for name, column in table.columns.items() if id(column) not in used}
    for old in renamed:
        if old not in rest:
            table.note(f"--rename names {old!r}; {nearest(old, rest)}")
    names = [renamed.get(name, name) for name in rest]
    found = as_table(table.file, names, rest.values(), table.num_rows, table.problems)
    return replace(table, columns=found.columns if found else {}, called={new: old for old, new in renamed.items()})


def _without_attributes(others: Table, wishes: Wishes) -> tuple[Table, dict[str, Any]]:
    """Return the columns that may be features, and the attributes as a graph folder has them."""
    for name in wishes.attributes:
        if name not in others.columns:
            others.note(f"--attribute names {name!r}; {nearest(name, others.columns)}")
    stated = {*wishes.attributes, *stated_attributes(others)}
    attributes = _attributes(others, [name for name in others.columns if name in stated])
    choices, features = wishes.choices, wishes.schema.features if wishes.schema else ()
    both = {*choices.number, *choices.category, *choices.text, *choices.ignore, *(feature.name for feature in features)}
    rest = {name: column for name, column in others.columns.items() if name not in stated or name in both}
    return replace(others, columns=rest), attributes


def _attributes(table: Table, names: Sequence[str]) -> dict[str, Any]:
    """Return columns as attributes: under names that say so, numbers as numbers and everything else as text."""
    attributes: dict[str, Any] = {}
    for name in names:
        column, plain = table.columns[name], name.removeprefix(PREFIX)
        if PREFIX + plain in attributes:
            table.note(f"has the attribute {plain!r} twice, as {plain!r} and {PREFIX + plain!r}")
        attributes[PREFIX + plain] = column if reading.is_numeric(column) else table.text(name)
    return attributes


def _labels(nodes: Table) -> tuple[Table, list[str]]:
    """Return the table with labels as text, and the labels that are not empty; 3.0 is 3, and -1 is none."""
    strings = nodes.text_if_any("label")
    if strings is None:
        return _unlabelled(nodes), []
    labels: list[str] = strings.to_pylist()
    whole = [label.removesuffix(".0") for label in labels]
    if all(is_whole(label) for label in whole if label):
        labels = ["" if label == "-1" else label for label in whole]
    return replace(nodes, columns=nodes.columns | {"label": pa.array(labels, pa.string())}), [x for x in labels if x]


def _unlabelled(nodes: Table) -> Table:
    return replace(nodes, columns={name: column for name, column in nodes.columns.items() if name != "label"})


def _schema(others: Table, labels: list[str], wishes: Wishes, notes: list[str]) -> Schema:
    if wishes.schema is None:
        features, left_out = derive_features(others, wishes.choices)
        notes += left_out[:MOST_LINES]
        notes += [f"... ({len(left_out)} columns are left out in all)"] if len(left_out) > MOST_LINES else []
        return Schema(features, wishes.classes or categories(labels))
    schema = wishes.schema
    if wishes.fill:
        features = fill_in(others, schema.features, wishes.choices.standardize)
        schema = Schema(features, schema.classes or categories(labels))
    absent = lacking(schema)
    if absent:
        what = f"feature {absent[0]!r} has no vocabulary yet; --write-schema takes one from the data"
        others.problems.add("schema", what)
    unused = sorted(set(others.columns) - {feature.name for feature in schema.features})
    if unused:
        shown = ", ".join(unused[:MOST_LINES]) + (f", ... ({len(unused)} in all)" if len(unused) > MOST_LINES else "")
        notes.append(f"left out: {shown} (not in the schema)")
    return schema


def _encoded(others: Table, schema: Schema, notes: list[str]) -> Any:
    if not schema.columns:
        others.note("no column that can be a feature; a graph needs at least one")
        return None
    for name in repeated(schema.columns)[:1]:
        others.note(f"more than one feature column would have the name {name!r}; rename or ignore a column")
        return None
    kept = [name for name in schema.columns if name in columns.NODE_COLUMNS or name.startswith(PREFIX)]
    for name in kept if named_columns(schema) else []:
        what = f"the feature {name!r} has a name that a graph folder keeps for something else"
        others.note(f"{what}; give the column another name, or leave it out")
    return encode(others, schema, notes)


def _edges_table(links: Table, ids: Any, nodes_file: str, rules: EdgeRules, notes: list[str]) -> Any:
    """Return the edges as a graph folder has them, each once, in the direction in which it was told first."""
    if not set(columns.EDGE_COLUMNS) <= set(links.columns):
        return None  # which has been noted
    ends = columns.end_places(links, ids, nodes_file, may_be_unknown=rules.unknown_ends == "drop")
    weight = _weights(links, ends, rules)
    if ids is None or ends is None:
        return None
    known = (ends >= 0).all(axis=0)
    loops = known & (ends[0] == ends[1])
    for count, what in ((int((~known).sum()), "to unknown nodes"), (int(loops.sum()), "from a node to itself")):
        if count:
            notes.append(f"{links.file}: {counted(count, 'edge')} {what} dropped")
    kept = known & ~loops
    ends, weight = ends[:, kept], None if weight is None else weight[kept]
    ends, weight = _once(ends, weight, len(ids), rules)
    names = dict(zip(columns.EDGE_COLUMNS, (ids.take(pa.array(end)) for end in ends), strict=True))
    return pa.table(names if weight is None else names | {"weight": pa.array(weight.astype(np.float32))})


def _weights(links: Table, ends: columns.Integers | None, rules: EdgeRules) -> npt.NDArray[np.float64] | None:
    if "weight" not in links.columns:
        return np.ones(links.num_rows) if rules.repeated == "sum" else None
    column, name = links.columns["weight"], links.name("weight")
    values, stray = parsed_numbers(column)
    links.note_rows(stray, lambda row: f"{name} is {column[row].as_py()!r}; a number is needed")
    if stray:
        return None
    parsed = replace(links, columns=links.columns | {"weight": pa.array(values)})
    columns.weights_of(parsed, ends if rules.repeated == "refuse" else None, not rules.directed)
    return values


def _once(
    ends: columns.Integers, weight: npt.NDArray[np.float64] | None, num_nodes: int, rules: EdgeRules
) -> tuple[columns.Integers, npt.NDArray[np.float64] | None]:
    """Return each edge once, in the order of first mention, with one weight made of all that it was told with."""
    keys = columns.edge_keys(ends, num_nodes, undirected=not rules.directed and rules.repeated != "refuse")
    _, first, edge_of = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    if weight is not None:
        combined: npt.NDArray[np.float64] = weight[first]
        if rules.repeated in ("sum", "mean"):
            times = np.bincount(edge_of, minlength=len(first)) if rules.repeated == "mean" else 1
            combined = np.bincount(edge_of, weight, minlength=len(first)).astype(np.float64) / times
        elif rules.repeated == "max":
            np.maximum.at(combined, edge_of, weight)
        weight = combined[order]
    return ends[:, first[order]], weight


def described(schema: Schema, verbose: bool = False) -> list[str]:
    """Return a line for each feature of a schema, for people to read; where there are many, a line for each kind."""
    if verbose or len(schema.features) <= MOST_LINES:
        return [f"{feature.name}: {feature.type}, {_facts(feature)}" for feature in schema.features]
    kinds: dict[str, list[Feature]] = {}
    for feature in schema.features:
        kinds.setdefault(feature.type, []).append(feature)
    return [_summary(kind, features) for kind, features in kinds.items()]


def _facts(feature: Feature) -> str:
    facts = counted(len(feature.columns), "column")
    if isinstance(feature, Number) and feature.scaled:
        facts += f", standardised by mean {feature.mean:g} and std {feature.std:g}"
    return facts + (" as given" if isinstance(feature, Vector) else "")


def _summary(kind: str, features: list[Feature]) -> str:
    shown = ", ".join(feature.name for feature in features[:NAMES_SHOWN])
    more = f", ... {features[-1].name}" if len(features) > NAMES_SHOWN else ""
    columns_in_all = counted(sum(len(feature.columns) for feature in features), "column")
    scaled = sum(isinstance(f, Number) and f.scaled for f in features)
    standardised = f", {scaled} standardised" if scaled else ""
    what = f"{kind}: {counted(len(features), 'feature')}, {columns_in_all}{standardised}"
    return f"{what} ({shown}{more}; --verbose tells all)"
