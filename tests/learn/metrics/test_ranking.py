"""Ranks against a loop over every candidate; ties at their mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isthmus.core.random import torch_generator
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.metrics import ranking
from isthmus.learn.metrics.ranking import RANKINGS, mean_ranks, ranks_of_ends
from isthmus.learn.tasks.known_links import KnownLinks
from isthmus.models.decoders import BilinearDecoder, HadamardMLPDecoder, LinkPart
from tests.learn.tasks.link_toys import known_pairs, toy_facts, toy_ratings


def slow_rank(own: float, others: list[float]) -> float:
    """Return the mean of the best and the worst place that the true answer could take among the others."""
    best = 1 + sum(other > own for other in others)
    worst = 1 + sum(other >= own for other in others)
    return (best + worst) / 2


def slow_ranks(
    part: LinkPart, h: Tensor, data: LinkGraph, by_relation: bool, self_pairs: bool, filtered: bool
) -> list[list[float]]:
    """Return the ranks of heads, then of tails, one candidate after the other."""
    known = known_pairs(data, by_relation, self_pairs)
    side = data.node_attributes.get("side", torch.zeros(data.num_nodes)).tolist()
    ranks: list[list[float]] = [[], []]
    for (head, tail), label in zip(data.links.t().tolist(), data.label.tolist(), strict=True):
        kind = label if by_relation else 0
        for end in (0, 1):

            def score(node: int, head: int = head, tail: int = tail, end: int = end, kind: int = kind) -> float:
                pair = (node, tail) if end == 0 else (head, node)
                return float(part(h[[pair[0]]], h[[pair[1]]], None)[0, kind])

            truth = (head, tail)[end]
            others = []
            for node in range(data.num_nodes):
                triple = (node, tail, kind) if end == 0 else (head, node, kind)
                if node == truth or side[node] != side[truth] or (filtered and triple in known):
                    continue
                others.append(score(node))
            ranks[end].append(slow_rank(score(truth), others))
    return ranks


@pytest.mark.meet(2)
@pytest.mark.parametrize("numbers", [50, 2_000_000])
@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("self_pairs", [True, False])
@pytest.mark.parametrize("by_relation", [True, False])
@pytest.mark.parametrize("name", ["facts", "undirected", "ratings"])
def test_ranks_of_ends_are_those_of_a_loop(
    name: str, by_relation: bool, self_pairs: bool, filtered: bool, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"facts": toy_facts(), "undirected": toy_facts(undirected=True), "ratings": toy_ratings()}[name]
    monkeypatch.setattr(ranking, "MAX_NUMBERS", numbers)  # 50: one link at a time
    # Small whole numbers: many ties, and no rounding whatever the order of the sums.
    h = torch.randint(-1, 2, (data.num_nodes, 3), generator=torch_generator(0, "h")).float()
    part = BilinearDecoder().build(3, data.num_classes if by_relation else 1)
    with torch.no_grad():
        part.weight.copy_(torch.randint(-2, 3, part.weight.shape, generator=torch_generator(1, "w")))
    relation = data.label if by_relation else torch.zeros_like(data.label)
    known = KnownLinks.of(data, by_relation, self_pairs)
    with torch.no_grad():
        found = ranks_of_ends(part, h, known, data.links, relation, filtered)
        expected = slow_ranks(part, h, data, by_relation, self_pairs, filtered)
    assert found.tolist() == expected


def test_ranks_by_a_perceptron_are_those_of_a_loop() -> None:
    data = toy_facts()
    h = torch.randn(data.num_nodes, 4, generator=torch_generator(0, "h"))
    part = HadamardMLPDecoder(hidden=5).build(4, data.num_classes)
    known = KnownLinks.of(data, True, True)
    with torch.no_grad():
        found = ranks_of_ends(part, h, known, data.links, data.label, True)
        assert found.tolist() == slow_ranks(part, h, data, True, True, True)


def test_ties_count_half() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0], [3.0, 1.0, 1.0, 0.0], [0.0, 0.0, 5.0, 0.0]])
    assert mean_ranks(scores, torch.tensor([2, 1, 2])).tolist() == [2.5, 2.5, 1.0]


def test_a_model_that_says_the_same_of_everything_is_in_the_middle() -> None:
    ranks = mean_ranks(torch.zeros(3, 101), torch.tensor([0, 50, 100]))
    assert ranks.tolist() == [51.0, 51.0, 51.0]
    assert RANKINGS["hits@10"](ranks) == 0.0


def test_what_is_left_out_does_not_count_and_the_true_one_never_counts_against_itself() -> None:
    scores = torch.tensor([[5.0, 4.0, 3.0, 3.0]])
    row = torch.tensor([0, 0, 0])
    assert mean_ranks(scores, torch.tensor([2]), (row, torch.tensor([0, 2, 3]))).tolist() == [2.0]
    assert mean_ranks(scores, torch.tensor([2]), (row[:1], torch.tensor([2]))).tolist() == [3.5]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1], ids=["the true one", "another"])
def test_among_scores_that_are_not_finite_there_is_no_rank(odd: float, place: int) -> None:
    scores = torch.zeros(2, 3)
    scores[1, place] = odd
    ranks = mean_ranks(scores, torch.tensor([0, 0]))
    assert ranks.tolist() == [2.0, math.inf]
    for name, measure in RANKINGS.items():
        assert math.isnan(measure(ranks)) and not math.isnan(measure(ranks[:1])), name


def test_hits_and_reciprocal_ranks_by_hand() -> None:
    ranks = torch.tensor([1.0, 1.5, 2.0, 5.0, 10.0, 40.0], dtype=torch.float64)
    found = {name: metric(ranks) for name, metric in RANKINGS.items()}
    assert found == pytest.approx(
        {"hits@1": 1 / 6, "hits@5": 4 / 6, "hits@10": 5 / 6, "mrr": (1 + 2 / 3 + 1 / 2 + 1 / 5 + 1 / 10 + 1 / 40) / 6}
    )
