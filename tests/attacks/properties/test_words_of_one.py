"""Words of one: pooled tests decoded by hand, and by trying every possible truth; sums of a course."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import Case, NothingSeen, Seen
from isthmus.attacks.listening import heard
from isthmus.attacks.properties.words_of_one import WordsOfOne, decoded
from isthmus.core.random import UniformSampling
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph


def possible(cohorts: torch.Tensor, moved: torch.Tensor) -> list[tuple[bool, ...]]:
    """Return every way in which clients could hold one feature, by trying all."""
    found = []
    for holders in product((False, True), repeat=cohorts.shape[1]):
        tests = [any(h and c for h, c in zip(holders, row, strict=True)) for row in cohorts.tolist()]
        if tests == moved.tolist():
            found.append(holders)
    return found


def test_what_is_decoded_is_so_in_every_possible_truth() -> None:
    draw = torch.Generator().manual_seed(0)
    named = 0
    for _ in range(60):
        cohorts = torch.rand(4, 5, generator=draw) < 0.5
        cohorts[0] = True  # all took part at least once
        held = torch.rand(5, generator=draw) < 0.3
        moved = (cohorts & held).any(dim=1)
        alone = decoded(cohorts, moved.unsqueeze(1))[:, 0].tolist()
        truths = possible(cohorts, moved)
        assert tuple(held.tolist()) in truths
        certain = [all(t[k] and sum(t) == 1 for t in truths) for k in range(5)]
        assert alone == certain
        named += sum(alone)
    assert named > 3


def test_the_same_clients_in_every_round_tell_nothing_apart() -> None:
    assert not decoded(torch.ones(7, 3, dtype=torch.bool), torch.ones(7, 4, dtype=torch.bool)).any()
    assert decoded(torch.ones(1, 1, dtype=torch.bool), torch.tensor([[True, False]])).tolist() == [[True, False]]


def course(**changes: Any) -> Case:
    graph = toy_graph(40, num_features=150, sparse=True, num_links=2)
    every = torch.ones(40, dtype=torch.bool)
    x = torch.where(graph.x.to_dense() > 4.0, graph.x.to_dense(), 0.0)  # words of a few nodes
    graph = replace(graph, x=x.to_sparse_csr()).with_masks({"train": every, "val": every, "test": every})
    parts = {f"client-{i}": graph.subgraph(nodes) for i, nodes in enumerate(torch.arange(40).split(8))}
    algorithm = FedAvg(local_steps=2, optimizer=SGD(lr=0.5, weight_decay=0.0))
    made = toy_course(
        algorithm,
        num_clients=5,
        rounds=20,
        sampling=UniformSampling(0.6),
        model=ModelSpec(gnn=GCN(hidden=32, dropout=0.0)),
        runtime="auto",
        stopping=isthmus.EarlyStopping(keep="last"),
        **changes,
    )
    return Case(made, Scenario(graph, parts))


def scores(case: Case) -> dict[str, float]:
    attack = WordsOfOne()
    known = attack.known(case)
    return attack.scores(attack.guess(heard(attack, case), known), attack.truth(case, known))


def test_sums_over_changing_cohorts_name_whose_a_word_is_and_least_holders_stop_it() -> None:
    plain = scores(course(guards=(SecureSum(min_cohort=2),)))
    assert plain["recall"] > 0.25 and plain["precision"] > 0.9
    assert scores(course(guards=(SecureSum(min_cohort=2, min_holders=2),)))["recall"] == 0.0


def test_without_sums_nothing_is_seen() -> None:
    case = course()
    with pytest.raises(NothingSeen, match="no sum"):
        WordsOfOne().guess(Seen(case.course, case.clients, {}, {}, ()), 150)


def test_the_truth_is_what_one_has_and_nobody_else() -> None:
    case = course()
    truth = WordsOfOne().truth(case, 150)
    for feature in range(150):
        holders = [c for c, part in case.scenario.parts.items() if bool((part.x.to_dense()[:, feature] != 0).any())]
        for client in case.clients:
            assert bool(truth[client][feature]) == (holders == [client])
