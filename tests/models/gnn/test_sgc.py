from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import SGConv

from isthmus.models.gnn.sgc import SGC

from ..toys import FEATURES, TOYS, assert_close, assert_same_as_pyg, sparse, toy


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("hops", [1, 2])
def test_stack_equals_pyg(name: str, hops: int) -> None:
    graph, ours, theirs = toy(name), SGC(hops=hops).build(FEATURES, 3), SGConv(FEATURES, 3, K=hops)
    names = {"layers.0.weight": "lin.weight", "layers.0.bias": "lin.bias"}
    assert_same_as_pyg(
        ours,
        lambda g: ours(g, None),
        theirs,
        lambda x: theirs(x, graph.edge_index, graph.edge_weight),
        names,
        graph,
    )


def test_hidden_is_the_smoothed_features() -> None:
    graph, ours = toy("weighted"), SGC(hops=3).build(FEATURES, 3)
    step = graph.operator("gcn").to_dense()
    assert_close(ours.hidden(graph, None), step @ step @ step @ graph.x)
    assert_close(ours.hidden(sparse(graph), None), step @ step @ step @ graph.x)


def test_input_dropout_draws_alike_in_both_ways_to_the_output() -> None:
    graph, ours = sparse(toy("mixed")), SGC(input_dropout=0.5).build(FEATURES, 3)
    direct = ours(graph, torch.Generator().manual_seed(1))
    again = torch.Generator().manual_seed(1)
    assert_close(ours.last(graph, ours.hidden(graph, again), again), direct)
    assert not torch.allclose(direct, ours(graph, None))


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="hops is -2"):
        SGC(hops=-2)
    with pytest.raises(ValueError, match="input_dropout is 1"):
        SGC(input_dropout=1)
    with pytest.raises(ValueError, match="hidden is 0"):
        SGC(hidden=0)
    assert "hops=3, input_dropout=0.1" in repr(SGC(hops=3, input_dropout=0.1).build(5, 3))
