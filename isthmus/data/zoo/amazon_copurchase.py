"""Amazon co-purchase networks of six product segments (FedGRL, Suresh et al., 2022, section 5.1.2).

Built from the raw reviews and product metadata of Ni, Li and McAuley (2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from isthmus.core.errors import BadInput, MissingData, nearest
from isthmus.core.outside import DATA_VARIABLE
from isthmus.data.dataset import Dataset
from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import json_lines, links_among
from isthmus.data.zoo.words import bag_of_words

FOLDER = "amazon_copurchase"
PUBLISHED = "https://nijianmo.github.io/amazon/index.html"


@dataclass(frozen=True)
class Segment:
    """A segment of products: how their category list begins, and how many sub-segments the paper tells apart."""

    path: tuple[str, ...]
    num_classes: int


SEGMENTS: Mapping[str, Segment] = {
    "computer": Segment(("Electronics", "Computers & Accessories"), 9),
    "photo": Segment(("Electronics", "Camera & Photo"), 8),
    "phone": Segment(("Cell Phones & Accessories",), 7),
    "tool": Segment(("Tools & Home Improvement",), 6),
    "guitar": Segment(("Musical Instruments", "Guitars"), 5),
    "art": Segment(("Arts, Crafts & Sewing",), 8),
}


@dataclass(frozen=True)
class AmazonCopurchase(Dataset):
    """Products of six segments; edges join products often bought together; sub-segments are classes.

    One graph, without edges between segments; the attribute "segment" tells them apart. A product belongs to the
    segment whose path its `category` list begins with, and its class is the next entry of the list. Each segment has
    classes of its own, named "computer: Monitors" and so on: the commonest of its sub-segments, as many as the paper
    has (9, 8, 7, 6, 5, 8). Features are the `num_words` words that most products' reviews have, over all segments.

    The paper has, as nodes and edges: computer 10,055 and 87,512; photo 4,705 and 28,818; phone 16,683 and 113,760;
    tool 4,827 and 43,458; guitar 2,506 and 10,342; art 6,610 and 90,678. It does not say which products it keeps; here
    a product without review, without sub-segment, or of a rarer sub-segment is left out, and so is one without edge.

    Files are in `root/amazon_copurchase`, one JSON object to a line, .json or .json.gz: `meta_*` with asin, category
    and also_buy; all others with asin and reviewText.

    Fields:
        segments:      those that are built, in the order of their numbers
        num_words:     words that become features
        min_reviews:   reviews that a product must have
        keep_isolated: whether products without edge stay
        binary_words:  whether a feature says if the product's reviews have the word, not how often
    """

    licence = "that of the raw files: for research"

    segments: tuple[str, ...] = tuple(SEGMENTS)
    num_words: int = 1000
    min_reviews: int = 1
    keep_isolated: bool = False
    binary_words: bool = True

    def __post_init__(self) -> None:
        for segment in self.segments:
            if segment not in SEGMENTS:
                raise ValueError(f"segments has {segment!r}; {nearest(segment, SEGMENTS)}")
        if not self.segments or len(set(self.segments)) < len(self.segments):
            raise ValueError(f"segments is {self.segments!r}; name at least one, and none twice")
        if self.num_words < 1 or self.min_reviews < 0:
            raise ValueError(
                f"num_words is {self.num_words!r} and min_reviews {self.min_reviews!r}; they must be at least 1 and 0"
            )

    def load(self, root: Path) -> Graph:
        """Return the union of the segments' graphs; metadata is read once, reviews are read twice."""
        metadata, reviews = _files(root)
        if not metadata or not reviews:
            raise MissingData(
                f"amazon_copurchase: looked in {root / FOLDER} for meta_*.json.gz (found {len(metadata)}) and files of "
                f"reviews, *.json.gz (found {len(reviews)}). Published at {PUBLISHED}; put them there, or set "
                f"--data-root or {DATA_VARIABLE} to a folder that holds {FOLDER}"
            )
        reviewed = Counter(entry["asin"] for entry in _entries(reviews))
        products = self._products(metadata, reviewed)
        if not products:
            raise BadInput(
                f"{root / FOLDER}: no product of the segments {', '.join(self.segments)} has a sub-segment, "
                f"{self.min_reviews} reviews{'' if self.keep_isolated else ' and an edge'}"
            )
        class_names = sorted({product.place for product in products.values()})
        number_of = {name: number for number, name in enumerate(class_names)}
        return Graph(
            x=self._words(list(products), reviews),
            edge_index=undirected(torch.from_numpy(_edges(products)), len(products))[0],
            y=torch.tensor([number_of[product.place] for product in products.values()]),
            num_classes=len(class_names),
            node_ids=torch.arange(len(products)),
            attributes={"segment": torch.from_numpy(_segments(products))},
            attribute_names={"segment": self.segments},
            class_names=tuple(f"{self.segments[place]}: {name}" for place, name in class_names),
            name="amazon_copurchase",
        )

    def present(self, root: Path) -> bool:
        """Return whether there are files of metadata and of reviews."""
        metadata, reviews = _files(root)
        return bool(metadata) and bool(reviews)

    def _products(self, metadata: list[Path], reviewed: Counter[str]) -> dict[str, _Product]:
        """Return what is kept of the products, in the order of the files."""
        products: dict[str, _Product] = {}
        for entry in _entries(metadata):
            place = self._sub_segment(entry)
            if place and reviewed[entry["asin"]] >= self.min_reviews and entry["asin"] not in products:
                products[entry["asin"]] = _Product(place, _bought_with(entry))
        common = self._commonest(product.place for product in products.values())
        products = {asin: product for asin, product in products.items() if product.place in common}
        return products if self.keep_isolated else _linked(products)

    def _commonest(self, places: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
        """Return the commonest sub-segments of each segment, as many as the paper has."""
        counts = Counter(places)
        ranked = sorted(counts, key=lambda place: (-counts[place], place))
        common: set[tuple[int, str]] = set()
        for number, segment in enumerate(self.segments):
            common.update([place for place in ranked if place[0] == number][: SEGMENTS[segment].num_classes])
        return common

    def _words(self, asins: list[str], reviews: list[Path]) -> torch.Tensor:
        row = {asin: number for number, asin in enumerate(asins)}
        told = ((row[entry["asin"]], entry.get("reviewText")) for entry in _entries(reviews, row))
        texts = ((number, text) for number, text in told if isinstance(text, str))
        x = compact(bag_of_words(texts, len(row), self.num_words, self.binary_words)[0])
        return normalized_rows(x) if self.normalize_features else x

    def _sub_segment(self, entry: dict[str, Any]) -> tuple[int, str] | None:
        categories = entry.get("category")
        if not isinstance(categories, list):
            return None
        for number, segment in enumerate(self.segments):
            path = SEGMENTS[segment].path
            if tuple(categories[: len(path)]) == path and len(categories) > len(path):
                return number, str(categories[len(path)])
        return None


class _Product(NamedTuple):
    """What is kept of a product: the number of its segment and its sub-segment, and what is bought with it."""

    place: tuple[int, str]
    also_buy: list[str]


def _bought_with(entry: Mapping[str, Any]) -> list[str]:
    others = entry.get("also_buy")
    return [other for other in others if isinstance(other, str)] if isinstance(others, list) else []


def _linked(products: dict[str, _Product]) -> dict[str, _Product]:
    """Return the products that have an edge to another one."""
    source, target = _edges(products)
    linked = set(np.concatenate([source, target])[np.tile(source != target, 2)].tolist())
    return {asin: product for number, (asin, product) in enumerate(products.items()) if number in linked}


def _segments(products: Mapping[str, _Product]) -> np.ndarray:
    return np.array([product.place[0] for product in products.values()], dtype=np.int64)


def _edges(products: Mapping[str, _Product]) -> np.ndarray:
    """Return (2, links): products bought with others of their segment."""
    ends = links_among({asin: product.also_buy for asin, product in products.items()})
    source, target = _segments(products)[ends]
    return ends[:, source == target]


def _files(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of metadata and those of reviews, by name."""
    found = sorted([*(root / FOLDER).glob("*.json"), *(root / FOLDER).glob("*.json.gz")])
    metadata = [path for path in found if path.name.startswith("meta_")]
    return metadata, [path for path in found if path not in metadata]


def _entries(paths: list[Path], among: Mapping[str, int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield what is said of products, of all or of those given."""
    for path in paths:
        for entry in json_lines(path):
            asin = entry.get("asin")
            if isinstance(asin, str) and (among is None or asin in among):
                yield entry
