"""Every attack, tried on every method: it is refused before the start, says that it sees nothing, or has its scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from isthmus.attacks import ATTACKS
from isthmus.attacks.attack import LESS, NothingSeen
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario
from isthmus.testing.attacks import attacked
from tests.attacks.small import small
from tests.quick import by_kind, quick

ODD = toy_scenario(
    4, client_without_training=True, client_with_one_training_node=True, client_without_edges=True, sparse=True
)


@pytest.mark.parametrize("method", by_kind())
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_a_method_is_refused_sees_nothing_or_has_scores(name: str, method: str) -> None:
    attack = small(name)
    course = toy_course(quick(method), num_clients=4, rounds=2, runtime="auto")
    if attack.problem(course):
        assert len(attack.problem(course).split()) > 4  # a sentence
        return
    try:
        made = attacked(attack, course, ODD)
        found = attack.scores(attack.guess(made.seen, made.known), made.truth)
    except NothingSeen as nothing:
        assert len(str(nothing).split()) > 4
        return
    prior = attack.scores(attack.prior(made.known, made.case.clients), made.truth)
    assert set(found) == set(prior) == set(attack.measures)
    best = attack.scores(made.truth, made.truth)
    assert all(_no_better(name, found[name], best[name]) for name in attack.measures)


def _no_better(measure: str, one: float, best: float) -> bool:
    sign = -1.0 if measure in LESS else 1.0
    return math.isnan(one) or math.isnan(best) or sign * one <= sign * best + 1e-9


@pytest.mark.parametrize("name", [name for name in ATTACKS if "link" in name])
def test_who_looks_for_links_where_there_are_none_sees_nothing(name: str) -> None:
    whole = replace(toy_graph(24), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    lonely = Scenario(whole, {f"client-{k}": whole.subgraph(torch.arange(8 * k, 8 * k + 8)) for k in range(3)})
    method = quick("fedgl" if "rows" in name else "fedavg")
    made = attacked(small(name), toy_course(method, rounds=1, runtime="auto"), lonely)
    assert len(made.truth) == len(made.attack.prior(made.known, made.case.clients)) == 0
    with pytest.raises(NothingSeen, match="no client holds nodes that are connected"):
        made.attack.guess(made.seen, made.known)
