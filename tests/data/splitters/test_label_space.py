from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters import LabelSpaceSplitter
from isthmus.data.splitters.label_space import label_numbers

from ..strategies import make_graph, many, rng, seeds
from .holdings import make_links, make_set


def with_labels(y: torch.Tensor) -> Graph:
    return replace(make_graph(len(y), 0), y=y, num_classes=int(y.max()) + 1)


def label_shares(splitter: LabelSpaceSplitter, graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Return how many nodes of each class each client holds, (clients, classes)."""
    parts = splitter.assign(graph, clients, rng(seed))
    return np.stack([np.bincount(graph.y[part], minlength=graph.num_classes) for part in parts])


def mean_divergence(splitter: LabelSpaceSplitter, graph: Graph, clients: int, draws: int = 30) -> float:
    """Return the mean Kullback-Leibler divergence of the clients' label shares from those of the whole."""
    whole = np.bincount(graph.y) / graph.num_nodes
    found = []
    for seed in range(draws):
        counts = label_shares(splitter, graph, clients, seed)
        shares = counts / counts.sum(axis=1, keepdims=True)
        found.append((shares * np.log(np.where(shares > 0, shares / whole, 1.0))).sum(axis=1).mean())
    return float(np.mean(found))


@pytest.mark.parametrize("balanced", [True, False])
def test_divergence_from_the_whole_falls_with_alpha(balanced: bool) -> None:
    graph = with_labels(torch.from_numpy(rng(0).choice(5, 3000, p=[0.4, 0.3, 0.15, 0.1, 0.05])))
    alphas = (0.05, 0.2, 1.0, 5.0, 100.0, 10_000.0)
    found = [mean_divergence(LabelSpaceSplitter(alpha, balanced), graph, 5) for alpha in alphas]
    assert all(low > high for low, high in pairwise(found))
    assert found[0] > 0.8 and found[-1] < 0.001


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_shares_have_the_mean_and_variance_of_the_dirichlet_distribution(alpha: float) -> None:
    graph = with_labels(torch.arange(4000) % 2)
    splitter = LabelSpaceSplitter(alpha, balanced=False)
    shares = np.stack(
        [label_shares(splitter, graph, 4, seed) / 2000 for seed in range(300)]
    )  # (draws, clients, labels)
    assert shares.mean() == pytest.approx(1 / 4)
    assert shares.mean(axis=(0, 2)) == pytest.approx([1 / 4] * 4, abs=0.05)
    expected = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_a_small_alpha_gives_a_label_to_few_clients_and_a_large_one_to_all_alike() -> None:
    graph = with_labels(torch.arange(6000) % 6)
    few = label_shares(LabelSpaceSplitter(0.01), graph, 4, 0)
    assert float((few.max(axis=0) / 1000).mean()) > 0.8
    even = label_shares(LabelSpaceSplitter(1e6, balanced=False), graph, 4, 0)
    assert np.abs(even - 250).max() <= 2


@many
@given(st.integers(20, 200), seeds, st.integers(1, 5), st.integers(1, 4))
def test_every_client_has_the_least_number_of_items(nodes: int, seed: int, clients: int, least: int) -> None:
    parts = LabelSpaceSplitter(1.0, min_items=least).assign(make_graph(nodes, 0, seed), clients, rng(seed))
    assert min(len(part) for part in parts) >= least


def test_items_without_a_label_are_divided_evenly() -> None:
    graph = with_labels(torch.tensor([0] * 50 + [-1] * 50))
    for part in LabelSpaceSplitter().split(graph, 5, rng(0)):
        assert int((part.y < 0).sum()) == 10


def test_a_balanced_client_exceeds_its_fair_share_by_one_label_at_most() -> None:
    graph = with_labels(torch.arange(1000) % 10)
    for seed in range(20):
        sizes = label_shares(LabelSpaceSplitter(0.1), graph, 5, seed).sum(axis=1)
        assert sizes.max() < 200 + 100


@pytest.mark.parametrize(
    ("splitter", "clients"), [(LabelSpaceSplitter(0.001), 8), (LabelSpaceSplitter(min_items=4, max_draws=7), 3)]
)
def test_what_cannot_be_met_is_refused_with_the_reason(splitter: LabelSpaceSplitter, clients: int) -> None:
    graph = with_labels(torch.zeros(10, dtype=torch.int64))
    message = rf"alpha .*, {clients} clients could not all get {splitter.min_items} of the 10 nodes .*larger alpha"
    with pytest.raises(BadInput, match=message):
        splitter.split(graph, clients, rng(0))


def test_numbers_are_put_into_bins_of_equal_size() -> None:
    data = replace(make_set(100, tasks=2), y=torch.stack([torch.arange(100.0) ** 3, torch.zeros(100)], dim=1))
    numbers = label_numbers(data, 0, 10)
    assert numbers.tolist() == (np.arange(100) // 10).tolist()


def test_few_different_numbers_are_classes_and_a_task_goes_by_number_or_name() -> None:
    y = torch.tensor([[0.0, 5.0], [1.0, torch.nan], [torch.nan, 7.0], [1.0, 5.0]])
    data = replace(make_set(4, tasks=2), y=y)
    assert label_numbers(data, 0, 10).tolist() == [0, 1, -1, 1]
    assert label_numbers(data, 1, 10).tolist() == label_numbers(data, "task 1", 10).tolist() == [0, -1, 1, 0]


def test_regression_values_are_skewed() -> None:
    data = make_set(600, tasks=1)
    means = [float(part.y[:, 0].nanmean()) for part in LabelSpaceSplitter(0.1, balanced=False).split(data, 3, rng(0))]
    assert max(means) - min(means) > 0.1


def test_relations_of_links_are_skewed() -> None:
    parts = LabelSpaceSplitter(0.05, balanced=False).split(make_links(900), 3, rng(0))
    counts = np.stack([np.bincount(part.label[part.label >= 0], minlength=3) for part in parts])
    assert (counts.max(axis=0) / counts.sum(axis=0)).min() > 0.6


@pytest.mark.parametrize(
    ("task", "message"),
    [(2, "splitter.task is 2, but 'set' has 2 tasks, from 0 on"), ("task1", "known: task 0, task 1. Did you mean 'ta")],
)
def test_an_unknown_task_is_refused(task: int | str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        LabelSpaceSplitter(task=task).split(make_set(9, tasks=2), 2, rng(0))


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no node of 'toy' has a label; use 'random'"):
        LabelSpaceSplitter().split(replace(make_graph(5, 0), y=torch.full((5,), -1)), 2, rng(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0; it must be above 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"min_items": 0}, "min_items is 0; at least 1"),
        ({"max_draws": 0}, "max_draws is 0; at least 1"),
        ({"num_bins": 1}, "num_bins is 1; at least 2"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelSpaceSplitter(**fields)
