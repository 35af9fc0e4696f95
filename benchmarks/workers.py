"""Two workers against one: wall time and processor time of a round, medians of five.

    python benchmarks/workers.py            a graph of 1,000,000 nodes and 10,000,000 edges, and sets of small graphs
    python benchmarks/workers.py --small    the same in small, to see that it runs
    python benchmarks/workers.py --cluster  two Dask workers on loopback, as two machines would be

Processor time is that of the server and of its workers together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import torch

from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.core.training import Callback, RoundReport
from isthmus.data.graph import Graph, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.learn.tasks import TASKS
from isthmus.models import GIN, LinearDecoder, MeanReadout, ModelSpec
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Scenario

CLIENTS, ROUNDS = 20, 6  # of which the first is not counted


def large_graph(num_nodes: int, num_edges: int) -> Scenario:
    """Return a random graph of which each client has a stretch of nodes."""
    draw = torch.Generator().manual_seed(0)
    size = num_nodes // CLIENTS
    block = torch.randint(CLIENTS, (num_edges // 2,), generator=draw) * size
    ends = block + torch.randint(size, (2, num_edges // 2), generator=draw)
    turn = torch.arange(num_nodes) % 4
    graph = Graph(
        x=torch.randn(num_nodes, 32, generator=draw),
        edge_index=undirected(ends, num_nodes)[0],
        y=torch.randint(4, (num_nodes,), generator=draw),
        num_classes=4,
        node_ids=torch.arange(num_nodes),
        masks={"train": turn < 2, "val": turn == 2, "test": turn == 3},
        name="large",
    )
    parts = graph.divide(list(torch.arange(num_nodes).split(size))[:CLIENTS])
    return Scenario(graph, {f"client-{i:02d}": part for i, part in enumerate(parts)})


def graph_sets(num_graphs: int) -> Scenario:
    """Return sets of graphs of about the size that those of PROTEINS have: 39 nodes, 146 directed edges."""
    draw = torch.Generator().manual_seed(0)
    nodes, links = 39, 73
    first = torch.arange(num_graphs).repeat_interleave(links) * nodes
    ends = first + torch.randint(nodes, (2, num_graphs * links), generator=draw)
    turn = torch.arange(num_graphs) % 4
    data = GraphSet(
        x=torch.randn(num_graphs * nodes, 3, generator=draw),
        edge_index=undirected(ends, num_graphs * nodes)[0],
        node_start=torch.arange(num_graphs + 1) * nodes,
        y=torch.randint(2, (num_graphs,), generator=draw),
        num_classes=2,
        target="class",
        graph_ids=torch.arange(num_graphs),
        masks={"train": turn < 2, "val": turn == 2, "test": turn == 3},
        name="sets",
    )
    parts = data.divide(list(torch.arange(num_graphs).split(num_graphs // CLIENTS))[:CLIENTS])
    return Scenario(data, {f"client-{i:02d}": part for i, part in enumerate(parts)})


class Clock(Callback):
    """Takes wall and processor time at the end of each round."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float]] = []

    def round_done(self, report: RoundReport) -> None:
        """Look at the clocks."""
        me = psutil.Process(os.getpid())
        spent = [process.cpu_times() for process in (me, *me.children(recursive=True))]
        self.taken.append((time.perf_counter(), sum(times.user + times.system for times in spent)))

    def medians(self) -> tuple[float, float]:
        """Return the medians over rounds of wall and processor seconds."""
        pairs = list(zip(self.taken, self.taken[1:], strict=False))
        wall, cpu = (statistics.median(after[i] - before[i] for before, after in pairs) for i in (0, 1))
        return wall, cpu


@contextmanager
def two_machines(number: int) -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=number, threads_per_worker=1, dashboard_address="127.0.0.1:0") as running:
        yield running.scheduler_address


def measured(course: Course, scenario: Scenario, number: int, as_cluster: bool) -> tuple[float, float]:
    clock = Clock()
    if as_cluster:
        with two_machines(number) as address:
            run(course, scenario=scenario, callbacks=[clock], cluster=address)
    else:
        run(course, scenario=scenario, callbacks=[clock], workers=number)
    return clock.medians()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    nodes, edges, graphs = (20_000, 200_000, 1_000) if options.small else (1_000_000, 10_000_000, 20_000)
    base = Course(num_clients=CLIENTS, rounds=ROUNDS, algorithm=FedAvg(local_steps=4))
    sets = replace(
        base,
        task=TASKS["graph_classification"](),
        model=ModelSpec(GIN(hidden=32), readout=MeanReadout(), decoder=LinearDecoder()),
    )
    for title, course, scenario in (
        (f"{nodes:,} nodes, {edges:,} edges", base, large_graph(nodes, edges)),
        (f"{graphs:,} graphs", sets, graph_sets(graphs)),
    ):
        found = {number: measured(course, scenario, number, options.cluster) for number in (1, 2)}
        for number, (wall, cpu) in found.items():
            print(f"{title}: workers={number}: {wall:.3f} s a round, {cpu:.3f} s of processor time")
        print(f"{title}: two workers against one: {found[1][0] / found[2][0]:.2f} times as fast")


if __name__ == "__main__":
    main()
