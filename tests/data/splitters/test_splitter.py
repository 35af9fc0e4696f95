"""What holds for every splitter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters import SPLITTERS, CommunitySplitter, RandomSplitter, Splitter

from ..strategies import adjacency, graphs, make_graph, many, rng, seeds

WITHOUT_OVERLAP = [RandomSplitter(), CommunitySplitter(), CommunitySplitter(balanced=False)]
ALL = [*WITHOUT_OVERLAP, RandomSplitter(overlap_fraction=0.3), RandomSplitter(removed_edge_fraction=0.5)]


def num_clients_for(graph: Graph, wish: int) -> int:
    return min(wish, graph.num_nodes)


@many
@given(graphs, seeds, st.integers(1, 30), st.sampled_from(ALL))
def test_every_node_has_a_client_and_every_client_a_node(
    graph: Graph, seed: int, wish: int, splitter: Splitter
) -> None:
    clients = num_clients_for(graph, wish)
    parts = splitter.split(graph, clients, rng(seed))
    assert len(parts) == clients
    assert all(part.num_nodes > 0 for part in parts)
    assert set(torch.cat([part.node_ids for part in parts]).tolist()) == set(range(graph.num_nodes))
    assert all(bool((part.node_ids[1:] > part.node_ids[:-1]).all()) for part in parts)


@many
@given(graphs, seeds, st.integers(1, 30), st.sampled_from(WITHOUT_OVERLAP))
def test_without_overlap_every_node_has_one_client(graph: Graph, seed: int, wish: int, splitter: Splitter) -> None:
    parts = splitter.split(graph, num_clients_for(graph, wish), rng(seed))
    assert torch.cat([part.node_ids for part in parts]).sort().values.tolist() == list(range(graph.num_nodes))


@many
@given(graphs, seeds, st.integers(1, 8), st.sampled_from([*WITHOUT_OVERLAP, RandomSplitter(overlap_fraction=0.3)]))
def test_a_client_holds_exactly_the_edges_between_its_nodes(
    graph: Graph, seed: int, wish: int, splitter: Splitter
) -> None:
    whole = adjacency(graph)
    for part in splitter.split(graph, num_clients_for(graph, wish), rng(seed)):
        assert torch.equal(adjacency(part), whole[part.node_ids][:, part.node_ids])
        assert torch.equal(part.y, graph.y[part.node_ids])


@pytest.mark.parametrize("splitter", [*ALL, RandomSplitter(shares=(0.3, 0.4, 0.5))], ids=repr)
def test_same_seed_same_split_other_seed_other_split(splitter: Splitter) -> None:
    graph = make_graph(200, 400)

    def ids(seed: int) -> list[list[int]]:
        return [part.edge_index.tolist() + part.node_ids.tolist() for part in splitter.split(graph, 3, rng(seed))]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.mark.parametrize("splitter", ALL, ids=repr)
def test_one_client_gets_every_node(splitter: Splitter) -> None:
    graph = make_graph(20, 30)
    (part,) = splitter.split(graph, 1, rng(0))
    assert part.node_ids.tolist() == list(range(20))


@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients_are_refused(clients: int) -> None:
    with pytest.raises(BadInput, match=rf"num_clients is {clients}; at least 1"):
        RandomSplitter().split(make_graph(5, 5), clients, rng(0))


def test_more_clients_than_nodes_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"num_clients is 6, but the dataset 'toy' has only 5 nodes"):
        CommunitySplitter().split(make_graph(5, 5), 6, rng(0))


@dataclass(frozen=True)
class Careless(Splitter):
    sizes: tuple[int, ...] = ()

    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[torch.Tensor]:
        return list(torch.arange(graph.num_nodes).split(list(self.sizes)))


def test_a_splitter_that_leaves_a_client_empty_is_named() -> None:
    with pytest.raises(BadInput, match=r"Careless\(sizes=\(3, 0, 2\)\) left clients \[1\] of 3 without a node"):
        Careless((3, 0, 2)).split(make_graph(5, 5), 3, rng(0))


def test_a_splitter_that_makes_another_number_of_parts_is_named() -> None:
    with pytest.raises(BadInput, match=r"Careless\(sizes=\(3, 2\)\) made 2 parts for 3 clients"):
        Careless((3, 2)).split(make_graph(5, 5), 3, rng(0))


def test_splitters_by_name() -> None:
    assert {"random": RandomSplitter, "community": CommunitySplitter} == SPLITTERS
