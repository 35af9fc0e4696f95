from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.dividing import MASKS, Holding, NoSplit, PerClassSplit, PublicSplit, RatioSplit
from isthmus.data.graph import Graph
from isthmus.data.zoo import Cora

from .splitters.holdings import links, make_links, make_set, sets
from .strategies import graphs, make_graph, many, rng, seeds


def check_disjoint_and_labelled(graph: Graph) -> None:
    stacked = torch.stack([graph.masks[split] for split in SPLITS])
    assert int(stacked.sum(dim=0).max()) <= 1
    assert bool((graph.y[stacked.any(dim=0)] >= 0).all())


@many
@given(graphs, seeds, st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
def test_ratio_masks_are_disjoint_labelled_and_as_large_as_asked(graph: Graph, seed: int, raw: list[float]) -> None:
    num_labelled = int((graph.y >= 0).sum())
    assume(num_labelled > 0)
    train, val, test = (share / max(1.0, sum(raw)) for share in raw)
    masked = RatioSplit(train, val, test).apply(graph, rng(seed))
    check_disjoint_and_labelled(masked)
    for split, share in zip(SPLITS, (train, val, test), strict=True):
        # Two rounded ends differ from the exact share by half a node each.
        assert abs(int(masked.masks[split].sum()) - share * num_labelled) <= 1.0 + 1e-6


def test_ratios_that_add_up_to_one_use_every_labelled_node() -> None:
    graph = make_graph(101, 10)
    masked = RatioSplit(0.6, 0.2, 0.2).apply(graph, rng(0))
    num_labelled = int((graph.y >= 0).sum())
    assert sum(int(mask.sum()) for mask in masked.masks.values()) == num_labelled
    assert int(masked.masks["train"].sum()) == round(0.6 * num_labelled)


@pytest.mark.parametrize("rule", [RatioSplit(), PerClassSplit(2, 5, 5)])
def test_same_seed_same_masks_other_seed_other_masks(rule: RatioSplit | PerClassSplit) -> None:
    graph = make_graph(60, 10)
    first, again, other = (rule.apply(graph, rng(seed)).masks for seed in (1, 1, 2))
    assert all(torch.equal(first[split], again[split]) for split in SPLITS)
    assert not all(torch.equal(first[split], other[split]) for split in SPLITS)


@many
@given(st.integers(20, 60), seeds, st.integers(1, 3), st.integers(0, 4), st.integers(0, 4))
def test_per_class_draws_the_numbers_asked_for(nodes: int, seed: int, per_class: int, val: int, test: int) -> None:
    graph = make_graph(nodes, 5, seed)
    counts = torch.bincount(graph.y[graph.y >= 0], minlength=3)
    assume(int(counts.min()) >= per_class and int(counts.sum()) >= 3 * per_class + val + test)
    masked = PerClassSplit(per_class, val, test).apply(graph, rng(seed))
    check_disjoint_and_labelled(masked)
    assert torch.bincount(graph.y[masked.masks["train"]], minlength=3).tolist() == [per_class] * 3
    assert (int(masked.masks["val"].sum()), int(masked.masks["test"].sum())) == (val, test)


@many
@given(graphs, seeds, st.integers(1, 3))
def test_per_class_takes_the_first_of_each_class_in_random_order(graph: Graph, seed: int, per_class: int) -> None:
    assume(bool((graph.y >= 0).any()))
    graph = replace(graph, num_classes=5)  # two of them without a node
    masked = PerClassSplit(per_class, num_val=0, num_test=0, allow_short=True).apply(graph, rng(seed))
    order = rng(seed).permutation((graph.y >= 0).nonzero()[:, 0].numpy()).tolist()
    first = [[node for node in order if graph.y[node] == number][:per_class] for number in range(5)]
    assert masked.masks["train"].nonzero()[:, 0].tolist() == sorted(chain.from_iterable(first))


def test_public_keeps_the_masks_of_the_dataset() -> None:
    graph = make_graph(10, 5)
    assert PublicSplit().apply(graph, rng(0)).masks is graph.masks


def test_public_without_masks_says_what_would_do() -> None:
    with pytest.raises(BadInput, match=r"'toy' has no split of its own .*use 'ratio' or 'per_class'"):
        PublicSplit().apply(make_graph(10, 5).with_masks({}), rng(0))


@pytest.mark.parametrize("rule", [RatioSplit(), PerClassSplit(1, 1, 1)])
def test_a_graph_without_labels_is_refused(rule: RatioSplit | PerClassSplit) -> None:
    graph = replace(make_graph(10, 5), y=torch.full((10,), -1))
    with pytest.raises(BadInput, match="'toy' has no labelled node among 10"):
        rule.apply(graph, rng(0))


def test_a_class_with_too_few_nodes_is_named() -> None:
    graph = replace(make_graph(4, 0), y=torch.tensor([0, 0, 1, 2]))
    with pytest.raises(BadInput, match=r"class 1 of the dataset 'toy' has 1 labelled nodes; num_per_class is 2"):
        PerClassSplit(2, 0, 0).apply(graph, rng(0))
    with pytest.raises(BadInput, match=r"class 'green' of"):
        PerClassSplit(2, 0, 0).apply(replace(graph, class_names=("red", "green", "blue")), rng(0))


def test_too_few_nodes_for_validation_and_test_are_told() -> None:
    graph = replace(make_graph(6, 0), y=torch.tensor([0, 0, 1, 1, 2, 2]))
    with pytest.raises(BadInput, match=r"num_val \+ num_test is 2 \+ 2, but beside the 3 training nodes .* only 3"):
        PerClassSplit(1, 2, 2).apply(graph, rng(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": -0.1}, "train is -0.1; a share lies between 0 and 1"),
        ({"val": math.nan}, "val is nan"),
        ({"train": 0.6, "val": 0.3, "test": 0.2}, r"0.6 \+ 0.3 \+ 0.2 = 1.1; the shares may add up to 1"),
    ],
)
def test_wrong_ratios_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RatioSplit(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_per_class": 0}, "num_per_class is 0; at least 1"),
        ({"num_val": -1}, "num_val is -1; it may not be negative"),
        ({"num_test": -2}, "num_test is -2"),
    ],
)
def test_wrong_counts_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerClassSplit(**fields)


