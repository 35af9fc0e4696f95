from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter

from ..strategies import graphs, make_graph, many, pairs_by_id, rng, seeds
from .holdings import make_links, make_set


@many
@given(graphs, seeds, st.integers(1, 30), st.floats(0, 1))
def test_overlap_is_held_by_all_and_the_rest_by_one_in_equal_parts(
    graph: Graph, seed: int, wish: int, overlap: float
) -> None:
    clients = min(wish, graph.num_nodes)
    num_common = round(overlap * graph.num_nodes)
    # With fewer other nodes than clients and nothing in common, some client would be empty; that cannot be here.
    splitter = RandomSplitter(overlap_fraction=overlap)
    parts = splitter.assign(graph, clients, rng(seed))
    held = torch.bincount(torch.cat(parts), minlength=graph.num_nodes)
    if clients > 1:
        assert int((held == clients).sum()) == num_common
        assert int((held == 1).sum()) == graph.num_nodes - num_common
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@many
@given(graphs, seeds, st.integers(1, 5), st.floats(0, 1))
def test_each_client_loses_the_share_of_its_own_edges(graph: Graph, seed: int, wish: int, removed: float) -> None:
    clients = min(wish, graph.num_nodes)
    parts = RandomSplitter(removed_edge_fraction=removed).split(graph, clients, rng(seed))
    whole = RandomSplitter().split(graph, clients, rng(seed))
    for part, full in zip(parts, whole, strict=True):
        assert torch.equal(part.node_ids, full.node_ids)
        before, after = pairs_by_id(full), pairs_by_id(part)
        assert after <= before
        assert len(before) - len(after) == round(removed * len(before))
        assert part.num_edges == 2 * len(after)


