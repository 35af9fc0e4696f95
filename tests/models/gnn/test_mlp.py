from __future__ import annotations

import pytest
from torch import nn

from isthmus.models.gnn.mlp import MLP

from ..toys import FEATURES, TOYS, assert_same_as_pyg, toy


@pytest.mark.parametrize("name", TOYS)
def test_equals_linear_layers_of_torch(name: str) -> None:
    ours = MLP(hidden=8, layers=3, dropout=0.0).build(FEATURES, 20)
    theirs = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 20))
    names = {f"layers.{i}.{kind}": f"{2 * i}.{kind}" for i in range(3) for kind in ("weight", "bias")}
    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, theirs, names, toy(name))


def test_repr() -> None:
    text = repr(MLP(hidden=8, dropout=0.25).build(FEATURES, 3))
    assert "dropout=0.25, input_dropout=0" in text and "Linear(5, 8)" in text and "Linear(8, 3)" in text
