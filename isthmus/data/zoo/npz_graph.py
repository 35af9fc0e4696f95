"""Graphs in the npz layout of the GNN benchmark of Shchur, Mumme, Bojchevski and Günnemann (2018).

An archive holds two CSR matrices, `adj_*` and `attr_*` (`data`, `indices`, `indptr`, `shape`), and `labels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from isthmus.data.dataset import Dataset
from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import damaged, known_digest, matrix, read_arrays, require, rows_of, sha256_of

KEYS = ("adj_indptr", "adj_indices", "attr_indptr", "attr_indices", "attr_data", "attr_shape", "labels")


@dataclass(frozen=True)
class NpzGraph(Dataset):
    """A graph in one archive, at `root/<file>`.

    The directed adjacency is read as undirected; its values, all 1, are not read. The same graph may be packed
    otherwise than in the file whose digest is known: another file is taken when its counts are the known ones.

    Fields:
        binary_features: whether features other than 0 count as 1, as torch_geometric reads these files; without,
                         they are as published: counts of words, or TF-IDF
    """

    name: ClassVar[str]
    file: ClassVar[str]
    published: ClassVar[str]
    counts: ClassVar[tuple[int, int, int, int]]  # nodes, undirected edges, features, classes

    binary_features: bool = False

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        (path,) = require(self.name, root, [self.file], self.published)
        sha256 = known_digest(path, root)
        other_edition = sha256 is not None and sha256_of(path) != sha256
        graph = self._build(path, sha256)
        found = (graph.num_nodes, graph.num_edges // 2, graph.num_features, graph.num_classes)
        if other_edition and found != self.counts:
            raise damaged(
                path, sha256, f"(nodes, edges, features, classes) are {found} in it, {self.counts} in {self.name}"
            )
        return graph

    def present(self, root: Path) -> bool:
        """Return whether the archive is there."""
        return (root / self.file).is_file()

    def _build(self, path: Path, sha256: str | None) -> Graph:
        arrays = read_arrays(path, KEYS, sha256)
        num_nodes = len(arrays["labels"])
        values = arrays["attr_data"]
        values = (values != 0).astype(np.float32) if self.binary_features else values
        try:
            shape = (num_nodes, int(arrays["attr_shape"][1]))
            x = compact(matrix(rows_of(arrays["attr_indptr"]), arrays["attr_indices"], values, shape))
            edges = np.stack([rows_of(arrays["adj_indptr"]), arrays["adj_indices"].astype(np.int64)])
            if edges.size and int(edges.max()) >= num_nodes:
                raise ValueError(f"an edge goes to node {int(edges.max())} of {num_nodes}")
        except (ValueError, IndexError) as error:
            raise damaged(path, sha256, f"its arrays do not fit together ({error})") from error
        y = torch.from_numpy(arrays["labels"].astype(np.int64))
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(torch.from_numpy(edges), num_nodes)[0],
            y=y,
            num_classes=int(y.max()) + 1,
            node_ids=torch.arange(num_nodes),
            name=self.name,
        )
