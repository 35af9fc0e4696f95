from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

from isthmus.models.gnn.sage import SAGE, SAGELayer

from ..toys import FEATURES, TOYS, UNWEIGHTED, assert_close, assert_same_as_pyg, toy

NAMES = {"neighbor_weight": "lin_l.weight", "own_weight": "lin_r.weight", "bias": "lin_l.bias"}


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize("out_dim", [3, 20])
def test_layer_equals_pyg(name: str, out_dim: int) -> None:
    graph, ours, theirs = toy(name), SAGELayer(FEATURES, out_dim), SAGEConv(FEATURES, out_dim)
    assert_same_as_pyg(ours, lambda g: ours(g, g.x, None), theirs, lambda x: theirs(x, graph.edge_index), NAMES, graph)


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_stack_equals_pyg(name: str) -> None:
    graph, ours = toy(name), SAGE(hidden=8, layers=2, dropout=0.0).build(FEATURES, 3)
    theirs = nn.ModuleList([SAGEConv(FEATURES, 8), SAGEConv(8, 3)])
    names = {f"layers.{i}.{mine}": f"{i}.{other}" for i in range(2) for mine, other in NAMES.items()}

    def reference(x: torch.Tensor) -> torch.Tensor:
        return theirs[1](theirs[0](x, graph.edge_index).relu(), graph.edge_index)

    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, reference, names, graph)


@pytest.mark.parametrize("name", TOYS)
def test_with_weights_the_mean_is_weighted(name: str) -> None:
    graph, layer = toy(name), SAGELayer(FEATURES, 2)
    mean = torch.zeros(graph.num_nodes, FEATURES)
    for node in range(graph.num_nodes):
        incoming = graph.edge_index[1] == node
        if incoming.any():
            weight = torch.ones(int(incoming.sum())) if graph.edge_weight is None else graph.edge_weight[incoming]
            mean[node] = weight @ graph.x[graph.edge_index[0, incoming]] / weight.sum()
    expected = mean @ layer.neighbor_weight + graph.x @ layer.own_weight + layer.bias
    assert_close(layer(graph, graph.x, None), expected)


def test_repr() -> None:
    assert repr(SAGELayer(5, 3)) == "SAGELayer(5, 3)"
    assert repr(SAGE(layers=3)).startswith("SAGE(hidden=64, layers=3")
