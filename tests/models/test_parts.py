from __future__ import annotations

import torch

from isthmus.models.dropout import dropout
from isthmus.models.parts import Linear, Perceptron

from .toys import FEATURES, assert_close, randomise, sparse, toy


def test_linear_equals_its_formula_for_dense_and_sparse_features() -> None:
    graph, layer = toy("mixed"), Linear(FEATURES, 3)
    randomise(layer)
    expected = graph.x @ layer.weight + layer.bias
    assert_close(layer(graph, graph.x, None), expected)
    wrapped = sparse(graph)
    assert_close(layer(wrapped, wrapped.x, None), expected)


def test_perceptron_drops_and_rectifies_between_its_maps_only() -> None:
    graph, module = toy("mixed"), Perceptron([FEATURES, 8, 6, 3], dropout=0.5)
    randomise(module)
    draw = torch.Generator().manual_seed(0)
    h = graph.x
    for layer in module.layers[:2]:
        h = dropout(h @ layer.weight + layer.bias, 0.5, draw).relu()
    expected = h @ module.layers[2].weight + module.layers[2].bias
    assert_close(module(graph, graph.x, torch.Generator().manual_seed(0)), expected)
    assert (expected < 0).any()
    assert not torch.allclose(module(graph, graph.x, None), expected)


def test_repr() -> None:
    assert repr(Linear(2, 3)) == "Linear(2, 3)"
    assert repr(Perceptron([2, 3], 0.5)) != repr(Perceptron([2, 3], 0.1))
