"""A method of one's own against FedAvg: what `examples/add_an_algorithm.py`, as it stands, takes for a round.

    python benchmarks/own_method.py [--clients 5 50 500] [--rounds 3] [--repeats 7]

Both by the package, in turns: Cora, the default model, four steps of SGD, no evaluation. Milliseconds and ratios are of
the processor, medians over repeats with their range.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from sides import Ours, course_of
from timing import heading, interleaved, row, short, spread

from isthmus.runs.simulation import load_scenario

EXAMPLE = Path(__file__).parents[1] / "examples" / "add_an_algorithm.py"
SHORTEST_TURN = 0.3  # seconds


def own_method() -> Any:
    """Return the example's method."""
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.FedConfident()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 50, 500])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    heading("clients", "of them train", "FedAvg ms", "own method ms", "own / FedAvg")
    for number in chosen.clients:
        course = course_of(number)
        scenario = load_scenario(course, Path())
        sides = {"FedAvg": Ours(course, scenario), "own": Ours(course_of(number, algorithm=own_method()), scenario)}
        times = interleaved(sides, chosen.rounds, chosen.repeats, shortest=SHORTEST_TURN).of_processor()
        medians = (short(times.median(side)) for side in sides)
        row(f"{number:,}", times.trained(*sides), *medians, spread(times.ratios("own", "FedAvg")))


if __name__ == "__main__":
    main()
