from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.graph import Graph, count_pairs
from isthmus.data.splitters import RandomSplitter
from isthmus.data.splitters.cross_edges import cross_edges, split_with_cross_edges
from isthmus.data.survey.statistics import missing_edge_fraction

from ..strategies import graphs, many, pairs_by_id, rng, seeds
from .holdings import make_nodes


@many
@given(graphs, seeds, st.integers(1, 8), st.floats(0, 1))
def test_held_and_cross_edges_make_up_the_whole(graph: Graph, seed: int, wish: int, overlap: float) -> None:
    clients = min(wish, graph.num_nodes)
    graph = replace(graph, node_ids=torch.from_numpy(rng(seed).permutation(100)[: graph.num_nodes]))
    parts, cross = split_with_cross_edges(RandomSplitter(overlap), graph, clients, rng(seed))
    alone = RandomSplitter(overlap).split(graph, clients, rng(seed))
    assert [part.node_ids.tolist() for part in parts] == [part.node_ids.tolist() for part in alone]
    held = set().union(*(pairs_by_id(part) for part in parts))
    between = {frozenset(pair) for pair in cross.edge_index.t().tolist()}
    assert held.isdisjoint(between) and held | between == pairs_by_id(graph)
    assert cross.num_pairs == len(between) and cross.num_edges == 2 * len(between)
    assert cross.fraction == pytest.approx(missing_edge_fraction(graph, parts))
    assert (cross.edge_weight is None) == (graph.edge_weight is None)


def test_weights_are_those_of_the_edges() -> None:
    graph = make_nodes(20, 60)
    graph = replace(graph, edge_weight=graph.edge_index.sum(dim=0).float())
    _, cross = split_with_cross_edges(RandomSplitter(), graph, 4, rng(0))
    assert cross.edge_weight is not None and torch.equal(cross.edge_weight, cross.edge_index.sum(dim=0).float())


def test_removed_edges_are_not_cross_edges() -> None:
    graph = make_nodes(40, 200)
    parts, cross = split_with_cross_edges(RandomSplitter(removed_edge_fraction=1.0), graph, 2, rng(0))
    assert sum(part.num_edges for part in parts) == 0
    assert 0 < cross.num_pairs < count_pairs(graph)


def test_edges_that_leave_a_client_start_at_its_nodes() -> None:
    graph = make_nodes(30, 90)
    parts, cross = split_with_cross_edges(RandomSplitter(), graph, 3, rng(0))
    leaving = [cross.leaving(part) for part in parts]
    assert sum(edges.num_edges for edges in leaving) == cross.num_edges
    for part, edges in zip(parts, leaving, strict=True):
        assert set(edges.edge_index[0].tolist()) <= set(part.node_ids.tolist())
        assert not set(edges.edge_index[1].tolist()) & set(part.node_ids.tolist())


def test_a_whole_client_leaves_none() -> None:
    graph = make_nodes(10, 20)
    cross = cross_edges(graph, [graph])
    assert cross.num_pairs == 0 and cross.fraction == 0.0
    assert repr(cross) == f"CrossEdges(0 of {graph.num_edges} directed edges)"
