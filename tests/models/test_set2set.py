from __future__ import annotations

import pytest
import torch
from torch_geometric.nn.aggr import Set2Set as PyGSet2Set

from isthmus.models import GCN, MLPDecoder, ModelSpec, Set2SetReadout
from isthmus.models.inputs import GraphInput
from isthmus.models.readouts import Set2Set

from .toys import assert_close, cotangent, randomise, toy

WIDTH = 4


def graph_of(batch: list[int], num_graphs: int) -> GraphInput:
    no_edges = torch.zeros(2, 0, dtype=torch.int64)
    return GraphInput(
        torch.zeros(len(batch), 1), no_edges, batch=torch.tensor(batch, dtype=torch.int64), num_graphs=num_graphs
    )


def pair(steps: int) -> tuple[Set2Set, PyGSet2Set]:
    ours, theirs = Set2SetReadout(steps).build(WIDTH), PyGSet2Set(WIDTH, steps)
    randomise(ours)
    with torch.no_grad():
        for name, value in ours.lstm.named_parameters():
            getattr(theirs.lstm, f"{name}_l0").copy_(value)
    return ours, theirs


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch", [[0, 0, 1, 1, 1, 2], [0] * 6, [0, 1, 2, 2, 2, 2]])
def test_equals_pyg_with_all_gradients(steps: int, batch: list[int]) -> None:
    ours, theirs = pair(steps)
    count = max(batch) + 1
    h = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out, expected = ours(graph_of(batch, count), h, None), theirs(h, torch.tensor(batch), dim_size=count)
    assert out.shape == (count, 2 * WIDTH)
    assert_close(out, expected)
    g = cotangent(out)
    found = torch.autograd.grad(out, [h, *ours.parameters()], g)
    wanted = torch.autograd.grad(expected, [h, *theirs.parameters()], g)
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b)


def test_nodes_may_come_in_any_order() -> None:
    ours, _ = pair(3)
    h = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 5, 2, 4, 1])
    batch = torch.tensor([0, 0, 1, 1, 1, 2])
    shuffled = graph_of(batch[order].tolist(), 3)
    assert_close(ours(shuffled, h[order], None), ours(graph_of(batch.tolist(), 3), h, None))


def test_a_graph_without_nodes_finds_nothing_and_leaves_the_others_alone() -> None:
    ours, _ = pair(2)
    h = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = ours(graph_of([0, 0, 2, 2, 2], 3), h, None)
    assert out[1, WIDTH:].tolist() == [0.0] * WIDTH
    assert_close(out[[0, 2]], ours(graph_of([0, 0, 1, 1, 1], 2), h, None))
    assert bool(torch.autograd.grad(out.sum(), h)[0].isfinite().all())
    assert ours(graph_of([], 0), torch.zeros(0, WIDTH), None).shape == (0, 2 * WIDTH)


def test_large_scores_do_not_overflow() -> None:
    ours, _ = pair(2)
    h = 1e4 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    assert bool(ours(graph_of([0, 0, 0, 1, 1, 1], 2), h, None).isfinite().all())


def test_a_decoder_takes_the_double_width() -> None:
    model = ModelSpec(GCN(hidden=8), decoder=MLPDecoder(5), readout=Set2SetReadout()).build(5, 3)
    assert tuple(model.decoder.layers[0].weight.shape) == (16, 5)
    assert model(toy("mixed").replace(batch=torch.tensor([0, 0, 0, 1, 1, 1, 1])), None).shape == (2, 3)


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="steps is 0"):
        Set2SetReadout(0)
    assert repr(Set2SetReadout(2)) == "Set2SetReadout(steps=2)"
    assert "4, steps=2" in repr(Set2SetReadout(2).build(4))
