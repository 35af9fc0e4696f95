"""Whether seeds of one course should be simulated as one stack: courses in turn against one of all their clients.

    python benchmarks/seeds.py [--clients 5 10] [--seeds 5] [--repeats 12]

One stack of all clients of all seeds does the work of one round of each course, and a little less: one mean in place of
one for each seed. So if it takes as long, stacking seeds cannot pay. Times are milliseconds for a round of all seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

import isthmus as ist
from isthmus.core.federation import ExchangeRules, Federation
from isthmus.runs.simulation import Scenario, Simulation, load_scenario


class Rounds:
    """A course, round by round, without evaluation."""

    def __init__(self, course: ist.Course, scenario: Scenario) -> None:
        self.course, self.simulation = course, Simulation(course, scenario)
        self.state = ist.ModelState(self.simulation.initial.params)
        self.number = 0

    def next(self) -> None:
        """Do one round."""
        self.number += 1
        runtime = self.simulation.runtime
        fed = Federation(
            runtime,
            seed=0,
            round=self.number,
            cohort=runtime.clients,
            model=self.simulation.initial,
            rules=ExchangeRules(),
            report=lambda report: None,
        )
        self.state = self.course.algorithm.round(self.state, fed)


def measure(num_clients: int, num_seeds: int, repeats: int) -> None:
    courses = [ist.Course(num_clients=num_clients, seed=seed) for seed in range(num_seeds)]
    scenarios = [load_scenario(course, Path()) for course in courses]
    each = [Rounds(course, scenario) for course, scenario in zip(courses, scenarios, strict=True)]
    parts = {f"{seed}-{name}": part for seed, s in enumerate(scenarios) for name, part in s.parts.items()}
    one = Rounds(replace(courses[0], num_clients=len(parts)), Scenario(scenarios[0].whole, parts))
    apart, together = [], []
    for number in range(repeats + 1):
        started = time.perf_counter()
        for rounds in each:
            rounds.next()
        between = time.perf_counter()
        one.next()
        if number:  # the first one warms up
            apart.append(1e3 * (between - started))
            together.append(1e3 * (time.perf_counter() - between))
    us, them = statistics.median(together), statistics.median(apart)
    print(f"| {num_clients} | {num_seeds} | {them:.1f} | {us:.1f} | {them / us:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=12)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| clients | seeds | one course after the other, ms | one stack, ms | gain of stacking |")
    print("| --- | --- | --- | --- | --- |")
    for number in chosen.clients:
        measure(number, chosen.seeds, chosen.repeats)


if __name__ == "__main__":
    main()
