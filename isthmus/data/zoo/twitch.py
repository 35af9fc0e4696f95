"""Twitch: friendships among streamers of six countries (Rozemberczki, Allen and Sarkar, 2021).

The six graphs are the clients of FedGRL (Suresh, Godbout, Mukherjee, Shrivastava, Neville and Li, 2022, section 5.1.1).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from isthmus.core.errors import nearest, refuse
from isthmus.data.dataset import Dataset
from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import damaged, known_digest, matrix, read_arrays, read_pairs, require, verified

COUNTRIES = ("DE", "EN", "ES", "FR", "PT", "RU")
FOLDERS: Mapping[str, str] = {"DE": "DE", "EN": "ENGB", "ES": "ES", "FR": "FR", "PT": "PTBR", "RU": "RU"}
NUM_RAW, NUM_REDUCED = 3170, 128
CHOICES = ("raw", "reduced")


class Country(NamedTuple):
    """One country's graph: features as coordinates (rows, columns) or dense, edges (pairs, 2), labels (nodes,)."""

    features: np.ndarray
    edges: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Twitch(Dataset):
    """34,118 streamers, 429,113 undirected friendships, all within a country; 2 classes.

    One graph, the disjoint union of the countries; the attribute "country" tells them apart. Nodes and undirected
    edges: DE 9,498 and 153,138; EN 7,126 and 35,324; ES 4,648 and 59,382; FR 6,549 and 112,666; PT 1,912 and 31,299;
    RU 4,385 and 37,304, as in FedGRL. The table of FR repeats 2 of its 6,551 rows; they count once.

    The label is `mature`: whether one uses explicit language. The raw features are 3,170 yes-or-no facts shared by all
    countries (games, habits, place), a few of which are named twice for a node. The reduced ones are derived from
    them: the first 128 singular components of the public facts, the same for all countries. They are not the 128
    features that torch_geometric's loader gives and that FedGRL used, so scores with them do not compare one to one.

    Fields:
        features:  "raw": 3,170 facts, sparse, from `root/twitch_musae/<folder>/{edges.csv,features.json,target.csv}`;
                   "reduced": 128 singular components from `root/twitch/<country>/raw/<country>.npz`
        countries: those that are loaded, in the order of their numbers
    """

    licence = "MIT, as part of benedekrozemberczki/datasets"

    features: str = "raw"
    countries: tuple[str, ...] = COUNTRIES

    def __post_init__(self) -> None:
        refuse(self.features not in CHOICES, self, "features", f"choose from {', '.join(CHOICES)}")
        for country in self.countries:
            if country not in COUNTRIES:
                raise ValueError(f"countries has {country!r}; {nearest(country, COUNTRIES)}")
        if not self.countries or len(set(self.countries)) < len(self.countries):
            raise ValueError(f"countries is {self.countries!r}; name at least one, and none twice")

    def load(self, root: Path) -> Graph:
        """Return the union of the countries' graphs."""
        read = _read_raw if self.features == "raw" else _read_reduced
        parts = [read(country, root) for country in self.countries]
        labels = [part.labels for part in parts]
        sizes = np.array(list(map(len, labels)))
        first, num_nodes = np.cumsum(sizes) - sizes, int(sizes.sum())
        if self.features == "raw":
            rows = np.concatenate([part.features[0] + shift for part, shift in zip(parts, first, strict=True)])
            columns = np.concatenate([part.features[1] for part in parts])
            x = compact(matrix(rows, columns, None, (num_nodes, NUM_RAW)))
        else:
            x = torch.from_numpy(np.concatenate([part.features for part in parts]).astype(np.float32))
        edges = np.concatenate([part.edges + shift for part, shift in zip(parts, first, strict=True)])
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(torch.from_numpy(edges).t(), num_nodes)[0],
            y=torch.from_numpy(np.concatenate(labels)),
            num_classes=2,
            node_ids=torch.arange(num_nodes),
            attributes={"country": torch.from_numpy(np.repeat(np.arange(len(parts)), sizes))},
            attribute_names={"country": self.countries},
            class_names=("not mature", "mature"),
            name="twitch",
        )

    def present(self, root: Path) -> bool:
        """Return whether the files of all chosen countries are there."""
        names = _raw_names if self.features == "raw" else _reduced_names
        return all((root / name).is_file() for country in self.countries for name in names(country))


def _raw_names(country: str) -> list[str]:
    return [f"twitch_musae/{FOLDERS[country]}/{name}" for name in ("edges.csv", "features.json", "target.csv")]


def _reduced_names(country: str) -> list[str]:
    return [f"twitch/{country}/raw/{country}.npz"]


def _read_raw(country: str, root: Path) -> Country:
    names = _raw_names(country)
    published = "https://github.com/benedekrozemberczki/datasets (twitch; there, each name starts with musae_)"
    require("twitch", root, names, published)
    links, facts, target = (verified(root, name) for name in names)
    try:
        with target.open(encoding="utf-8", newline="") as file:
            mature = {int(row["new_id"]): row["mature"] == "True" for row in csv.DictReader(file)}
        labels = np.array([mature[node] for node in range(len(mature))], dtype=np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(target, None, f"no table of new_id 0, 1, ... and mature ({error!r})") from error
    coordinates = _facts(facts, len(labels))
    pairs = read_pairs(links, delimiter=",", skip=1)
    if pairs.size and int(pairs.max()) >= len(labels):
        raise damaged(links, None, f"an edge goes to node {int(pairs.max())} of {len(labels)}")
    return Country(coordinates, pairs, labels)


def _facts(path: Path, num_nodes: int) -> np.ndarray:
    """Return the facts of the nodes as coordinates, (2, facts)."""
    try:
        facts = json.loads(path.read_bytes())
        nodes = np.array([int(node) for node in facts], dtype=np.int64)
        lengths = np.array([len(listed) for listed in facts.values()], dtype=np.int64)
        columns = np.fromiter(chain.from_iterable(facts.values()), dtype=np.int64, count=int(lengths.sum()))
    except (AttributeError, TypeError, ValueError) as error:
        raise damaged(path, None, f"no JSON object of lists of numbers ({error})") from error
    if len(nodes) and (int(nodes.max()) >= num_nodes or int(columns.max(initial=0)) >= NUM_RAW):
        raise damaged(
            path, None, f"it has node {int(nodes.max())} of {num_nodes}, fact {int(columns.max())} of {NUM_RAW}"
        )
    return np.stack([np.repeat(nodes, lengths), columns])


def _read_reduced(country: str, root: Path) -> Country:
    """Read the layout of torch_geometric's file; of several such files, those that fit together are taken."""
    published = "the class Twitch of torch_geometric"
    (path,) = require("twitch", root, _reduced_names(country), published)
    sha256 = known_digest(path, root)
    arrays = read_arrays(path, ("features", "edges", "target"), sha256)
    x, edges, labels = arrays["features"], arrays["edges"].astype(np.int64), arrays["target"].astype(np.int64)
    if x.shape != (len(labels), NUM_REDUCED) or edges.ndim != 2 or edges.shape[1] != 2 or int(edges.max()) >= len(x):
        raise damaged(path, sha256, f"features are {x.shape}, edges {edges.shape}, target {labels.shape}")
    return Country(x, edges, labels)
