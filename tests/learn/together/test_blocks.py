from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.learn.batching import FullBatch, NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.together import blocks
from isthmus.learn.together.blocks import Blocks, can_stack, cut
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import GAT, GCN, ModelSpec
from isthmus.testing.toys import toy_graph

# ---- where to cut


def cost(runs: list[tuple[int, int]], sizes: list[int], block_rows: int) -> int:
    """Return the rows that runs take, padding included, and what each run costs by itself."""
    return sum((end - start) * max(sizes[start:end]) + block_rows for start, end in runs)


def every_cut(count: int) -> list[list[tuple[int, int]]]:
    """Return all ways to cut `count` things in a row into runs."""
    ways = []
    for chosen in itertools.product([False, True], repeat=count - 1):
        bounds = [0, *(i + 1 for i, is_cut in enumerate(chosen) if is_cut), count]
        ways.append(list(itertools.pairwise(bounds)))
    return ways


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8).map(sorted), st.sampled_from([1, 7, 40, 500]))
def test_no_other_cut_costs_less(sizes: list[int], block_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ROWS", block_rows)
        found = cut(sizes, [1] * len(sizes), 10**9)
    assert list(itertools.chain.from_iterable(range(*run) for run in found)) == list(range(len(sizes)))
    least = min(cost(way, sizes, block_rows) for way in every_cut(len(sizes)))
    assert cost(found, sizes, block_rows) == least


def test_the_examples_are_cut_at_all() -> None:
    """Otherwise the test above could not fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ROWS", 7)
        assert cut([1, 1, 1, 20, 20, 30], [1] * 6, 10**9) == [(0, 3), (3, 5), (5, 6)]
    assert cut([1, 1, 1, 20, 20, 30], [1] * 6, 10**9) == [(0, 6)]
    assert cut([10, 3000, 3010], [1] * 3, 10**9) == [(0, 1), (1, 3)]
    assert cut([], [], 10) == []


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 200),
)
def test_runs_keep_to_the_memory_and_hold_every_client_once(members: list[tuple[int, int]], limit: int) -> None:
    members.sort()
    sizes, costs = [size for size, _ in members], [cost for _, cost in members]
    found = cut(sizes, costs, limit)
    assert list(itertools.chain.from_iterable(range(*run) for run in found)) == list(range(len(sizes)))
    for start, end in found:
        assert sum(costs[start:end]) <= limit or end - start == 1
    # No more runs than memory asks for: of two runs that the sizes would not part, the second did not fit in.
    free = cut(sizes, costs, 10**9)
    borders = {end for _, end in free}
    for start, end in found[:-1]:
        assert end in borders or sum(costs[start : end + 1]) > limit


# ---- who can be put together


def client(k: int, nodes: int = 8, *, trains: bool = True, sparse: bool = False, **changes: Any) -> GraphClient:
    data = toy_graph(nodes, seed=k, sparse=sparse)
    if not trains:
        data = data.with_masks({**data.masks, "train": torch.zeros(nodes, dtype=torch.bool)})
    fields = {"task": TASK, "model": MODEL, "batching": FullBatch(), **changes}
    kind = fields.pop("kind", GraphClient)
    found: GraphClient = kind(f"client-{k}", data, **fields)
    return found


TASK = NodeClassification()
MODEL = ModelSpec(GCN(hidden=4)).build(6, 3)


class OwnClient(GraphClient):
    """May do anything."""


@dataclass(frozen=True)
class OwnTask(NodeClassification):
    """May have another loss."""


@dataclass(frozen=True)
class OwnStackedTask(NodeClassification):
    """Says itself how clients are put together."""

    def stack(self, prepared: Any) -> Any:
        return super().stack(prepared)


@dataclass(frozen=True)
class OwnBatching(FullBatch):
    """May come in another order."""


def test_only_what_is_known_exactly_is_put_together() -> None:
    first = client(0)
    assert can_stack(first, first) and can_stack(client(1), first)
    assert not can_stack(client(1, kind=OwnClient), first)
    assert not can_stack(client(1, batching=NeighborBatch()), first)
    assert not can_stack(client(1, batching=OwnBatching()), first)
    assert not can_stack(client(1, task=NodeClassification(metrics=("loss",))), first)
    for task, fits in ((OwnTask(), False), (OwnStackedTask(), True)):
        mine = client(1, task=task)
        assert can_stack(mine, mine) == fits
    attentive = ModelSpec(GAT(hidden=4, heads=2, attention_dropout=0.5)).build(6, 3)
    mine = client(1, model=attentive)
    assert not can_stack(mine, mine)


def test_clients_of_different_models_are_in_different_blocks() -> None:
    other = ModelSpec(GCN(hidden=4)).build(6, 3)
    clients = [client(0), client(1, model=other), client(2), client(3, model=other), client(4)]
    found, alone = Blocks(2**28)(clients)
    assert sorted(block.ids for block in found) == [("client-0", "client-2", "client-4"), ("client-1", "client-3")]
    assert not alone and all(block.model is each.model for block in found for each in block)


def test_large_clients_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_NODES", 10)
    clients = [client(0, 8), client(1, 10), client(2, 11)]
    assert [can_stack(each, clients[0]) for each in clients] == [True, True, False]


def names(found: tuple[list[GraphCohort], list[Any]]) -> tuple[list[tuple[str, ...]], list[str]]:
    cohorts, alone = found
    return [cohort.ids for cohort in cohorts], [each.id for each in alone]


def test_every_client_is_in_one_block_or_alone_and_idle_ones_are_apart() -> None:
    clients: list[Any] = [client(k, 5 + k % 3, trains=k not in (1, 4, 6)) for k in range(9)]
    clients.append(client(9, kind=OwnClient))
    cohorts, alone = Blocks(2**30)(clients)
    ids = [name for cohort in cohorts for name in cohort.ids] + [each.id for each in alone]
    assert sorted(ids) == sorted(each.id for each in clients) and [each.id for each in alone] == ["client-9"]
    assert [{each.num_examples > 0 for each in cohort} for cohort in cohorts] == [{True}, {False}]
    assert sorted(cohorts[1].ids) == ["client-1", "client-4", "client-6"]
    for cohort in cohorts:
        sizes = [each.num_nodes for each in cohort]
        assert sizes == sorted(sizes) and len(cohort) > 1


def test_one_client_of_its_kind_is_alone() -> None:
    clients = [client(0), client(1), client(2, trains=False)]
    assert names(Blocks(2**30)(clients)) == ([("client-0", "client-1")], ["client-2"])
    assert names(Blocks(2**30)([client(0)])) == ([], ["client-0"])


def test_the_first_client_decides_whose_task_and_model_count() -> None:
    odd = client(0, model=ModelSpec(GCN(hidden=4)).build(6, 3))
    assert names(Blocks(2**30)([client(1), odd, client(2)])) == ([("client-1", "client-2")], ["client-0"])


def test_memory_bounds_the_blocks() -> None:
    clients = [client(k) for k in range(6)]
    needs = {each.id: measured(each) for each in clients}
    limit = 2 * max(needs.values())
    cohorts, alone = Blocks(limit)(clients)
    assert sum(map(len, cohorts)) + len(alone) == 6 and len(cohorts) > 1
    assert all(sum(needs[name] for name in cohort.ids) <= limit for cohort in cohorts)
    cohorts, alone = Blocks(min(needs.values()) // 2)(clients)
    assert cohorts == [] and len(alone) == 6


def measured(each: GraphClient) -> int:
    return blocks._Measure(each).bytes_of(each)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_larger_client_or_model_takes_more_memory(sparse: bool) -> None:
    wide = ModelSpec(GCN(hidden=40)).build(6, 3)
    small, large = (measured(client(0, nodes, sparse=sparse)) for nodes in (8, 80))
    assert small < large < measured(client(0, 80, sparse=sparse, model=wide))
    # At least what the weights, their gradients and the activations of a step take.
    weights = sum(tensor.numel() for tensor in MODEL.state_dict().values())
    assert large > 4 * (80 * 4 + (0 if sparse else 2 * weights))


# ---- what is kept


def test_the_blocks_of_a_cohort_are_kept() -> None:
    clients = [client(k) for k in range(4)]
    gather = Blocks(2**30)
    first = gather(clients)
    assert gather(clients) is first
    assert names(gather(clients[:2])) == ([("client-0", "client-1")], []) and gather(clients) is first
    assert names(gather(clients[2:])) == ([("client-2", "client-3")], [])  # as many, but others


def test_no_more_than_two_cohorts_are_kept() -> None:
    clients = [client(k) for k in range(5)]
    gather = Blocks(2**30)
    for size in (5, 4, 3, 2, 5):
        gather(clients[:size])
    assert len(gather._kept) == 2


def test_the_blocks_of_the_evaluation_outlive_changing_cohorts() -> None:
    clients = [client(k) for k in range(6)]
    gather = Blocks(2**30)
    found = []
    for round in range(6):
        gather([clients[round % 6], clients[(round + 1) % 6], clients[(round + 2) % 6]])  # training
        found.append(gather(clients))  # evaluation
    assert all(each is found[0] for each in found)
