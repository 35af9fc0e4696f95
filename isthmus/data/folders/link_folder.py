"""Bring your own links: a folder with a table of nodes and a table of labelled links between them.

nodes.parquet or nodes.csv    id; side if nodes are users and items; every other numeric column is a feature; columns of
                              text are attributes of links' ends, to split by; a number is one in `attribute.<name>`
links.parquet or links.csv    source, target; label and split if known; further columns are attributes, to split by
                              a label may say that a pair is no link (`negatives`): an example, and never a link
features.npz                  in place of feature columns: `x` (dense), or a matrix saved by scipy.sparse

Without feature columns and without features.npz, every node has one feature, 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from isthmus.data.features import compact
from isthmus.data.folders.own_folder import OwnData, OwnFolder
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables import columns, writing
from isthmus.data.folders.tables.columns import (
    EDGE_COLUMNS,
    PREFIX,
    Integers,
    attribute_columns,
    first_told,
    read_attributes,
)
from isthmus.data.folders.tables.reading import Table, listed, problems_of, read_table
from isthmus.data.link_graph import LinkGraph
from isthmus.data.on_demand import pa

NODE_COLUMNS = ("id", "side")
LINK_COLUMNS = (*EDGE_COLUMNS, "label", "split")
NO_FEATURES = (*NODE_COLUMNS, "label", "split")
SIDES = {"user": 0, "item": 1, "0": 0, "1": 1}


def read_link_folder(
    path: str | Path,
    class_names: tuple[str, ...] = (),
    undirected: bool = False,
    negatives: str = "",
    all_links: bool = False,
) -> OwnData[LinkGraph]:
    """Return the links of a folder, or raise one BadInput that tells all problems by row.

    Ids are compared as text. Every row of the table is a link, also one of a node with itself and one that is told
    again. Labels are names out of `class_names`, or numbers from 0; an empty label (or -1) means none. Without
    `class_names`, names get numbers in alphabetical order, so silos of one federation must give them. Without a column
    of labels, all links are of one class, 0; where `class_names` has several, none has a label. A link may be in a
    split without a label: the graph network reads it when it is for training.

    With `negatives`, rows with that label are pairs that are no links, and rows without a label may be links or not;
    without a column of labels, all rows are links. `all_links` says that labels of yes and no mean something else.
    """
    path = Path(path)
    problems = problems_of(path, "link folder", "nodes.(parquet|csv) and links.(parquet|csv)")
    nodes = read_table(path, "nodes", NODE_COLUMNS, problems)
    links = read_table(path, "links", LINK_COLUMNS, problems)
    ids: Any = None
    x = ends = None
    if nodes is not None:
        columns.note_misplaced(nodes, ("label", "split"), "the table of links")
        columns.note_misplaced(nodes, (f"{PREFIX}side",), "the column 'side'")
        ids = columns.node_ids(nodes)
        x, feature_names = columns.features(path, nodes, NO_FEATURES, constant=True)
        node_facts = {f"node_{name}": held for name, held in read_attributes(nodes, NO_FEATURES, False).items()}
        node_facts["node_attributes"] |= _sides(nodes)
    if links is not None:
        if links.num_rows == 0:
            links.note("the table is empty; at least one link is needed")
        ends = columns.end_places(links, ids, nodes.file if nodes else "nodes")
        told = _told(links, ends, class_names, negatives, undirected, all_links)
    problems.raise_if_any()
    assert x is not None and ends is not None and links is not None  # or a problem has been noted
    data = LinkGraph(
        x=compact(x),
        links=torch.from_numpy(ends),
        node_ids=torch.arange(len(ids)),
        link_ids=torch.arange(ends.shape[1]),
        negatives=negatives,
        undirected=undirected,
        name=path.resolve().name,
        feature_names=feature_names,
        **node_facts,
        **told,
    )
    named = np.asarray(ids.to_pylist(), dtype=object)
    by_end = {name: tuple(named[end].tolist()) for name, end in zip(EDGE_COLUMNS, ends, strict=True)}
    return OwnData(data, by_end, tuple(named.tolist()), columns.are_numbered(links, data.class_names))


def _told(
    links: Table, ends: Integers | None, class_names: tuple[str, ...], negatives: str, undirected: bool, all_links: bool
) -> dict[str, Any]:
    """Return what a table says of its links, as a `LinkGraph` has it."""
    label, class_names, linked = _labels(links, class_names, negatives)
    if linked is not None and ends is not None:
        note_contradictions(links, ends, linked, undirected)
    masks = columns.split_masks(links, None)
    told: dict[str, Any] = {"label": torch.from_numpy(label), "linked": linked, "masks": masks}
    told |= columns.class_facts(label, class_names) | read_attributes(links, LINK_COLUMNS, True)
    if not (negatives or all_links or "label" not in links.columns):
        told["doubtful"] = doubtful_class(told["class_names"], told["num_classes"])
    return told


def _labels(
    links: Table, class_names: tuple[str, ...], negatives: str
) -> tuple[Integers, tuple[str, ...], Tensor | None]:
    """Return the classes, their names, and with `negatives` which pairs are links."""
    told = "label" in links.columns
    if told or len(class_names) > 1:
        label, class_names = columns.labels(links, class_names)
    else:
        label = np.zeros(links.num_rows, dtype=np.int64)
    if not negatives:
        return label, class_names, None
    number = number_of(negatives, label if told else label[:0], class_names, links)
    if told:
        truth = np.where(label < 0, -1, (label != number).astype(np.int64))  # without a label, nothing is said
        return label, class_names, torch.from_numpy(truth)
    # All rows are links, and none may be written with the class that says that it is none.
    others = [c for c in range(max(len(class_names), 2)) if c != number]
    if len(others) == 1:
        label = np.full(links.num_rows, others[0], dtype=np.int64)
    return label, class_names, torch.ones(links.num_rows, dtype=torch.int64)


def _sides(nodes: Table) -> dict[str, Tensor]:
    column = nodes.text_if_any("side")
    if column is None:
        return {}
    values = column.to_pylist()
    nodes.note_rows(
        (row for row, value in enumerate(values) if value not in SIDES),
        lambda row: f"side is {values[row]!r}; user (or 0) and item (or 1) are known",
    )
    return {"side": torch.tensor([SIDES.get(value, -1) for value in values])}


def write_link_folder(data: LinkGraph, path: str | Path, format: str = "parquet") -> None:
    """Write a graph of links as a folder that `read_link_folder` reads; all of it or nothing.

    Ids are `data.node_ids`. Sparse features go to features.npz, dense ones into columns; where there are none, the
    folder is read with one constant feature. Attributes of several values for each link or node are not written.
    """
    ids = data.node_ids.numpy()
    nodes = {"id": pa.array(ids), **writing.feature_columns(data.x, names=data.feature_names)}
    facts = dict(data.node_attributes)
    if "side" in facts:
        nodes["side"] = pa.array(facts.pop("side").numpy())
    nodes |= attribute_columns(facts, data.node_attribute_names)
    links = {name: pa.array(ids[end.numpy()]) for name, end in zip(EDGE_COLUMNS, data.links, strict=True)}
    # Without labels, rows are links; with a column of empty ones, nobody would know.
    if data.linked is None or not bool((data.is_link & (data.label < 0)).all()):
        links["label"] = writing.label_column(data.label, data.class_names)
    links |= writing.split_column(data.masks, data.item) | attribute_columns(data.attributes, data.attribute_names)
    tables = {"nodes": pa.table(nodes), "links": pa.table(links)}
    writing.write_holding(data, path, tables, format)


# Two classes of these names, in small letters, may well say whether there is a link: no, then yes.
NO_AND_YES = (("0", "1"), ("false", "true"), ("no", "yes"))


def doubtful_class(class_names: Sequence[str], num_classes: int) -> str:
    """Return the class that sounds like "no link" where there are two and the other sounds like "link"; or nothing."""
    names = tuple(class_names) or tuple(map(str, range(min(num_classes, 3))))
    small = {name.casefold(): name for name in names}
    return next((small[no] for no, yes in NO_AND_YES if len(names) == 2 and small.keys() == {no, yes}), "")


def number_of(negatives: str, label: Integers, class_names: tuple[str, ...], links: Table) -> int:
    """Return the number of the class whose pairs are no links, -1 where no row has it; notes a name that is unknown.

    A table without such a row is fine where all of its rows are of one class: there are only links in it. With two
    classes or more, a name that is none of them is a slip, after which pairs that are no links would count as such.
    """
    known = class_names or tuple(map(str, np.unique(label[label >= 0]).tolist()))
    meant = _meant(negatives, known)
    if meant is not None:
        return class_names.index(meant) if class_names else int(meant)
    of_another_kind = bool(known) and is_whole(known[0]) != is_whole(negatives)
    if len(known) > 1 or of_another_kind or negatives == "-1":
        links.note(
            f"dataset.negatives is {negatives!r}, which is no class of its links (an empty label, or -1, is none); "
            f"known: {listed(known)}"
        )
    return int(negatives) if not class_names and is_whole(negatives) else -1


def _meant(said: str, known: Sequence[str]) -> str | None:
    """Return the known name that is said, or the only one that is but for capital letters."""
    same = [name for name in known if name == said] or [name for name in known if name.casefold() == said.casefold()]
    return same[0] if len(same) == 1 else None


def note_contradictions(links: Table, ends: Integers, linked: Tensor, undirected: bool) -> None:
    """Note the rows that say of a pair the opposite of the first row that says something of it."""
    rows = np.flatnonzero(linked.numpy() >= 0)
    if len(rows) == 0:
        return
    earlier, known = first_told(ends[:, rows], undirected)
    said = linked[rows].numpy()
    wrong = np.flatnonzero(known & (said != said[earlier]))
    first = {int(rows[place]): int(rows[earlier[place]]) for place in wrong.tolist()}
    source, target = (links.columns[name] for name in ("source", "target"))
    links.note_rows(
        sorted(first),
        lambda row: (
            f"says that {str(source[row].as_py())!r} and {str(target[row].as_py())!r} are "
            f"{'linked' if linked[row] else 'not linked'}, row {first[row] + 1} that they are"
            f"{' not' if linked[row] else ''}"
        ),
    )


@dataclass(frozen=True)
class LinkFolder(OwnFolder):
    """Your own links: a folder with tables of nodes and of labelled links.

    `isthmus.data.folders.link_folder.read_link_folder` says what they hold.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the relations or classes in the order of their numbers; silos of one federation must give the same
        undirected:  whether a link means the same in both directions (user and item), or not (a relation)
        negatives:   the label of pairs that are no links (0, false, no): link_prediction learns from them and is
                     measured on them, and nothing counts them as links; empty where all rows are links
        all_links:   says that every row is a link, where labels such as 0 and 1 leave it in doubt
    """

    task = "link"
    called = "link folder"
    data_type = LinkGraph
    tables = ("nodes", "links")
    write = staticmethod(write_link_folder)

    undirected: bool = False
    negatives: str | int | bool = ""
    all_links: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.all_links and self.negative_class:
            raise ValueError(
                f"negatives is {self.negatives!r}, so not all rows are links, but all_links is true; set one of them"
            )

    @property
    def negative_class(self) -> str:
        """The label of pairs that are no links, as text; 0 and false are read as such by YAML."""
        return str(self.negatives).lower() if isinstance(self.negatives, bool) else str(self.negatives).strip()

    def read_from(self, path: Path) -> OwnData[LinkGraph]:
        """Return the links with the ids of their nodes."""
        return read_link_folder(path, self.class_names, self.undirected, self.negative_class, self.all_links)

    @classmethod
    def like(cls, data: LinkGraph) -> Self:
        """Return how folders of parts of a graph of links are read."""
        doubtful = doubtful_class(data.class_names, data.num_classes)
        sure = bool(doubtful) and data.linked is None and not data.doubtful
        return cls(class_names=data.class_names, undirected=data.undirected, negatives=data.negatives, all_links=sure)

    @staticmethod
    def describe(data: LinkGraph, directed: bool = False) -> str:
        """Return the numbers of nodes, links and features, and the classes."""
        wrong = f" and {int(data.is_negative.sum())} pairs that are none" if data.linked is not None else ""
        return (
            f"{data.num_nodes} nodes, {int(data.is_link.sum())} links{wrong}, {data.num_features} features, "
            f"classes: {', '.join(data.class_names) or data.num_classes or 'none'}"
        )
