from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.graph import EdgesByNode, spans

from .strategies import many, rng, seeds


@many
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_spans_are_ranges_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    first, length = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    assert spans(first, length).tolist() == [number for f, n in pairs for number in range(f, f + n)]


@many
@given(seeds, st.integers(1, 12), st.integers(0, 40), st.floats(0, 1))
def test_edges_in_any_order_are_found_and_come_sorted(seed: int, num_nodes: int, num_edges: int, share: float) -> None:
    draw = rng(seed)
    edge_index = torch.from_numpy(draw.integers(0, num_nodes, (2, num_edges)))
    nodes = draw.permutation(num_nodes)[: round(share * num_nodes)]
    position = {node: place for place, node in enumerate(nodes.tolist())}
    expected = sorted(
        (position[source], position[target], column)
        for column, (source, target) in enumerate(edge_index.t().tolist())
        if source in position and target in position
    )
    found, columns = EdgesByNode.of(edge_index, num_nodes).between(nodes)
    assert [(*ends, column) for ends, column in zip(found.T.tolist(), columns, strict=True)] == expected


def test_one_cut_leaves_no_trace_in_the_next() -> None:
    path = EdgesByNode.of(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), 4)
    assert path.between(np.array([1, 2]))[0].tolist() == [[0, 1], [1, 0]]
    assert path.between(np.array([0, 3]))[0].tolist() == [[], []]
    assert path.between(np.array([3, 2]))[0].tolist() == [[0, 1], [1, 0]]
