"""WN18 and FB15k-237, knowledge graphs with the official split of their triples.

WN18: Bordes, Usunier, Garcia-Duran, Weston and Yakhnenko, 2013. FB15k-237: Toutanova and Chen, 2015.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo.raw import RawDataset, check_range, read_numbers

Triples = npt.NDArray[np.int64]
Facts = tuple[dict[str, Triples], int, tuple[str, ...]]
FILES = {"train": "train.txt", "val": "valid.txt", "test": "test.txt"}


@dataclass(frozen=True)
class KnowledgeGraph(RawDataset):
    """Facts (head, relation, tail) as links whose label is the relation; the official split as masks.

    The links are those of train.txt, then valid.txt, then test.txt, in the order of the files. Two entities may be
    joined by several relations, in either direction; each fact is a link of its own.

    The entities come without features. The choices:

        constant: one column of ones, as FederatedScope-GNN does: what a model knows of an entity is its neighbourhood
        degree:   log(1 + number) of the training facts it is head of, and of those it is tail of: two columns. They
                  are counted before the graph is divided, so a client's entities know of facts at other clients
        none:     no column; for models that learn an embedding for each of `node_ids`

    Fields:
        features: "constant", "degree" or "none"
    """

    task = "link"

    features: Literal["constant", "degree", "none"] = "constant"

    @staticmethod
    @abstractmethod
    def read(folder: Path) -> Facts:
        """Return the triples (facts, 3) of each split, as head, tail and relation; number of entities; relations."""

    def load(self, root: Path) -> LinkGraph:
        """Return the graph; its files are looked for in `root`."""
        triples, num_entities, relations = self.read(self.verified(root)[0].parent)
        split_of = np.repeat(np.arange(len(SPLITS)), [len(triples[split]) for split in SPLITS])
        facts = np.concatenate([triples[split] for split in SPLITS])
        links = torch.from_numpy(np.ascontiguousarray(facts[:, :2].T))
        return LinkGraph(
            x=self._features(triples["train"], num_entities),
            links=links,
            label=torch.from_numpy(facts[:, 2].copy()),
            num_classes=len(relations),
            node_ids=torch.arange(num_entities),
            link_ids=torch.arange(len(facts)),
            masks={split: torch.from_numpy(split_of == number) for number, split in enumerate(SPLITS)},
            class_names=relations,
            name=self.name.lower(),
        )

    def _features(self, facts: Triples, num_entities: int) -> Tensor:
        if self.features == "none":
            return torch.empty(num_entities, 0)
        if self.features == "constant":
            return torch.ones(num_entities, 1)
        degree = np.stack([np.bincount(facts[:, end], minlength=num_entities) for end in (0, 1)], axis=1)
        return torch.from_numpy(np.log1p(degree).astype(np.float32))


def read_numbered(folder: Path) -> Facts:
    """Read files whose first line is a count: triples `head tail relation` in numbers, and tables `name number`."""
    entities = _names(folder / "entity2id.txt", name_column=0, counted=True)
    relations = _names(folder / "relation2id.txt", name_column=0, counted=True)
    triples = {}
    for split, file in FILES.items():
        path = folder / file
        facts = read_numbers(path, np.int64, delimiter=None, columns=3, skip=1)
        _check_count(path, len(facts))
        check_range(path, facts[:, :2], 0, len(entities) - 1, "entity")
        check_range(path, facts[:, 2], 0, len(relations) - 1, "relation")
        triples[split] = facts
    return triples, len(entities), tuple(relations)


def read_named(folder: Path) -> Facts:
    """Read triples `head relation tail` in names between tabs, and tables `number name`."""
    entities = _names(folder / "entities.dict", name_column=1)
    relations = _names(folder / "relations.dict", name_column=1)
    tables = [{name: number for number, name in enumerate(names)} for names in (entities, relations, entities)]
    triples = {}
    for split, file in FILES.items():
        path = folder / file
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        for number, row in enumerate(rows, start=1):
            if len(row) != 3:
                raise BadInput(f"the file {path}, line {number}: {row!r} is not head, relation and tail between tabs")
        try:
            columns = [[table[row[i]] for row in rows] for i, table in enumerate(tables)]
        except KeyError as error:
            raise BadInput(f"the file {path} names {error.args[0]!r}, which no *.dict file beside it holds") from None
        triples[split] = np.array(columns, dtype=np.int64).reshape(3, -1).T[:, [0, 2, 1]]
    return triples, len(entities), tuple(relations)


def _names(path: Path, name_column: int, counted: bool = False) -> list[str]:
    """Return the names of a table of names and numbers, in the order of the numbers, which are 0, 1, 2, ..."""
    lines = path.read_text(encoding="utf-8").splitlines()[int(counted) :]
    rows = [line.split("\t") for line in lines]
    if any(len(row) != 2 for row in rows):
        raise BadInput(f"the file {path} has a line that is not a name and a number between a tab; fetch it again")
    named = {row[1 - name_column].strip(): row[name_column].strip() for row in rows}
    missing = next((number for number in range(len(rows)) if str(number) not in named), None)
    if missing is not None:
        raise BadInput(f"the file {path} has {len(rows)} names, but none with the number {missing}; fetch it again")
    if counted:
        _check_count(path, len(rows))
    return [named[str(number)] for number in range(len(rows))]


def _check_count(path: Path, found: int) -> None:
    with path.open(encoding="utf-8") as file:
        stated = file.readline().strip()
    if stated != str(found):
        raise BadInput(f"the file {path} says {stated!r} lines at its top and has {found}; fetch it again")


class WN18(KnowledgeGraph):
    """40,943 senses of words in WordNet, 18 relations, 151,442 facts: 141,442 to train on, 5,000 and 5,000 held out.

    Most held-out facts have their inverse among the training facts, which is why later work prefers WN18RR.
    """

    licence = "WordNet licence"
    read = staticmethod(read_numbered)
    needs = tuple(f"WN18/raw/{file}" for file in (*FILES.values(), "entity2id.txt", "relation2id.txt"))
    published = "github.com/villmow/datasets_knowledge_embedding (WN18/original)"


class FB15k237(KnowledgeGraph):
    """14,541 entities of Freebase, 237 relations, 310,116 facts: 272,115 to train on, 17,535 and 20,466 held out."""

    licence = "CC BY 2.5 (Freebase)"
    read = staticmethod(read_named)
    name = "FB15k-237"
    needs = tuple(f"FB15k-237/raw/{file}" for file in (*FILES.values(), "entities.dict", "relations.dict"))
    published = (
        "github.com/TimDettmers/ConvE (FB15k-237.tar.gz) and, the numbers of entities and relations, "
        "github.com/DeepGraphLearning/KnowledgeGraphEmbedding (data/FB15k-237/*.dict)"
    )
