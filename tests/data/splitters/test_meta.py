from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters import MetaSplitter

from ..strategies import many, rng, seeds
from .holdings import make_links, make_nodes, make_set


def with_venues(venues: list[int]) -> Graph:
    graph = make_nodes(len(venues), 0)
    names = {"venue": ("AAAI", "ICML", "KDD", "WWW")}
    return replace(graph, attributes={"venue": torch.tensor(venues)}, attribute_names=names)


@many
@given(st.lists(st.integers(-1, 9), min_size=1, max_size=60), seeds, st.integers(1, 11))
def test_values_stay_together_and_clients_are_even(venues: list[int], seed: int, wish: int) -> None:
    clients = min(wish, len(set(venues)))
    parts = MetaSplitter("venue").assign(with_venues(venues), clients, rng(seed))
    values = [{venues[item] for item in part.tolist()} for part in parts]
    assert sum(len(held) for held in values) == len(set(venues))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(venues)))
    # The fullest client got its last value when it had the fewest items, and values come largest first.
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= max(np.unique(venues, return_counts=True)[1])


def test_one_each_gives_client_k_the_kth_value() -> None:
    graph = with_venues([2, 0, 1, 0, 2, 2])
    parts = MetaSplitter("venue", deal="one_each").split(graph, 3, rng(0))
    assert [part.node_ids.tolist() for part in parts] == [[1, 3], [2], [0, 4, 5]]


def test_one_each_with_another_number_of_values_is_refused() -> None:
    with pytest.raises(BadInput, match=r"num_clients is 2, but .*'venue' .* 3 values \(AAAI, ICML, KDD\); use 3 clien"):
        MetaSplitter("venue", deal="one_each").split(with_venues([0, 1, 2]), 2, rng(0))


@pytest.mark.parametrize("deal", ["balanced", "one_each"])
def test_more_clients_than_values_are_refused(deal: str) -> None:
    with pytest.raises(BadInput, match=r"num_clients is 3, .* has 2 values \(AAAI, KDD\); use 2 clients, or 'cross_do"):
        MetaSplitter("venue", deal=deal).split(with_venues([0, 2, 2]), 3, rng(0))


def test_an_unknown_attribute_lists_those_there_are() -> None:
    with pytest.raises(
        BadInput, match=r"'venu', which no node of 'toy' has; known: place, venue, year. Did you mean 'v"
    ):
        MetaSplitter("venu").split(make_nodes(5, 5), 2, rng(0))
    with pytest.raises(
        BadInput,
        match=r"known: head.color, head.id, place, tail.color, tail.id, venue, year. Did you mean 'tail.color'",
    ):
        MetaSplitter("color").split(make_links(5), 2, rng(0))


def test_the_only_attribute_need_not_be_named() -> None:
    graph = with_venues([2, 0, 1, 0, 2, 2])
    named, only = (splitter.assign(graph, 2, rng(0)) for splitter in (MetaSplitter("venue"), MetaSplitter()))
    assert [part.tolist() for part in named] == [part.tolist() for part in only]
    with pytest.raises(BadInput, match=r"the links of 'links' have several; choose one of: place, venue, year"):
        MetaSplitter().split(make_links(5), 2, rng(0))
    with pytest.raises(BadInput, match=r"the nodes of 'toy' have none to go by"):
        MetaSplitter().split(replace(graph, attributes={}), 2, rng(0))


def test_links_without_attributes_of_their_own_are_told_those_of_their_ends() -> None:
    data = replace(make_links(5), attributes={})
    told = (
        r"the links of 'links' have none of their own; choose one of their ends': head.color, head.id, tail.color, tai"
    )
    with pytest.raises(BadInput, match=told):
        MetaSplitter().split(data, 2, rng(0))


def test_values_of_a_link_s_ends_are_told_by_their_names() -> None:
    data = replace(make_links(60), node_attribute_names={"color": ("red", "green", "blue", "grey")})
    with pytest.raises(
        BadInput, match=r"'tail.color' of 'links' has 4 values \(red, green, blue, grey\); use 4 clients"
    ):
        MetaSplitter("tail.color").split(data, 5, rng(0))
    own = replace(data, attributes={"tail.color": torch.arange(60) % 2})  # its own goes before, also its names
    with pytest.raises(BadInput, match=r"'tail.color' of 'links' has 2 values \(0, 1\); use 2 clients"):
        MetaSplitter("tail.color").split(replace(own, node_attributes={}), 5, rng(0))


@pytest.mark.parametrize(("column", "name"), [("age", "age"), ("city=Ulm", "city"), ("notes:loan", "notes")])
def test_a_feature_is_told_apart_from_an_attribute(column: str, name: str) -> None:
    graph = replace(with_venues([0, 1, 2]), feature_names=("x", column))
    with pytest.raises(
        BadInput, match=rf"is '{name}', which is a feature of 'toy'; known: venue\..* 'attribute.{name}'"
    ):
        MetaSplitter(name).split(graph, 2, rng(0))


def test_an_attribute_of_several_columns_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'place', of shape \(5, 2\)"):
        MetaSplitter("place").split(make_set(5), 2, rng(0))


@pytest.mark.parametrize("end", ["head", "tail"])
def test_links_go_by_the_node_at_an_end_so_that_a_client_is_one_user(end: str) -> None:
    data = make_links(30)
    row = ("head", "tail").index(end)
    users = torch.unique(data.node_ids[data.links[row]])
    parts = MetaSplitter(attribute=f"{end}.id", deal="one_each").split(data, len(users), rng(0))
    assert [torch.unique(part.node_ids[part.links[row]]).tolist() for part in parts] == [[u] for u in users.tolist()]
    assert sum(part.num_items for part in parts) == 30
    again = MetaSplitter(attribute=f"{end}.id").split(parts[0], 1, rng(0))  # a part knows nodes by the same numbers
    assert again[0].num_items == parts[0].num_items
    named = replace(data, node_attributes={"id": torch.zeros(data.num_nodes, dtype=torch.int64)})
    assert len(MetaSplitter(attribute=f"{end}.id", deal="one_each").split(named, 1, rng(0))) == 1  # its own goes before


def test_links_go_by_the_attribute_of_an_end() -> None:
    data = make_links(60)
    color = data.node_attributes["color"]
    for part in MetaSplitter("tail.color", deal="one_each").split(data, 4, rng(0)):
        assert len(torch.unique(color[data.links[1, part.link_ids]])) == 1


def test_numbers_that_are_not_known_are_one_value() -> None:
    graph = replace(make_nodes(5, 0), attributes={"score": torch.tensor([torch.nan, 1.0, torch.nan, 1.0, 2.0])})
    parts = MetaSplitter("score", deal="one_each").assign(graph, 3, rng(0))
    assert [part.tolist() for part in parts] == [[1, 3], [4], [0, 2]]


def test_an_unknown_deal_is_refused() -> None:
    with pytest.raises(ValueError, match=r"deal is 'one'; known: balanced, one_each. Did you mean 'one_each'"):
        MetaSplitter("venue", deal="one")
