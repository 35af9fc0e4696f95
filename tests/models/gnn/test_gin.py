from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINConv

from isthmus.models.gnn.gin import GIN, GINLayer

from ..toys import FEATURES, TOYS, UNWEIGHTED, assert_close, assert_same_as_pyg, randomise, toy

NAMES = {
    "weight": "nn.0.weight",
    "bias": "nn.0.bias",
    "second.weight": "nn.2.weight",
    "second.bias": "nn.2.bias",
}


def conv(in_dim: int, hidden: int, out_dim: int, train_eps: bool = False) -> GINConv:
    perceptron = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, out_dim))
    return GINConv(perceptron, train_eps=train_eps)


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize("train_eps", [False, True])
def test_layer_equals_pyg(name: str, train_eps: bool) -> None:
    graph = toy(name)
    ours, theirs = GINLayer(FEATURES, 8, 3, train_eps), conv(FEATURES, 8, 3, train_eps)
    names = NAMES | ({"eps": "eps"} if train_eps else {})
    assert_same_as_pyg(ours, lambda g: ours(g, g.x, None), theirs, lambda x: theirs(x, graph.edge_index), names, graph)


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_stack_equals_pyg(name: str) -> None:
    graph, ours = toy(name), GIN(hidden=8, dropout=0.0).build(FEATURES, 3)
    theirs = nn.ModuleList([conv(FEATURES, 8, 8), conv(8, 8, 3)])
    names = {f"layers.{i}.{mine}": f"{i}.{other}" for i in range(2) for mine, other in NAMES.items()}

    def reference(x: torch.Tensor) -> torch.Tensor:
        return theirs[1](theirs[0](x, graph.edge_index).relu(), graph.edge_index)

    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, reference, names, graph)


@pytest.mark.parametrize("name", TOYS)
def test_layer_equals_its_formula_with_weights(name: str) -> None:
    graph, layer = toy(name), GINLayer(FEATURES, 8, 3, train_eps=True)
    randomise(layer)
    h = (1 + layer.eps) * graph.x
    for position, (source, target) in enumerate(graph.edge_index.t().tolist()):
        weight = 1.0 if graph.edge_weight is None else graph.edge_weight[position]
        h = h.index_add(0, torch.tensor([target]), weight * graph.x[source : source + 1])
    expected = (h @ layer.weight + layer.bias).relu() @ layer.second.weight + layer.second.bias
    assert_close(layer(graph, graph.x, None), expected)


def test_eps_is_a_parameter_only_when_trained() -> None:
    assert "eps" not in dict(GINLayer(5, 8, 3).named_parameters())
    assert dict(GINLayer(5, 8, 3, True).named_parameters())["eps"].item() == 0.0


def test_repr() -> None:
    assert repr(GINLayer(5, 8, 3)).startswith("GINLayer(\n  5, 8, train_eps=False")
    assert repr(GIN(train_eps=True)).endswith("train_eps=True)")
