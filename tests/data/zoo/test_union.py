"""The union of datasets: nothing of a part is lost, nothing of another gets in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph
from isthmus.data.splitters.meta import MetaSplitter, with_own_classes
from isthmus.data.zoo import DATASETS
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.csbm import CSBM
from isthmus.data.zoo.union import Union
from isthmus.testing.toys import toy_graph

NAMES = ("cora", "csbm")


@pytest.fixture(scope="module")
def parts() -> list[Graph]:
    return [Cora().load(Path()), CSBM().load(Path())]


@pytest.fixture(scope="module")
def union() -> Graph:
    return Union(datasets=NAMES, dim=20).load(Path())


def test_nodes_edges_and_labels_are_those_of_the_parts(union: Graph, parts: list[Graph]) -> None:
    assert union.num_nodes == sum(part.num_nodes for part in parts) and union.num_classes == 9
    clients = MetaSplitter(deal="one_each", own_classes=True).split(union, 2, np.random.default_rng(0))
    for client, part, name in zip(clients, parts, NAMES, strict=True):
        assert torch.equal(client.edge_index, part.edge_index) and torch.equal(client.y, part.y)
        assert client.num_classes == part.num_classes
        assert client.class_names == tuple(f"{name}/{c}" for c in part.class_names)
    assert union.attribute_names["dataset"] == NAMES


def test_components_are_the_singular_ones_in_order_with_a_positive_sum(union: Graph, parts: list[Graph]) -> None:
    part = parts[1]
    x = part.x.double()
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    expected = (u * s)[:, :20]
    expected = expected * torch.where(expected.sum(dim=0) < 0, -1.0, 1.0)
    expected = expected / expected.square().sum(dim=1).mean().sqrt()
    found = union.x[parts[0].num_nodes :].double()
    assert torch.allclose(found, expected, atol=1e-5)
    assert bool((found.sum(dim=0) >= 0).all()) and found.square().sum(dim=1).mean() == pytest.approx(1.0, abs=1e-5)


def test_side_by_side_keeps_every_column(parts: list[Graph]) -> None:
    union = Union(datasets=NAMES, features="side_by_side").load(Path())
    cut = parts[0].num_nodes, parts[0].num_features
    x = union.x.to_dense()
    assert torch.equal(x[: cut[0], : cut[1]], parts[0].x.to_dense())
    assert torch.equal(x[cut[0] :, cut[1] :], parts[1].x.to_dense())
    assert not x[: cut[0], cut[1] :].any() and not x[cut[0] :, : cut[1]].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"datasets": ("cora",)}, "at least two"),
        ({"datasets": ("cora", "cora")}, "none twice"),
        ({"datasets": ("cora", "proteins")}, "'proteins', which is no dataset of nodes"),
        ({"datasets": ("cora", "union")}, "'union', which is no dataset of nodes"),
        ({"datasets": ("cora", "coro")}, "cora"),
        ({"features": "raw"}, "choose from svd, side_by_side"),
        ({"dim": 0}, "dim is 0"),
    ],
)
def test_unions_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Union(**fields)  # type: ignore[arg-type]


def test_more_components_than_there_are_is_an_error() -> None:
    with pytest.raises(BadInput, match="dim is 100, which is not below the 200 nodes and 100 features of csbm"):
        Union(datasets=NAMES, dim=100).load(Path())


def test_own_classes_are_numbered_in_their_order_and_missing_labels_stay() -> None:
    graph = toy_graph(num_classes=5, unlabelled_fraction=0.3)
    kept = (graph.y == 1) | (graph.y == 4) | (graph.y < 0)
    found = with_own_classes(graph.subgraph(kept.nonzero().flatten()))
    before = graph.y[kept]
    assert found.num_classes == 2
    assert torch.equal(found.y, torch.where(before == 1, 0, torch.where(before == 4, 1, -1)))


def test_own_classes_need_one_class_each() -> None:
    links = DATASETS["csr"]().load(Path())
    with pytest.raises(BadInput, match="own_classes is true, but the links"):
        MetaSplitter("scenario", own_classes=True).split(links, 2, np.random.default_rng(0))  # type: ignore[type-var]
