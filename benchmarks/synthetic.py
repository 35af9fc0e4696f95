"""Graphs of any size for the benchmarks: groups of nodes that lie next to each other, edges mostly within a group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isthmus.data.graph import Graph, sparse_rows, undirected
from isthmus.data.splitters import Splitter
from isthmus.data.zoo import Dataset


@dataclass(frozen=True, kw_only=True)
class Synthetic(Dataset):
    """A random graph whose nodes have one of a few classes; features tell the class, with noise.

    Fields:
        num_nodes:    nodes; groups have num_nodes / num_groups of them, one after the other
        num_pairs:    undirected edges, about
        num_features: columns of the features
        num_groups:   groups; with as many clients and `BlockSplitter`, a client holds a group
        words:        features that are set at a node, about (a bag of words, sparse); 0 for dense features
        within:       share of the edges that lie within a group
    """

    num_nodes: int
    num_pairs: int
    num_features: int
    num_groups: int
    words: int = 0
    within: float = 0.95
    num_classes: int = 7
    seed: int = 0

    def load(self, root: Path) -> Graph:
        """Return the graph; nothing is read."""
        rng = np.random.default_rng(self.seed)
        y = rng.integers(self.num_classes, size=self.num_nodes)
        return Graph(
            x=self._bags_of_words(y, rng) if self.words else self._noisy_means(y, rng),
            edge_index=undirected(self._pairs(rng), self.num_nodes)[0],
            y=torch.from_numpy(y),
            num_classes=self.num_classes,
            node_ids=torch.arange(self.num_nodes),
            name="synthetic",
        )

    def present(self, root: Path) -> bool:
        """Return whether `load` finds its files; it needs none."""
        return True

    def _pairs(self, rng: np.random.Generator) -> Tensor:
        size = self.num_nodes // self.num_groups
        possible = self.num_groups * size * (size - 1) / 2
        wanted = self.within * self.num_pairs
        if wanted >= possible:
            raise ValueError(f"num_pairs is {self.num_pairs}; {self.num_groups} groups of {size} hold {possible:.0f}")
        # Pairs that are drawn twice count once: of n draws among N pairs, N (1 - exp(-n / N)) are left.
        draws = round(-possible * math.log1p(-wanted / possible))
        source = rng.integers(self.num_groups * size, size=draws)
        step = rng.integers(1, size, size=draws)
        target = source // size * size + (source % size + step) % size
        far = rng.integers(self.num_nodes, size=(2, self.num_pairs - round(wanted)))
        return torch.from_numpy(np.concatenate([np.stack([source, target]), far], axis=1))

    def _noisy_means(self, y: np.ndarray, rng: np.random.Generator) -> Tensor:
        means = rng.standard_normal((self.num_classes, self.num_features), dtype=np.float32)
        x = rng.standard_normal((self.num_nodes, self.num_features), dtype=np.float32)
        for label, mean in enumerate(means):
            x[y == label] += 0.5 * mean
        return torch.from_numpy(x)

    def _bags_of_words(self, y: np.ndarray, rng: np.random.Generator) -> Tensor:
        """Return ones at words of which every other is from the class's own share of the columns."""
        share = self.num_features // self.num_classes
        columns = rng.integers(self.num_features, size=(self.num_nodes, self.words))
        columns[:, ::2] = columns[:, ::2] % share + share * y[:, None]
        columns.sort(axis=1)
        new = np.ones_like(columns, dtype=bool)
        new[:, 1:] = columns[:, 1:] != columns[:, :-1]
        start = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(new.sum(axis=1), out=start[1:])
        values = torch.ones(int(start[-1]))
        shape = (self.num_nodes, self.num_features)
        return sparse_rows(torch.from_numpy(start), torch.from_numpy(columns[new]), values, shape)


@dataclass(frozen=True)
class BlockSplitter(Splitter):
    """Gives clients nodes that lie next to each other, in parts whose sizes differ by at most one."""

    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's nodes."""
        return list(torch.tensor_split(torch.arange(graph.num_nodes), num_clients))
