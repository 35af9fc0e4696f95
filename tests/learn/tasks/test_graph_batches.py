from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Batch, Data

from isthmus.core.errors import BadInput
from isthmus.data.graph_set import GraphSet
from isthmus.learn.tasks import graph_batches
from isthmus.learn.tasks.graph_batches import GraphPile
from isthmus.models.products.sparse import dense
from tests.learn.tasks.graph_toys import EDGE_SIZES, NODES, SIZES, toy_set

ORDERS = ([0, 1, 2], [7, 3, 0, 11], [3], [1], list(range(len(NODES)))[::-1])


def by_pyg(data: GraphSet, graphs: list[int]) -> Batch:
    parts = []
    for position in graphs:
        alone = data.graph(position)
        (part,) = data.divide([torch.tensor([position])])
        parts.append(Data(x=alone.x.to_dense(), edge_index=alone.edge_index, edge_attr=part.edge_attr))
    return Batch.from_data_list(parts)


@pytest.mark.parametrize("graphs", ORDERS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_is_what_pyg_makes_of_the_graphs(graphs: list[int], sparse: bool) -> None:
    data = toy_set(sparse=sparse)
    found, expected = GraphPile(data).batch(torch.tensor(graphs)), by_pyg(data, graphs)
    assert torch.equal(dense(found.x), expected.x)
    assert torch.equal(found.edge_index, expected.edge_index)
    assert found.batch is not None and torch.equal(found.batch, expected.batch)
    assert found.num_graphs == len(graphs)
    assert found.edge_attr is None


@pytest.mark.parametrize("graphs", ORDERS)
def test_categories_become_indicators_of_nodes_and_edges(graphs: list[int]) -> None:
    data = toy_set(categorical=True)
    found, expected = GraphPile(data).batch(torch.tensor(graphs)), by_pyg(data, graphs)
    one_hot = torch.nn.functional.one_hot
    for rows, codes, sizes in ((dense(found.x), expected.x, SIZES), (found.edge_attr, expected.edge_attr, EDGE_SIZES)):
        wanted = torch.cat([one_hot(codes[:, c].long(), size) for c, size in enumerate(sizes)], dim=1)
        assert torch.equal(rows.to(wanted.dtype), wanted)


def test_features_of_edges_that_are_numbers_stay_as_they_are() -> None:
    data = replace(toy_set(categorical=True), x_sizes=(), edge_sizes=())
    found, expected = GraphPile(data).batch(torch.tensor([4, 2])), by_pyg(data, [4, 2])
    assert torch.equal(dense(found.x), expected.x)
    assert found.edge_attr is not None and torch.equal(found.edge_attr, expected.edge_attr)


def test_blocks_hold_every_graph_once_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy_set()
    pile, graphs = GraphPile(data), torch.tensor([2, 0, 1, 3, 7, 4, 5, 6])
    for limit in (1, 12, 25, 10_000):
        monkeypatch.setattr(graph_batches, "BLOCK_ROWS", limit)
        parts = pile.cut(graphs)
        assert torch.equal(torch.cat(parts), graphs)
        for part in parts:
            block = pile.batch(part)
            assert len(part) == 1 or block.num_nodes + block.num_edges <= limit
    assert len(parts) == 1
    assert pile.cut(torch.empty(0, dtype=torch.int64)) == []


def test_a_number_that_is_no_category_is_bad_input() -> None:
    data = toy_set(categorical=True)
    x = data.x.clone()
    x[3, 1] = 3.0
    with pytest.raises(BadInput, match=r"the nodes of 'toy class': row 3, column 1 is 3; .* from 0 to 2"):
        GraphPile(replace(data, x=x)).batch(torch.tensor([0]))
