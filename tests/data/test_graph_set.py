from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.graph import undirected
from isthmus.data.graph_set import GraphSet
from tests.data.strategies import dense, many, rng, seeds


def make_set(sizes: list[int], seed: int = 0, sparse: bool = False, tasks: int = 0, bonds: bool = True) -> GraphSet:
    """Return random graphs of the given sizes, 0 allowed; with `tasks` labels are numbers, some of them NaN."""
    draw = rng(seed)
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    edges = [torch.from_numpy(draw.integers(0, n, (2, n)) + first) for n, first in zip(sizes, start, strict=False) if n]
    total = int(start[-1])
    edge_index, _ = undirected(torch.cat([torch.empty(2, 0, dtype=torch.int64), *edges], dim=1), total)
    x = torch.from_numpy(draw.random((total, 3), dtype=np.float32) * (draw.random((total, 3)) < 0.5))
    y = torch.from_numpy(draw.integers(-1, 3, len(sizes)))
    if tasks:
        y = torch.from_numpy(draw.random((len(sizes), tasks), dtype=np.float32))
        y[y < 0.3] = torch.nan
    return GraphSet(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=edge_index,
        node_start=torch.from_numpy(start),
        y=y,
        num_classes=tasks or 3,
        target="binary" if tasks else "class",
        graph_ids=torch.from_numpy(draw.permutation(100)[: len(sizes)]),
        edge_attr=torch.from_numpy(draw.random((edge_index.shape[1], 2), dtype=np.float32)) if bonds else None,
        masks={"train": torch.from_numpy(draw.random(len(sizes)) < 0.5)},
        attributes={"size": torch.tensor(sizes, dtype=torch.int64)},
        attribute_names={"size": ("none",)},
        name="toy",
    )


graph_sets = st.builds(
    make_set,
    sizes=st.lists(st.integers(0, 8), max_size=8),
    seed=seeds,
    sparse=st.booleans(),
    tasks=st.integers(0, 2),
    bonds=st.booleans(),
)


def facts(graphs: GraphSet) -> list[dict[str, Any]]:
    """Return all that is known of each graph, one by one, found by looking at every edge of the set."""
    found = []
    for g in range(graphs.num_items):
        low, high = int(graphs.node_start[g]), int(graphs.node_start[g + 1])
        edges = [e for e in range(graphs.num_edges) if low <= int(graphs.edge_index[0, e]) < high]
        found.append(
            {
                "id": int(graphs.graph_ids[g]),
                "x": dense(graphs.x)[low:high].tolist(),
                "edges": [(graphs.edge_index[:, e] - low).tolist() for e in edges],
                "edge_attr": None if graphs.edge_attr is None else [graphs.edge_attr[e].tolist() for e in edges],
                "y": str(graphs.y[g].tolist()),  # as text, where NaN is itself
                "masks": {split: bool(mask[g]) for split, mask in graphs.masks.items()},
                "size": int(graphs.attributes["size"][g]),
            }
        )
    return found


@many
@given(graph_sets, seeds, st.lists(st.floats(0, 1), max_size=5))
def test_divide_keeps_all_that_is_known_of_each_graph_one_by_one(
    graphs: GraphSet, seed: int, shares: list[float]
) -> None:
    draw = rng(seed)
    parts = [torch.from_numpy(draw.permutation(graphs.num_items)[: round(s * graphs.num_items)]) for s in shares]
    whole = facts(graphs)
    divided = graphs.divide(parts)
    assert [facts(part) for part in divided] == [[whole[g] for g in chosen.tolist()] for chosen in parts]
    for part in divided:
        assert part.x.layout == graphs.x.layout and part.num_edges == sum(len(f["edges"]) for f in facts(part))
        assert (part.num_classes, part.target, part.name) == (graphs.num_classes, graphs.target, "toy")
        assert torch.equal(part.sizes, part.attributes["size"]) and part.num_nodes == int(part.sizes.sum())
        keys = part.edge_index[0] * part.num_nodes + part.edge_index[1]
        assert bool((keys[1:] > keys[:-1]).all()), "edges are not sorted by source, then target"


@many
@given(graph_sets, seeds)
def test_a_part_of_a_part_is_the_part_of_the_whole(graphs: GraphSet, seed: int) -> None:
    outer = torch.from_numpy(rng(seed).permutation(graphs.num_items))
    inner = torch.arange(0, len(outer), 2)
    assert facts(graphs.divide([outer[inner]])[0]) == facts(graphs.divide([outer])[0].divide([inner])[0])


@many
@given(graph_sets)
def test_edges_start_where_the_first_edge_of_each_graph_is(graphs: GraphSet) -> None:
    counts = [len(fact["edges"]) for fact in facts(graphs)]
    assert graphs.edge_start.tolist() == np.cumsum([0, *counts]).tolist()


@many
@given(graph_sets, seeds)
def test_a_part_holds_no_memory_but_its_own(graphs: GraphSet, seed: int) -> None:
    for part in graphs.divide(torch.from_numpy(rng(seed).permutation(graphs.num_items)).tensor_split(3)):
        own = [part.edge_index, part.node_start, part.y, part.graph_ids, *part.masks.values()]
        for tensor in [*own, *part.attributes.values(), *([] if part.edge_attr is None else [part.edge_attr])]:
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_one_graph_by_itself() -> None:
    graphs = make_set([3, 0, 4], seed=1)
    alone = graphs.graph(2)
    assert torch.equal(alone.x, graphs.x[3:]) and alone.y.tolist() == [-1] * 4
    assert alone.edge_index.tolist() == [list(row) for row in zip(*facts(graphs)[2]["edges"], strict=True)]
    assert alone.name == f"toy[{int(graphs.graph_ids[2])}]"
    assert graphs.graph(1).num_nodes == 0


def test_numbers_of_values_stay_with_the_parts() -> None:
    graphs = replace(make_set([2, 2]), x_sizes=(5, 2, 2), edge_sizes=(3, 1))
    (part,) = graphs.divide([torch.tensor([1])])
    assert (part.x_sizes, part.edge_sizes) == ((5, 2, 2), (3, 1))


def test_masks_can_be_set_and_are_empty_when_they_are_not() -> None:
    graphs = make_set([1, 2, 3]).with_masks({"val": torch.tensor([True, False, True])})
    assert sorted(graphs.masks) == ["val"] and graphs.mask("test").tolist() == [False] * 3
    assert graphs.mask("val").tolist() == [True, False, True]
    assert repr(graphs) == "GraphSet(toy: 3 graphs, 6 nodes, 3 features, 3 class labels, val=2)"
