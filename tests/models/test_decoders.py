from __future__ import annotations

import pytest
import torch

from isthmus.models.decoders import LinearDecoder, MLPDecoder

from .toys import FEATURES, assert_close, randomise, toy


def test_linear_decoder_is_one_linear_map() -> None:
    graph, module = toy("mixed"), LinearDecoder().build(FEATURES, 3)
    randomise(module)
    assert_close(module(graph, graph.x, torch.Generator()), graph.x @ module.layers[0].weight + module.layers[0].bias)


def test_mlp_decoder_equals_its_formula() -> None:
    graph, module = toy("mixed"), MLPDecoder(hidden=8, layers=2).build(FEATURES, 3)
    randomise(module)
    first, second = module.layers
    expected = (graph.x @ first.weight + first.bias).relu() @ second.weight + second.bias
    assert_close(module(graph, graph.x, None), expected)
    assert not torch.allclose(module(graph, graph.x, torch.Generator()), expected)


def test_mlp_decoder_takes_rows_that_are_not_nodes() -> None:
    module = MLPDecoder(hidden=8, layers=3).build(FEATURES, 2)
    assert [tuple(layer.weight.shape) for layer in module.layers] == [(FEATURES, 8), (8, 8), (8, 2)]
    assert module(toy("mixed"), torch.randn(3, FEATURES), None).shape == (3, 2)


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="hidden is 0"):
        MLPDecoder(hidden=0)
    with pytest.raises(ValueError, match="layers is 0"):
        MLPDecoder(layers=0)
    with pytest.raises(ValueError, match=r"dropout is -0.5"):
        MLPDecoder(dropout=-0.5)
    assert repr(MLPDecoder(8, 3)) == "MLPDecoder(hidden=8, layers=3, dropout=0.5)"
    assert repr(LinearDecoder()) == "LinearDecoder()"
