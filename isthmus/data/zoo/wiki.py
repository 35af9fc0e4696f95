"""Wiki: pages of Wikipedia and their links (Yang, Liu, Zhao, Sun and Chang, 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import (
    RawDataset,
    check_edition,
    damaged,
    known_digest,
    matrix,
    read_arrays,
    read_pairs,
    rows_of,
)

FILES = tuple(f"attributed/wiki/raw/{name}" for name in ("attrs.npz", "edgelist.txt", "labels.txt"))
COUNTS = (2405, 11596, 4973, 17)


@dataclass(frozen=True)
class Wiki(RawDataset):
    """2,405 pages, 11,596 undirected links, 4,973 TF-IDF words, 17 classes; at `root/attributed/wiki/raw`.

    Papers count the 17,981 lines of the edge list. 1,996 of them are self-loops, others are repeated or name one
    pair both ways. An eighth of the word entries are set, so the features are dense.
    """

    needs = FILES
    name = "wiki"
    published = (
        "https://github.com/thunlp/TADW (wiki), and in these three files by the class AttributedGraphDataset of "
        "torch_geometric"
    )
    licence = "MIT, as part of TADW; the text is Wikipedia's, CC BY-SA"

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        words, links, classes = paths = self.required(root)
        pairs, label_of = read_pairs(links), read_pairs(classes)
        y = np.full(len(label_of), -1, dtype=np.int64)
        arrays = read_arrays(words, ("data", "indices", "indptr", "shape", "format"))
        inner, outer = arrays["indices"], rows_of(arrays["indptr"])
        by_column = arrays["format"].item() in (b"csc", "csc")
        rows, columns = (inner, outer) if by_column else (outer, inner)
        try:
            y[label_of[:, 0]] = label_of[:, 1] - label_of[:, 1].min()
            x = compact(matrix(rows, columns, arrays["data"], (len(y), int(arrays["shape"][1]))))
            if int(pairs.max()) >= len(y):
                raise ValueError(f"a link goes to page {int(pairs.max())} of {len(y)}")
        except (ValueError, IndexError) as error:
            raise damaged(
                words, known_digest(words, root), f"it does not fit {links} and {classes} ({error})"
            ) from error
        graph = Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(torch.from_numpy(pairs).t(), len(y))[0],
            y=torch.from_numpy(y),
            num_classes=int(y.max()) + 1,
            node_ids=torch.arange(len(y)),
            name=self.name,
        )
        check_edition(graph, COUNTS, paths, root, "come to {}")
        return graph
