from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models import READOUTS
from isthmus.models.inputs import GraphInput

from .toys import assert_close, cotangent, toy

NAMES = ("mean", "sum", "max")  # those that keep the width; set2set has a file of its own
LOOPS = {"mean": lambda rows: rows.mean(0), "sum": lambda rows: rows.sum(0), "max": lambda rows: rows.max(0).values}


def by_loop(name: str, h: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    rows = [h[batch == graph] for graph in range(num_graphs)]
    return torch.stack([LOOPS[name](part) if len(part) else torch.zeros(h.shape[1]) for part in rows])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [[0, 0, 1, 1, 1, 2, 2], [2, 0, 2, 0, 2, 0, 0], [0] * 7])
def test_equals_a_loop_over_graphs(name: str, batch: list[int]) -> None:
    where = torch.tensor(batch)
    graph = toy("mixed").replace(batch=where, num_graphs=3)
    h = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out, expected = READOUTS[name]().build(4)(graph, h, None), by_loop(name, h, where, 3)
    assert_close(out, expected)
    g = cotangent(out)
    assert_close(torch.autograd.grad(out, h, g)[0], torch.autograd.grad(expected, h, g)[0])


@pytest.mark.parametrize("name", NAMES)
def test_without_a_batch_all_nodes_are_one_graph(name: str) -> None:
    h = -torch.rand(7, 4) - 1.0
    out = READOUTS[name]().build(4)(toy("mixed"), h, None)
    assert_close(out, LOOPS[name](h).unsqueeze(0))


@pytest.mark.parametrize("name", NAMES)
def test_no_nodes_give_zeros(name: str) -> None:
    empty = GraphInput(torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.int64), num_graphs=2)
    assert READOUTS[name]().build(3)(empty, torch.zeros(0, 3), None).tolist() == [[0.0] * 3] * 2


def test_repr() -> None:
    assert {repr(READOUTS[name]()) for name in NAMES} == {"MeanReadout()", "SumReadout()", "MaxReadout()"}
    assert {repr(READOUTS[name]().build(4)) for name in NAMES} == {"MeanPool()", "SumPool()", "MaxPool()"}
    assert {READOUTS[name]().out_dim(4) for name in NAMES} == {4}
