"""Every splitter of the table keeps to the rules, and check_splitter catches one that does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import SPLITTERS, CommunitySplitter, RandomSplitter, Splitter
from isthmus.testing import check_splitter, toy_graph

# Splitters that need to be told what to go by.
FIELDS: dict[str, dict[str, str]] = {
    "meta": {"attribute": "venue"},
    "instance_space": {"by": "year"},
    "multi_task": {"attribute": "venue"},
    "cross_domain": {"attribute": "venue"},
}


def attributes(num_items: int) -> dict[str, Tensor]:
    return {"venue": torch.arange(num_items) * 7 % 11, "year": 2000.0 + torch.arange(num_items) * 3 % 17}


def toy_links(num_links: int = 40) -> LinkGraph:
    draw = torch.Generator().manual_seed(0)
    return LinkGraph(
        x=torch.randn(20, 4, generator=draw),
        links=torch.randint(20, (2, num_links), generator=draw),
        label=torch.arange(num_links) % 3,
        num_classes=3,
        node_ids=torch.arange(20),
        link_ids=torch.arange(num_links),
        masks={"train": torch.arange(num_links) % 2 == 0},
        attributes=attributes(num_links),
        node_attributes={"kind": torch.arange(20) % 2},
        name="toy links",
    )


def toy_set(num_graphs: int = 40, tasks: int = 0) -> GraphSet:
    draw = torch.Generator().manual_seed(0)
    start = torch.arange(num_graphs + 1) * 3
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    y = torch.arange(num_graphs) % 3
    return GraphSet(
        x=torch.randn(3 * num_graphs, 4, generator=draw),
        edge_index=(path[:, None] + start[:-1, None]).reshape(2, -1),
        node_start=start,
        y=torch.randn(num_graphs, tasks, generator=draw) if tasks else y,
        num_classes=tasks or 3,
        target="value" if tasks else "class",
        graph_ids=torch.arange(num_graphs),
        edge_attr=torch.arange(4.0 * num_graphs)[:, None],
        attributes=attributes(num_graphs),
        name="toy set",
    )


def splitter_of(name: str) -> Splitter:
    return SPLITTERS[name](**FIELDS.get(name, {}))


@pytest.mark.parametrize("name", SPLITTERS)
def test_splitter_of_the_table_passes(name: str) -> None:
    graph = replace(toy_graph(60, weighted=True), attributes=attributes(60))
    check_splitter(splitter_of(name), data=graph)


@pytest.mark.parametrize("name", SPLITTERS)
def test_splitter_of_the_table_passes_on_sparse_features_without_weights(name: str) -> None:
    graph = replace(toy_graph(40), attributes=attributes(40))
    check_splitter(splitter_of(name), data=replace(graph, x=graph.x.relu().to_sparse_csr()), seeds=(0,))


@pytest.mark.parametrize("name", [name for name in SPLITTERS if "link" in SPLITTERS[name].items])
def test_splitter_of_the_table_passes_on_links(name: str) -> None:
    check_splitter(splitter_of(name), data=toy_links())


@pytest.mark.meet(1)
@pytest.mark.parametrize("tasks", [0, 2])
@pytest.mark.parametrize("name", [name for name in SPLITTERS if "graph" in SPLITTERS[name].items])
def test_splitter_of_the_table_passes_on_sets_of_graphs(name: str, tasks: int) -> None:
    check_splitter(splitter_of(name), data=toy_set(tasks=tasks))


def test_labels_of_other_tasks_may_be_hidden() -> None:
    check_splitter(SPLITTERS["multi_task"](), data=toy_set(tasks=6))


@pytest.mark.parametrize("method", ["igraph_louvain", "leiden", "metis"])
def test_other_communities_pass(method: str) -> None:
    check_splitter(CommunitySplitter(method))


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


@dataclass(frozen=True)
class Reverses(Splitter):
    """Spoils links and graphs: turns links round, and the edges of graphs, features and labels upside down."""

    field: str = "links"

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        return list(torch.tensor_split(torch.arange(data.num_items), num_clients))

    def after_cut(self, part, rng: np.random.Generator):
        return replace(part, **{self.field: getattr(part, self.field).flip(0)})


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (toy_links(), "links", "has links other than those of its links in the whole"),
        (toy_links(), "x", "has features other than"),
        (toy_links(), "label", "has labels other than"),
        (toy_set(), "edge_index", "has edges other than those of its graphs in the whole"),
        (toy_set(), "x", "has features other than"),
        (toy_set(), "edge_attr", "has features of edges other than"),
        (toy_set(tasks=2), "y", "has labels other than"),
    ],
)
def test_check_splitter_catches_spoiled_links_and_graphs(data: Holding, field: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_splitter(Reverses(field), data=data)
