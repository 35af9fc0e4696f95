"""Links from rows: found where rows say them, no better than features where they say nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedAvg, FedGL
from isthmus.algorithms.fedgl.messages import Guidance, LocalView, TrainWithGuidance, View
from isthmus.attacks.attack import Case, Message, NothingSeen, Seen
from isthmus.attacks.links.from_rows import LinksFromRows, correlation, pairs_of, ranks, rows_in
from isthmus.core.protocol import Evaluation, Position
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario


def case_of(scenario: Scenario) -> Case:
    return Case(toy_course(FedGL(), num_clients=len(scenario.parts)), scenario)


def told(case: Case, rows: dict[str, Tensor]) -> Seen:
    """Return what a server sees of clients that send some rows as predictions."""
    nothing = Guidance(*(torch.zeros(0, dtype=torch.int32) for _ in range(3)), torch.zeros(0))
    messages = [
        Message(Position(0, 1, 0), {client: TrainWithGuidance({}, nothing)}, LocalView({}, 1.0, View(each, each)))
        for client, each in rows.items()
    ]
    return Seen(case.course, case.clients, {}, {}, tuple(messages))


def components(graph: Any) -> list[int]:
    """Return a number for each node that connected nodes share."""
    found = list(range(graph.num_nodes))
    for _ in range(graph.num_nodes):
        for source, target in graph.edge_index.t().tolist():
            found[source] = min(found[source], found[target])
    return found


def test_nodes_that_say_the_same_are_taken_for_connected() -> None:
    # Nine nodes in three triangles, features that say nothing.
    source, target = np.nonzero(np.kron(np.eye(3), 1 - np.eye(3)))
    graph = replace(
        toy_graph(9, num_features=50),
        edge_index=torch.tensor(np.stack([source, target])),
        x=torch.randn(9, 50, generator=torch.Generator().manual_seed(5)),
    )
    case = case_of(Scenario(graph, {"a": graph}))
    attack = LinksFromRows()
    known = attack.known(case)
    rows = torch.eye(3).repeat_interleave(3, dim=0)
    truth = attack.truth(case, known)
    assert attack.scores(attack.guess(told(case, {"a": rows}), known), truth)["auc"] == 1.0
    alike = torch.ones(9, 3) / 3
    assert attack.guess(told(case, {"a": alike}), known).argsort().tolist() == (
        attack.prior(known, ["a"]).argsort().tolist()
    )


def test_the_prior_is_how_features_agree() -> None:
    case, attack = case_of(toy_scenario(3)), LinksFromRows()
    known = attack.known(case)
    place = 0
    found = attack.prior(known, case.clients)
    for client, ends in known.ends.items():
        x = case.scenario.parts[client].x.double().numpy()
        slow = [float(np.corrcoef(x[a], x[b])[0, 1]) for a, b in ends.t().tolist()]
        mine = found[place : place + len(slow)]
        assert mine.argsort().tolist() == np.argsort(slow, kind="stable").tolist()
        place += len(slow)


def test_pairs_are_all_edges_and_as_many_others() -> None:
    graph = toy_graph(30)
    edges, others = pairs_of(graph, torch.Generator().manual_seed(0))
    joined = {tuple(pair) for pair in graph.edge_index.t().tolist()}
    assert {tuple(pair) for pair in edges.t().tolist()} == {pair for pair in joined if pair[0] < pair[1]}
    assert others.shape == edges.shape
    seen = {frozenset(pair) for pair in others.t().tolist()}
    assert len(seen) == others.shape[1] and all(len(pair) == 2 and tuple(pair) not in joined for pair in seen)


def test_of_a_graph_with_nearly_all_edges_as_many_are_taken_as_there_are_others() -> None:
    everything = torch.tensor([(a, b) for a in range(5) for b in range(5) if a != b and {a, b} != {0, 1}]).t()
    graph = replace(toy_graph(5), edge_index=everything)
    edges, others = pairs_of(graph, torch.Generator().manual_seed(0))
    assert edges.shape == (2, 1) and set(others.flatten().tolist()) == {0, 1}


def test_the_truth_is_what_is_connected() -> None:
    case, attack = case_of(toy_scenario(3)), LinksFromRows()
    known, place = attack.known(case), 0
    truth = attack.truth(case, known)
    for client, ends in known.ends.items():
        joined = {tuple(pair) for pair in case.scenario.parts[client].edge_index.t().tolist()}
        for pair in ends.t().tolist():
            assert bool(truth[place]) == (tuple(pair) in joined)
            place += 1
    assert place == len(truth)


def test_the_last_rows_count_of_those_that_fit() -> None:
    case = case_of(toy_scenario(3))
    sizes = {client: part.num_nodes for client, part in case.scenario.parts.items()}
    early, late = ({c: torch.randn(n, 3) for c, n in sizes.items()} for _ in range(2))
    both = told(case, early), told(case, late)
    seen = replace(both[0], messages=both[0].messages + both[1].messages)
    attack = LinksFromRows()
    known = attack.known(case)
    assert torch.equal(attack.guess(seen, known), attack.guess(both[1], known))
    view = View(torch.ones(4, 2), torch.ones(4, 5))
    assert set(rows_in(LocalView({}, 1.0, view), 4)) == {".view.predictions", ".view.embeddings"}
    assert rows_in(LocalView({}, 1.0, view), 7) == {}


def test_correlation_and_ranks() -> None:
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double()
    ends = torch.tensor([[0, 1, 2], [3, 1, 4]])
    expected = [float(np.corrcoef(rows[a].numpy(), rows[b].numpy())[0, 1]) for a, b in ends.t().tolist()]
    assert correlation(rows, ends).tolist() == pytest.approx(expected)
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5 / 4, 1 / 4, 3.5 / 4, 2 / 4]


def test_without_rows_nothing_is_seen_and_a_method_without_them_is_refused() -> None:
    case = case_of(toy_scenario(3))
    message = Message(
        Position(0, 1, 0), {"client-0": TrainWithGuidance({}, Guidance(*[torch.zeros(0)] * 4))}, Evaluation({}, {})
    )
    attack = LinksFromRows()
    with pytest.raises(NothingSeen, match="nothing of client-0 is seen"):
        attack.guess(Seen(case.course, case.clients, {}, {}, (message,)), attack.known(case))
    assert "no reply of FedAvg has a row for each node" in attack.problem(toy_course(FedAvg()))
    assert not attack.problem(case.course)


def test_where_nobody_holds_a_link_nothing_is_decided() -> None:
    lonely = replace(toy_graph(9, num_features=5), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    case, attack = case_of(Scenario(lonely, {"a": lonely})), LinksFromRows()
    known = attack.known(case)
    assert len(attack.truth(case, known)) == len(attack.prior(known, case.clients)) == 0
    with pytest.raises(NothingSeen, match="no client holds nodes that are connected"):
        attack.guess(told(case, {"a": torch.ones(9, 3)}), known)
