"""DBLP and Cora-ML, whole citation graphs (Bojchevski and Günnemann, 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.data.zoo.npz_graph import NpzGraph

PUBLISHED = "https://github.com/abojchevski/graph2gauss/tree/master/data"
LICENCE = "MIT, as part of graph2gauss"


@dataclass(frozen=True)
class CitationDBLP(NpzGraph):
    """17,716 papers, 52,867 undirected citation links, 1,639 TF-IDF words of titles, 4 classes.

    The file has each link both ways, no self-loop. It does not say where a paper appeared.
    """

    name: ClassVar[str] = "dblp"
    file: ClassVar[str] = "citation_full/dblp/raw/dblp.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (17716, 52867, 1639, 4)
    summary: ClassVar[str] = "17,716 papers of DBLP, 52,867 links, 1,639 TF-IDF words, 4 classes"
    licence: ClassVar[str] = LICENCE


@dataclass(frozen=True)
class CoraML(NpzGraph):
    """2,995 papers on machine learning, 8,158 undirected citation links, 2,879 TF-IDF words, 7 classes.

    The file has 8,416 citations: 258 pairs cite each other, none is a self-loop.
    """

    name: ClassVar[str] = "cora_ml"
    file: ClassVar[str] = "citation_full/cora_ml/raw/cora_ml.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (2995, 8158, 2879, 7)
    summary: ClassVar[str] = "2,995 machine learning papers, 8,158 links, 2,879 TF-IDF words, 7 classes"
    licence: ClassVar[str] = LICENCE
