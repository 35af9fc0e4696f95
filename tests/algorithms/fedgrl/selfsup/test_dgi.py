from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgrl.selfsup import DGI
from isthmus.core.record import Params
from isthmus.models import GraphInput
from isthmus.models.products.sparse import SparseMatrix

from .dense import (
    GRAPHS,
    PLAIN,
    SPECS,
    WIDTH,
    bare,
    build,
    doubled,
    encoded,
    encoder_of,
    require_same_slopes,
    ring,
    stream,
)


def reference(graph: GraphInput, p: Params, s: Params, draw: torch.Generator) -> Tensor:
    """-1/(2N) (sum_i log D(h_i, s) + sum_j log(1 - D(h~_j, s))), node by node."""
    assert isinstance(graph.x, Tensor)
    number = graph.num_nodes
    order = torch.randperm(number, generator=draw)
    shuffled = torch.stack([graph.x[order[node]] for node in range(number)])
    h, false = encoded(graph, p), encoded(graph.replace(x=shuffled), p)
    mean = sum((h[node] for node in range(1, number)), start=h[0]) / number
    summary = 1.0 / (1.0 + (-mean).exp())
    total = torch.zeros((), dtype=torch.float64)
    for node in range(number):
        for row, is_real in ((h[node], True), (false[node], False)):
            score = torch.zeros((), dtype=torch.float64)
            for a in range(WIDTH):
                for b in range(WIDTH):
                    score = score + row[a] * s["weight"][a, b] * summary[b]
            told = 1.0 / (1.0 + (-score).exp())
            total = total + (told if is_real else 1.0 - told).log()
    return -total / (2 * number)


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_loss_and_its_gradient_are_those_of_a_loop_over_nodes(spec: str, graph: str, seed: int) -> None:
    data, (model, own) = GRAPHS[graph](), build(SPECS[spec], DGI())
    p, s = doubled(encoder_of(model)), doubled(own.state_dict())
    wanted = reference(data, p, s, stream(seed))
    found = DGI().loss(model, own, data, {}, stream(seed))
    require_same_slopes(found, model, own, wanted, p, s)


def test_sparse_features_give_the_same() -> None:
    data = ring()
    assert isinstance(data.x, Tensor)
    x = torch.where(data.x.abs() > 0.6, data.x, 0.0)
    model, own = build(PLAIN, DGI())
    one = DGI().loss(model, own, data.replace(x=x), {}, stream(2))
    other = DGI().loss(model, own, data.replace(x=SparseMatrix.from_csr(x.to_sparse_csr())), {}, stream(2))
    torch.testing.assert_close(one, other)


def test_the_graph_stays_and_its_rows_are_shuffled_anew_each_time() -> None:
    model, own = build(PLAIN, DGI())
    draw, data, before = stream(1), ring(30), torch.random.get_rng_state()
    kept = data.x.clone()  # type: ignore[union-attr]
    values = [float(DGI().loss(model, own, data, {}, draw).detach()) for _ in range(3)]
    assert len(set(values)) == 3 and torch.equal(data.x, kept)  # type: ignore[arg-type]
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_node_alone_is_its_own_corruption() -> None:
    """h and h~ are the same then: what the one term gains the other loses, and log 2 is the least there is."""
    model, own = build(PLAIN, DGI())
    found = DGI().loss(model, own, bare(1), {}, stream())
    assert float(found.detach()) >= math.log(2) - 1e-6
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(found, [*own.parameters()]))


def test_it_remembers_nothing() -> None:
    model, own = build(PLAIN, DGI())
    assert DGI().memory(model) == {} and DGI().remember({}, model, 3) == {}
    assert {name: tuple(slot.shape) for name, slot in own.state_dict().items()} == {"weight": (WIDTH, WIDTH)}
