"""Negatives: never a known link, of the right side, evenly drawn; a graph without any is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.random import torch_generator
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.tasks.known_links import HEAD, TAIL, Candidates, KnownLinks, has_negatives
from tests.learn.tasks.link_toys import known_pairs, toy_facts, toy_ratings


def ready(data: LinkGraph, by_relation: bool, self_pairs: bool) -> tuple[KnownLinks, Tensor]:
    relation = data.label if by_relation else torch.zeros_like(data.label)
    return KnownLinks.of(data, by_relation, self_pairs), relation


GRAPHS = {
    "facts": toy_facts(),
    "dense facts": toy_facts(6, 60, 2),
    "undirected": toy_facts(undirected=True),
    "ratings": toy_ratings(),
}


@pytest.mark.parametrize("self_pairs", [True, False])
@pytest.mark.parametrize("by_relation", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_negative_is_a_known_link_of_any_split(name: str, by_relation: bool, self_pairs: bool) -> None:
    data = GRAPHS[name]
    known, relation = ready(data, by_relation, self_pairs)
    taken = known_pairs(data, by_relation, self_pairs)
    train = data.mask("train")  # asked for training links, against those of all splits
    for seed in range(20):
        pairs, kind = known.negatives(data.links[:, train], relation[train], 3, torch_generator(seed, "n"))
        assert pairs.shape == (2, 3 * int(train.sum()))
        assert not {(h, t, r) for (h, t), r in zip(pairs.t().tolist(), kind.tolist(), strict=True)} & taken


def test_a_negative_is_its_link_with_one_end_replaced() -> None:
    data = GRAPHS["facts"]
    known, relation = ready(data, True, False)
    pairs, kind = known.negatives(data.links, relation, 2, torch_generator(0, "n"))
    old = data.links.repeat_interleave(2, dim=1)
    assert (pairs != old).sum(dim=0).tolist() == [1] * old.shape[1]
    assert torch.equal(kind, relation.repeat_interleave(2))
    assert (pairs != old).any(dim=1).all()  # both ends are replaced now and then


def test_negatives_of_ratings_join_a_user_and_an_item() -> None:
    data = GRAPHS["ratings"]
    known, relation = ready(data, False, False)
    pairs, _ = known.negatives(data.links, relation, 50, torch_generator(0, "n"))
    side = data.node_attributes["side"]
    assert side[pairs[0]].unique().tolist() == [0] and side[pairs[1]].unique().tolist() == [1]


def test_every_possible_negative_is_drawn_equally_often() -> None:
    data = GRAPHS["facts"]
    known, relation = ready(data, False, False)
    one = torch.tensor([0])
    link, draws = data.links[:, one], 40_000
    head, tail = link[:, 0].tolist()
    taken = known_pairs(data, False, False)
    heads = [n for n in range(12) if (n, tail, 0) not in taken]
    tails = [n for n in range(12) if (head, n, 0) not in taken]
    assert len(heads) > 1 and len(tails) > 1 and len(heads) != len(tails)
    pairs, _ = known.negatives(link, relation[one], draws, torch_generator(0, "n"))
    expected = {(n, tail): 0.5 / len(heads) for n in heads} | {(head, n): 0.5 / len(tails) for n in tails}
    found = Counter(map(tuple, pairs.t().tolist()))
    assert found.keys() == expected.keys()
    for pair, share in expected.items():
        assert found[pair] / draws == pytest.approx(share, abs=5 * (share * (1 - share) / draws) ** 0.5)


def star(num_leaves: int = 3) -> LinkGraph:
    """Return a centre that is linked to all leaves: its own links have no room at the tail."""
    links = torch.stack([torch.zeros(num_leaves, dtype=torch.int64), torch.arange(1, num_leaves + 1)])
    return LinkGraph(
        x=torch.ones(num_leaves + 1, 1),
        links=links,
        label=torch.zeros(num_leaves, dtype=torch.int64),
        num_classes=1,
        node_ids=torch.arange(num_leaves + 1),
        link_ids=torch.arange(num_leaves),
        undirected=True,
        name="star",
    )


def test_an_end_without_room_is_left_and_the_other_replaced() -> None:
    known, relation = ready(star(), False, False)
    links = star().links
    assert known.room(links, relation, TAIL).tolist() == [0, 0, 0]  # the centre has all leaves already
    assert known.room(links, relation, HEAD).tolist() == [2, 2, 2]  # a leaf could be linked to the other leaves
    pairs, _ = known.negatives(links, relation, 10, torch_generator(0, "n"))
    assert (pairs > 0).all()


def test_a_link_without_any_negative_borrows_those_of_another() -> None:
    # Two users, three items: the first user has rated all, and the first item was rated by all.
    side = torch.tensor([0, 0, 1, 1, 1])
    links = torch.tensor([[0, 0, 0, 1], [2, 3, 4, 2]])
    label = torch.zeros(4, dtype=torch.int64)
    data = LinkGraph(
        torch.ones(5, 1), links, label, 1, torch.arange(5), torch.arange(4), node_attributes={"side": side}, name="shop"
    )
    known, relation = ready(data, False, False)
    pairs, _ = known.negatives(links, relation, 20, torch_generator(0, "n"))
    assert {tuple(pair) for pair in pairs.t().tolist()} == {(1, 3), (1, 4)}


def test_a_complete_graph_is_refused() -> None:
    data = toy_facts()
    links = torch.combinations(torch.arange(4)).t()
    label = torch.zeros(6, dtype=torch.int64)
    whole = replace(
        data,
        x=data.x[:4],
        links=links,
        label=label,
        link_ids=torch.arange(6),
        undirected=True,
        name="village",
        masks={},
    )
    known, relation = ready(whole, False, False)
    with pytest.raises(BadInput, match=r"'village', of 4 nodes, is complete: .* needs a graph with gaps"):
        known.negatives(links, relation, 1, torch_generator(0, "n"))


def shop(users: list[int], items: list[int]) -> LinkGraph:
    """Return two users, three items and what was bought."""
    count = len(users)
    return LinkGraph(
        x=torch.ones(5, 1),
        links=torch.tensor([users, items]),
        label=torch.zeros(count, dtype=torch.int64),
        num_classes=1,
        node_ids=torch.arange(5),
        link_ids=torch.arange(count),
        node_attributes={"side": torch.tensor([0, 0, 1, 1, 1])},
        undirected=True,
        name="shop",
    )


def test_links_of_which_none_has_a_negative_borrow_those_of_any_known_link() -> None:
    data = shop([0, 0, 0, 1], [2, 3, 4, 2])
    known, relation = ready(data, False, False)
    first = torch.tensor([0])  # its user has bought all, its item was bought by all
    assert known.open.tolist() == [1, 2, 3]
    pairs, kind = known.negatives(data.links[:, first], relation[first], 30, torch_generator(0, "n"))
    assert {tuple(pair) for pair in pairs.t().tolist()} <= {(1, 3), (1, 4)} and kind.tolist() == [0] * 30


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (shop([0, 0, 0, 1], [2, 3, 4, 2]), True),  # the first link has none
        (shop([0, 0, 0, 1, 1, 1], [2, 3, 4, 2, 3, 4]), False),
        (shop([0, 1], [2, 2]), True),
        (shop([], []), False),
        (star(), True),
        (GRAPHS["facts"], True),
    ],
    ids=["first link", "all bought all", "few", "no links", "star", "facts"],
)
def test_whether_a_graph_has_negatives(data: LinkGraph, expected: bool) -> None:
    assert has_negatives(data, False, False) == expected


@pytest.mark.parametrize("by_relation", [False, True])
@pytest.mark.parametrize("self_pairs", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
def test_a_graph_has_negatives_if_some_pair_is_not_known(by_relation: bool, self_pairs: bool, undirected: bool) -> None:
    found = set()
    for seed in range(40):
        data = toy_facts(3, 4 + seed, 2, seed=seed, undirected=undirected)
        known = known_pairs(data, by_relation, self_pairs)
        kinds = data.label.tolist() if by_relation else [0] * data.num_items
        open_ends = any(
            (n, tail, kind) not in known or (head, n, kind) not in known
            for (head, tail), kind in zip(data.links.t().tolist(), kinds, strict=True)
            for n in range(3)
        )
        assert has_negatives(data, by_relation, self_pairs) == open_ends
        found.add(open_ends)
    assert found == {True, False}


def test_no_links_give_no_negatives() -> None:
    known, _ = ready(toy_facts(), False, False)
    none = torch.empty(2, 0, dtype=torch.int64)
    pairs, kind = known.negatives(none, none[0], 3, torch_generator(0, "n"))
    assert pairs.shape == (2, 0) and kind.shape == (0,)


def test_candidates_are_all_nodes_or_those_of_the_same_side() -> None:
    assert Candidates.of(toy_facts()).members(0).tolist() == list(range(12))
    data = toy_ratings()
    mixed = replace(data, node_attributes={"side": torch.tensor([7, 3] * 6 + [7])})
    found = Candidates.of(mixed)
    assert found.num_sides == 2 and found.sizes.tolist() == [6, 7]
    assert found.members(0).tolist() == [1, 3, 5, 7, 9, 11]
    assert torch.equal(found.node_at(found.side, found.place), torch.arange(13))
