"""FedGRL's clients together against one by one: rounds of BGRL, and an evaluation, before which heads are fine-tuned.

    python benchmarks/encoders.py [--clients 5 10 50] [--repeats 5]

Cora, a GCN of two layers with 64 hidden units and a linear head, all else as FedGRL has it. Milliseconds are of the
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
from isthmus.core.protocol import EvaluateModel
from isthmus.models import GCN, LinearDecoder
from isthmus.runs.simulation import load_scenario


class Evaluating(Ours):
    """Evaluations in the place of rounds."""

    def round(self) -> int:
        """Evaluate every client's model."""
        replies = self._federation().ask(EvaluateModel(self.state.params, ("val",), "accuracy", False))
        return len(replies)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 10, 50])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = ist.ModelSpec(GCN(hidden=64), decoder=LinearDecoder())
    heading("clients", "what", "one by one", "together", "ratio")
    for number in chosen.clients:
        course = ist.Course(num_clients=number, algorithm=ist.FedGRL(), model=model)
        scenario = load_scenario(course, Path("data"))
        for what, kind, rounds in (("a round", Ours, 3), ("an evaluation", Evaluating, 1)):
            ways = {"one by one": "loop", "together": "auto"}
            sides = {way: kind(replace(course, runtime=name), scenario) for way, name in ways.items()}
            busy = interleaved(sides, rounds, chosen.repeats).of_processor()
            times = [short(busy.median(side)) for side in sides]
            row(number, what, *times, spread(busy.ratios("one by one", "together")))


if __name__ == "__main__":
    main()
