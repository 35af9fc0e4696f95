"""How courses grow to 10,000 clients and ten million edges: seconds of each stage, peak memory, what crosses.

    python benchmarks/scale.py [--only clients edges] [--largest N] [--rounds 3] [--threads 1]

clients  of 30 nodes and about 150 edges each: once with 128 dense features, once with bags of 1,433 words
edges    of one graph over 20 clients, with a tenth as many nodes, 64 dense features: once with most edges within
         clients, once divided at random, which leaves each client a twentieth of its nodes' edges

Each row is what a user would do, in a process of its own: `load_scenario`, then `isthmus.run` with the journal in
memory, FedAvg and the default model, an evaluation of every client after every round, and at its end the scores of the
result. A stage has its seconds of the processor (median, where it comes several times; what is prepared once is in the
first round), `peak` is the largest resident memory of the process, `all` the seconds by the clock. `exponent` is that
of the growth since the row above: 1 is in proportion.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic import BlockSplitter, Synthetic
from timing import heading, row, short

import isthmus as ist
from isthmus.core.federation import ExchangeReport
from isthmus.core.training import Callback
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import Dataset
from isthmus.runs.simulation import load_scenario

TABLES = {
    "clients": {
        "dense features": {"num_features": 128},
        "bags of words": {"num_features": 1_433, "words": 18},
    },
    "edges": {"in blocks": {"num_features": 64}, "at random": {"num_features": 64}},
}
SIZES = {"clients": (100, 1_000, 10_000), "edges": (100_000, 1_000_000, 10_000_000)}
LARGE_CLIENTS, NODES, PAIRS = 20, 30, 150
STAGES = ("make", "split", "first round", "a later round", "evaluation", "end")


@dataclass(frozen=True, kw_only=True)
class Made(Dataset):
    """A graph that is in memory already."""

    graph: Graph

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        return self.graph

    def present(self, root: Path) -> bool:
        """Return whether `load` finds its files; it needs none."""
        return True


class Stages(Callback):
    """Takes the processor time of what happens, as a callback, and counts what crosses."""

    def __init__(self) -> None:
        self.since = time.process_time()
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self.answered = self.failures = 0
        self.crossed: list[tuple[int, int]] = []

    def ended(self, stage: str) -> None:
        """Take note that a stage ended now; it began when the last one ended."""
        now = time.process_time()
        self.seconds[stage].append(now - self.since)
        self.since = now

    def exchanged(self, report: ExchangeReport) -> None:
        """Take note of an exchange: training or evaluation."""
        self.failures += len(report.failures)
        if report.request != "TrainModel":
            self.ended("evaluation")
            return
        self.answered = report.num_clients - len(report.failures)
        self.ended("a later round" if self.crossed else "first round")
        self.crossed.append((report.bytes_down, report.bytes_up))


def measure(grows: str, variant: str, size: int, rounds: int, threads: int) -> dict[str, Any]:
    """Run a course in this process and return what it took."""
    started, stages = time.perf_counter(), Stages()
    num_clients = size if grows == "clients" else LARGE_CLIENTS
    shape = TABLES[grows][variant]
    if grows == "clients":
        shape = {**shape, "num_nodes": NODES * size, "num_pairs": PAIRS * size}
    else:
        shape = {**shape, "num_nodes": size // 10, "num_pairs": size}
    graph = Synthetic(num_groups=num_clients, **shape).load(Path())
    stages.ended("make")
    course = ist.Course(
        dataset=Made(graph=graph),
        splitter=RandomSplitter() if variant == "at random" else BlockSplitter(),
        num_clients=num_clients,
        rounds=rounds,
        threads=threads,
    )
    scenario = load_scenario(course, Path())
    stages.ended("split")
    result = ist.run(course, scenario=scenario, callbacks=[stages])
    stages.ended("end")
    down, up = stages.crossed[-1]
    return {
        "answered": stages.answered,
        "failures": stages.failures,
        "rounds": result.num_rounds,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges // 2,
        "edges within": sum(part.num_edges for part in scenario.parts.values()) // 2,
        "stages": {stage: statistics.median(took) for stage, took in stages.seconds.items() if took},
        "down": down / 1e6,
        "up": up / 1e6,
        "all": time.perf_counter() - started,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def in_own_process(grows: str, variant: str, size: int, chosen: argparse.Namespace) -> dict[str, Any] | None:
    """Return what a fresh process measured, or None if it died."""
    given = json.dumps([grows, variant, size, chosen.rounds, chosen.threads])
    done = subprocess.run([sys.executable, __file__, "--one", given], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"{variant}, {size:,} {grows}: the process ended with {done.returncode}", file=sys.stderr, flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(grows: str, variant: str, chosen: argparse.Namespace) -> None:
    """Print how one thing grows."""
    print(f"\n{grows}, {variant}\n")
    heading(
        *(grows, "nodes", "edges", "within clients", "clients that answered", "failures", "rounds"),
        *(f"{stage} s" for stage in STAGES),
        *("exponent of a round", "all s", "peak GB", "exponent of peak", "MB down, up"),
    )
    before: tuple[int, dict[str, Any]] | None = None
    for size in (size for size in SIZES[grows] if size <= (chosen.largest or size)):
        found = in_own_process(grows, variant, size, chosen)
        if found is None:
            row(f"{size:,}", "died")
            continue
        facts = (found[key] for key in ("nodes", "edges", "edges within", "answered", "failures", "rounds"))
        row(
            *(f"{size:,}", *(f"{fact:,}" for fact in facts)),
            *(short(found["stages"][stage]) for stage in STAGES),
            *(exponent(before, size, lambda each: each["stages"]["a later round"], found), short(found["all"])),
            *(f"{found['peak']:.2f}", exponent(before, size, lambda each: each["peak"], found)),
            f"{short(found['down'])}, {short(found['up'])}",
        )
        before = (size, found)


def exponent(before: tuple[int, dict[str, Any]] | None, size: int, value: Any, found: dict[str, Any]) -> str:
    """Return b of value ~ size^b from the row before to this one."""
    if before is None:
        return ""
    return f"{math.log(value(found) / value(before[1])) / math.log(size / before[0]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(TABLES), default=list(TABLES))
    parser.add_argument("--largest", type=int, help="leave sizes above it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(*json.loads(chosen.one))))
        return
    for grows in chosen.only:
        for variant in TABLES[grows]:
            table(grows, variant, chosen)


if __name__ == "__main__":
    main()
