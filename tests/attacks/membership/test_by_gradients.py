"""Membership by gradients: an update that is made of members' gradients names them, one of nothing names nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import Case, Message, NothingSeen, Seen
from isthmus.attacks.listening import heard
from isthmus.attacks.membership.by_gradients import GradientMembership, coefficients
from isthmus.core.protocol import Position
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks.graph_task import GraphClassification
from isthmus.models import GCN, GIN, LinearDecoder, MeanReadout, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario
from tests.data.splitters.holdings import make_set


def plain(**changes: Any) -> isthmus.Course:
    model = ModelSpec(gnn=GCN(hidden=32, dropout=0.0))
    algorithm = FedAvg(local_steps=1, optimizer=SGD(lr=0.1, weight_decay=5e-3))
    return toy_course(algorithm, **{"rounds": 2, "model": model, "runtime": "auto", **changes})


def found_in(case: Case, attack: GradientMembership) -> dict[str, float]:
    known = attack.known(case)
    return attack.scores(attack.guess(heard(attack, case), known), attack.truth(case, known))


def wide(**changes: Any) -> Scenario:
    """Return clients whose nodes' gradients are independent: more features than nodes."""
    graph = toy_graph(60, num_features=200, num_links=1)
    parts = torch.arange(60).split(20)
    return Scenario(graph, {f"client-{i}": graph.subgraph(nodes) for i, nodes in enumerate(parts)})


@pytest.mark.parametrize("guards", [(), (SecureSum(),)])
def test_an_update_of_one_step_names_who_was_trained_on(guards: Any) -> None:
    case = Case(plain(guards=guards), wide())
    assert found_in(case, GradientMembership(ridge=1e-9))["auc"] > 0.99


def test_updates_of_graphs_name_graphs() -> None:
    graphs = make_set(60)
    turn = torch.arange(60) % 2
    graphs = graphs.with_masks({"train": turn == 0, "val": turn < 0, "test": turn == 1})
    parts = dict(zip(("a", "b"), graphs.divide(list(torch.arange(60).split(30))), strict=True))
    case = Case(
        plain(
            task=GraphClassification(),
            model=ModelSpec(gnn=GIN(hidden=32, dropout=0.0), readout=MeanReadout(), decoder=LinearDecoder()),
        ),
        Scenario(graphs, parts),  # type: ignore[arg-type]
    )
    assert not GradientMembership().problem(case.course)
    assert found_in(case, GradientMembership(ridge=1e-9))["auc"] > 0.8


def test_an_update_of_something_else_names_nobody() -> None:
    case, attack = Case(plain(), wide()), GradientMembership()
    seen = heard(attack, case)
    draw = torch.Generator().manual_seed(0)
    spoiled = tuple(
        Message(
            m.at,
            m.requests,
            replace(m.reply, params={n: t + torch.randn(t.shape, generator=draw) for n, t in m.request.params.items()}),  # type: ignore[attr-defined]
        )
        for m in seen.messages
        if hasattr(m.reply, "params")
    )
    known = attack.known(case)
    guess = attack.guess(replace(seen, messages=spoiled), known)
    assert abs(attack.scores(guess, attack.truth(case, known))["auc"] - 0.5) < 0.2


def test_coefficients_are_those_of_ridge_regression() -> None:
    draw = torch.Generator().manual_seed(1)
    rows, update = torch.randn(5, 40, generator=draw).double(), torch.randn(40, generator=draw).double()
    ridge = 0.1 * float(rows.square().sum(dim=1).mean())
    slow = torch.linalg.inv(rows @ rows.t() + ridge * torch.eye(5).double()) @ rows @ update
    assert torch.allclose(coefficients(rows, update, 0.1), slow)
    planted = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0]).double()
    assert torch.allclose(coefficients(rows, planted @ rows, 1e-12), planted, atol=1e-6)


def test_without_updates_nothing_is_seen() -> None:
    case, attack = Case(plain(), toy_scenario(3)), GradientMembership()
    seen = Seen(case.course, case.clients, {}, {}, ())
    with pytest.raises(NothingSeen, match="held back"):
        attack.guess(seen, attack.known(case))
    assert attack.wants(Position(0, 3, 0), None) and not attack.wants(Position(0, 4, 0), None)  # type: ignore[arg-type]
