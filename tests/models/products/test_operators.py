from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import SparseMatrix, attention_pattern, complemented, pooling_operator
from tests.models.toys import TOYS, toy


def adjacency(graph: GraphInput) -> Tensor:
    a = torch.zeros(graph.num_nodes, graph.num_nodes)
    weights = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    for (source, target), weight in zip(graph.edge_index.t().tolist(), weights.tolist(), strict=True):
        a[target, source] += weight
    return a


@pytest.mark.parametrize("name", TOYS)
def test_operators_equal_their_dense_formulas(name: str) -> None:
    graph = toy(name)
    a = adjacency(graph)
    torch.testing.assert_close(graph.operator("sum").to_dense(), a)
    mean = a.clone()
    for row in mean:
        if row.any():
            row /= row.sum()
    torch.testing.assert_close(graph.operator("mean").to_dense(), mean)
    looped = a + torch.eye(len(a))
    scale = torch.diag(looped.sum(dim=1) ** -0.5)
    torch.testing.assert_close(graph.operator("gcn").to_dense(), scale @ looped @ scale)


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_pattern_is_a_kronecker_product(heads: int) -> None:
    graph = toy("mixed")
    pattern, _ = attention_pattern(graph.edge_index, graph.num_nodes, heads)
    found = torch.zeros(pattern.shape)
    found[pattern.row, pattern.col] = 1.0
    looped = adjacency(graph) + torch.eye(graph.num_nodes)
    assert torch.equal(found, torch.kron(looped, torch.eye(heads)))
    assert pattern.nnz == int(looped.sum()) * heads


def test_pooling_sums_and_averages_and_leaves_an_empty_graph_at_zero() -> None:
    batch = torch.tensor([2, 0, 2, 2])
    assert pooling_operator(batch, 3, mean=False).to_dense().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]]
    third = 1 / 3
    expected = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [third, 0, third, third]])
    torch.testing.assert_close(pooling_operator(batch, 3, mean=True).to_dense(), expected)


# ---- with an inferred structure


def inferred(num_nodes: int, seed: int = 0) -> Tensor:
    """An asymmetric structure with loops, an empty row and an empty column."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.rand(num_nodes, num_nodes, generator=draw) * (torch.rand(num_nodes, num_nodes, generator=draw) < 0.5)
    if num_nodes > 4:
        found[2], found[:, 3] = 0.0, 0.0
        found[0, 0], found[4, 2] = 0.7, 0.4
    return found


def with_inferred(graph: GraphInput, seed: int = 0) -> tuple[GraphInput, Tensor]:
    c = inferred(graph.num_nodes, seed)
    return graph.replace(complement=SparseMatrix.from_csr(c.to_sparse_csr())), c


@pytest.mark.parametrize("name", TOYS)
def test_the_normalised_operator_has_the_structure_added_loops_and_all(name: str) -> None:
    graph, c = with_inferred(toy(name))
    torch.testing.assert_close(graph.operator("gcn").to_dense(), toy(name).operator("gcn").to_dense() + c)


@pytest.mark.parametrize("name", TOYS)
def test_sums_and_means_run_over_edges_and_structure_without_its_loops(name: str) -> None:
    graph, c = with_inferred(toy(name))
    both = adjacency(graph)
    for i in range(len(both)):
        for j in range(len(both)):
            both[i, j] += float(c[i, j]) if i != j else 0.0
    torch.testing.assert_close(graph.operator("sum").to_dense(), both)
    for row in both:
        if row.any():
            row /= row.sum()
    torch.testing.assert_close(graph.operator("mean").to_dense(), both)


def test_a_structure_of_loops_alone_leaves_a_node_without_neighbours_at_zero() -> None:
    graph = toy("no_edges").replace(complement=SparseMatrix.from_csr(torch.eye(7).to_sparse_csr()))
    assert not graph.operator("mean").to_dense().any() and not graph.operator("sum").to_dense().any()
    assert graph.operator("mean").values.isfinite().all()
    torch.testing.assert_close(graph.operator("gcn").to_dense(), 2 * torch.eye(7))


def test_the_operator_that_is_complemented_stays_as_it_was() -> None:
    own = toy("weighted").operator("sum")
    before = own.values.clone()
    for name in ("gcn", "sum", "mean"):
        complemented(name, own, SparseMatrix.from_csr(inferred(7).to_sparse_csr()))
    assert torch.equal(own.values, before)


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_factors_are_ones_for_edges_and_loops_and_the_structures_weights_beside_them(heads: int) -> None:
    graph, c = with_inferred(toy("mixed"))
    pattern, factor = graph.attention(heads)
    assert factor is not None and len(factor) == pattern.nnz
    found = torch.zeros(pattern.shape).index_put((pattern.row, pattern.col), factor.exp(), accumulate=True)
    expected = adjacency(graph) + torch.eye(7) + c
    torch.testing.assert_close(found, torch.kron(expected, torch.eye(heads)))


def test_attention_without_a_structure_has_no_factors() -> None:
    assert toy("mixed").attention(2)[1] is None
