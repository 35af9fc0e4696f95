from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv

from isthmus.models.gnn.gat import GAT, GATLayer, row_softmax
from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import Pattern, SparseMatrix

from ..toys import FEATURES, UNWEIGHTED, assert_close, assert_same_as_pyg, cotangent, randomise, toy

NAMES = {"weight": "lin.weight", "attention_source": "att_src", "attention_target": "att_dst", "bias": "bias"}


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
def test_layer_equals_pyg(name: str, heads: int, concat: bool) -> None:
    graph = toy(name)
    ours, theirs = GATLayer(FEATURES, 4, heads, concat), GATConv(FEATURES, 4, heads=heads, concat=concat)
    assert_same_as_pyg(ours, lambda g: ours(g, g.x, None), theirs, lambda x: theirs(x, graph.edge_index), NAMES, graph)


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_stack_equals_pyg(name: str) -> None:
    graph, ours = toy(name), GAT(hidden=8, heads=2, last_heads=3, dropout=0.0).build(FEATURES, 3)
    theirs = nn.ModuleList([GATConv(FEATURES, 4, heads=2), GATConv(8, 3, heads=3, concat=False)])
    names = {f"layers.{i}.{mine}": f"{i}.{other}" for i in range(2) for mine, other in NAMES.items()}

    def reference(x: torch.Tensor) -> torch.Tensor:
        return theirs[1](theirs[0](x, graph.edge_index).relu(), graph.edge_index)

    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, reference, names, graph)


def test_attention_dropout_drops_whole_neighbours() -> None:
    graph = toy("mixed")
    layer = GATLayer(FEATURES, 4, 2, True, attention_dropout=0.5)
    seen = layer(graph, graph.x, torch.Generator().manual_seed(0))
    assert not torch.allclose(seen, layer(graph, graph.x, None))
    # The isolated node attends to itself alone: its coefficient is 1, so it becomes 0 or 2 in each head.
    own = (graph.x[6] @ layer.weight).view(2, 4)
    for head, value in enumerate(seen[6].view(2, 4)):
        assert torch.allclose(value, 0 * own[head]) or torch.allclose(value, 2 * own[head])


def test_row_softmax_survives_large_scores_and_has_the_right_gradient() -> None:
    pattern, _ = Pattern.from_pairs(torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 0, 1, 2]), (3, 3))
    scores = torch.tensor([1000.0, 999.0, -5000.0, 0.0, 1.0, 2.0])
    expected = torch.cat([scores[:2].softmax(0), scores[2:3].softmax(0), scores[3:].softmax(0)])
    assert_close(row_softmax(pattern, scores), expected)
    scores = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: row_softmax(pattern, s), (scores,))
    assert torch.autograd.gradgradcheck(lambda s: row_softmax(pattern, s), (scores,))


def test_errors() -> None:
    with pytest.raises(ValueError, match="hidden is 10 and heads is 4; hidden must be a multiple"):
        GAT(hidden=10, heads=4)
    for field in ("heads", "last_heads"):
        with pytest.raises(ValueError, match=f"{field} is 0"):
            GAT(**{field: 0})
    with pytest.raises(ValueError, match=r"attention_dropout is 1.0"):
        GAT(attention_dropout=1.0)


def test_repr() -> None:
    assert repr(GATLayer(5, 3, 2, False, 0.1)) == "GATLayer(5, 3, heads=2, concat=False, attention_dropout=0.1)"
    assert repr(GAT(heads=4)) != repr(GAT(heads=2))


# ---- with an inferred structure


def structure(seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    found = torch.rand(7, 7, generator=draw) * (torch.rand(7, 7, generator=draw) < 0.4)
    found[1] = 0.0
    found[6, 6], found[6, 2] = 0.3, 0.8  # the isolated node
    return found


def dense_attention(layer: GATLayer, graph: GraphInput, c: torch.Tensor) -> torch.Tensor:
    """Node by node: the exponential of each score counts as often as there is an edge or a loop, and C_ij more."""
    assert isinstance(graph.x, torch.Tensor)
    z = (graph.x @ layer.weight).view(7, layer.heads, -1)
    out = []
    for i in range(7):
        heads = []
        for h in range(layer.heads):
            total, mass = torch.zeros(z.shape[2]), torch.zeros(())
            for j in range(7):
                edges = int(((graph.edge_index[0] == j) & (graph.edge_index[1] == i)).sum()) + int(i == j)
                score = leaky_relu(z[i, h] @ layer.attention_target[h] + z[j, h] @ layer.attention_source[h], 0.2)
                weight = (edges + c[i, j]) * score.exp()
                total, mass = total + weight * z[j, h], mass + weight
            heads.append(total / mass)
        out.append(torch.cat(heads) if layer.concat else torch.stack(heads).mean(dim=0))
    return torch.stack(out) + layer.bias


@pytest.mark.parametrize("name", ["mixed", "no_edges"])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
def test_a_structure_is_a_factor_on_the_exponential(name: str, heads: int, concat: bool) -> None:
    c = structure()
    graph = toy(name).replace(complement=SparseMatrix.from_csr(c.to_sparse_csr()))
    layer = GATLayer(FEATURES, 4, heads, concat)
    randomise(layer)
    found, expected = layer(graph, graph.x, None), dense_attention(layer, graph, c)
    assert_close(found, expected)
    assert float((found - layer(toy(name), graph.x, None)).detach().abs().max()) > 1e-2
    g = cotangent(found)
    for mine, other in zip(
        torch.autograd.grad(found, list(layer.parameters()), g),
        torch.autograd.grad(expected, list(layer.parameters()), g),
        strict=True,
    ):
        assert_close(mine, other)


def test_an_entry_of_zero_in_a_structure_counts_nothing_and_spoils_nothing() -> None:
    c = structure()
    entries = SparseMatrix.from_csr(c.to_sparse_csr())
    zeroed = entries.with_values(torch.where(entries.pattern.row == 6, 0.0, entries.values))
    graph = toy("mixed").replace(complement=zeroed)
    layer = GATLayer(FEATURES, 4, 2)
    randomise(layer)
    out = layer(graph, graph.x, None)
    assert_close(out, dense_attention(layer, graph, zeroed.to_dense()))
    grads = torch.autograd.grad(out.sum(), list(layer.parameters()))
    assert all(bool(grad.isfinite().all()) for grad in grads)
