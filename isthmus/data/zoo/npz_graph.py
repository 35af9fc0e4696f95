"""Graphs in the npz layout of the GNN benchmark of Shchur, Mumme, Bojchevski and Günnemann (2018).

An archive holds two CSR matrices, `adj_*` and `attr_*` (`data`, `indices`, `indptr`, `shape`), and `labels`. In it are
products that were bought together (McAuley et al., 2015), authors who wrote a paper together (Microsoft Academic
Graph), whole citation graphs (Bojchevski and Günnemann, 2018), and papers that share an author (Wang et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import RawDataset, check_edition, damaged, known_digest, matrix, read_arrays, rows_of

KEYS = ("adj_indptr", "adj_indices", "attr_indptr", "attr_indices", "attr_data", "attr_shape", "labels")


@dataclass(frozen=True)
class NpzGraph(RawDataset):
    """A graph in one archive.

    The directed adjacency is read as undirected; its values, all 1, are not read. The same graph may be packed
    otherwise than in the file whose digest is known: another file is taken when its counts are the known ones.

    Fields:
        binary_features: whether features other than 0 count as 1, as torch_geometric reads these files; without,
                         they are as published: counts of words, or TF-IDF
    """

    published: ClassVar[str] = "https://github.com/shchur/gnn-benchmark/tree/master/data/npz"
    counts: ClassVar[tuple[int, int, int, int]]  # nodes, undirected edges, features, classes

    binary_features: bool = False

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        (path,) = self.required(root)
        graph = self._build(path, known_digest(path, root))
        check_edition(graph, self.counts, [path], root, "are {} in it")
        return graph

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


class AmazonComputers(NpzGraph):
    """13,752 computer goods, 245,861 undirected edges, 767 words of reviews, 10 classes.

    The file has 287,209 directed entries: 41,348 pairs are named both ways, none is a self-loop. 281 products have no
    edge. A third of the word entries are set, so the features are dense.
    """

    name = "amazon_computers"
    needs = ("amazon/Computers/raw/amazon_electronics_computers.npz",)
    counts = (13752, 245861, 767, 10)
    licence = "MIT, as part of gnn-benchmark; the reviews are Amazon's"


class AmazonPhoto(NpzGraph):
    """7,650 photographic goods, 119,081 undirected edges, 745 words of reviews, 8 classes.

    The file has 143,663 directed entries: 24,581 pairs are named both ways, one is a self-loop, which is left out.
    115 products have no other edge. A third of the word entries are set, so the features are dense.
    """

    name = "amazon_photo"
    needs = ("amazon/Photo/raw/amazon_electronics_photo.npz",)
    counts = (7650, 119081, 745, 8)
    licence = "MIT, as part of gnn-benchmark; the reviews are Amazon's"


COAUTHOR_LICENCE = "MIT, as part of gnn-benchmark; Microsoft Academic Graph is ODC-BY"


class CoauthorCS(NpzGraph):
    """18,333 authors in computer science, 81,894 undirected edges, 6,805 keywords, 15 fields of study.

    A feature says how many of the author's papers have the keyword. The file has each edge both ways, no self-loop.
    """

    name = "coauthor_cs"
    needs = ("coauthor/CS/raw/ms_academic_cs.npz",)
    counts = (18333, 81894, 6805, 15)
    licence = COAUTHOR_LICENCE


class CoauthorPhysics(NpzGraph):
    """34,493 authors in physics, 247,962 undirected edges, 8,415 keywords, 5 fields of study.

    A feature says how many of the author's papers have the keyword. The file has each edge both ways, no self-loop.
    """

    name = "coauthor_physics"
    needs = ("coauthor/Physics/raw/ms_academic_phy.npz",)
    counts = (34493, 247962, 8415, 5)
    licence = COAUTHOR_LICENCE


GRAPH2GAUSS = "https://github.com/abojchevski/graph2gauss/tree/master/data"
GRAPH2GAUSS_LICENCE = "MIT, as part of graph2gauss"


class CitationDBLP(NpzGraph):
    """17,716 papers, 52,867 undirected citation links, 1,639 TF-IDF words of titles, 4 classes.

    The file has each link both ways, no self-loop. It does not say where a paper appeared.
    """

    name = "dblp"
    needs = ("citation_full/dblp/raw/dblp.npz",)
    published = GRAPH2GAUSS
    counts = (17716, 52867, 1639, 4)
    licence = GRAPH2GAUSS_LICENCE


class CoraML(NpzGraph):
    """2,995 papers on machine learning, 8,158 undirected citation links, 2,879 TF-IDF words, 7 classes.

    The file has 8,416 citations: 258 pairs cite each other, none is a self-loop.
    """

    name = "cora_ml"
    needs = ("citation_full/cora_ml/raw/cora_ml.npz",)
    published = GRAPH2GAUSS
    counts = (2995, 8158, 2879, 7)
    licence = GRAPH2GAUSS_LICENCE


class ACM(NpzGraph):
    """3,025 papers, 13,128 undirected edges between papers of one author, 1,870 keywords, 3 classes.

    The file has each edge both ways, no self-loop; 561 papers have no edge.
    """

    name = "acm"
    needs = ("acm/acm.npz",)
    published = (
        "https://github.com/EdisonLeeeee/GraphData (datasets/acm.npz; write its two pickled matrices as the arrays "
        "adj_indptr, adj_indices, attr_indptr, attr_indices, attr_data, attr_shape beside labels)"
    )
    counts = (3025, 13128, 1870, 3)
    licence = "MIT, as part of GraphData"
