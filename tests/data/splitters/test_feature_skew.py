from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.splitters import FeatureSkewSplitter

from ..strategies import rng
from .holdings import make_nodes, make_set


def blobs() -> torch.Tensor:
    """Return thirty rows, ten around each of three distant points."""
    centres = torch.tensor([[0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0]])
    return centres.repeat(10, 1) + 0.1 * torch.randn(30, 4, generator=torch.Generator().manual_seed(0))


def test_clusters_are_found() -> None:
    parts = FeatureSkewSplitter("cluster").split(replace(make_nodes(30, 0), x=blobs()), 3, rng(0))
    assert sorted(part.node_ids.tolist() for part in parts) == [list(range(start, 30, 3)) for start in range(3)]


def test_a_direction_tells_the_most_distant_apart() -> None:
    parts = FeatureSkewSplitter().split(replace(make_nodes(30, 0), x=blobs()), 3, rng(0))
    far = list(range(1, 30, 3))
    assert far in (parts[0].node_ids.tolist(), parts[2].node_ids.tolist())


def test_means_of_features_differ_more_than_by_chance() -> None:
    data = make_set(90)
    means = torch.stack([part.x.mean(dim=0) for part in FeatureSkewSplitter().split(data, 3, rng(0))])
    assert float((means[0] - means[2]).norm()) > 0.2


def test_fewer_places_than_clusters_are_refused() -> None:
    graph = replace(make_nodes(10, 0), x=torch.ones(10, 4))
    with pytest.raises(BadInput, match=r"num_clients is 2, but the features of the nodes of 'toy' fall into only 1"):
        FeatureSkewSplitter("cluster").split(graph, 2, rng(0))
    assert [part.num_nodes for part in FeatureSkewSplitter().split(graph, 2, rng(0))] == [5, 5]


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method is 'clusters'; known: cluster, direction. Did you mean 'cluster'"):
        FeatureSkewSplitter("clusters")
