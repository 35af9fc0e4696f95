from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

from isthmus.models.gnn.gcn import GCN, GCNLayer

from ..toys import FEATURES, TOYS, assert_same_as_pyg, toy


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("out_dim", [3, 20])
def test_layer_equals_pyg(name: str, out_dim: int) -> None:
    graph, ours, theirs = toy(name), GCNLayer(FEATURES, out_dim), GCNConv(FEATURES, out_dim)
    assert_same_as_pyg(
        ours,
        lambda g: ours(g, g.x, None),
        theirs,
        lambda x: theirs(x, graph.edge_index, graph.edge_weight),
        {"weight": "lin.weight", "bias": "bias"},
        graph,
    )


@pytest.mark.parametrize("name", TOYS)
def test_stack_equals_pyg(name: str) -> None:
    graph, ours = toy(name), GCN(hidden=8, layers=3, dropout=0.0).build(FEATURES, 3)
    theirs = nn.ModuleList([GCNConv(FEATURES, 8), GCNConv(8, 8), GCNConv(8, 3)])

    def reference(x: torch.Tensor) -> torch.Tensor:
        for conv in theirs[:-1]:
            x = conv(x, graph.edge_index, graph.edge_weight).relu()
        return theirs[-1](x, graph.edge_index, graph.edge_weight)

    names = {f"layers.{i}.weight": f"{i}.lin.weight" for i in range(3)}
    names |= {f"layers.{i}.bias": f"{i}.bias" for i in range(3)}
    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, reference, names, graph)


def test_an_aggregated_row_follows_the_direction_of_edges() -> None:
    layer = GCNLayer(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    graph = toy("no_edges", 1).replace(x=torch.tensor([[1.0], [0.0]]), edge_index=torch.tensor([[0], [1]]))
    assert layer(graph, graph.x, None)[1].item() == pytest.approx(1 / 2**0.5)
    assert layer(graph, graph.x, None)[0].item() == pytest.approx(1.0)


def test_repr() -> None:
    assert repr(GCNLayer(5, 3)) == "GCNLayer(5, 3)"
    assert repr(GCN(hidden=8)) == "GCN(hidden=8, layers=2, dropout=0.5, batch_norm=False, input_dropout=0.0)"
