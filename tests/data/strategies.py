"""Small random graphs, for property-based tests."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from isthmus.data.graph import Graph, undirected

many = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
most = settings(many, max_examples=40)  # where one of many things is drawn too
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_graph(
    num_nodes: int, num_edges: int, seed: int = 0, sparse: bool = False, weighted: bool = False, num_classes: int = 3
) -> Graph:
    """Return a random graph; about a quarter of the nodes have no label."""
    draw = rng(seed)
    ends = torch.from_numpy(draw.integers(0, num_nodes, (2, num_edges)))
    weight = torch.from_numpy(draw.random(num_edges, dtype=np.float32) + 0.5) if weighted else None
    edge_index, edge_weight = undirected(ends, num_nodes, weight)
    x = torch.from_numpy(draw.random((num_nodes, 4), dtype=np.float32) * (draw.random((num_nodes, 4)) < 0.5))
    y = torch.from_numpy(draw.integers(0, num_classes, num_nodes))
    y[torch.from_numpy(draw.random(num_nodes) < 0.25)] = -1
    return Graph(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=edge_index,
        edge_weight=edge_weight,
        y=y,
        num_classes=num_classes,
        node_ids=torch.arange(num_nodes),
        masks={"train": torch.from_numpy(draw.random(num_nodes) < 0.5) & (y >= 0)},
        attributes={"rank": torch.arange(num_nodes) * 10},
        name="toy",
    )


graphs = st.builds(
    make_graph,
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 80),
    seed=seeds,
    sparse=st.booleans(),
    weighted=st.booleans(),
)


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.layout == torch.sparse_csr else x


def adjacency(graph: Graph) -> torch.Tensor:
    """Return the dense matrix of edge weights, (nodes, nodes)."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes)
    weights = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    for (source, target), weight in zip(graph.edge_index.t().tolist(), weights.tolist(), strict=True):
        assert matrix[source, target] == 0, "an edge is stored twice"
        matrix[source, target] = weight
    return matrix


def pairs_by_id(graph: Graph) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in graph.node_ids[graph.edge_index].t().tolist()}
