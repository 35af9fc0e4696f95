"""Accuracy against bytes, for guards that put parameters into fewer of them, on Cora and PubMed with 5 and 50 clients.

Each course is FedAvg as it is by default, for 100 rounds, but for the clients' optimiser: of a few, that which does
best without any guard on seeds that are not shown. Settings of guards were chosen on such seeds, too. `accuracy` is
that of the best round on the whole graph's test nodes, mean ± standard deviation over seeds; `points` is its difference
to the same seed without guards, in points, mean ± standard error; bytes are of one client in one round, evaluation
included; `fewer` is how many times fewer they are than without guards, all together.

`delta, entropy` loses nothing: what it differs by is what another order of the same sums makes of it (clients behind
guards are added up one by one).

With `--out` finished courses are kept in a file there; a campaign that was stopped goes on where it was, and
`--seeds 0` prints what is there and trains nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from timing import heading, row

import isthmus as ist
from guarding.kept import Kept
from guarding.settings import Settings
from isthmus.config.load import course_digest
from isthmus.core.guards.guard import Guard
from isthmus.data.dataset import Dataset
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.planetoid import PubMed
from isthmus.learn.optimizers import SGD, Adam, Optimizer
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK

NONE = "none"
LINES: dict[str, tuple[Guard, ...]] = {
    NONE: (),
    "delta, entropy": (Delta(), Entropy()),
    "quantise 8": (Quantise(bits=8),),
    "quantise 4, entropy": (Quantise(bits=4), Entropy()),
    "quantise 1 with feedback, entropy": (Quantise(bits=1, error_feedback=True), Entropy()),
    "top_k 0.05, entropy": (TopK(fraction=0.05), Entropy()),
    "random_k 0.05": (RandomK(fraction=0.05),),
    "random_k 0.05, max_drift 1": (RandomK(fraction=0.05, max_drift=1.0),),
    "random_k 0.05 up, top_k 0.05 down, entropy": (
        RandomK(fraction=0.05, direction="up"),
        TopK(fraction=0.05, direction="down"),
        Entropy(),
    ),
    "low_rank 4, entropy": (LowRank(rank=4), Entropy()),
}
OPTIMISERS: dict[str, tuple[Dataset, Optimizer]] = {
    "Cora": (Cora(), SGD(lr=0.5)),
    "PubMed": (PubMed(), Adam(lr=0.01)),
}
# How many seeds at most: courses of 50 clients, coded one by one, take ten times as long as those of 5.
CLIENTS = {5: 100, 50: 3}
# By how many seeds they come later, so that a campaign that is stopped has most of what takes least.
LATER = {3: 0, 5: 0, 50: 2}
ROUNDS = 100


@dataclass(frozen=True)
class Cell:
    """Courses that differ in guards and seeds alone."""

    dataset: str
    clients: int
    rounds: int

    def course(self, line: str, seed: int) -> ist.Course:
        """Return one of them."""
        dataset, optimizer = OPTIMISERS[self.dataset]
        return ist.Course(
            dataset=dataset,
            num_clients=self.clients,
            algorithm=ist.FedAvg(optimizer=optimizer),
            guards=LINES[line],
            rounds=self.rounds,
            seed=seed,
        )


def trained(course: ist.Course, data_root: Path | None) -> dict[str, Any]:
    """Return what came of a course: accuracy, and bytes of one client in one round."""
    started = time.perf_counter()
    result = ist.run(course, data_root=data_root)
    each = course.num_clients * result.num_rounds
    return {
        "dataset": type(course.dataset).__name__,
        "clients": course.num_clients,
        "seed": course.seed,
        "guards": repr(course.guards),
        "accuracy": result.score(),
        "down": result.bytes_down / each,
        "up": result.bytes_up / each,
        "seconds": round(time.perf_counter() - started, 1),
    }


def show(settings: Settings) -> None:
    """Print the table, once all courses are there: seed by seed, few clients before many."""
    kept = Kept(settings.out, "compression")
    cells = _cells(settings) if settings.seeds else _complete(kept)
    root = None if settings.quick else settings.data

    def found(cell: Cell, line: str, seed: int) -> dict[str, Any]:
        course = cell.course(line, seed)
        return kept.of(course_digest(course), partial(trained, course, root))

    courses = [(cell, seed) for cell, number in cells.items() for seed in range(number)]
    for cell, seed in sorted(courses, key=lambda one: (one[1] + LATER[one[0].clients], one[0].clients)):
        for line in LINES:
            found(cell, line, seed)
    heading("dataset", "clients", "seeds", "guards", "accuracy", "points", "bytes down", "bytes up", "fewer")
    for cell, number in cells.items():
        plain = [found(cell, NONE, seed) for seed in range(number)]
        for line in LINES:
            these = [found(cell, line, seed) for seed in range(number)]
            row(cell.dataset, cell.clients, number, line, *compared(these, plain))


def _cells(settings: Settings) -> dict[Cell, int]:
    """Return how many seeds each cell has."""
    if settings.quick:
        return {Cell("Cora", 3, 2): 1}
    found = [(Cell(name, number, ROUNDS), most) for number, most in CLIENTS.items() for name in OPTIMISERS]
    return {cell: min(most, settings.seeds) for cell, most in found}


def _complete(kept: Kept) -> dict[Cell, int]:
    """Return how many seeds of each cell are finished, of those that have any."""
    found = {}
    for cell in (Cell(name, number, ROUNDS) for number in CLIENTS for name in OPTIMISERS):
        seed = 0
        while all(kept.has(course_digest(cell.course(line, seed))) for line in LINES):
            seed += 1
        found[cell] = seed
    return {cell: number for cell, number in found.items() if number}


def compared(found: list[dict[str, Any]], plain: list[dict[str, Any]]) -> list[str]:
    """Return the cells of a row: beside the same seeds without guards."""
    points = [100.0 * (one["accuracy"] - other["accuracy"]) for one, other in zip(found, plain, strict=True)]
    accuracies = [one["accuracy"] for one in found]
    down, up = (statistics.mean(one[way] for one in found) for way in ("down", "up"))
    before = statistics.mean(one["down"] + one["up"] for one in plain)
    return [
        f"{statistics.mean(accuracies):.4f}{_spread(accuracies, 4)}",
        f"{statistics.mean(points):+.2f}{_spread(points, 2, math.sqrt(len(points)))}",
        f"{down:,.0f}",
        f"{up:,.0f}",
        f"{before / (down + up):.1f}",
    ]


def _spread(values: list[float], digits: int, divisor: float = 1.0) -> str:
    """Return the standard deviation, or a mean's error; of one value there is none."""
    return f" ± {statistics.stdev(values) / divisor:.{digits}f}" if len(values) > 1 else ""
