from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINConv, GINEConv

from isthmus.models import GraphInput
from isthmus.models.gnn.gin import GIN, GINELayer, GINLayer
from isthmus.models.products.sparse import SparseMatrix

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
    assert repr(GIN(train_eps=True)).endswith("train_eps=True, edge_dim=0, mlp_norm=False)")


# ---- with features of edges

EDGE_NAMES = {
    "edge.weight": "lin.weight",
    "edge.bias": "lin.bias",
    "first.weight": "nn.0.weight",
    "first.bias": "nn.0.bias",
    "second.weight": "nn.2.weight",
    "second.bias": "nn.2.bias",
}


def with_edges(name: str, columns: int = 4) -> GraphInput:
    graph = toy(name)
    draw = torch.Generator().manual_seed(5)
    return graph.replace(edge_attr=torch.randn(graph.num_edges, columns, generator=draw))


def by_edge_loop(layer: GINELayer, graph: GraphInput) -> torch.Tensor:
    """The formula, edge by edge."""
    h = (1 + (0.0 if layer.eps is None else layer.eps)) * graph.x
    for position, (source, target) in enumerate(graph.edge_index.t().tolist()):
        weight = 1.0 if graph.edge_weight is None else graph.edge_weight[position]
        weight = 0.0 if graph.kept is not None and not graph.kept[position] else weight
        edge = graph.edge_attr[position] @ layer.edge.weight + layer.edge.bias
        h = h.index_add(0, torch.tensor([target]), weight * (graph.x[source] + edge).relu().unsqueeze(0))
    if graph.complement is not None:
        inferred = graph.complement.to_dense()
        h = h + (inferred - torch.diag(inferred.diagonal())) @ graph.x.relu()
    return (h @ layer.first.weight + layer.first.bias).relu() @ layer.second.weight + layer.second.bias


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize("train_eps", [False, True])
def test_layer_with_features_of_edges_equals_pyg(name: str, train_eps: bool) -> None:
    graph, ours = with_edges(name), GINELayer(FEATURES, 8, 3, 4, train_eps)
    perceptron = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3))
    theirs = GINEConv(perceptron, train_eps=train_eps, edge_dim=4)
    names = EDGE_NAMES | ({"eps": "eps"} if train_eps else {})
    if train_eps:
        theirs.eps = nn.Parameter(theirs.eps.detach().reshape(()))

    def reference(x: torch.Tensor) -> torch.Tensor:
        return theirs(x, graph.edge_index, graph.edge_attr)

    assert_same_as_pyg(ours, lambda g: ours(g, g.x, None), theirs, reference, names, graph)


@pytest.mark.parametrize("name", TOYS)
def test_layer_with_features_of_edges_equals_a_loop_over_edges(name: str) -> None:
    graph, layer = with_edges(name), GINELayer(FEATURES, 8, 3, 4, train_eps=True)
    randomise(layer)
    assert_close(layer(graph, graph.x, None), by_edge_loop(layer, graph))


def test_edges_that_do_not_count_carry_nothing_and_a_complement_adds_messages_without_features() -> None:
    graph, layer = with_edges("weighted"), GINELayer(FEATURES, 8, 3, 4)
    randomise(layer)
    kept = torch.arange(graph.num_edges) % 3 > 0
    pairs = torch.tensor([[0, 6, 3], [5, 1, 3]])
    complement = SparseMatrix.from_edges(pairs, torch.tensor([0.5, 2.0, 7.0]), (7, 7))
    for view in (graph.replace(kept=kept), graph.replace(complement=complement, kept=kept)):
        assert_close(layer(view, view.x, None), by_edge_loop(layer, view))


def test_stack_takes_features_of_edges_into_every_layer() -> None:
    graph, module = with_edges("mixed"), GIN(hidden=8, layers=3, edge_dim=4).build(FEATURES, 3)
    assert [type(layer) for layer in module.layers] == [GINELayer] * 3
    out = module(graph, None)
    weights = [layer.edge.weight for layer in module.layers]
    assert all(bool(grad.abs().sum() > 0) for grad in torch.autograd.grad(out.square().sum(), weights))
    moved = module(graph.replace(edge_attr=graph.edge_attr + 1.0), None)
    assert not torch.allclose(out, moved)


def test_without_edge_dim_features_of_edges_are_left_out() -> None:
    module = GIN(hidden=8).build(FEATURES, 3)
    assert torch.equal(module(with_edges("mixed"), None), module(toy("mixed"), None))


def test_other_columns_than_edge_dim_are_refused() -> None:
    module = GIN(hidden=8, edge_dim=3).build(FEATURES, 3)
    with pytest.raises(ValueError, match=r"4 columns of features, the model's edge_dim is 3; set model.gnn.edge_dim=4"):
        module(with_edges("mixed"), None)
    with pytest.raises(ValueError, match=r"set model.gnn.edge_dim=0, which leaves features of edges out"):
        module(toy("mixed"), None)
    with pytest.raises(ValueError, match="edge_dim is -1"):
        GIN(edge_dim=-1)


# ---- with batch normalisation in the MLP


@pytest.mark.parametrize("edge_dim", [0, 4])
@pytest.mark.parametrize("training", [False, True])
def test_layer_with_norms_equals_pyg(edge_dim: int, training: bool) -> None:
    graph = with_edges("mixed")
    widths = (FEATURES, 8, 8)
    ours = GINELayer(*widths, 4, mlp_norm=True) if edge_dim else GINLayer(*widths, mlp_norm=True)
    perceptron = nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8)
    ).train(training)
    theirs = GINEConv(perceptron, edge_dim=4) if edge_dim else GINConv(perceptron)
    names = {"second.weight": "nn.3.weight", "second.bias": "nn.3.bias"}
    names |= {f"norms.{i}.{part}": f"nn.{1 + 3 * i}.{part}" for i in range(2) for part in ("weight", "bias")}
    first = "first." if edge_dim else ""
    names |= {f"{first}{part}": f"nn.0.{part}" for part in ("weight", "bias")}
    if edge_dim:
        names |= {"edge.weight": "lin.weight", "edge.bias": "lin.bias"}
    generator = torch.Generator() if training else None
    more = (graph.edge_attr,) if edge_dim else ()
    assert_same_as_pyg(
        ours, lambda g: ours(g, g.x, generator), theirs, lambda x: theirs(x, graph.edge_index, *more), names, graph
    )
    for mine, other in zip(ours.norms, (perceptron[1], perceptron[4]), strict=True):
        assert_close(mine.running_var, other.running_var)


def test_a_stack_passes_its_norms_on() -> None:
    module = GIN(hidden=8, mlp_norm=True).build(FEATURES, 3)
    assert [len(layer.norms) for layer in module.layers] == [2, 2]
    assert repr(module.layers[0]) != repr(GIN(hidden=8).build(FEATURES, 3).layers[0])
