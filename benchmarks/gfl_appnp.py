"""GFL-APPNP with many clients of one node: seconds for a number of updates, and what crosses in a communication.

    python benchmarks/gfl_appnp.py

Each line is a course on a contextual block model, DNC as in the paper: every node a client, a perceptron of 64 hidden
units without bias, a tenth of the nodes to train on, every communication evaluated. "loop" is the same with clients
that answer one by one, for one communication, times their number.
"""

from __future__ import annotations

import argparse
import time

import torch

import isthmus as ist
from isthmus.algorithms import GFLAPPNP
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import data_root
from isthmus.core.training import Callback, EarlyStopping, run_course
from isthmus.data.dividing import PublicSplit
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.data.zoo import CSBM
from isthmus.learn.tasks import NodeSamples
from isthmus.models import BiasFreeMLP, ModelSpec
from isthmus.runs.simulation import Simulation, load_scenario


class Traffic(Callback):
    """Adds up what a course reports."""

    def __init__(self) -> None:
        self.down = self.up = 0

    def exchanged(self, report: ExchangeReport) -> None:
        """Add an exchange, unless it is an evaluation."""
        if report.position.round and report.request not in ("EvaluateModel", "KeepBest"):
            self.down, self.up = self.down + report.bytes_down, self.up + report.bytes_up


def measure(
    num_nodes: int, local_steps: int, rounds: int, gradients: str, runtime: str
) -> tuple[float, float, Traffic]:
    """Return wall seconds, processor seconds and traffic of a course, after its setup."""
    course = ist.Course(
        dataset=CSBM(num_nodes=num_nodes),
        masks=PublicSplit(),
        splitter=NodeHostsSplitter(),
        num_clients=num_nodes,
        task=NodeSamples(),
        model=ModelSpec(BiasFreeMLP(dropout=0.0)),
        algorithm=GFLAPPNP(local_steps=local_steps, gradients=gradients),
        rounds=rounds,
        stopping=EarlyStopping(metric="loss"),
        runtime=runtime,
    )
    simulation = Simulation(course, load_scenario(course, data_root(None)))
    traffic = Traffic()
    wall, processor = time.perf_counter(), time.process_time()
    run_course(course.algorithm, simulation.runtime, course.plan(), simulation.initial, [traffic])
    return time.perf_counter() - wall, time.process_time() - processor, traffic


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--local-steps", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--updates", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| clients | I | gradients | updates | seconds | processor s | loop s | MB up | MB down |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for num_nodes in arguments.nodes:
        for steps in arguments.local_steps:
            for gradients in ("jacobian", "none"):
                rounds = max(arguments.updates // steps, 1)
                wall, processor, traffic = measure(num_nodes, steps, rounds, gradients, "auto")
                loop = measure(num_nodes, steps, 1, gradients, "loop")[0] * rounds
                cells = [num_nodes, steps, gradients, rounds * steps, f"{wall:.1f}", f"{processor:.1f}", f"{loop:.0f}"]
                cells += [f"{number / rounds / 1e6:.2f}" for number in (traffic.up, traffic.down)]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
