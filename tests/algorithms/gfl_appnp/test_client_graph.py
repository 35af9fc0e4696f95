"""The graph between clients: its polynomial, its blocks and its products, against dense ones."""

from __future__ import annotations

import pytest
import torch
from scipy import sparse

from isthmus.algorithms.gfl_appnp import client_graph
from isthmus.algorithms.gfl_appnp.client_graph import (
    ClientGraph,
    Mixing,
    normalized,
    polynomial,
    slices,
    without_blocks,
)
from isthmus.algorithms.gfl_appnp.messages import NeighborList
from isthmus.core.errors import BadInput
from isthmus.testing import toy_graph


def dense_polynomial(adjacency: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    looped = adjacency + torch.eye(len(adjacency), dtype=adjacency.dtype)
    scale = looped.sum(dim=1).rsqrt()
    operator = scale[:, None] * looped * scale
    return sum(
        (c * torch.linalg.matrix_power(operator, i) for i, c in enumerate(coefficients)), torch.zeros_like(looped)
    )


def lists(num_nodes: int, counts: tuple[int, ...]) -> tuple[dict[str, NeighborList], torch.Tensor]:
    graph = toy_graph(num_nodes, weighted=True)
    assert graph.edge_weight is not None
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency[graph.edge_index[0], graph.edge_index[1]] = graph.edge_weight.double()
    found = {}
    for name, nodes in enumerate(torch.arange(num_nodes).split(list(counts))):
        mine = torch.isin(graph.edge_index[0], nodes)
        edges = graph.edge_index[:, mine] + 1000  # keys are any numbers
        found[str(name)] = NeighborList(nodes + 1000, edges[0], edges[1], graph.edge_weight[mine], nodes > -1)
    return found, adjacency


@pytest.mark.parametrize("counts", [(1,) * 12, (5, 4, 3), (12,)])
def test_mixing_is_the_polynomial_and_falls_into_blocks_and_the_rest(counts: tuple[int, ...]) -> None:
    given, adjacency = lists(12, counts)
    graph = ClientGraph.of(given)
    coefficients = (0.3, 0.2, 0.1, 0.4)
    expected = dense_polynomial(adjacency, coefficients)
    matrix = graph.mixing(coefficients)
    torch.testing.assert_close(torch.from_numpy(matrix.toarray()), expected)
    rest, blocks = without_blocks(matrix, counts)
    for place, block in zip(slices(counts), blocks, strict=True):
        torch.testing.assert_close(block, expected[place, place].float())
        expected[place, place] = 0.0
    torch.testing.assert_close(torch.from_numpy(rest.toarray()), expected)


def test_unreached_entries_are_not_stored() -> None:
    pair = sparse.csr_matrix(([1.0, 1.0], ([0, 1], [1, 0])), (5, 5))
    assert polynomial(normalized(pair), (0.5, 0.3, 0.2)).nnz == 4 + 3


@pytest.mark.parametrize("chunk", [1, 10, 10_000])
def test_products_are_those_of_the_dense_matrix(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_graph, "CHUNK", chunk)
    dense = torch.rand(6, 6) * (torch.rand(6, 6) < 0.6)
    mixing = Mixing.of(sparse.csr_matrix(dense.numpy()))
    shared = torch.rand(6, 3)
    torch.testing.assert_close(mixing.times(shared), dense @ shared)
    chosen = torch.tensor([1, 4])
    torch.testing.assert_close(mixing.rows(chosen), dense[chosen])
    assert mixing.sources(chosen).tolist() == dense[chosen].any(dim=0).nonzero().flatten().tolist()
    gradients = torch.rand(6, 2, 3, 4)
    parts = [
        (slice(0, 2), {"w": gradients[0:2]}),
        (slice(2, 3), {"w": gradients[2:3]}),
        (slice(5, 6), {"w": gradients[5:6]}),
    ]
    kept = torch.tensor([0, 1, 2, 5])
    expected = torch.tensordot(dense[chosen][:, kept], gradients[kept], dims=1)
    torch.testing.assert_close(mixing.mixed_gradients(chosen, parts)["w"], expected)
    assert mixing.mixed_gradients(chosen, []) == {}


def test_a_heavy_edge_does_not_hide_a_light_one_that_one_side_names() -> None:
    def neighbors(nodes: list[int], source: list[int], target: list[int], weight: list[float]) -> NeighborList:
        lists = [torch.tensor(each) for each in (nodes, source, target, weight)]
        return NeighborList(*lists, torch.ones(len(nodes), dtype=torch.bool))

    lists = {"a": neighbors([0], [0, 0], [1, 2], [5e7, 1.0]), "b": neighbors([1, 2], [1], [0], [5e7])}
    with pytest.raises(
        BadInput, match=r"a names an edge from node 0 to node 2, and b, .*does not name it back \(1 such"
    ):
        ClientGraph.of(lists)
    alone = {"a": neighbors([0, 1], [0], [1], [1.0])}
    with pytest.raises(
        BadInput, match=r"a names an edge from node 0 to node 1, hosts both nodes, and does not name it"
    ):
        ClientGraph.of(alone)
