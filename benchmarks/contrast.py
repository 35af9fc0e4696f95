"""FGSSL's contrast of many training nodes: seconds and memory of loss and gradient, exact and with a sample.

    python benchmarks/contrast.py

Each line is a process of its own: how many megabytes its peak rises by from the representations to the gradient, beside
what all similarities would take at once. Ten classes, 128 columns.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from isthmus.core.random import torch_generator
from isthmus.learn.contrast import node_contrast

WIDTH = 128
NUM_CLASSES = 10


def megabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(num_nodes: int, num_sampled: int) -> dict[str, float]:
    """Return seconds and growth of the peak for one loss and its gradient."""
    torch.set_num_threads(1)
    draw = torch_generator(0, "contrast")
    few = torch.randn(100, WIDTH, requires_grad=True)
    node_contrast(few, few.detach(), torch.arange(100) % NUM_CLASSES, 0.1).backward()  # loads what is loaded once
    h = torch.randn(num_nodes, WIDTH, generator=draw, requires_grad=True)
    g = torch.randn(num_nodes, WIDTH, generator=draw)
    labels = torch.randint(NUM_CLASSES, (num_nodes,), generator=draw)
    sample = torch.randperm(num_nodes, generator=draw)[:num_sampled] if num_sampled < num_nodes else None
    before, started = megabytes(), time.perf_counter()
    node_contrast(h, g, labels, 0.1, sample=sample).backward()
    return {"seconds": time.perf_counter() - started, "megabytes": megabytes() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2_000, 10_000, 40_000])
    parser.add_argument("--sampled", type=int, nargs="*", default=[256, 4096], help="beside all of them")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    print("| nodes | contrasted with | seconds | MB | MB of all similarities |\n| --- | --- | --- | --- | --- |")
    for nodes in given.nodes:
        for sampled in [*(number for number in given.sampled if number < nodes), nodes]:
            command = [sys.executable, __file__, "--one", str(nodes), str(sampled)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            facts = json.loads(done.stdout)
            whole = 4 * nodes * sampled / 2**20
            print(f"| {nodes:,} | {sampled:,} | {facts['seconds']:.2f} | {facts['megabytes']:.0f} | {whole:,.0f} |")


if __name__ == "__main__":
    main()
