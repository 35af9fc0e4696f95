"""Sets of small graphs in the text format of TU Dortmund (Morris et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.data.features import normalized_rows, one_hot
from isthmus.data.graph import directed
from isthmus.data.graph_set import GraphSet
from isthmus.data.zoo.raw import RawDataset, check_range, read_numbers

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TU(RawDataset):
    """Graphs of one of the TU sets, at `root/TU/<NAME>/raw/<NAME>_*.txt`.

    Features of nodes, in this order: the label one-hot, with a column for each number from the least to the greatest
    in the file, also those that do not occur; then the attributes as they are. Nodes without either get their number
    of neighbours one-hot, as in GCFL (Xie et al., 2021). Labels of edges are one-hot in `edge_attr`. Edges are stored
    in both directions, once each, without self-loops, as torch_geometric loads them. Each graph has the attribute
    "size", its number of nodes. There is no official split.

    Fields:
        use_attributes: whether the nodes' attributes are features; GCFL and FederatedScope-GNN take the labels alone
        max_degree:     greatest number of neighbours with a column of its own, for nodes without labels and
                        attributes; 0 gives one column of ones, which is what FederatedScope-GNN does
    """

    task = "graph"
    licence = "none stated; for research, cite Morris et al. (2020) and the set's own authors"
    published: ClassVar[str] = "www.chrsmrrs.com/graphkerneldatasets/{name}.zip (see chrsmrrs.github.io/datasets)"
    files: ClassVar[tuple[str, ...]] = ()  # beside A, graph_indicator and graph_labels

    use_attributes: bool = True
    max_degree: int = 135

    def __post_init__(self) -> None:
        refuse(self.max_degree < 0, self, "max_degree", "it may not be negative")

    @property
    def needs(self) -> tuple[str, ...]:
        """The files of this set."""
        parts = ("A", "graph_indicator", "graph_labels", *self.files)
        return tuple(f"TU/{self.name}/raw/{self.name}_{part}.txt" for part in parts)

    def load(self, root: Path) -> GraphSet:
        """Return the graphs; their files are looked for in `root`."""
        folder = self.verified(root)[0].parent
        graphs = read_tu(folder, self.name, self.use_attributes, self.max_degree)
        return replace(graphs, x=normalized_rows(graphs.x)) if self.normalize_features else graphs


def read_tu(folder: Path, name: str, use_attributes: bool = True, max_degree: int = 135) -> GraphSet:
    """Return the graphs of `folder/<name>_*.txt`; files of labels and attributes that are absent are not needed."""

    def path(part: str) -> Path:
        return folder / f"{name}_{part}.txt"

    indicator = read_numbers(path("graph_indicator"), np.int64, columns=1)[:, 0]
    classes = read_numbers(path("graph_labels"), np.int64, columns=1)[:, 0]
    sizes = _sizes(path("graph_indicator"), indicator, len(classes))
    edge_index, line, num_lines = _edges(path("A"), indicator)
    node_labels = _optional(path("node_labels"), np.int64, path("graph_indicator"), len(indicator))
    attributes = _optional(path("node_attributes"), np.float32, path("graph_indicator"), len(indicator))
    edge_labels = _optional(path("edge_labels"), np.int64, path("A"), num_lines)
    columns = [] if node_labels is None else [_labels_one_hot(node_labels)]
    columns += [] if attributes is None or not use_attributes else [torch.from_numpy(attributes)]
    class_values, y = np.unique(classes, return_inverse=True)
    return GraphSet(
        x=_features(columns, edge_index, len(indicator), max_degree),
        edge_index=edge_index,
        node_start=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
        y=torch.from_numpy(y.astype(np.int64)),
        num_classes=len(class_values),
        target="class",
        graph_ids=torch.arange(len(classes)),
        edge_attr=None if edge_labels is None else _labels_one_hot(edge_labels)[line],
        attributes={"size": torch.from_numpy(sizes)},
        class_names=tuple(map(str, class_values)),
        name=name.lower().replace("-", "_"),
    )


def _sizes(path: Path, indicator: Numbers, num_graphs: int) -> Numbers:
    """Return the number of nodes of each graph; graph numbers must ascend from 1, each with a node."""
    check_range(path, indicator, 1, num_graphs, "graph")
    falls = np.flatnonzero(np.diff(indicator) < 0)
    if len(falls):
        raise BadInput(f"the file {path}, line {falls[0] + 2}: graph numbers should not fall from one line to the next")
    sizes = np.bincount(indicator - 1, minlength=num_graphs)
    if (sizes == 0).any():
        raise BadInput(
            f"the file {path} has no node of graph {int(np.argmin(sizes)) + 1}, but there are {num_graphs} labels of "
            "graphs; one of the two files is cut short: fetch both again"
        )
    return sizes


def _edges(path: Path, indicator: Numbers) -> tuple[Tensor, Tensor, int]:
    """Return the edges in both directions, once each, sorted, the line that each is from, and how many lines are."""
    lines = read_numbers(path, np.int64, columns=2)
    check_range(path, lines, 1, len(indicator), "node")
    ends = lines.T - 1  # (2, lines)
    across = np.flatnonzero(indicator[ends[0]] != indicator[ends[1]])
    if len(across):
        raise BadInput(f"the file {path}, line {across[0] + 1}: an edge joins nodes of two graphs")
    given = torch.from_numpy(np.ascontiguousarray(ends))
    number = torch.arange(len(lines))
    # The first counts: a direction that the file holds keeps its own label, the other takes that of its mirror image.
    both = torch.cat([given, given.flip(0)], dim=1)
    edge_index, line = directed(both, len(indicator), torch.cat([number, number]))
    assert line is not None
    return edge_index, line, len(lines)


def _optional(path: Path, dtype: npt.DTypeLike, beside: Path, expected: int) -> npt.NDArray[np.generic] | None:
    if not path.is_file():
        return None
    table = read_numbers(path, dtype)
    if len(table) != expected:
        raise BadInput(
            f"in {path.parent}, {path.name} has {len(table)} lines and {beside.name} has {expected}; they should have "
            "as many. One of them is cut short: fetch both again"
        )
    return table


def _labels_one_hot(labels: npt.NDArray[np.generic]) -> Tensor:
    if len(labels) == 0:
        return torch.empty(0, labels.shape[1])
    codes = labels.astype(np.int64)
    codes -= codes.min(axis=0)
    return one_hot(codes, (codes.max(axis=0) + 1).tolist())


def _features(columns: list[Tensor], edge_index: Tensor, num_nodes: int, max_degree: int) -> Tensor:
    """Return columns side by side; without any, the number of neighbours one-hot."""
    if columns:
        return columns[0] if len(columns) == 1 else torch.cat([part.to_dense() for part in columns], dim=1)
    degree = np.minimum(np.bincount(edge_index[0].numpy(), minlength=num_nodes), max_degree)
    if max_degree == 0:
        return torch.ones(num_nodes, 1)
    return one_hot(degree[:, None], [int(degree.max(initial=0)) + 1])


LABELS, ATTRIBUTES, EDGE_LABELS = "node_labels", "node_attributes", "edge_labels"


class AIDS(TU):
    """2,000 molecules, active against HIV or not; 15.69 atoms on average, 38 + 4 features, 3 kinds of bonds."""

    files = (LABELS, ATTRIBUTES, EDGE_LABELS)


class BZR(TU):
    """405 ligands of the benzodiazepine receptor; 35.75 atoms on average, 53 + 3 features, 2 classes."""

    files = (LABELS, ATTRIBUTES)


class COX2(TU):
    """467 inhibitors of cyclooxygenase-2; 41.22 atoms on average, 35 + 3 features, 2 classes."""

    files = (LABELS, ATTRIBUTES)


class DD(TU):
    """1,178 proteins, enzymes or not; 284.32 amino acids on average, 843,046 edges, 89 features, 2 classes."""

    files = (LABELS,)


class DHFR(TU):
    """756 inhibitors of dihydrofolate reductase; 42.43 atoms on average, 53 + 3 features, 2 classes."""

    files = (LABELS, ATTRIBUTES)


class ENZYMES(TU):
    """600 enzymes of 6 classes; 32.63 secondary structures on average, 3 + 18 features."""

    files = (LABELS, ATTRIBUTES)


class IMDBBinary(TU):
    """1,000 networks of actors, of action or romance films; 19.77 actors on average; 136 features, of degree."""

    name = "IMDB-BINARY"


class IMDBMulti(TU):
    """1,500 networks of actors, of comedy, romance or science fiction; 13.00 actors on average; 89 features."""

    name = "IMDB-MULTI"


class MUTAG(TU):
    """188 nitroaromatic compounds, mutagenic or not; 17.93 atoms on average, 7 features, 4 kinds of bonds."""

    files = (LABELS, EDGE_LABELS)


class NCI1(TU):
    """4,110 compounds, active against lung cancer cells or not; 29.87 atoms on average, 37 features."""

    files = (LABELS,)


class PROTEINS(TU):
    """1,113 proteins, enzymes or not; 39.06 secondary structures on average, 3 + 1 features."""

    files = (LABELS, ATTRIBUTES)


class PTCMR(TU):
    """344 compounds, carcinogenic for male rats or not; 14.29 atoms on average, 18 features, 4 kinds of bonds."""

    name = "PTC_MR"
    files = (LABELS, EDGE_LABELS)
