"""The search knows the right graph from others, and says so where it finds none."""

from __future__ import annotations

from dataclasses import replace

import torch

from isthmus.attacks.inputs.dense import DenseGCN, mixing
from isthmus.attacks.inputs.grain.blocks import Kinds, Limits
from isthmus.attacks.inputs.grain.search import Sought, is_right, of_classes, rebuilt, what_was_pooled
from isthmus.attacks.inputs.grain.small_graph import SmallGraph, same

DRAW = torch.Generator().manual_seed(0)
MODEL = DenseGCN(layers=2, maps=1, pooled="mean", activate=True)
SIZES = {"gnn.layers.0": (5, 120), "gnn.layers.1": (120, 120), "decoder.layers.0": (120, 3)}
PARAMS = {
    f"{name}.{kind}": torch.randn(*(size if kind == "weight" else size[1:]), generator=DRAW).double()
    / (size[0] ** 0.5 if kind == "weight" else 10.0)
    for name, size in SIZES.items()
    for kind in ("weight", "bias")
}
X = torch.eye(5).double()
RIGHT = SmallGraph(X[[0, 1, 2, 3, 4]], frozenset({(0, 1), (0, 2), (0, 3), (3, 4)}))
WRONG = SmallGraph(X[[0, 1, 2, 3, 4]], frozenset({(0, 1), (0, 2), (0, 4), (3, 4)}))
KINDS = Kinds(X.repeat(3, 1), torch.arange(1, 4).repeat_interleave(5))


def sought(graph: SmallGraph, model: DenseGCN = MODEL) -> Sought:
    labels = torch.tensor([1, 0, 2, 1, 0])[: 1 if model.pooled else graph.num_nodes]
    mix = mixing(graph.adjacency())
    gradient = model.gradient(PARAMS, mix, graph.x, lambda s: torch.nn.functional.cross_entropy(s, labels))
    return Sought(model, PARAMS, gradient, of_classes, 1e-9, 1e-6, 1e-6, Limits())


def test_the_right_graph_has_the_gradient_and_a_wrong_one_has_not() -> None:
    for model in (MODEL, replace(MODEL, pooled="")):
        assert is_right(sought(RIGHT, model), RIGHT)
        assert not is_right(sought(RIGHT, model), WRONG)


def test_what_was_pooled_is_the_mean_of_hidden_rows() -> None:
    own = MODEL.hidden(PARAMS, mixing(RIGHT.adjacency()), RIGHT.x).mean(dim=0)
    assert torch.allclose(what_was_pooled(sought(RIGHT)), own)


def test_it_finds_the_graph_or_nothing() -> None:
    for model in (MODEL, replace(MODEL, pooled="")):
        found = rebuilt(sought(RIGHT, model), KINDS)
        assert found is not None and same(found, RIGHT)
    noisy = sought(RIGHT)
    rough = {
        name: each + 0.1 * each.norm() * torch.randn(each.shape, generator=DRAW).double()
        for name, each in noisy.gradient.items()
    }
    assert rebuilt(replace(noisy, gradient=rough), KINDS) is None
    assert rebuilt(replace(noisy, limits=Limits(nodes=2)), KINDS) is None
    assert rebuilt(replace(noisy, limits=Limits(kinds=1)), KINDS) is None
