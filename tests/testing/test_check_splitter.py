"""Every splitter of the table keeps to the rules, and check_splitter catches one that does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.data.graph import Graph
from isthmus.data.splitters import SPLITTERS, RandomSplitter, Splitter
from isthmus.testing import check_splitter, toy_graph


@pytest.mark.parametrize("name", SPLITTERS)
def test_splitter_of_the_table_passes(name: str) -> None:
    check_splitter(SPLITTERS[name]())


@pytest.mark.parametrize("name", SPLITTERS)
def test_splitter_of_the_table_passes_on_sparse_features_without_weights(name: str) -> None:
    graph = toy_graph(40)
    check_splitter(SPLITTERS[name](), graph=replace(graph, x=graph.x.relu().to_sparse_csr()), seeds=(0,))


def test_overlapping_splitter_passes_when_it_is_said_to_overlap() -> None:
    check_splitter(RandomSplitter(overlap_fraction=0.3), overlapping=True)
    with pytest.raises(AssertionError, match="is with 2 clients; expected one"):
        check_splitter(RandomSplitter(overlap_fraction=0.3), num_clients=(2,))


def test_splitter_that_removes_edges_passes() -> None:
    check_splitter(RandomSplitter(removed_edge_fraction=0.5))


@dataclass(frozen=True)
class Halves(Splitter):
    """A plain splitter for others to spoil: equal runs of nodes."""

    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        return list(torch.tensor_split(torch.arange(graph.num_nodes), num_clients))


@dataclass(frozen=True)
class Loses(Halves):
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        first, *rest = super().assign(graph, num_clients, rng)
        return [first[1:], *rest]


@dataclass(frozen=True)
class Doubles(Halves):
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        first, *rest = super().assign(graph, num_clients, rng)
        return [torch.cat([first, rest[-1][-1:]]), *rest] if rest else [first]


@dataclass(frozen=True)
class Dice(Halves):
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        return [part.sort().values for part in torch.tensor_split(torch.randperm(graph.num_nodes), num_clients)]


@dataclass(frozen=True)
class OwnDice(Halves):
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        order = torch.from_numpy(np.random.default_rng().permutation(graph.num_nodes))
        return [part.sort().values for part in torch.tensor_split(order, num_clients)]


@dataclass(frozen=True)
class Invents(Halves):
    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        clique = torch.cartesian_prod(torch.arange(part.num_nodes), torch.arange(part.num_nodes)).t()
        clique = clique[:, clique[0] != clique[1]]
        return replace(part, edge_index=clique, edge_weight=torch.ones(clique.shape[1]))


@dataclass(frozen=True)
class HalfEdges(Halves):
    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        kept = part.edge_index[0] < part.edge_index[1]
        assert part.edge_weight is not None
        return replace(part, edge_index=part.edge_index[:, kept], edge_weight=part.edge_weight[kept])


@dataclass(frozen=True)
class Relabels(Halves):
    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        return replace(part, y=(part.y + 1) % part.num_classes)


@dataclass(frozen=True)
class Unmasks(Halves):
    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        return part.with_masks({**part.masks, "train": ~part.mask("train")})


@dataclass(frozen=True)
class Scales(Halves):
    def after_cut(self, part: Graph, rng: np.random.Generator) -> Graph:
        return replace(part, x=part.x * 2)


@dataclass(frozen=True)
class Spoils(Halves):
    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        graph.x.mul_(2)
        return super().assign(graph, num_clients, rng)


@dataclass(frozen=True)
class Miscounts(Halves):
    def split(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Graph]:
        return super().split(graph, num_clients + 1, rng)


@dataclass(frozen=True)
class Accepts(Halves):
    def split(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Graph]:
        return super().split(graph, min(num_clients, graph.num_nodes), rng)


@pytest.mark.parametrize(
    ("splitter", "message"),
    [
        (Loses(), "node 0 is with no client"),
        (Doubles(), "node 59 is with 2 clients"),
        (Dice(), "a global generator was used"),
        (OwnDice(), "the same seed gave another split"),
        (Invents(), "which the whole graph has not"),
        (HalfEdges(), "an edge in one direction only"),
        (Relabels(), "has labels other than"),
        (Unmasks(), "has masks other than"),
        (Scales(), "has features other than"),
        (Spoils(), "the whole graph was changed in place"),
        (Miscounts(), "there are 2 parts"),
        (Accepts(), "among more clients without a BadInput"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Splitter) else "",
)
def test_check_splitter_catches(splitter: Splitter, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_splitter(splitter)


def test_the_plain_splitter_passes() -> None:
    check_splitter(Halves())
