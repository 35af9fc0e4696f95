"""Dividing large graphs: seconds and memory, against a loop over edges.

    python benchmarks/splitting.py --data-root DATA

Coauthor Physics by community into 50 clients, and dblp_csr (2.9 million undirected edges) by publisher. Who holds which
node is decided once; what is compared is the cut of the edges as `Graph.divide` makes it, and what is often written,
one loop over all edges that looks up the owner of both ends and appends the edge to the owner's list. Both give the
same edges, which is checked. The whole of `divide` (features, labels, masks too) has a column of its own.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from torch import Tensor

from isthmus.core.random import numpy_generator
from isthmus.data.graph import EdgesByNode, Graph
from isthmus.data.splitters import SPLITTERS, Splitter
from isthmus.data.zoo import DATASETS


def by_loop(graph: Graph, parts: list[Tensor]) -> list[Tensor]:
    """Return each client's edges, found by a loop over all of them."""
    owner, place = {}, {}
    for client, nodes in enumerate(parts):
        for position, node in enumerate(nodes.tolist()):
            owner[node], place[node] = client, position
    edges: list[list[tuple[int, int]]] = [[] for _ in parts]
    for source, target in zip(*graph.edge_index.tolist(), strict=True):
        if owner[source] == owner[target]:
            edges[owner[source]].append((place[source], place[target]))
    return [torch.tensor(sorted(mine)).t().reshape(2, -1) for mine in edges]


def _cut(graph: Graph, parts: list[Tensor]) -> float:
    started = time.perf_counter()
    edges = EdgesByNode.of(graph.edge_index, graph.num_nodes)
    for nodes in parts:
        edges.between(nodes.numpy())
    return time.perf_counter() - started


def measure(name: str, root: Path, splitter: Splitter, num_clients: int, loop: bool) -> None:
    """Print one line of the table."""
    started = time.perf_counter()
    graph = DATASETS[name]().load(root)
    assert isinstance(graph, Graph)
    loaded = time.perf_counter()
    parts = splitter.assign(graph, num_clients, numpy_generator(0, "split"))
    assigned = time.perf_counter()
    ours = graph.divide(parts)
    divided = time.perf_counter()
    cut = min(_cut(graph, parts) for _ in range(3))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ratio = "-"
    looped = 0.0
    if loop:
        started_loop = time.perf_counter()
        theirs = by_loop(graph, parts)
        looped = time.perf_counter() - started_loop
        assert all(torch.equal(mine.edge_index, other) for mine, other in zip(ours, theirs, strict=True))
        ratio = f"{looped / cut:.0f}"
    print(
        f"| {name} | {graph.num_edges // 2:,} | {num_clients} | {loaded - started:.1f} | {assigned - loaded:.1f} | "
        f"{divided - assigned:.2f} | {cut:.3f} | {looped:.1f} | {ratio} | {memory:.1f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--no-loop", action="store_true", help="leave the slow loop out")
    chosen = parser.parse_args()
    print(
        "| dataset | edges | clients | load s | assign s | divide s | edges s | loop over edges s | ratio | peak GB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    loop = not chosen.no_loop
    measure("coauthor_physics", chosen.data_root, SPLITTERS["community"](), 50, loop)
    measure("dblp_csr", chosen.data_root, SPLITTERS["meta"](attribute="publisher"), 6, loop)


if __name__ == "__main__":
    main()
