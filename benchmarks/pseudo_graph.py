"""FedGL's pseudo graph of many nodes: seconds, memory, and what the approximate search finds.

    python benchmarks/pseudo_graph.py

Embeddings look like outputs of a classifier: each node near the mean of its class, lengths that differ. For each
number of nodes, in a process of its own: the exact search where it is not too slow, the approximate one, the share
of the exact search's edges that the approximate one has too, and their weight. Then what the server does between two
rounds of FedGL with all of it: fusing views of six clients, labels, graph, and each client's slice.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor

from isthmus.algorithms.fedgl import FedGL, NodeList, View
from isthmus.algorithms.fedgl.top_products import TopProducts, approximate_top_products, exact_top_products
from isthmus.core.random import torch_generator

SHARES = (0.3, 0.4, 0.5, 0.5, 0.6, 0.7)
NUM_CLASSES = 10


def embeddings(num_nodes: int) -> Tensor:
    """Return vectors around the means of classes, (nodes, classes)."""
    draw = torch_generator(0, "embeddings")
    label = torch.randint(NUM_CLASSES, (num_nodes,), generator=draw)
    means = 4.0 * torch.eye(NUM_CLASSES)[label] - 0.4
    scale = 0.3 + torch.rand(num_nodes, 1, generator=draw)
    return scale * (means + torch.randn(num_nodes, NUM_CLASSES, generator=draw))


def gigabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def pairs(found: TopProducts) -> Tensor:
    """Return a number for each edge."""
    rows = torch.repeat_interleave(torch.arange(len(found.start) - 1), found.start.diff())
    return rows * (len(found.start) - 1) + found.column


def measure(num_nodes: int, num_neighbors: int, exact: bool) -> dict[str, float]:
    """Return the numbers of one line."""
    torch.set_num_threads(1)
    vectors = embeddings(num_nodes)
    facts: dict[str, float] = {"before": gigabytes()}
    started = time.perf_counter()
    near = approximate_top_products(vectors, num_neighbors, torch_generator(0, "index"))
    facts |= {"approximate": time.perf_counter() - started, "peak": gigabytes()}
    if exact:
        started = time.perf_counter()
        true = exact_top_products(vectors, num_neighbors)
        facts |= {"exact": time.perf_counter() - started, "exact_peak": gigabytes()}
        facts["recall"] = float(torch.isin(pairs(true), pairs(near)).double().mean())
        facts["weight"] = float(near.products.double().sum() / true.products.double().sum())
        del true
    del near
    facts |= between_rounds(vectors, num_neighbors)
    return facts


def between_rounds(vectors: Tensor, num_neighbors: int) -> dict[str, float]:
    """Return what the server's work between two rounds takes."""
    draw = torch_generator(0, "clients")
    ids = [torch.randperm(len(vectors), generator=draw)[: round(share * len(vectors))] for share in SHARES]
    nodes = {f"client-{k}": NodeList(each, ()) for k, each in enumerate(ids)}
    views = {f"client-{k}": View(vectors[each].softmax(dim=1), vectors[each]) for k, each in enumerate(ids)}
    started = time.perf_counter()
    found = FedGL(num_neighbors=num_neighbors).discover(nodes, views, torch_generator(0, "index"))
    for held in nodes.values():
        found.projected(held.ids)
    return {"round": time.perf_counter() - started, "round_peak": gigabytes()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3_000, 10_000, 30_000, 100_000])
    parser.add_argument("--neighbors", type=int, default=100)
    parser.add_argument(
        "--exact-up-to", type=int, default=100_000, help="nodes above which the exact search is left out"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one is not None:
        print(json.dumps(measure(words.one, words.neighbors, words.one <= words.exact_up_to)))
        return
    headings = ("nodes", "exact: s", "GB", "approximate: s", "GB", "edges found", "weight found")
    headings += ("between rounds: s", "GB", "N x N: GB")
    print("| " + " | ".join(headings) + " |\n" + "| --- " * len(headings) + "|")
    for number in words.nodes:
        command = [sys.executable, __file__, "--one", str(number), "--neighbors", str(words.neighbors)]
        command += ["--exact-up-to", str(words.exact_up_to)]
        facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        exact = [f"{facts['exact']:.2f}", f"{facts['exact_peak']:.2f}"] if "exact" in facts else ["", ""]
        share = [f"{100 * facts[key]:.1f} %" if key in facts else "" for key in ("recall", "weight")]
        cells = [f"{number:,}", *exact, f"{facts['approximate']:.2f}", f"{facts['peak']:.2f}", *share]
        cells += [f"{facts['round']:.2f}", f"{facts['round_peak']:.2f}", f"{4 * number**2 / 1e9:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
