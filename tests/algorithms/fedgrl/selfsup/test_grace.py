from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgrl.selfsup import GRACE
from isthmus.core.random import seeded
from isthmus.core.record import Params
from isthmus.learn.augment import Augmentation
from isthmus.models import GraphInput

from .dense import (
    GRAPHS,
    PLAIN,
    SPECS,
    bare,
    build,
    cosine,
    doubled,
    encoded,
    encoder_of,
    perceptron,
    require_same_slopes,
    ring,
    stream,
)

NO_VIEW = Augmentation(0.0, 0.0)
FIELDS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "cold": {"tau": 0.1},
    "no views": {"first": NO_VIEW, "second": NO_VIEW},
    "few nodes": {"max_nodes": 3},
    "two nodes": {"max_nodes": 2},
}


def told_apart(u: Tensor, v: Tensor, tau: float) -> Tensor:
    """The mean of -log( e(u_i, v_i) / sum_k (e(u_i, v_k) + [k != i] e(u_i, u_k)) ), pair by pair."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(u)):
        all_pairs = torch.zeros((), dtype=torch.float64)
        for k in range(len(u)):
            all_pairs = all_pairs + (cosine(u[i], v[k]) / tau).exp()
            if k != i:
                all_pairs = all_pairs + (cosine(u[i], u[k]) / tau).exp()
        total = total - ((cosine(u[i], v[i]) / tau).exp() / all_pairs).log()
    return total / len(u)


def reference(objective: GRACE, graph: GraphInput, p: Params, s: Params, draw: torch.Generator) -> Tensor:
    views = objective.first.view(graph, draw), objective.second.view(graph, draw)
    nodes = torch.arange(graph.num_nodes)
    if graph.num_nodes > objective.max_nodes:
        nodes = torch.randperm(graph.num_nodes, generator=draw)[: objective.max_nodes]
    u, v = (perceptron(encoded(view, p), s, "projector")[nodes] for view in views)
    return 0.5 * (told_apart(u, v, objective.tau) + told_apart(v, u, objective.tau))


@pytest.mark.meet(2)
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_loss_and_its_gradient_are_those_of_a_loop_over_pairs(spec: str, graph: str, name: str) -> None:
    objective = GRACE(hidden=7, **FIELDS[name])
    data, (model, own) = GRAPHS[graph](), build(SPECS[spec], objective)
    p, s = doubled(encoder_of(model)), doubled(own.state_dict())
    wanted = reference(objective, data, p, s, stream(2))
    found = objective.loss(model, own, data, {}, stream(2))
    require_same_slopes(found, model, own, wanted, p, s)


def test_no_more_nodes_than_the_limit_are_compared_and_others_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    plain = GRACE._told_apart

    def watched(self: GRACE, u: Tensor, v: Tensor) -> Tensor:
        sizes.append(tuple(u.shape))
        assert u.shape == v.shape
        return plain(self, u, v)

    monkeypatch.setattr(GRACE, "_told_apart", watched)
    objective = GRACE(hidden=7, first=NO_VIEW, second=NO_VIEW, max_nodes=4)
    model, own = build(PLAIN, objective)
    draw = stream(1)
    values = {float(objective.loss(model, own, ring(30), {}, draw).detach()) for _ in range(3)}
    assert sizes == [(4, 5)] * 6 and len(values) == 3


def test_as_many_nodes_as_the_limit_are_all_compared_and_nothing_is_drawn_for_it() -> None:
    data = ring()
    values = []
    for max_nodes in (data.num_nodes, data.num_nodes + 1, 10**6):
        objective, draw = GRACE(hidden=7, max_nodes=max_nodes), stream(2)
        model, own = build(PLAIN, objective)
        values.append(
            (float(objective.loss(model, own, data, {}, draw).detach()), float(torch.rand((), generator=draw)))
        )
    assert len(set(values)) == 1


def test_a_node_alone_has_nothing_to_be_told_apart_from() -> None:
    objective = GRACE(hidden=7)
    model, own = build(PLAIN, objective)
    found = objective.loss(model, own, bare(1), {}, stream())
    assert float(found.detach()) == pytest.approx(0.0, abs=1e-6)
    grads = torch.autograd.grad(found, [*model.gnn.parameters(), *own.parameters()])
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


def test_nodes_that_are_all_alike_give_the_logarithm_of_their_number() -> None:
    objective = GRACE(hidden=7, first=NO_VIEW, second=NO_VIEW)
    model, own = build(PLAIN, objective)
    alike = bare(6).replace(x=torch.ones(6, 4))
    assert float(objective.loss(model, own, alike, {}, stream()).detach()) == pytest.approx(math.log(11), abs=1e-5)


def test_it_remembers_nothing_and_leaves_the_global_generator_alone() -> None:
    objective = GRACE(hidden=7)
    model, own = build(PLAIN, objective)
    before = torch.random.get_rng_state()
    assert objective.memory(model) == {} and objective.remember({}, model, 3) == {}
    objective.loss(model, own, ring(), {}, stream())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_node_without_features_and_edges_does_not_throw_a_fresh_model_off() -> None:
    """Its representation is made of biases, which a fresh model has at 0."""
    graph = ring()
    x = graph.x.clone()
    x[-1] = 0.0
    objective = GRACE(hidden=7)
    with seeded(0, "fresh"):
        model, own = PLAIN.build(4, 3), objective.build(5)
    found = objective.loss(model, own, graph.replace(x=x), {}, stream())
    grads = torch.autograd.grad(found, [*model.gnn.parameters(), *own.parameters()])
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    assert max(float(grad.abs().max()) for grad in grads) < 100.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tau": 0.0}, "tau is 0.0; a temperature is above 0"),
        ({"tau": -1.0}, "tau is -1.0"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"max_nodes": 1}, "max_nodes is 1"),
        ({"hidden": 0}, "hidden is 0"),
    ],
    ids=str,
)
def test_fields_outside_their_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRACE(**fields)
