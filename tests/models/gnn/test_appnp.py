from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.nn import APPNP as Propagation

from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.mlp import MLP

from ..toys import FEATURES, TOYS, assert_same_as_pyg, randomise, toy


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize(("hops", "alpha"), [(10, 0.1), (3, 0.5)])
def test_stack_equals_pyg(name: str, hops: int, alpha: float) -> None:
    graph, ours = toy(name), APPNP(hidden=8, dropout=0.0, hops=hops, alpha=alpha).build(FEATURES, 3)
    theirs = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3))
    propagation = Propagation(hops, alpha)
    names = {f"layers.{i}.{kind}": f"{2 * i}.{kind}" for i in range(2) for kind in ("weight", "bias")}

    def reference(x: torch.Tensor) -> torch.Tensor:
        return propagation(theirs(x), graph.edge_index, graph.edge_weight)

    assert_same_as_pyg(ours, lambda g: ours(g, None), theirs, reference, names, graph)


def test_always_returning_is_an_mlp() -> None:
    graph, ours, plain = toy("mixed"), APPNP(hidden=8, alpha=1.0).build(FEATURES, 3), MLP(hidden=8).build(FEATURES, 3)
    randomise(ours)
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(graph, None), plain(graph, None))


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="hops is -1"):
        APPNP(hops=-1)
    with pytest.raises(ValueError, match=r"alpha is 1.5; it must be between 0 and 1"):
        APPNP(alpha=1.5)
    assert "hops=4, alpha=0.2" in repr(APPNP(hops=4, alpha=0.2).build(5, 3))
    assert repr(APPNP(hops=4)) != repr(APPNP(hops=5))
