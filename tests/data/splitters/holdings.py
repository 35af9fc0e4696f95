"""Small random link graphs and sets of graphs, for property-based tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from isthmus.data.dividing import Holding
from isthmus.data.graph import Graph, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph

from ..strategies import make_graph, rng, seeds


def make_links(num_links: int, seed: int = 0, sparse: bool = False) -> LinkGraph:
    """Return random links of three relations between about half as many nodes; a quarter has no label."""
    draw = rng(seed)
    num_nodes = max(2, num_links // 2)
    x = torch.from_numpy(draw.random((num_nodes, 4), dtype=np.float32))
    label = torch.from_numpy(draw.integers(0, 3, num_links))
    label[torch.from_numpy(draw.random(num_links) < 0.25)] = -1
    return LinkGraph(
        x=x.to_sparse_csr() if sparse else x,
        links=torch.from_numpy(draw.integers(0, num_nodes, (2, num_links))),
        label=label,
        num_classes=3,
        node_ids=torch.arange(num_nodes),
        link_ids=torch.arange(num_links),
        masks={"train": label >= 0},
        attributes=_attributes(num_links, draw),
        node_attributes={"color": torch.from_numpy(draw.integers(0, 4, num_nodes))},
        name="links",
    )


def make_set(num_graphs: int, seed: int = 0, tasks: int = 0, target: str = "value") -> GraphSet:
    """Return random graphs of one to six nodes; with `tasks`, labels are numbers and about a quarter is absent."""
    draw = rng(seed)
    sizes = draw.integers(1, 7, num_graphs)
    start = np.concatenate([[0], np.cumsum(sizes)])
    source = np.repeat(np.arange(start[-1]), 2)
    owner = np.repeat(np.arange(num_graphs), sizes)[source]
    ends = np.stack([source, start[owner] + draw.integers(0, 100, len(source)) % sizes[owner]])
    edge_index, _ = undirected(torch.from_numpy(ends), int(start[-1]))
    y = torch.from_numpy(draw.integers(0, 3, num_graphs))
    y[torch.from_numpy(draw.random(num_graphs) < 0.25)] = -1
    if tasks:
        values = draw.random((num_graphs, tasks)) if target == "value" else draw.integers(0, 2, (num_graphs, tasks))
        y = torch.from_numpy(np.where(draw.random((num_graphs, tasks)) < 0.25, np.nan, values).astype(np.float32))
    return GraphSet(
        x=torch.from_numpy(draw.random((int(start[-1]), 3), dtype=np.float32)),
        edge_index=edge_index,
        node_start=torch.from_numpy(start),
        y=y,
        num_classes=tasks or 3,
        target=target if tasks else "class",
        graph_ids=torch.arange(num_graphs),
        edge_attr=torch.arange(edge_index.shape[1])[:, None].float(),
        attributes=_attributes(num_graphs, draw),
        class_names=tuple(f"task {number}" for number in range(tasks)),
        name="set",
    )


def make_nodes(num_nodes: int, num_edges: int, seed: int = 0, sparse: bool = False) -> Graph:
    """Return a random graph with attributes."""
    return replace(make_graph(num_nodes, num_edges, seed, sparse), attributes=_attributes(num_nodes, rng(seed)))


def _attributes(num_items: int, draw: np.random.Generator) -> dict[str, torch.Tensor]:
    return {
        "venue": torch.from_numpy(draw.integers(0, 6, num_items)),
        "year": torch.from_numpy(draw.random(num_items)),
        "place": torch.zeros(num_items, 2),
    }


nodes = st.builds(make_nodes, st.integers(1, 30), st.integers(0, 80), seeds, st.booleans())
links = st.builds(make_links, st.integers(1, 40), seeds, st.booleans())
sets = st.builds(make_set, st.integers(1, 30), seeds, st.integers(0, 3), st.sampled_from(["value", "binary"]))
holdings: st.SearchStrategy[Holding] = st.one_of(nodes, links, sets)
