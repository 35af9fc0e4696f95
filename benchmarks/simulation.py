"""Isthmus against bare loops: the same FedAvg rounds on the same clients, in one process, taking turns.

    python benchmarks/simulation.py [--clients 5 50 500] [--rounds 5] [--repeats 5] [--threads 1]
                                    [--accuracy-rounds 60] [--seeds 3] [--yardstick PATH]
    python benchmarks/simulation.py --growth [--figure growth.svg]

Cora, 64 hidden units, four local steps, every client in every round. Three tables:

speed     milliseconds per round without evaluation, medians over repeats; ratios are taken repeat by repeat, so that
          what disturbs the machine disturbs both, and given as median and range
weights   how far the sides' weights are apart after three rounds at dropout 0, where nothing is random
accuracy  test accuracy at dropout 0.5, where every side draws its own; mean and standard deviation over seeds

Sides (`sides.py`): `isthmus` is a course with its default runtime, `loop` the same course with runtime="loop", `PyG` a
bare loop of torch_geometric layers, and `compact` the yardstick, if one is given. `--growth` is in `growth.py`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from growth import grow
from sides import BareLoop, Ours, Yardstick, course_of, load_yardstick
from timing import heading, interleaved, row, short, spread

import isthmus as ist
from isthmus.models import GCN
from isthmus.runs.simulation import Scenario, load_scenario

SHORTEST_TURN = 0.3  # seconds

AnySide = Ours | BareLoop | Yardstick


def sides_of(
    course: ist.Course, scenario: Scenario, dropout: float, yardstick: ModuleType | None, loop: bool = True
) -> dict[str, AnySide]:
    """Return the sides by name, all with the same start."""
    course = replace(course, model=ist.ModelSpec(GCN(dropout=dropout)))
    ours = Ours(course, scenario)
    start = ours.params()
    sides: dict[str, AnySide] = {"isthmus": ours}
    if loop:
        sides["loop"] = Ours(replace(course, runtime="loop"), scenario)
    sides["PyG"] = BareLoop(scenario, start, dropout)
    if yardstick is not None:
        sides["compact"] = Yardstick(yardstick, scenario, start, dropout)
    return sides


def apart(sides: Mapping[str, AnySide], rounds: int = 3) -> dict[str, float]:
    """Return the largest difference of each other side's weights to ours after some rounds."""
    for side in sides.values():
        for _ in range(rounds):
            side.round()
    ours = sides["isthmus"].params()
    others = {name: side.params() for name, side in sides.items() if name != "isthmus"}
    return {
        name: max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
        for name, theirs in others.items()
    }


def speed_table(clients: list[int], rounds: int, repeats: int, yardstick: ModuleType | None) -> None:
    names = ["isthmus", "loop", "PyG", *(["compact"] if yardstick else [])]
    ratios = [("PyG", "isthmus"), ("loop", "isthmus"), *([("isthmus", "compact")] if yardstick else [])]
    print(f"\nMilliseconds per round; a turn is {rounds} rounds and at least {SHORTEST_TURN} s, {repeats} repeats\n")
    heading("clients", "of them train", *(f"{name} ms" for name in names), *(f"{a} / {b}" for a, b in ratios))
    for number in clients:
        course = course_of(number)
        sides = sides_of(course, load_scenario(course, Path()), 0.5, yardstick)
        times = interleaved(sides, rounds, repeats, shortest=SHORTEST_TURN)
        medians = [short(times.median(name)) for name in names]
        row(number, times.trained(*names), *medians, *(spread(times.ratios(a, b)) for a, b in ratios))


def weights_table(clients: list[int], yardstick: ModuleType | None) -> None:
    names = ["loop", "PyG", *(["compact"] if yardstick else [])]
    print("\nLargest difference of a weight to isthmus after 3 rounds at dropout 0\n")
    heading("clients", *(f"{name} apart" for name in names))
    for number in clients:
        course = course_of(number)
        found = apart(sides_of(course, load_scenario(course, Path()), 0.0, yardstick))
        row(number, *(f"{found[name]:.1e}" for name in names))


def accuracy_table(clients: list[int], rounds: int, num_seeds: int, yardstick: ModuleType | None) -> None:
    names = ["isthmus", "PyG", *(["compact"] if yardstick else [])]
    print(f"\nTest accuracy after {rounds} rounds at dropout 0.5, mean ± standard deviation over {num_seeds} seeds\n")
    heading("clients", *(f"{name} accuracy" for name in names), *(f"isthmus - {name}" for name in names[1:]))
    for number in clients:
        found: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(num_seeds):
            course = course_of(number, seed=seed)
            torch.manual_seed(seed)  # for the sides that draw from the global generator
            sides = sides_of(course, load_scenario(course, Path()), 0.5, yardstick, loop=False)
            for name, side in sides.items():
                for _ in range(rounds):
                    side.round()
                found[name].append(side.accuracy())
        ours = found["isthmus"]
        differences = [[a - b for a, b in zip(ours, found[name], strict=True)] for name in names[1:]]
        row(number, *(mean_and_deviation(found[name]) for name in names), *map(mean_and_deviation, differences))


def mean_and_deviation(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 50, 500])
    parser.add_argument("--rounds", type=int, default=5, help="rounds in a turn, at least")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side that count")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--accuracy-rounds", type=int, default=60, help="0: no table of accuracies")
    parser.add_argument("--seeds", type=int, default=3, help="of the table of accuracies")
    parser.add_argument("--yardstick", type=Path, help="a module of bare loops with a class Compact")
    parser.add_argument("--growth", action="store_true", help="how a round grows, in place of the tables above")
    parser.add_argument(
        "--figure", type=Path, help="with --growth: where to write a figure, an .svg (needs isthmus[charts])"
    )
    parser.add_argument("--quick", action="store_true", help="with --growth: tiny sizes, to see that it works")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.growth:
        grow(chosen.rounds, chosen.repeats, chosen.figure, chosen.quick)
        return
    yardstick = None if chosen.yardstick is None else load_yardstick(chosen.yardstick)
    weights_table(chosen.clients, yardstick)
    speed_table(chosen.clients, chosen.rounds, chosen.repeats, yardstick)
    if chosen.accuracy_rounds:
        accuracy_table(chosen.clients, chosen.accuracy_rounds, chosen.seeds, yardstick)


if __name__ == "__main__":
    main()
