"""Models without bias terms: those with one whose biases are zero."""

from __future__ import annotations

import pytest
import torch

from isthmus.core.random import seeded
from isthmus.models import APPNP, MLP, BiasFreeAPPNP, BiasFreeMLP, ModelSpec
from isthmus.models.inputs import GraphInput
from isthmus.models.stackable import stackable
from isthmus.testing import toy_graph


@pytest.mark.parametrize(("plain", "free"), [(MLP, BiasFreeMLP), (APPNP, BiasFreeAPPNP)])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_they_are_the_others_with_zero_bias(plain: type[MLP], free: type[MLP], layers: int) -> None:
    data = toy_graph()
    graph = GraphInput(data.x, data.edge_index)
    with seeded(0, "model"):
        full = ModelSpec(plain(hidden=5, layers=layers)).build(6, 3)
        bare = ModelSpec(free(hidden=5, layers=layers)).build(6, 3)
    weights = {name: value for name, value in full.state_dict().items() if not name.endswith("bias")}
    bare.load_state_dict(weights)
    assert [name for name, _ in bare.named_parameters()] == [f"gnn.layers.{k}.weight" for k in range(layers)]
    torch.testing.assert_close(bare(graph, None), full(graph, None))
    assert stackable(bare)


def test_reprs_tell_configurations_apart() -> None:
    one, two = (str(BiasFreeAPPNP(alpha=alpha).build(6, 3)) for alpha in (0.1, 0.2))
    assert one != two
    assert repr(BiasFreeMLP()) != repr(MLP())
