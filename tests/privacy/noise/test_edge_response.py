"""Edges that are told by chance: every outcome of small graphs, and the methods it is for."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import GFLAPPNP, FedAvg, FedGNN
from isthmus.algorithms.fedgnn.user_items import SharedUsers
from isthmus.algorithms.gfl_appnp.messages import NeighborList, ShareNeighbors
from isthmus.core.errors import BadInput
from isthmus.core.exposure import exposure
from isthmus.core.random import Secret
from isthmus.learn.tasks import NodeSamples
from isthmus.models import MLP, ModelSpec
from isthmus.privacy.noise import edge_response
from isthmus.privacy.noise.edge_response import EdgeResponse, flipped
from isthmus.testing import check_guard, toy_course, toy_graph, trace_course
from tests.algorithms.fedgnn.test_fedgnn import course_of, link_scenario
from tests.algorithms.gfl_appnp.test_gfl_appnp import hosts

from .test_client_dp import release

EPSILON = 1.5
GUARD = EdgeResponse(EPSILON)
P = 1.0 / (1.0 + math.exp(EPSILON))
ITEMS = torch.tensor([70, 30, 50])


class Given:
    """A stream whose numbers are given: below any probability where a bit is to be flipped, above elsewhere."""

    def __init__(self, flips: Tensor) -> None:
        self.flips = flips

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        assert tuple(self.flips.shape) == shape
        return torch.where(self.flips, 1e-9, 1.0 - 1e-9).double()


def users(bits: Tensor) -> SharedUsers:
    """Two users and three items, each user with a row that names it."""
    user, item = bits.nonzero(as_tuple=True)
    return SharedUsers(torch.tensor([[1.0], [2.0]]), user, ITEMS[item])


def told_pairs(reply: Any) -> frozenset[tuple[float, int]]:
    rows = reply.embeddings[reply.user].flatten().tolist()
    return frozenset(zip(rows, reply.item.tolist(), strict=True))


def all_bits(rows: int, columns: int) -> list[Tensor]:
    return [
        torch.tensor(found).view(rows, columns) for found in itertools.product([False, True], repeat=rows * columns)
    ]


def test_every_outcome_is_as_likely_as_the_flips_that_lead_to_it_and_epsilon_holds_for_all() -> None:
    named = [bits for bits in all_bits(2, 3) if bool(bits.any(dim=0).all())]  # all three items are named
    likelihood: dict[bytes, Counter[Any]] = {}
    for bits in named:
        found: Counter[Any] = Counter()
        for flips in all_bits(2, 3):
            told = edge_response._told_between(users(bits), P, Given(flips[:, ITEMS.argsort()]))  # type: ignore[arg-type]
            wrong = int(flips.sum())
            found[told_pairs(told)] += P**wrong * (1 - P) ** (6 - wrong)  # type: ignore[assignment]
        assert sum(found.values()) == pytest.approx(1.0) and len(found) == 64
        likelihood[bits.numpy().tobytes()] = found
    worst = 0.0
    for one, other in itertools.permutations(named, 2):
        if int((one ^ other).sum()) == 1:
            mine, theirs = likelihood[one.numpy().tobytes()], likelihood[other.numpy().tobytes()]
            worst = max(worst, *(math.log(mine[told] / theirs[told]) for told in mine))
    assert worst == pytest.approx(EPSILON)


def test_bits_are_flipped_as_often_as_is_said_each_by_itself() -> None:
    stream = Secret.of_simulation(0, "a").stream("flips")
    bits = torch.zeros(500, 400, dtype=torch.bool)
    found = flipped(bits, P, stream)
    assert float(found.float().mean()) == pytest.approx(P, abs=0.003)
    both = float((found[:, 1:] & found[:, :-1]).float().mean())
    assert both == pytest.approx(P * P, abs=0.003)
    assert torch.equal(flipped(bits, 0.0, stream), bits)


def test_users_that_are_told_to_have_rated_nothing_are_left_out_with_their_rows() -> None:
    bits = torch.tensor([[True, True, True], [True, False, False]])
    flips = torch.tensor([[False, False, False], [True, False, False]])[:, ITEMS.argsort()]
    told: Any = edge_response._told_between(users(bits), P, Given(flips))  # type: ignore[arg-type]
    assert told.embeddings.tolist() == [[1.0]] and told.user.tolist() == [0, 0, 0]
    assert told.item.sort().values.tolist() == [30, 50, 70]


def neighbors(pairs: list[tuple[int, int]], own: tuple[int, ...] = (9, 4, 6)) -> NeighborList:
    edges = torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2)
    return NeighborList(
        torch.tensor(own), edges[:, 0], edges[:, 1], torch.empty(0), torch.ones(len(own), dtype=torch.bool)
    )


def test_own_nodes_are_told_in_both_directions_and_those_of_others_in_one() -> None:
    true = neighbors([(4, 9), (9, 4), (4, 100), (6, 50)])
    for flips in itertools.product([False, True], repeat=9):
        # own nodes in order are 4, 6, 9; three pairs of them, and each with 50 and 100
        inner, outer = flips[:3], flips[3:]
        given = torch.zeros(3, 5, dtype=torch.bool)
        given[0, 1], given[0, 2], given[1, 2] = inner
        given[:, 3:] = torch.tensor(outer).view(3, 2)
        told: Any = edge_response._told_among(true, "nodes", P, Given(given))  # type: ignore[arg-type]
        found = {*zip(told.source.tolist(), told.target.tolist(), strict=True)}
        expected = {(4, 9)} if not inner[1] else set()
        expected |= {(4, 6)} if inner[0] else set()
        expected |= {(6, 9)} if inner[2] else set()
        expected |= {(b, a) for a, b in expected}
        for place, (node, other) in enumerate(itertools.product((4, 6, 9), (50, 100))):
            if ((node, other) in {(4, 100), (6, 50)}) != outer[place]:
                expected.add((node, other))
        assert found == expected and len(told.source) == len(found)
        assert ShareNeighbors().problem(told) == ""


def test_who_asks_again_gets_the_same_answer_and_other_edges_have_other_flips() -> None:
    secret = Secret(b"k" * 32)
    reply = neighbors([(a, b) for a in range(40) for b in range(40) if a != b and (a + b) % 3 == 0], tuple(range(40)))
    first, again = (release(GUARD, reply, ShareNeighbors(), secret) for _ in range(2))
    assert torch.equal(first.source, again.source) and torch.equal(first.target, again.target)
    less = replace(reply, source=reply.source[2:], target=reply.target[2:])
    other = release(GUARD, less, ShareNeighbors(), secret)
    mine, theirs = ({*zip(told.source.tolist(), told.target.tolist(), strict=True)} for told in (first, other))
    assert len(mine ^ theirs) > 100  # with the same flips they would differ by a few


def test_null_tells_edges_as_they_are() -> None:
    reply = neighbors([(4, 9), (9, 4)])
    assert release(EdgeResponse(None), reply, ShareNeighbors()) is reply


# ---- whole courses


def on_nodes(guard: EdgeResponse, clients: int = 3) -> Any:
    made = toy_course(
        GFLAPPNP(), guards=(guard,), rounds=2, num_clients=clients, task=NodeSamples(), model=ModelSpec(MLP(hidden=5))
    )
    return trace_course(made, hosts(toy_graph(12, seed=1), clients))


def test_gfl_appnp_s_edges_are_told_by_chance_and_epsilon_is_spent_once() -> None:
    plain, trace = on_nodes(EdgeResponse(None)), on_nodes(EdgeResponse(0.5))
    assert trace.ended_by is None
    lists = [
        [m.outcome.reply for m in each.messages if isinstance(m.outcome.reply, NeighborList)] for each in (plain, trace)
    ]
    assert any(not torch.equal(a.source, b.source) for a, b in zip(*lists, strict=True))
    assert [report.spent for report in trace.rounds] == [{"epsilon of pairs": 0.5}] * 2
    assert any("told wrongly with the probability 0.378" in note for note in trace.said)


def test_fedgnn_s_pairs_are_told_by_chance() -> None:
    method = FedGNN(clip=None, noise=0.0, pseudo_items=0, expand_every=1)
    trace = trace_course(course_of(method, guards=(EdgeResponse(1.0),)), link_scenario())
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    shares = [m.outcome.reply for m in trace.messages if isinstance(m.outcome.reply, SharedUsers)]
    by_client = {}
    for message in trace.messages:
        if isinstance(message.outcome.reply, SharedUsers):
            by_client.setdefault(message.client, []).append(message.outcome.reply.item)
    assert shares and all(torch.equal(items[0], each) for items in by_client.values() for each in items)


def test_it_keeps_to_what_every_guard_must_keep_to() -> None:
    check_guard(EdgeResponse(3.0), algorithms=(FedGNN(expand_every=1),))


def test_who_sees_what_is_told() -> None:
    found = {exchange.request: exchange.wire_up for exchange in exposure(GFLAPPNP, (GUARD,))}
    assert found["ShareNeighbors"].endswith("pairs of source and target told by chance")
    assert "by chance" not in found["ShareHidden"]


# ---- what is refused


def test_methods_that_name_no_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="FedAvg names no edges in a message"):
        toy_course(FedAvg(), guards=(GUARD,))


def test_weights_and_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="the edges have weights"):
        release(GUARD, replace(neighbors([(4, 9), (9, 4)]), weight=torch.ones(2)), ShareNeighbors())
    monkeypatch.setattr(edge_response, "MOST_PAIRS", 8)
    with pytest.raises(BadInput, match="there are 9 pairs of nodes that could be joined"):
        release(GUARD, neighbors([(4, 9), (9, 4)]), ShareNeighbors())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf])
def test_an_epsilon_that_cannot_be_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="it must be positive, or null"):
        EdgeResponse(epsilon)
