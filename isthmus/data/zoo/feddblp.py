"""FedDBLP: papers that cite each other, by venue or publisher (FederatedScope-GNN, Wang et al., 2022, 4.2 and A.1).

Built from a dump of the DBLP citation network (Tang et al., 2008; https://www.aminer.org/citation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import json_lines, links_among, require
from isthmus.data.zoo.words import bag_of_words, categories

FOLDER = "feddblp"
UNSPECIFIED = "unspecified"


@dataclass(frozen=True)
class FedDBLP(Dataset):
    """Papers, citations as undirected edges, bags of words of the abstracts, topics as classes.

    The paper's own graph has 52,202 papers and 271,054 citations; which papers of the dump it keeps is not said. Here a
    paper is kept when it has an abstract and a topic. The attributes "venue" and "publisher" are ways to divide it;
    where the dump has none, it is "unspecified". Citations of papers that are not kept are left out.

    A line of the dump is a JSON object (a JSON array with an object to a line will do):

        id          string or number; of several papers with one id, the first counts
        abstract    string; or indexed_abstract, as in the dumps of AMiner: {"InvertedIndex": {word: [place, ...]}}
        topic       string; or fos, strings or {"name": string, "w": number}: that with the largest w, else the first
        references  ids
        venue       string, or {"raw": string}
        publisher   string

    Fields:
        dump:         the file, plain or .gz; a relative path starts at `root/feddblp`
        num_words:    words that become features: those in most abstracts
        num_topics:   topics that are kept, those of most papers; 0 keeps all
        venues:       venues that are kept; empty keeps all
        binary_words: whether a feature says if the abstract has the word, not how often
    """

    licence = "that of the dump; AMiner's is for research"

    dump: str = "dblp.jsonl.gz"
    num_words: int = 1000
    num_topics: int = 0
    venues: tuple[str, ...] = ()
    binary_words: bool = True

    def __post_init__(self) -> None:
        if self.num_words < 1 or self.num_topics < 0:
            raise ValueError(
                f"num_words is {self.num_words!r} and num_topics {self.num_topics!r}; they must be at least 1 and 0"
            )

    def load(self, root: Path) -> Graph:
        """Return the graph; the dump is read twice, one line at a time."""
        folder = root / FOLDER
        (path,) = require(
            "feddblp", folder, [self.dump], "https://www.aminer.org/citation (a DBLP dump, one JSON object to a line)"
        )
        papers = self._papers(path)
        if not papers:
            raise BadInput(
                f"{path}: no paper has id, abstract and topic"
                + (f", and one of the venues {', '.join(self.venues)}" if self.venues else "")
            )
        num_papers = len(papers)
        x, _ = bag_of_words(self._abstracts(path, papers), num_papers, self.num_words, self.binary_words)
        x = compact(x)
        y, topics = categories([paper.topic for paper in papers.values()])
        venue, venues = categories([paper.venue for paper in papers.values()])
        publisher, publishers = categories([paper.publisher for paper in papers.values()])
        citations = links_among({number: paper.references for number, paper in papers.items()})
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(torch.from_numpy(citations), num_papers)[0],
            y=y,
            num_classes=len(topics),
            node_ids=torch.arange(num_papers),
            attributes={"venue": venue, "publisher": publisher},
            attribute_names={"venue": venues, "publisher": publishers},
            class_names=topics,
            name="feddblp",
        )

    def present(self, root: Path) -> bool:
        """Return whether the dump is there."""
        return (root / FOLDER / self.dump).is_file()

    def _accepts(self, entry: dict[str, Any]) -> bool:
        has_abstract = _text(entry.get("abstract")) or entry.get("indexed_abstract")
        complete = bool(_id(entry) and _topic(entry) and has_abstract)
        return complete and (not self.venues or _venue(entry) in self.venues)

    def _abstracts(self, path: Path, papers: Iterable[str]) -> Iterator[tuple[int, str]]:
        pending = {number: row for row, number in enumerate(papers)}
        for entry in json_lines(path):
            number = _id(entry)
            if number in pending and self._accepts(entry):
                yield pending.pop(number), _abstract(entry)

    def _papers(self, path: Path) -> dict[str, _Paper]:
        """Return what is kept of the papers on the first reading, in the order of the dump."""
        papers: dict[str, _Paper] = {}
        for entry in json_lines(path):
            number = _id(entry)
            if self._accepts(entry) and number not in papers:
                papers[number] = _Paper.of(entry)
        if not self.num_topics:
            return papers
        counts = Counter(paper.topic for paper in papers.values())
        common = set(sorted(counts, key=lambda topic: (-counts[topic], topic))[: self.num_topics])
        return {number: paper for number, paper in papers.items() if paper.topic in common}


class _Paper(NamedTuple):
    topic: str
    venue: str
    publisher: str
    references: list[str]

    @staticmethod
    def of(entry: dict[str, Any]) -> _Paper:
        cited, publisher = entry.get("references"), _text(entry.get("publisher"))
        references = [str(number) for number in cited] if isinstance(cited, list) else []
        return _Paper(_topic(entry), _venue(entry) or UNSPECIFIED, publisher or UNSPECIFIED, references)


def _id(entry: dict[str, Any]) -> str:
    number = entry.get("id")
    return str(number).strip() if isinstance(number, str | int) else ""


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _venue(entry: dict[str, Any]) -> str:
    venue = entry.get("venue")
    return _text(venue.get("raw")) if isinstance(venue, dict) else _text(venue)


def _abstract(entry: dict[str, Any]) -> str:
    text = _text(entry.get("abstract"))
    indexed = entry.get("indexed_abstract")
    if text or not isinstance(indexed, dict):
        return text
    places = indexed.get("InvertedIndex")
    # The order of words does not matter to a bag; how often each comes does.
    return " ".join(" ".join([word] * len(at)) for word, at in places.items()) if isinstance(places, dict) else ""


def _topic(entry: dict[str, Any]) -> str:
    topic, fields = _text(entry.get("topic")), entry.get("fos")
    if topic or not isinstance(fields, list) or not fields:
        return topic
    if all(isinstance(name, dict) for name in fields):
        weights = [field.get("w") for field in fields]
        told = [float(weight) if isinstance(weight, int | float) else 0.0 for weight in weights]
        return _text(fields[told.index(max(told))].get("name"))
    return _text(fields[0])
