from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgrl.selfsup import GAE
from isthmus.core.record import Params
from isthmus.models import GraphInput

from .dense import GRAPHS, PLAIN, SPECS, bare, build, doubled, encoded, encoder_of, require_same_slopes, ring, stream


def reference(objective: GAE, graph: GraphInput, p: Params, draw: torch.Generator) -> Tensor:
    """The mean over edges of -log sigmoid(<h_i, h_j>), plus that over pairs apart of -log(1 - the same)."""
    h = encoded(graph, p)
    edges = [(int(a), int(b)) for a, b in graph.edge_index.t()]
    joined = edges
    if len(edges) > objective.max_edges:
        joined = [edges[int(n)] for n in torch.randint(len(edges), (objective.max_edges,), generator=draw)]
    drawn = torch.randint(graph.num_nodes, (2, max(len(joined), 1)), generator=draw).t()
    pairs = [(int(a), int(b)) for a, b in drawn]
    apart = [(a, b) for a, b in pairs if a != b and (a, b) not in edges and (b, a) not in edges]
    total = torch.zeros((), dtype=torch.float64)
    for group, is_edge in ((joined, True), (apart, False)):
        for a, b in group:
            said = 1.0 / (1.0 + (-(h[a] * h[b]).sum()).exp())
            total = total - (said if is_edge else 1.0 - said).log() / len(group)
    return total


def complete(number: int = 4) -> GraphInput:
    pairs = torch.tensor([(a, b) for a in range(number) for b in range(number) if a != b]).t()
    return bare(number).replace(edge_index=pairs)


def one_direction() -> GraphInput:
    """Edges in one direction only, between nearly all nodes: a pair is joined in the other direction too."""
    pairs = torch.tensor([(a, b) for a in range(6) for b in range(a) if (a, b) != (3, 1)]).t()
    return bare(6).replace(edge_index=pairs)


CASES: dict[str, Any] = {**GRAPHS, "all joined": complete, "one direction": one_direction}


@pytest.mark.meet(2)
@pytest.mark.parametrize("max_edges", [50_000, 16, 15, 1])
@pytest.mark.parametrize("graph", CASES)
@pytest.mark.parametrize("spec", SPECS)
def test_the_loss_and_its_gradient_are_those_of_a_loop_over_pairs(spec: str, graph: str, max_edges: int) -> None:
    objective = GAE(max_edges)
    data, (model, own) = CASES[graph](), build(SPECS[spec], objective)
    p = doubled(encoder_of(model))
    for seed in (2, 5, 6):
        wanted = reference(objective, data, p, stream(seed))
        found = objective.loss(model, own, data, {}, stream(seed))
        if not wanted.requires_grad:  # neither an edge nor a pair apart
            assert float(found.detach()) == 0.0
            assert not any(bool(g.any()) for g in torch.autograd.grad(found, list(model.gnn.parameters())))
            continue
        require_same_slopes(found, model, own, wanted, p, {})


def test_edges_are_drawn_anew_each_time() -> None:
    model, own = build(PLAIN, GAE())
    draw, before = stream(1), torch.random.get_rng_state()
    values = {float(GAE(3).loss(model, own, ring(30), {}, draw).detach()) for _ in range(3)}
    assert len(values) == 3 and torch.equal(before, torch.random.get_rng_state())


def test_a_node_alone_has_no_pair_and_no_gradient() -> None:
    model, own = build(PLAIN, GAE())
    found = GAE().loss(model, own, bare(1), {}, stream())
    assert float(found.detach()) == 0.0
    grads = torch.autograd.grad(found, list(model.gnn.parameters()))
    assert not any(bool(grad.any()) for grad in grads)


def test_it_has_no_parts_and_no_memory() -> None:
    model, own = build(PLAIN, GAE())
    assert not own.state_dict() and GAE().memory(model) == {} and GAE().remember({}, model, 3) == {}


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_edges is 0"):
        GAE(max_edges=0)
