from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from isthmus.learn.neighbors import Adjacency, Neighborhood, _in_edges, sample_neighborhood
from isthmus.testing import toy_graph


def sample_in_edges(adjacency: Adjacency, targets: Tensor, fanout: int, generator: torch.Generator) -> Tensor:
    """Return CSR positions of up to `fanout` in-edges of each target, uniform without replacement; -1 takes all."""
    start, chosen = adjacency.start.cpu().numpy(), targets.cpu().numpy()
    return torch.from_numpy(_in_edges(start, chosen, [len(chosen)], fanout, [generator])[0]).to(targets.device)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


GRAPH = toy_graph(40, num_links=6, homophily=0.2)
ADJACENCY = Adjacency.of(GRAPH.edge_index, GRAPH.num_nodes)
DEGREE = torch.bincount(GRAPH.edge_index[1], minlength=GRAPH.num_nodes)


def targets_of(entries: torch.Tensor) -> torch.Tensor:
    return GRAPH.edge_index[1][ADJACENCY.edge[entries]]


def test_adjacency_lists_the_in_edges_of_every_node() -> None:
    edges = torch.tensor([[3, 0, 2, 0], [1, 2, 1, 1]])  # not sorted, node 3 has no in-edge
    found = Adjacency.of(edges, 4)
    assert found.start.tolist() == [0, 0, 3, 4, 4]
    assert found.source.tolist() == [3, 2, 0, 0]
    assert found.edge.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize("fanout", [1, 2, 3, 100])
def test_fanout_is_respected_and_no_edge_is_taken_twice(fanout: int) -> None:
    targets = torch.tensor([7, 3, 0, 39, 12])
    for seed in range(20):
        chosen = sample_in_edges(ADJACENCY, targets, fanout, generator(seed))
        assert len(torch.unique(chosen)) == len(chosen)
        counts = Counter(targets_of(chosen).tolist())
        assert counts == {t: n for t in targets.tolist() if (n := min(fanout, int(DEGREE[t])))}


def test_minus_one_takes_every_in_edge() -> None:
    targets = torch.tensor([5, 1, 30])
    chosen = sample_in_edges(ADJACENCY, targets, -1, generator())
    expected = torch.isin(GRAPH.edge_index[1], targets).nonzero().flatten()
    assert torch.equal(ADJACENCY.edge[chosen].sort().values, expected)


@pytest.mark.parametrize("fanout", [1, 3])
def test_sampling_is_uniform(fanout: int) -> None:
    # Two targets of degree 6 and 4, drawn together; every in-edge must come with the same frequency.
    edges = torch.tensor([[2, 3, 4, 5, 6, 7, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])
    adjacency = Adjacency.of(edges, 8)
    draws = 3000
    draw = generator(11)
    counts: Counter[int] = Counter()
    for _ in range(draws):
        counts.update(sample_in_edges(adjacency, torch.tensor([0, 1]), fanout, draw).tolist())
    for entries, degree in ((range(6), 6), (range(6, 10), 4)):
        chance = fanout / degree
        deviation = (draws * chance * (1 - chance)) ** 0.5
        assert all(abs(counts[e] - draws * chance) < 4.0 * deviation for e in entries), counts


def test_pairs_of_edges_are_sampled_uniformly_too() -> None:
    adjacency = Adjacency.of(torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), 5)
    draw = generator(5)
    draws = 3000
    pairs = Counter(tuple(sample_in_edges(adjacency, torch.tensor([0]), 2, draw).tolist()) for _ in range(draws))
    assert len(pairs) == 6
    # Chi-square with 5 degrees of freedom: 20.5 is the 0.1 % quantile.
    assert sum((n - draws / 6) ** 2 / (draws / 6) for n in pairs.values()) < 20.5


def check(hood: Neighborhood, seeds: torch.Tensor) -> None:
    """What holds for any sample: seeds first, nodes once, edges that exist, edge ids that point at them."""
    assert torch.equal(hood.nodes[: hood.num_seeds], seeds)
    assert len(torch.unique(hood.nodes)) == len(hood.nodes)
    assert torch.equal(hood.nodes[hood.edge_index], GRAPH.edge_index[:, hood.edges])
    assert len(torch.unique(hood.edges)) == len(hood.edges)


@pytest.mark.parametrize("fanouts", [(2,), (2, 3), (1, -1), (-1, 2, 2)])
def test_neighborhood_is_made_of_edges_of_the_graph(fanouts: tuple[int, ...]) -> None:
    seeds = torch.tensor([9, 4, 31])
    for seed in range(10):
        hood = sample_neighborhood(ADJACENCY, seeds, fanouts, generator(seed))
        check(hood, seeds)
        limit = max(fanouts) if -1 not in fanouts else int(DEGREE.max())
        assert int(torch.bincount(hood.edge_index[1]).max()) <= limit
        # Every node that is no seed was reached by an edge.
        assert set(range(hood.num_seeds, len(hood.nodes))) <= set(hood.edge_index[0].tolist())


def test_whole_neighborhood_is_what_breadth_first_search_finds() -> None:
    seeds = torch.tensor([9, 4])
    hood = sample_neighborhood(ADJACENCY, seeds, (-1, -1), generator())
    check(hood, seeds)
    source, target = GRAPH.edge_index
    near = set(seeds.tolist())
    once = near | {s for s, t in zip(source.tolist(), target.tolist(), strict=True) if t in near}
    twice = once | {s for s, t in zip(source.tolist(), target.tolist(), strict=True) if t in once}
    assert set(hood.nodes.tolist()) == twice
    wanted = [e for e, t in enumerate(target.tolist()) if t in once]
    assert sorted(hood.edges.tolist()) == wanted


def test_the_same_stream_gives_the_same_sample_and_another_another() -> None:
    seeds = torch.arange(10)
    first, again, other = (sample_neighborhood(ADJACENCY, seeds, (2, 2), generator(s)).edges for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.tolist() != other.tolist()


def test_a_graph_without_edges_gives_the_seeds_alone() -> None:
    adjacency = Adjacency.of(torch.empty(2, 0, dtype=torch.int64), 4)
    hood = sample_neighborhood(adjacency, torch.tensor([2, 0]), (3, 3), generator())
    assert hood.nodes.tolist() == [2, 0]
    assert hood.edge_index.shape == (2, 0)
    assert len(hood.edges) == 0
