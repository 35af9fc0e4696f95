"""FedSage+'s generators graded by all clients, together against one by one: what each of its `cross_rounds` asks.

    python benchmarks/grading.py [--clients 5 50] [--repeats 3]

Cora, GraphSAGE with 64 hidden units, two steps of pretraining, all else as FedSage+ has it. Milliseconds are of the
processor, medians over repeats; sides take turns, and ratios are taken repeat by repeat. One thread.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from sides import Ours
from timing import heading, interleaved, row, short, spread

import isthmus as ist
from isthmus.algorithms import FedSagePlus
from isthmus.algorithms.fedsage.messages import GradeGenerators, PretrainGenerator, ShareGenerator
from isthmus.core.folds import weighted_mean
from isthmus.models import SAGE
from isthmus.runs.simulation import load_scenario

ALGORITHM = FedSagePlus(pretrain_steps=2, cross_rounds=0)
SHARE = ShareGenerator(ALGORITHM.latent, ALGORITHM.hidden, ALGORITHM.num_generated)


class Grading(Ours):
    """Views are graded in the place of a round; each client has a generator that was trained for two steps."""

    def __init__(self, course: ist.Course, scenario: ist.Scenario) -> None:
        super().__init__(course, scenario)
        self._federation().ask(PretrainGenerator(self.simulation.initial.params))
        self.views = dict(self._federation().ask(SHARE))

    def round(self) -> int:
        """Ask for the mean of the gradients."""
        self._federation().ask_folded(GradeGenerators(self.views), weighted_mean)
        return len(self.views)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    heading("clients", "one by one", "together", "ratio")
    for number in chosen.clients:
        course = ist.Course(num_clients=number, algorithm=ALGORITHM, model=ist.ModelSpec(SAGE(hidden=64)))
        scenario = load_scenario(course, Path("data"))
        ways = {"one by one": "loop", "together": "auto"}
        sides = {way: Grading(replace(course, runtime=name), scenario) for way, name in ways.items()}
        busy = interleaved(sides, 1, chosen.repeats).of_processor()
        times = [short(busy.median(side)) for side in sides]
        row(number, *times, spread(busy.ratios("one by one", "together")))


if __name__ == "__main__":
    main()
