from __future__ import annotations

import pytest
import torch

from isthmus.models.encoders import LinearEncoder, MLPEncoder

from .toys import FEATURES, assert_close, randomise, sparse, toy


def test_linear_encoder_is_one_linear_map() -> None:
    graph, module = toy("mixed"), LinearEncoder(4).build(FEATURES)
    randomise(module)
    wrapped = sparse(graph)
    for given in (graph, wrapped):
        found = module(given, given.x, None)
        assert_close(found, graph.x @ module.layers[0].weight + module.layers[0].bias)


@pytest.mark.parametrize("layers", [1, 3])
def test_mlp_encoder_has_its_layers_and_width(layers: int) -> None:
    graph, module = toy("mixed"), MLPEncoder(4, layers).build(FEATURES)
    assert [tuple(layer.weight.shape) for layer in module.layers] == [(FEATURES, 4), (4, 4), (4, 4)][:layers]
    assert module(graph, graph.x, None).shape == (7, 4)


def test_mlp_encoder_drops_in_training() -> None:
    graph, module = toy("mixed"), MLPEncoder(16, dropout=0.5).build(FEATURES)
    assert not torch.allclose(module(graph, graph.x, torch.Generator()), module(graph, graph.x, None))


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="dim is 0"):
        LinearEncoder(0)
    with pytest.raises(ValueError, match="dim is -1"):
        MLPEncoder(-1)
    with pytest.raises(ValueError, match="layers is 0"):
        MLPEncoder(layers=0)
    with pytest.raises(ValueError, match="dropout is 1"):
        MLPEncoder(dropout=1)
    assert repr(MLPEncoder(8, 3)) == "MLPEncoder(dim=8, layers=3, dropout=0.0)"
