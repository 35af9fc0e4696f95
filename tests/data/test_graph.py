from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

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


def bits(value: Any) -> Any:
    """Return what tells two field values apart in any respect: layout, type, shape and every bit."""
    if isinstance(value, Mapping):
        return {key: bits(entry) for key, entry in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout == torch.sparse_csr:
        return value.shape, bits(value.crow_indices()), bits(value.col_indices()), bits(value.values())
    return value.dtype, value.shape, value.is_contiguous(), value.numpy().tobytes()


def contents(graph: Graph) -> dict[str, Any]:
    return {field.name: bits(getattr(graph, field.name)) for field in fields(graph)}


def tensors(graph: Graph) -> list[torch.Tensor]:
    x = [graph.x.values(), graph.x.col_indices()] if graph.x.layout == torch.sparse_csr else [graph.x]
    weight = [] if graph.edge_weight is None else [graph.edge_weight]
    return [*x, graph.edge_index, graph.y, graph.node_ids, *weight, *graph.masks.values(), *graph.attributes.values()]


shares = st.lists(st.floats(0, 1), max_size=6)


@many
@given(graphs, seeds, shares, st.booleans(), st.booleans())
def test_divide_equals_one_subgraph_for_each_part_to_the_bit(
    graph: Graph, seed: int, shares: list[float], ascending: bool, shuffled: bool
) -> None:
    draw = rng(seed)
    graph = replace(
        graph, attributes={**graph.attributes, "place": torch.from_numpy(draw.random((graph.num_nodes, 2)))}
    )
    if shuffled:  # no edge list of a Graph is so, but subgraph takes it
        order = torch.from_numpy(draw.permutation(graph.num_edges))
        weight = None if graph.edge_weight is None else graph.edge_weight[order]
        graph = replace(graph, edge_index=graph.edge_index[:, order], edge_weight=weight)
    parts = [torch.from_numpy(draw.permutation(graph.num_nodes)[: round(s * graph.num_nodes)]) for s in shares]
    parts = [part.sort().values for part in parts] if ascending else parts
    assert [contents(part) for part in graph.divide(parts)] == [contents(graph.subgraph(part)) for part in parts]


@many
@given(graphs, seeds, st.integers(1, 40))
def test_divide_into_parts_without_overlap_equals_subgraphs_to_the_bit(graph: Graph, seed: int, number: int) -> None:
    parts = torch.from_numpy(rng(seed).permutation(graph.num_nodes)).tensor_split(number)
    assert [contents(part) for part in graph.divide(parts)] == [contents(graph.subgraph(part)) for part in parts]


@many
@given(graphs, seeds)
def test_a_divided_graph_holds_no_memory_but_its_own(graph: Graph, seed: int) -> None:
    # What is saved or sent with a tensor is its whole memory, not only what the tensor shows of it.
    for part in graph.divide(torch.from_numpy(rng(seed).permutation(graph.num_nodes)).tensor_split(3)):
        for tensor in tensors(part):
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


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
