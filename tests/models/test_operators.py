from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.operators import attention_pattern, pooling_operator

from .toys import TOYS, toy


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
