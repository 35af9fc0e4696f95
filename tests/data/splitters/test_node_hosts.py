"""Clients that host one node, or a few, and know who the neighbours are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.testing import check_splitter, toy_graph

from .holdings import make_links


def neighbors(graph: Graph, node: int) -> dict[int, float]:
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    mine = graph.edge_index[0] == node
    return dict(zip(graph.edge_index[1, mine].tolist(), weight[mine].tolist(), strict=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_clients", [1, 7, 30])
def test_every_client_knows_the_ids_of_its_nodes_neighbours(num_clients: int, weighted: bool) -> None:
    graph = toy_graph(30, num_links=1, weighted=weighted)
    parts = NodeHostsSplitter().split(graph, num_clients, np.random.default_rng(0))
    for part in parts:
        for row, node in enumerate(part.node_ids.tolist()):
            listed = part.attributes["neighbors"][row]
            found = listed[listed >= 0].tolist()
            assert found == sorted(neighbors(graph, node))
            if weighted:
                weights = part.attributes["neighbor_weights"][row][listed >= 0].tolist()
                assert dict(zip(found, weights, strict=True)) == neighbors(graph, node)
    assert ("neighbor_weights" in parts[0].attributes) == weighted
    assert max(part.num_nodes for part in parts) - min(part.num_nodes for part in parts) <= 1


def test_with_as_many_clients_as_nodes_client_k_hosts_node_k_and_nothing_else() -> None:
    graph = toy_graph(20)
    parts = NodeHostsSplitter().split(graph, 20, np.random.default_rng(3))
    for k, part in enumerate(parts):
        assert part.node_ids.tolist() == [k]
        assert torch.equal(part.x, graph.x[k : k + 1])
        assert part.num_edges == 0


def test_random_order_deals_other_nodes() -> None:
    graph = toy_graph(20)
    first, second = (NodeHostsSplitter("random").split(graph, 5, np.random.default_rng(s)) for s in (0, 1))
    assert [p.node_ids.tolist() for p in first] != [p.node_ids.tolist() for p in second]
    check_splitter(NodeHostsSplitter("random"))


def test_a_part_of_a_part_names_neighbours_by_the_ids_of_the_whole() -> None:
    whole = toy_graph(30)
    piece = whole.subgraph(torch.arange(10, 30))
    (part, *_) = NodeHostsSplitter().split(piece, 20, np.random.default_rng(0))
    listed = part.attributes["neighbors"]
    assert listed[listed >= 0].tolist() == [id for id in sorted(neighbors(whole, 10)) if id >= 10]


def test_what_has_no_nodes_to_divide_is_refused() -> None:
    with pytest.raises(BadInput, match="node_hosts"):
        NodeHostsSplitter().split(make_links(9), 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="order is 'size'; choose from ids, random"):
        NodeHostsSplitter("size")
