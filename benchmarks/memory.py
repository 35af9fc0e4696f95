"""Seconds and peak memory of complete courses, stage by stage, each course in a process of its own.

    python benchmarks/memory.py [--case many large] [--rounds 3] [--threads 1]

many   10,000 clients of 30 nodes and about 150 edges each: once with 128 dense features, once with bags of words
large  one graph of 1,000,000 nodes and 10,000,000 undirected edges over 20 clients, 64 dense features: once with most
       edges within clients, once divided at random, which leaves each client a twentieth of its nodes' edges

Both are what a user would do: `load_scenario`, then `isthmus.run` with the journal in memory, FedAvg and the default
model, an evaluation of every client after every round, and at its end the scores of the result. Each cell has the
seconds of a stage, and the largest resident memory of the process until its end, in GB. To be compared with 16 GB. On a
machine with other work, the CPU seconds tell more than the seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic import BlockSplitter, Synthetic
from timing import heading, row, short

import isthmus as ist
from isthmus.core.federation import ExchangeReport
from isthmus.core.training import Callback, RoundReport
from isthmus.data.graph import Graph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import Dataset
from isthmus.runs.simulation import load_scenario

VARIANTS = {
    "many": ("many, dense", "many, bags of words"),
    "large": ("large, in blocks", "large, at random"),
}
FACTS = ("clients that answered", "failures", "nodes", "edges", "edges within clients", "rounds")
STAGES = ("make data", "split", "prepare", "first round", "a later round", "first evaluation", "a later one", "end")


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


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
    """Takes the time of what happens, as a callback."""

    def __init__(self) -> None:
        self.since = time.perf_counter()
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self.peaks: dict[str, float] = {}
        self.answered = self.failures = 0

    def ended(self, stage: str, took: float | None = None) -> None:
        """Take note that a stage ended now; without `took`, it began when the last one ended."""
        now = time.perf_counter()
        self.seconds[stage].append(now - self.since if took is None else took)
        self.peaks[stage] = peak_gigabytes()
        self.since = now

    def exchanged(self, report: ExchangeReport) -> None:
        """Take note of an exchange: training or evaluation."""
        if not self.seconds["prepare"]:
            # It ended when this exchange began; nobody looked at the memory then.
            self.seconds["prepare"].append(time.perf_counter() - self.since - report.seconds)
        first, later = ("first evaluation", "a later one")
        if report.request == "TrainModel":
            first, later = ("first round", "a later round")
            self.answered = report.num_clients - len(report.failures)
        self.failures += len(report.failures)
        self.ended(later if self.seconds[first] else first, report.seconds)

    def round_done(self, report: RoundReport) -> None:
        """Take note of a round; what it took is in its exchanges."""

    def summary(self) -> dict[str, tuple[float, float | None]]:
        """Return the median seconds of each stage, and the peak until its end, where it is known."""
        return {stage: (statistics.median(took), self.peaks.get(stage)) for stage, took in self.seconds.items() if took}


def measure(variant: str, sizes: argparse.Namespace) -> dict[str, Any]:
    """Run a course in this process and return what it took."""
    started = time.perf_counter()
    stages = Stages()
    many = variant.startswith("many")
    num_clients = sizes.clients if many else sizes.large_clients
    if many:
        sparse = variant == "many, bags of words"
        shape = {"num_nodes": 30 * num_clients, "num_pairs": 150 * num_clients, "num_features": 128}
        shape |= {"num_features": 1_433, "words": 18} if sparse else {}
    else:
        shape = {"num_nodes": sizes.nodes, "num_pairs": sizes.pairs, "num_features": 64}
    graph = Synthetic(num_groups=num_clients, **shape).load(Path())
    stages.ended("make data")
    course = ist.Course(
        dataset=Made(graph=graph),
        splitter=RandomSplitter() if variant == "large, at random" else BlockSplitter(),
        num_clients=num_clients,
        rounds=sizes.rounds,
        threads=sizes.threads,
    )
    scenario = load_scenario(course, Path())
    stages.ended("split")
    result = ist.run(course, scenario=scenario, callbacks=[stages])
    stages.ended("end")
    return {
        "clients that answered": stages.answered,
        "failures": stages.failures,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges // 2,
        "edges within clients": sum(part.num_edges for part in scenario.parts.values()) // 2,
        "rounds": result.num_rounds,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time(),
        "peak": peak_gigabytes(),
        "stages": stages.summary(),
    }


def in_own_process(variant: str, words: list[str]) -> dict[str, Any] | None:
    """Return what a fresh process measured, or None if it died."""
    print(f"{variant} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, *words, "--only", variant]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"{variant}: the process ended with {done.returncode}", file=sys.stderr, flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: Mapping[str, dict[str, Any] | None]) -> None:
    """Print a column for each variant."""
    heading("", *found)
    for fact in FACTS:
        row(fact, *("died" if each is None else f"{each[fact]:,}" for each in found.values()))
    for stage in STAGES:
        row(f"{stage}: s, GB", *(cell(each, stage) for each in found.values()))
    row("CPU s, imports included", *("died" if each is None else short(each["cpu"]) for each in found.values()))
    row("all: s, GB", *("died" if e is None else f"{short(e['seconds'])}, {e['peak']:.2f}" for e in found.values()))


def cell(found: dict[str, Any] | None, stage: str) -> str:
    """Return a stage's seconds and the peak until its end."""
    if found is None or stage not in found["stages"]:
        return "-"
    seconds, peak = found["stages"][stage]
    return short(seconds) if peak is None else f"{short(seconds)}, {peak:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=sorted(VARIANTS), default=["many", "large"])
    parser.add_argument("--clients", type=int, default=10_000, help="of case many")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of case large")
    parser.add_argument("--pairs", type=int, default=10_000_000, help="undirected edges of case large")
    parser.add_argument("--large-clients", type=int, default=20, help="of case large")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        print(json.dumps(measure(chosen.only, chosen)))
        return
    table({each: in_own_process(each, sys.argv[1:]) for case in chosen.case for each in VARIANTS[case]})


if __name__ == "__main__":
    main()
