from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.graph import Graph, select_rows

from .strategies import adjacency, dense, graphs, make_graph, many, rng, seeds


@many
@given(graphs, seeds, st.floats(0, 1))
def test_select_rows_equals_dense_indexing_in_any_order_and_keeps_the_layout(
    graph: Graph, seed: int, share: float
) -> None:
    rows = torch.from_numpy(rng(seed).permutation(graph.num_nodes)[: round(share * graph.num_nodes)])
    chosen = select_rows(graph.x, rows)
    assert chosen.layout == graph.x.layout
    assert torch.equal(dense(chosen), dense(graph.x)[rows])


@many
@given(graphs, seeds, st.floats(0, 1))
def test_subgraph_equals_rows_and_columns_of_the_dense_adjacency(graph: Graph, seed: int, share: float) -> None:
    nodes = torch.from_numpy(rng(seed).permutation(graph.num_nodes)[: round(share * graph.num_nodes)])
    part = graph.subgraph(nodes)
    assert torch.equal(adjacency(part), adjacency(graph)[nodes][:, nodes])
    assert torch.equal(dense(part.x), dense(graph.x)[nodes])
    assert torch.equal(part.y, graph.y[nodes])
    assert torch.equal(part.node_ids, nodes)
    assert torch.equal(part.masks["train"], graph.masks["train"][nodes])
    assert torch.equal(part.attributes["rank"], nodes * 10)
    keys = part.edge_index[0] * graph.num_nodes + part.edge_index[1]
    assert bool((keys[1:] > keys[:-1]).all()), "edges are not sorted by source, then target"


def test_a_subgraph_of_a_subgraph_keeps_the_ids_of_the_first_graph() -> None:
    part = make_graph(10, 20).subgraph(torch.tensor([9, 3, 5])).subgraph(torch.tensor([2, 0]))
    assert part.node_ids.tolist() == [5, 9]


def test_a_split_that_is_not_set_has_an_empty_mask() -> None:
    graph = make_graph(5, 4)
    assert graph.mask("test").tolist() == [False] * 5
    assert torch.equal(graph.mask("train"), graph.masks["train"])


def test_repr_tells_the_counts() -> None:
    graph = make_graph(5, 0).with_masks({"val": torch.tensor([True, False, True, False, False])})
    assert repr(graph) == "Graph(toy: 5 nodes, 0 directed edges, 4 features, 3 classes, val=2)"
