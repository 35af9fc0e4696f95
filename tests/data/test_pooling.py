from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.core.outside import data_root
from isthmus.data.graph import Graph
from isthmus.data.joining import merged
from isthmus.data.splitters import RandomSplitter
from isthmus.runs.simulation import load_scenario
from tests.data.strategies import graphs, make_graph, many, seeds


def edges_of(graph: Graph) -> dict[tuple[int, int], float]:
    """Weight of each edge by the ids of its ends."""
    weights = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    ends = graph.node_ids[graph.edge_index].t().tolist()
    assert len({tuple(pair) for pair in ends}) == len(ends)
    return {(source, target): weight for (source, target), weight in zip(ends, weights.tolist(), strict=True)}


def check(whole: Graph, parts: list[Graph]) -> None:
    found = merged(whole, parts)
    union: dict[tuple[int, int], float] = {}
    for part in parts:
        union |= edges_of(part)
    assert edges_of(found) == union
    keys = found.edge_index[0] * max(found.num_nodes, 1) + found.edge_index[1]
    assert torch.equal(keys, keys.sort().values)
    held = {node for part in parts for node in part.node_ids.tolist()}
    for split, mask in whole.masks.items():
        wanted = [bool(m) and node in held for m, node in zip(mask, whole.node_ids.tolist(), strict=True)]
        assert found.mask(split).tolist() == wanted
    assert found.x is whole.x and found.y is whole.y and found.node_ids is whole.node_ids
    assert (found.edge_weight is None) == (whole.edge_weight is None)


@many
@given(whole=graphs, seed=seeds, num_parts=st.integers(0, 4), share=st.floats(0.0, 1.0))
def test_the_merged_graph_has_the_edges_that_some_part_has_and_no_others(
    whole: Graph, seed: int, num_parts: int, share: float
) -> None:
    draw = torch.Generator().manual_seed(seed % 2**31)
    parts = []
    for _ in range(num_parts):
        order = torch.randperm(whole.num_nodes, generator=draw)
        parts.append(whole.subgraph(order[: int(share * whole.num_nodes)]))
    check(whole, parts)


def test_by_hand() -> None:
    """A path 0-1-2-3-4: one part holds 2, 1, 0, the other 2, 3, so that the edge 3-4 and node 4 are lost."""
    pairs = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    order = torch.argsort(both[0] * 5 + both[1])
    whole = Graph(
        x=torch.eye(5),
        edge_index=both[:, order],
        edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat(2)[order],
        y=torch.zeros(5, dtype=torch.int64),
        num_classes=1,
        node_ids=torch.tensor([50, 10, 40, 20, 30]),
        masks={"train": torch.tensor([True, False, True, False, True])},
    )
    found = merged(whole, [whole.subgraph(torch.tensor([2, 1, 0])), whole.subgraph(torch.tensor([2, 3]))])
    assert found.edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert found.edge_weight is not None and found.edge_weight.tolist() == [1, 1, 2, 2, 3, 3]
    assert found.mask("train").tolist() == [True, False, True, False, False]


def test_parts_that_hold_an_edge_both_hold_it_once() -> None:
    whole = make_graph(12, 40, weighted=True)
    assert edges_of(merged(whole, [whole, whole])) == edges_of(whole)


def test_an_edge_between_two_parts_is_lost() -> None:
    whole = make_graph(12, 40)
    halves = [whole.subgraph(torch.arange(6)), whole.subgraph(torch.arange(6, 12))]
    found = merged(whole, halves)
    assert 0 < found.num_edges < whole.num_edges
    source, target = found.edge_index
    assert bool(((source < 6) == (target < 6)).all())


def test_parts_that_have_edges_of_their_own_choice_are_taken_as_they_are() -> None:
    whole = make_graph(12, 40)
    part = whole.subgraph(torch.arange(8))
    for every in (1, 2, 3):  # also without the other direction
        fewer = replace(part, edge_index=part.edge_index[:, ::every])
        check(whole, [fewer, whole.subgraph(torch.arange(6, 12))])
    check(whole, [replace(part, edge_index=part.edge_index[:, :0])])


@pytest.mark.parametrize("global_graph", ["whole", "merged"])
def test_a_course_is_scored_on_the_graph_that_it_says(global_graph: str, tmp_path: object) -> None:
    course = ist.Course(num_clients=3, splitter=RandomSplitter(), global_graph=global_graph)
    scenario = load_scenario(course, data_root())
    whole = load_scenario(replace(course, global_graph="whole"), data_root()).whole
    inside = sum(part.num_edges for part in scenario.parts.values())
    assert scenario.whole.num_edges == (whole.num_edges if global_graph == "whole" else inside)
    assert inside < whole.num_edges


def test_sets_of_graphs_cannot_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Several:
        name, item = "molecules", "graph"

    class Zoo:
        def load(self, root: object) -> Several:
            return Several()

    class Keeps:
        def apply(self, data: object, rng: object) -> object:
            return data

        def split(self, data: object, number: int, rng: object) -> list[object]:
            return [data] * number

    course = ist.Course(global_graph="merged")
    for name, value in (("dataset", Zoo()), ("masks", Keeps()), ("splitter", Keeps())):
        object.__setattr__(course, name, value)
    with pytest.raises(BadInput, match=r"'merged', but the dataset 'molecules' is divided by graphs.*use 'whole'"):
        load_scenario(course, data_root())
