"""What holds for every splitter."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph
from isthmus.data.splitters import (
    SPLITTERS,
    CommunitySplitter,
    CrossDomainSplitter,
    FeatureSkewSplitter,
    InstanceSpaceSplitter,
    LabelSpaceSplitter,
    MetaSplitter,
    MultiTaskSplitter,
    NodeHostsSplitter,
    RandomSplitter,
    Splitter,
    TopologySkewSplitter,
)

from ..strategies import adjacency, graphs, make_graph, many, most, rng, seeds
from .holdings import holdings, make_links, make_nodes, make_set

# Those that meet any number of clients, up to the number of nodes, on any graph.
WITHOUT_OVERLAP = [
    RandomSplitter(),
    CommunitySplitter(),
    CommunitySplitter(balanced=False),
    CommunitySplitter("igraph_louvain"),
    CommunitySplitter("leiden"),
    CommunitySplitter("metis"),
    CommunitySplitter("metis", balanced=False, num_communities=7),
    InstanceSpaceSplitter("rank"),
    InstanceSpaceSplitter("feature.2"),
    TopologySkewSplitter(),
    TopologySkewSplitter("density"),
    TopologySkewSplitter("homophily"),
    FeatureSkewSplitter(),
]
ALL = [*WITHOUT_OVERLAP, RandomSplitter(overlap_fraction=0.3), RandomSplitter(removed_edge_fraction=0.5)]

# Those that may refuse a number of clients, and those for every kind of items.
ANY_KIND = [
    RandomSplitter(),
    MetaSplitter("venue"),
    MetaSplitter("venue", deal="one_each"),
    InstanceSpaceSplitter("year"),
    InstanceSpaceSplitter("venue"),
    InstanceSpaceSplitter("principal"),
    InstanceSpaceSplitter("feature.1"),
    LabelSpaceSplitter(),
    LabelSpaceSplitter(alpha=0.05, balanced=False, max_draws=20),
    LabelSpaceSplitter(alpha=100.0, min_items=2, num_bins=3),
    MultiTaskSplitter("venue"),
    MultiTaskSplitter(),
    TopologySkewSplitter(),
    FeatureSkewSplitter(),
    FeatureSkewSplitter("cluster"),
    CrossDomainSplitter("venue"),
    CommunitySplitter("metis"),
    TopologySkewSplitter("size"),
]


def num_clients_for(data: Holding, wish: int) -> int:
    return min(wish, data.num_items)


@most
@given(graphs, seeds, st.integers(1, 30), st.sampled_from(ALL))
def test_every_node_has_a_client_and_every_client_a_node(
    graph: Graph, seed: int, wish: int, splitter: Splitter
) -> None:
    clients = num_clients_for(graph, wish)
    parts = splitter.split(graph, clients, rng(seed))
    assert len(parts) == clients
    assert all(part.num_nodes > 0 for part in parts)
    assert set(torch.cat([part.node_ids for part in parts]).tolist()) == set(range(graph.num_nodes))
    assert all(bool((part.node_ids[1:] > part.node_ids[:-1]).all()) for part in parts)


@most
@given(graphs, seeds, st.integers(1, 30), st.sampled_from(WITHOUT_OVERLAP))
def test_without_overlap_every_node_has_one_client(graph: Graph, seed: int, wish: int, splitter: Splitter) -> None:
    parts = splitter.split(graph, num_clients_for(graph, wish), rng(seed))
    assert torch.cat([part.node_ids for part in parts]).sort().values.tolist() == list(range(graph.num_nodes))


@pytest.mark.parametrize("splitter", ANY_KIND, ids=repr)
@many
@given(data=holdings, seed=seeds, wish=st.integers(1, 12))
def test_items_of_any_kind_have_one_client_each_or_the_split_is_refused(
    splitter: Splitter, data: Holding, seed: int, wish: int
) -> None:
    clients = num_clients_for(data, wish)
    try:
        parts = splitter.split(data, clients, rng(seed))
    except BadInput as refused:
        assert len(str(refused)) > 40
        return
    assert len(parts) == clients
    assert all(type(part) is type(data) and part.num_items > 0 for part in parts)
    assert torch.cat([part.item_ids for part in parts]).sort().values.tolist() == list(range(data.num_items))
    assert all(bool((part.item_ids[1:] > part.item_ids[:-1]).all()) for part in parts)
    again = splitter.split(data, clients, rng(seed))
    assert [part.item_ids.tolist() for part in parts] == [part.item_ids.tolist() for part in again]


@most
@given(graphs, seeds, st.integers(1, 8), st.sampled_from([*WITHOUT_OVERLAP, RandomSplitter(overlap_fraction=0.3)]))
def test_a_client_holds_exactly_the_edges_between_its_nodes(
    graph: Graph, seed: int, wish: int, splitter: Splitter
) -> None:
    whole = adjacency(graph)
    for part in splitter.split(graph, num_clients_for(graph, wish), rng(seed)):
        assert torch.equal(adjacency(part), whole[part.node_ids][:, part.node_ids])
        assert torch.equal(part.y, graph.y[part.node_ids])


@pytest.mark.parametrize(
    "splitter",
    [
        RandomSplitter(),
        RandomSplitter(overlap_fraction=0.3),
        RandomSplitter(removed_edge_fraction=0.5),
        RandomSplitter(shares=(0.3, 0.4, 0.5)),
        RandomSplitter(0.1, shares=(0.3, 0.4, 0.5)),
        CommunitySplitter(),
        CommunitySplitter(balanced=False),
        CommunitySplitter("leiden"),
        CommunitySplitter("metis"),
        MetaSplitter("venue"),
        LabelSpaceSplitter(),
        TopologySkewSplitter(),
        FeatureSkewSplitter("cluster"),
        CrossDomainSplitter("half"),
    ],
    ids=repr,
)
def test_same_seed_same_split_other_seed_other_split(splitter: Splitter) -> None:
    # Venues are equally large, so that chance decides how they are dealt out.
    graph = make_nodes(200, 400)
    graph = type(graph)(
        **{**vars(graph), "attributes": {"venue": torch.arange(200) % 20, "half": torch.arange(200) % 2}}
    )

    def ids(seed: int) -> list[list[int]]:
        return [part.edge_index.tolist() + part.node_ids.tolist() for part in splitter.split(graph, 3, rng(seed))]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.mark.slow
@pytest.mark.parametrize("splitter", [*ANY_KIND[:-2], CommunitySplitter("metis")], ids=repr)
def test_a_million_edges_are_split_in_seconds(splitter: Splitter) -> None:
    graph = make_nodes(200_000, 1_000_000)
    if splitter == MultiTaskSplitter():
        pytest.skip("nodes have one task")
    clients = 6 if splitter == MetaSplitter("venue", deal="one_each") else 5
    start = time.perf_counter()
    assert len(splitter.split(graph, clients, rng(0))) == clients
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("splitter", ALL, ids=repr)
def test_one_client_gets_every_node(splitter: Splitter) -> None:
    graph = make_graph(20, 30)
    (part,) = splitter.split(graph, 1, rng(0))
    assert part.node_ids.tolist() == list(range(20))


@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients_are_refused(clients: int) -> None:
    with pytest.raises(BadInput, match=rf"num_clients is {clients}; at least 1"):
        RandomSplitter().split(make_graph(5, 5), clients, rng(0))


def test_more_clients_than_items_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"num_clients is 6, but the dataset 'toy' has only 5 nodes"):
        CommunitySplitter().split(make_graph(5, 5), 6, rng(0))
    with pytest.raises(BadInput, match=r"num_clients is 6, but the dataset 'links' has only 5 links"):
        LabelSpaceSplitter().split(make_links(5), 6, rng(0))
    with pytest.raises(BadInput, match=r"num_clients is 6, but the dataset 'set' has only 5 graphs"):
        RandomSplitter().split(make_set(5), 6, rng(0))


def test_a_splitter_of_other_items_says_what_it_divides_and_which_splitters_would_do() -> None:
    message = r"'community' divides nodes, but the dataset 'links' holds links; these would do: cross_domain, .*random"
    with pytest.raises(BadInput, match=message) as caught:
        CommunitySplitter().split(make_links(9), 2, rng(0))
    assert "community, " not in str(caught.value)


@dataclass(frozen=True)
class Careless(Splitter):
    sizes: tuple[int, ...] = ()

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[torch.Tensor]:
        return list(torch.arange(data.num_items).split(list(self.sizes)))


def test_a_splitter_that_leaves_a_client_empty_is_named() -> None:
    with pytest.raises(BadInput, match=r"Careless\(sizes=\(3, 0, 2\)\) left clients \[1\] of 3 without a node"):
        Careless((3, 0, 2)).split(make_graph(5, 5), 3, rng(0))


def test_a_splitter_that_makes_another_number_of_parts_is_named() -> None:
    with pytest.raises(BadInput, match=r"Careless\(sizes=\(3, 2\)\) made 2 parts for 3 clients"):
        Careless((3, 2)).split(make_graph(5, 5), 3, rng(0))


def test_splitters_by_name() -> None:
    assert {
        "random": RandomSplitter,
        "community": CommunitySplitter,
        "meta": MetaSplitter,
        "instance_space": InstanceSpaceSplitter,
        "label_space": LabelSpaceSplitter,
        "multi_task": MultiTaskSplitter,
        "topology_skew": TopologySkewSplitter,
        "feature_skew": FeatureSkewSplitter,
        "cross_domain": CrossDomainSplitter,
        "node_hosts": NodeHostsSplitter,
    } == SPLITTERS