@many
@given(graphs, seeds, st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_shares_are_met_apart_from_nodes_nobody_drew(graph: Graph, seed: int, shares: list[float]) -> None:
    parts = RandomSplitter(shares=tuple(shares)).assign(graph, len(shares), rng(seed))
    assert set(torch.cat(parts).tolist()) == set(range(graph.num_nodes))
    drawn = [max(1, round(share * graph.num_nodes)) for share in shares]
    extra = [len(part) - number for part, number in zip(parts, drawn, strict=True)]
    assert min(extra) >= 0
    # A left-over node goes to one client only.
    held = torch.bincount(torch.cat(parts))
    assert sum(extra) <= int((held == 1).sum())
    assert sum(extra) <= graph.num_nodes - max(drawn)


def sample_by_matrix(shares: list[float], num_nodes: int, draw: np.random.Generator) -> list[list[int]]:
    """Return the parts by one large table of who holds what."""
    held = np.zeros((len(shares), num_nodes), dtype=bool)
    for client, share in enumerate(shares):
        held[client, draw.choice(num_nodes, max(1, round(share * num_nodes)), replace=False)] = True
    left_over = np.flatnonzero(~held.any(axis=0))
    held[draw.integers(len(shares), size=len(left_over)), left_over] = True
    return [np.flatnonzero(row).tolist() for row in held]


@many
@given(graphs, seeds, st.lists(st.floats(0.01, 1), min_size=1, max_size=12))
def test_shares_give_the_parts_of_the_obvious_table(graph: Graph, seed: int, shares: list[float]) -> None:
    used, reference = rng(seed), rng(seed)
    parts = RandomSplitter(shares=tuple(shares)).assign(graph, len(shares), used)
    assert [part.tolist() for part in parts] == sample_by_matrix(shares, graph.num_nodes, reference)
    assert all(part.dtype == torch.int64 for part in parts)
    assert used.bit_generator.state == reference.bit_generator.state


def test_shares_take_memory_for_the_nodes_held_and_not_for_every_client_and_node() -> None:
    graph = make_graph(20_000, 0)
    tracemalloc.start()
    try:
        RandomSplitter(shares=(0.001,) * 1000).assign(graph, 1000, rng(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # a table would take 20,000,000


def test_shares_of_fedgl_overlap_and_have_the_papers_sizes() -> None:
    shares = (0.3, 0.4, 0.5, 0.5, 0.6, 0.7)
    parts = RandomSplitter(shares=shares).assign(make_graph(10_000, 0), 6, rng(0))
    for part, share in zip(parts, shares, strict=True):
        # 1.3 % of the nodes are drawn by nobody; each client gets a sixth of them.
        assert share <= len(part) / 10_000 <= share + 0.01
    held = torch.bincount(torch.cat(parts))
    assert int(held.min()) == 1
    assert float(held.float().mean()) == pytest.approx(sum(shares) + 0.0126, abs=0.005)


@many
@given(graphs, seeds, st.lists(st.floats(0.05, 1), min_size=2, max_size=6), st.floats(0, 1))
def test_shares_and_overlap_are_both_met(graph: Graph, seed: int, shares: list[float], part: float) -> None:
    overlap = part * min(shares)
    num_common = round(overlap * graph.num_nodes)
    drawn = [max(1, round(share * graph.num_nodes)) for share in shares]
    possible = sum(drawn) - len(shares) * num_common <= (len(shares) - 1) * (graph.num_nodes - num_common)
    splitter = RandomSplitter(overlap, shares=tuple(shares))
    if num_common > 0 and not possible:
        with pytest.raises(BadInput, match="raise it, or lower the shares"):
            splitter.assign(graph, len(shares), rng(seed))
        return
    parts = splitter.assign(graph, len(shares), rng(seed))
    assert set(torch.cat(parts).tolist()) == set(range(graph.num_nodes))
    held = torch.bincount(torch.cat(parts), minlength=graph.num_nodes)
    extra = [len(items) - number for items, number in zip(parts, drawn, strict=True)]
    assert min(extra) >= 0 and sum(extra) <= int((held == 1).sum())
    if num_common > 0:
        assert int((held == len(shares)).sum()) == num_common


@pytest.mark.parametrize("overlap", [0.05, 0.10, 0.15])
def test_overlap_of_fedgl_is_controlled_under_the_papers_shares(overlap: float) -> None:
    shares = (0.3, 0.4, 0.5, 0.5, 0.6, 0.7)
    parts = RandomSplitter(overlap, shares=shares).assign(make_graph(10_000, 0), 6, rng(0))
    held = torch.bincount(torch.cat(parts))
    assert int((held == 6).sum()) == overlap * 10_000
    for part, share in zip(parts, shares, strict=True):
        assert share <= len(part) / 10_000 <= share + 0.01


def test_overlap_of_fedgl_left_to_chance_is_about_one_percent() -> None:
    parts = RandomSplitter(shares=(0.3, 0.4, 0.5, 0.5, 0.6, 0.7)).assign(make_graph(10_000, 0), 6, rng(0))
    held = torch.bincount(torch.cat(parts))
    assert int((held == 6).sum()) / 10_000 == pytest.approx(0.0126, abs=0.004)


def test_links_and_graphs_overlap_too() -> None:
    for data in (make_links(50), make_set(50)):
        parts = RandomSplitter(overlap_fraction=0.2).split(data, 4, rng(0))
        held = torch.bincount(torch.cat([part.item_ids for part in parts]))
        assert int((held == 4).sum()) == 10 and int((held == 1).sum()) == 40


def test_edges_are_removed_from_graphs_by_nodes_only() -> None:
    with pytest.raises(BadInput, match=r"removed_edge_fraction is 0.5, but the dataset 'set' is divided by graphs"):
        RandomSplitter(removed_edge_fraction=0.5).split(make_set(5), 2, rng(0))


def test_shares_must_be_one_for_each_client() -> None:
    with pytest.raises(BadInput, match=r"shares has 2 numbers, \(0.3, 0.4\), but num_clients is 3; give one"):
        RandomSplitter(shares=(0.3, 0.4)).split(make_graph(9, 9), 3, rng(0))


@pytest.mark.parametrize(
    ("splitter", "message"),
    [
        (lambda: RandomSplitter(overlap_fraction=1.5), "overlap_fraction is 1.5; a fraction lies between 0 and 1"),
        (lambda: RandomSplitter(removed_edge_fraction=math.nan), "removed_edge_fraction is nan"),
        (lambda: RandomSplitter(shares=(0.5, 0.0)), r"shares is \(0.5, 0.0\)"),
        (lambda: RandomSplitter(shares=()), r"shares is \(\)"),
        (lambda: RandomSplitter(0.4, shares=(0.5, 0.3)), r"overlap_fraction is 0.4 and shares .* the smallest share"),
    ],
)
def test_wrong_fields_are_refused(splitter, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splitter()
