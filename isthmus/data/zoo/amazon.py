"""Amazon Computers and Photo: products bought together (McAuley et al., 2015; Shchur et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.data.zoo.npz_graph import NpzGraph

PUBLISHED = "https://github.com/shchur/gnn-benchmark/tree/master/data/npz"


@dataclass(frozen=True)
class AmazonComputers(NpzGraph):
    """13,752 computer goods, 245,861 undirected edges, 767 words of reviews, 10 classes.

    The file has 287,209 directed entries: 41,348 pairs are named both ways, none is a self-loop. 281 products have no
    edge. A third of the word entries are set, so the features are dense.
    """

    name: ClassVar[str] = "amazon_computers"
    file: ClassVar[str] = "amazon/Computers/raw/amazon_electronics_computers.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (13752, 245861, 767, 10)
    summary: ClassVar[str] = "13,752 computer goods bought together, 245,861 links, 767 words, 10 classes"
    licence: ClassVar[str] = "MIT, as part of gnn-benchmark; the reviews are Amazon's"


@dataclass(frozen=True)
class AmazonPhoto(NpzGraph):
    """7,650 photographic goods, 119,081 undirected edges, 745 words of reviews, 8 classes.

    The file has 143,663 directed entries: 24,581 pairs are named both ways, one is a self-loop, which is left out.
    115 products have no other edge. A third of the word entries are set, so the features are dense.
    """

    name: ClassVar[str] = "amazon_photo"
    file: ClassVar[str] = "amazon/Photo/raw/amazon_electronics_photo.npz"
    published: ClassVar[str] = PUBLISHED
    counts: ClassVar[tuple[int, int, int, int]] = (7650, 119081, 745, 8)
    summary: ClassVar[str] = "7,650 photographic goods bought together, 119,081 links, 745 words, 8 classes"
    licence: ClassVar[str] = "MIT, as part of gnn-benchmark; the reviews are Amazon's"
