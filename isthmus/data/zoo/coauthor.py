"""Coauthor CS and Physics: authors who wrote a paper together (Microsoft Academic Graph; Shchur et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.data.zoo.npz_graph import NpzGraph

PUBLISHED = "https://github.com/shchur/gnn-benchmark/tree/master/data/npz"
LICENCE = "MIT, as part of gnn-benchmark; Microsoft Academic Graph is ODC-BY"


@dataclass(frozen=True)
class CoauthorCS(NpzGraph):
    """18,333 authors in computer science, 81,894 undirected edges, 6,805 keywords, 15 fields of study.

    A feature says how many of the author's papers have the keyword. The file has each edge both ways, no self-loop.
    """

    name: ClassVar[str] = "coauthor_cs"
    file: ClassVar[str] = "coauthor/CS/raw/ms_academic_cs.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (18333, 81894, 6805, 15)
    summary: ClassVar[str] = "18,333 authors in computer science, 81,894 links, 6,805 keywords, 15 classes"
    licence: ClassVar[str] = LICENCE


@dataclass(frozen=True)
class CoauthorPhysics(NpzGraph):
    """34,493 authors in physics, 247,962 undirected edges, 8,415 keywords, 5 fields of study.

    A feature says how many of the author's papers have the keyword. The file has each edge both ways, no self-loop.
    """

    name: ClassVar[str] = "coauthor_physics"
    file: ClassVar[str] = "coauthor/Physics/raw/ms_academic_phy.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (34493, 247962, 8415, 5)
    summary: ClassVar[str] = "34,493 authors in physics, 247,962 links, 8,415 keywords, 5 classes"
    licence: ClassVar[str] = LICENCE
