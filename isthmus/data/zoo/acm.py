"""ACM: papers that share an author (Wang et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.data.zoo.npz_graph import NpzGraph


@dataclass(frozen=True)
class ACM(NpzGraph):
    """3,025 papers, 13,128 undirected edges between papers of one author, 1,870 keywords, 3 classes.

    The file has each edge both ways, no self-loop; 561 papers have no edge.
    """

    name: ClassVar[str] = "acm"
    file: ClassVar[str] = "acm/acm.npz"
    published: ClassVar[str] = (
        "https://github.com/EdisonLeeeee/GraphData (datasets/acm.npz; write its two pickled matrices as the arrays "
        "adj_indptr, adj_indices, attr_indptr, attr_indices, attr_data, attr_shape beside labels)"
    )
    counts: ClassVar[tuple[int, int, int, int]] = (3025, 13128, 1870, 3)
    summary: ClassVar[str] = "3,025 papers of ACM conferences, 13,128 links by author, 1,870 keywords, 3 classes"
    licence: ClassVar[str] = "MIT, as part of GraphData"
