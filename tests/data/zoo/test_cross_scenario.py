from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo.cross_scenario import CSR

from ..strategies import many, seeds

ROOT = Path("unused")


@many
@given(
    num_scenarios=st.integers(1, 4),
    num_users=st.integers(2, 30),
    num_items=st.integers(2, 20),
    share=st.floats(0.05, 1),
    shared=st.floats(0, 1),
    common=st.floats(0, 1),
    seed=seeds,
)
def test_counts_are_those_asked_for(
    num_scenarios: int, num_users: int, num_items: int, share: float, shared: float, common: float, seed: int
) -> None:
    number = max(1, int(share * num_users * num_items / 2))
    dataset = CSR(
        num_scenarios=num_scenarios,
        num_users=num_users,
        num_items=num_items,
        num_interactions=number,
        shared_user_fraction=shared,
        shared_item_fraction=common,
        seed=seed,
    )
    graph = dataset.load(ROOT)
    num_shared = round(shared * num_users)
    side, home = graph.node_attributes["side"], graph.node_attributes["scenario"]
    assert int((side == 0).sum()) == num_shared + num_scenarios * (num_users - num_shared)
    num_common = round(common * num_items)
    assert int((side == 1).sum()) == num_common + num_scenarios * (num_items - num_common)
    assert int((home[side == 0] == -1).sum()) == num_shared and int((home[side == 1] == -1).sum()) == num_common
    scenario = graph.attributes["scenario"]
    assert torch.bincount(scenario).tolist() == [number] * num_scenarios
    assert len(torch.unique(torch.cat([graph.links, scenario[None]]), dim=1).t()) == graph.num_items, "a pair twice"
    users, items = graph.links
    assert bool((side[users] == 0).all()) and bool((side[items] == 1).all())
    assert bool(((home[items] == scenario) | (home[items] == -1)).all()), "an item of another scenario"
    assert bool(((home[users] == scenario) | (home[users] == -1)).all()), "a user of another scenario"


def test_common_items_are_shown_in_several_scenarios_and_none_are_common_by_default() -> None:
    for fraction, several in ((0.0, False), (0.5, True)):
        graph = CSR(num_interactions=2000, shared_item_fraction=fraction).load(ROOT)
        seen = torch.unique(torch.stack([graph.links[1], graph.attributes["scenario"]]), dim=1)
        assert bool((torch.bincount(seen[0]) > 1).any()) is several


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    one, again, other = (CSR(num_interactions=500, seed=seed).load(ROOT) for seed in (3, 3, 4))
    assert torch.equal(one.links, again.links) and torch.equal(one.x, again.x) and torch.equal(one.label, again.label)
    assert not torch.equal(one.links, other.links)


def accuracy(graph: LinkGraph, trained_on: int, tested_on: int) -> float:
    """Return how well a linear model of the products of factors, fitted in one scenario, does in another."""
    from sklearn.linear_model import LogisticRegression

    head, tail = graph.x[graph.links[0], 2:], graph.x[graph.links[1], 2:]
    products = (head[:, :, None] * tail[:, None, :]).flatten(1).numpy()
    scenario, label = graph.attributes["scenario"].numpy(), graph.label.numpy()
    train = np.flatnonzero(scenario == trained_on)[:3000]
    test = np.flatnonzero(scenario == tested_on)[3000:]
    fitted = LogisticRegression(max_iter=300).fit(products[train], label[train])
    return float(fitted.score(products[test], label[test]))


def test_scenarios_are_one_and_the_same_or_have_nothing_in_common_or_are_related() -> None:
    same, related, apart = (CSR(num_scenarios=2, num_interactions=6000, shift=s).load(ROOT) for s in (0.0, 0.3, 1.0))
    assert abs(accuracy(same, 0, 0) - accuracy(same, 1, 0)) < 0.03
    assert accuracy(apart, 0, 0) > 0.7 > 0.58 > accuracy(apart, 1, 0)
    assert accuracy(related, 0, 0) > accuracy(related, 1, 0) + 0.02 > 0.6


def test_what_it_says_of_itself() -> None:
    graph = CSR(num_interactions=100).load(ROOT)
    assert graph.class_names == ("skip", "click") and graph.undirected and CSR().present(ROOT)
    assert graph.attribute_names["scenario"] == ("scenario 1", "scenario 2", "scenario 3")
    assert int(graph.attributes["category"].max()) < len(graph.attribute_names["category"]) == 8
    assert graph.x.shape == (graph.num_nodes, 2 + 8) and graph.x.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_users": 0}, "num_users is 0; at least 1"),
        ({"shared_user_fraction": 1.5}, "shared_user_fraction is 1.5; it lies between 0 and 1"),
        ({"shift": -0.1}, "shift is -0.1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"num_users": 10, "num_items": 10, "num_interactions": 51}, "can have 50 at most"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CSR(**changes)
