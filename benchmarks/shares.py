"""What a round of simulated clients is made of: the share of each part, of processor time.

    python benchmarks/shares.py [--only NAME ...] [--clients 50] [--rounds 20] [--data-root DATA]

The courses are those of `methods.py`. A part's time is that spent in the functions named in `PARTS`, with all that they
call; parts within others are told by indentation. Reading the clock adds some microseconds to each call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from methods import METHODS
from sides import Ours
from timing import heading, row

from isthmus.algorithms.fedgl import Discovery, FedGL
from isthmus.core.federation import Federation
from isthmus.learn.together.stacked_clients import FullSteps
from isthmus.models.products import sparse
from isthmus.runs.simulation import load_scenario
from isthmus.runtime.loop import Pausing, StackedRuntime

# Entries from which a sparse matrix counts as a pseudo graph side by side: those of features have fewer here.
MANY = 1_000_000


def is_large(matrix: Any, *rest: Any) -> bool:
    """Whether a product is one with a matrix of many entries."""
    return bool(matrix.pattern.nnz >= MANY)


# The part, where its function is, the function's name, and which calls count.
PARTS: list[tuple[str, Any, str, Callable[..., bool] | None]] = [
    ("exchange", Federation, "_carry", None),
    ("- handlers side by side", Pausing, "run", None),
    ("- - steps", FullSteps, "run", None),
    ("- - - products with matrices of a million entries", sparse, "_product", is_large),
    ("FedGL: what the views give together", FedGL, "discover", None),
    ("FedGL: guidance", Discovery, "projected_each", None),
    ("FedGL: graphs complemented", FedGL, "guided_together", None),
    ("memories marked", StackedRuntime, "mark", None),
]


def watched(spent: dict[str, float], part: str, place: Any, name: str, counts: Callable[..., bool] | None) -> None:
    """Let a function add its time to that of a part."""
    function = getattr(place, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        if counts is not None and not counts(*arguments):
            return function(*arguments, **named)
        started = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[part] = spent.get(part, 0.0) + time.thread_time() - started

    setattr(place, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    nodes = [name for name in METHODS if name not in ("links", "neighbors", "graphs")]
    parser.add_argument("--only", nargs="+", choices=nodes, default=["scaffold", "ditto", "fedgl"], metavar="NAME")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are timed, after three that are not")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="where datasets are that do not ship")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    spent: dict[str, float] = {}
    for part in PARTS:
        watched(spent, *part)
    heading("method", "part", "ms a round", "share")
    for name in chosen.only:
        course = METHODS[name].course(chosen.clients, METHODS[name].timed)
        ours = Ours(course, load_scenario(course, chosen.data_root))
        for _ in range(3):
            ours.round()
        spent.clear()
        started = time.thread_time()
        for _ in range(chosen.rounds):
            ours.round()
        whole = time.thread_time() - started
        for part, seconds in [("a round", whole), *((part, spent[part]) for part, *_ in PARTS if part in spent)]:
            row(name, part, f"{1e3 * seconds / chosen.rounds:.2f}", f"{100 * seconds / whole:.0f} %")


if __name__ == "__main__":
    main()
