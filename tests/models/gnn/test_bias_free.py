"""Models without bias terms: those with one whose biases are zero."""

from __future__ import annotations

import pytest
import torch

from isthmus.core.random import seeded
from isthmus.learn.together.blocks import stackable
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    MLP,
    SAGE,
    BiasFreeAPPNP,
    BiasFreeGAT,
    BiasFreeGCN,
    BiasFreeMLP,
    BiasFreeSAGE,
    ModelSpec,
)
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import StackSpec
from isthmus.testing import toy_graph

PAIRS = [(MLP, BiasFreeMLP), (APPNP, BiasFreeAPPNP), (GCN, BiasFreeGCN), (SAGE, BiasFreeSAGE), (GAT, BiasFreeGAT)]


@pytest.mark.parametrize(("plain", "free"), PAIRS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_they_are_the_others_with_zero_bias(plain: type[StackSpec], free: type[StackSpec], layers: int) -> None:
    data = toy_graph()
    graph = GraphInput(data.x, data.edge_index)
    with seeded(0, "model"):
        full = ModelSpec(plain(hidden=8, layers=layers)).build(6, 3)
        bare = ModelSpec(free(hidden=8, layers=layers)).build(6, 3)
    weights = {name: value for name, value in full.state_dict().items() if not name.endswith("bias")}
    bare.load_state_dict(weights)
    assert [name for name, _ in bare.named_parameters()] == list(weights)
    torch.testing.assert_close(bare(graph, None), full(graph, None))
    assert stackable(bare)


def test_reprs_tell_configurations_apart() -> None:
    one, two = (str(BiasFreeAPPNP(alpha=alpha).build(6, 3)) for alpha in (0.1, 0.2))
    assert one != two
    assert repr(BiasFreeMLP()) != repr(MLP())
