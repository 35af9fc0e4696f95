"""FedGL (Chen et al., 2021), Fig. 8 and 9: nodes, training labels and degrees of the six clients, as tables.

    python papers/fedgl/clients.py --data-root DATA > papers/fedgl/CLIENTS.md

Section 5.1: every client samples [30, 40, 50, 50, 60, 70] % of the nodes of the whole graph; 20 training labels for
each class, 500 for validation, 1,000 for test. The paper shows bars and lines without numbers; what can be compared is
what its text says of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from isthmus.core.random import numpy_generator
from isthmus.data.dividing import PerClassSplit, PublicSplit
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import DATASETS

SHARES = (0.3, 0.4, 0.5, 0.5, 0.6, 0.7)
DEGREES = (0, 1, 2, 3, 4)


def clients(name: str, root: Path) -> list[Graph]:
    """Return the six clients of a dataset."""
    graph = DATASETS[name]().load(root)
    assert isinstance(graph, Graph)
    masks = PublicSplit() if "train" in graph.masks else PerClassSplit(20, 500, 1000, allow_short=True)
    graph = masks.apply(graph, numpy_generator(0, "masks"))
    return RandomSplitter(shares=SHARES).split(graph, len(SHARES), numpy_generator(0, "split"))


def row(client: int, part: Graph) -> str:
    """Return one line: nodes, training labels, and the share of nodes of each degree."""
    degree = torch.bincount(part.edge_index[0], minlength=part.num_nodes)
    shares = [float((degree == d).double().mean()) for d in DEGREES] + [float((degree > DEGREES[-1]).double().mean())]
    trained = int(part.mask("train").sum())
    cells = [f"C{client + 1}", f"{part.num_nodes:,}", str(trained), f"{100 * trained / part.num_nodes:.2f} %"]
    return "| " + " | ".join([*cells, *(f"{100 * share:.1f} %" for share in shares)]) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    root = parser.parse_args().data_root
    print("# FedGL, Fig. 8 and 9: the clients\n")
    print("Written by `python papers/fedgl/clients.py --data-root DATA > papers/fedgl/CLIENTS.md`, seed 0. The paper's")
    print("figures have no numbers; its text says that the share of training labels differs from client to client, and")
    print("that client 1 has more nodes of degree 0 and 1 than the others in all datasets.")
    for name in ("cora", "citeseer", "acm", "wiki"):
        parts = clients(name, root)
        print(f"\n## {name}\n")
        degrees = " | ".join(f"degree {d}" for d in DEGREES)
        print(f"| client | nodes | training labels | of the nodes | {degrees} | above {DEGREES[-1]} |")
        print("| --- " * (5 + len(DEGREES)) + "|")
        for client, part in enumerate(parts):
            print(row(client, part))


if __name__ == "__main__":
    main()