@many
@given(st.one_of(links, sets), seeds)
def test_links_and_graphs_get_masks_over_those_with_a_label(data: Holding, seed: int) -> None:
    labels = data.labels
    labelled = labels >= 0 if labels.dim() == 1 else ~labels.isnan().all(dim=1)
    assume(bool(labelled.any()))
    masked = RatioSplit().apply(data, rng(seed))
    assert type(masked) is type(data)
    stacked = torch.stack([masked.masks[split] for split in SPLITS])
    assert stacked.shape == (3, data.num_items)
    assert int(stacked.sum(dim=0).max()) <= 1 and torch.equal(stacked.any(dim=0), labelled)


def test_an_item_with_a_label_for_any_task_counts_as_labelled() -> None:
    y = torch.tensor([[torch.nan, 1.0], [torch.nan, torch.nan], [0.0, torch.nan]])
    masked = RatioSplit(1.0, 0.0, 0.0).apply(replace(make_set(3, tasks=2), y=y), rng(0))
    assert masked.mask("train").tolist() == [True, False, True]


def test_per_class_draws_links_and_graphs_of_each_class() -> None:
    for data in (make_links(60), make_set(60)):
        masked = PerClassSplit(2, 5, None).apply(data, rng(0))
        assert torch.bincount(data.labels[masked.masks["train"]]).tolist() == [2, 2, 2]


def test_per_class_refuses_labels_of_several_tasks() -> None:
    with pytest.raises(BadInput, match=r"the graphs of the dataset 'set' have labels for 2 tasks, .*use 'ratio'"):
        PerClassSplit().apply(make_set(9, tasks=2), rng(0))


def test_items_without_labels_are_named_by_their_kind() -> None:
    data = replace(make_links(4), label=torch.full((4,), -1))
    with pytest.raises(BadInput, match="'links' has no labelled link among 4"):
        RatioSplit().apply(data, rng(0))


def test_rules_by_name() -> None:
    assert {"public": PublicSplit, "ratio": RatioSplit, "per_class": PerClassSplit, "none": NoSplit} == MASKS


def test_a_short_class_gives_all_it_has_when_that_is_allowed_and_null_tests_on_the_rest() -> None:
    # The split of FS-G's released loader on Cora: 232 per class, where two classes have 217 and 180 nodes.
    cora = Cora().load(Path())
    rule = PerClassSplit(num_per_class=232, num_val=542, num_test=None, allow_short=True)
    masked = rule.apply(cora, rng(0))
    check_disjoint_and_labelled(masked)
    per_class = torch.bincount(cora.y[masked.mask("train")]).tolist()
    sizes = torch.bincount(cora.y).tolist()
    assert per_class == [min(232, size) for size in sizes] and min(sizes) < 232
    assert int(masked.mask("val").sum()) == 542
    assert int(masked.mask("test").sum()) == 2708 - sum(per_class) - 542
    with pytest.raises(BadInput, match="allow_short"):
        PerClassSplit(num_per_class=232).apply(cora, rng(0))


def test_validation_and_test_items_of_a_per_class_split_have_the_classes_of_what_is_left() -> None:
    graph = replace(Cora().load(Path()), masks={})
    rule = PerClassSplit(num_per_class=232, num_val=542, num_test=None, allow_short=True)
    shares = {"val": torch.zeros(7), "test": torch.zeros(7)}
    for seed in range(40):
        drawn = rule.apply(graph, rng(seed))
        for split, share in shares.items():
            labels = graph.y[drawn.mask(split)]
            share += torch.bincount(labels, minlength=7) / len(labels) / 40
    left = (torch.bincount(graph.y) - 232).clamp(min=0)
    for (
        share
    ) in shares.values():  # a share of one draw has a standard deviation of at most 1.6 points, their mean of 0.25
        torch.testing.assert_close(share, left / left.sum(), atol=0.01, rtol=0.0)


def test_without_a_split_nothing_is_in_any_mask_and_labels_are_not_needed() -> None:
    graph = make_graph(10, 5)
    for data in (graph, replace(graph, y=torch.full_like(graph.y, -1))):
        masks = NoSplit().apply(data, rng(0)).masks
        assert set(masks) == {"train", "val", "test"} and not any(bool(mask.any()) for mask in masks.values())
