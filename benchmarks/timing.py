"""Sides of a comparison take turns in one process; what counts is the ratio of neighbours in time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol


class Side(Protocol):
    """One way to do the same rounds."""

    def round(self) -> int:
        """Do one round and return how many clients trained in it."""


@dataclass(frozen=True)
class Times:
    """What was measured.

    Fields:
        milliseconds: per round, for each side, one number for each repeat
        clients:      for each side, how many clients trained in each round
        processor:    as `milliseconds`, of this process's processor time
    """

    milliseconds: Mapping[str, list[float]]
    clients: Mapping[str, int]
    processor: Mapping[str, list[float]] = field(default_factory=dict)

    def of_processor(self) -> Times:
        """Return the same with processor time in the place of time by the clock."""
        return replace(self, milliseconds=self.processor)

    def median(self, side: str) -> float:
        """Return the median over repeats of a side's milliseconds per round."""
        return statistics.median(self.milliseconds[side])

    def ratios(self, side: str, other: str) -> list[float]:
        """Return a side's time over the other's, repeat by repeat: what disturbs one disturbs its neighbour too."""
        return [a / b for a, b in zip(self.milliseconds[side], self.milliseconds[other], strict=True)]

    def ratio(self, side: str, other: str) -> float:
        """Return the median of the ratios."""
        return statistics.median(self.ratios(side, other))

    def trained(self, *sides: str) -> int:
        """Return how many clients trained in a round of these sides; an error unless it is the same for all."""
        found = {side: self.clients[side] for side in sides}
        if len(set(found.values())) != 1:
            raise RuntimeError(f"not the same number of clients trained on all sides: {found}")
        return found[sides[0]]


def interleaved(
    sides: Mapping[str, Side], rounds: int, repeats: int, shortest: float = 0.0, longest: float = math.inf
) -> Times:
    """Let the sides take turns of `rounds` rounds each; who begins changes from repeat to repeat.

    A side whose turn would take less than `shortest` seconds does more rounds in it, so that a short disturbance does
    not decide; one whose turn would take more than `longest` does fewer, at least one.
    """
    kept: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    counts: dict[str, set[int]] = {name: set() for name in sides}
    turns: dict[str, int] = {}
    for name, side in sides.items():
        turn(side, 1)  # builds what is kept from round to round
        seconds = turn(side, 1)[0] / 1e3
        turns[name] = max(1, min(max(rounds, math.ceil(shortest / seconds)), int(min(longest / seconds, 1e9))))
    order = list(sides)
    for _ in range(repeats):
        for name in order:
            busy = time.process_time()
            took, found = turn(sides[name], turns[name])
            processor[name].append(1e3 * (time.process_time() - busy) / turns[name])
            kept[name].append(took)
            counts[name] |= found
        order.append(order.pop(0))
    changing = {name: found for name, found in counts.items() if len(found) != 1}
    if changing:
        raise RuntimeError(f"not the same number of clients trained in every round: {changing}")
    return Times(kept, {name: found.pop() for name, found in counts.items()}, processor)


def turn(side: Side, rounds: int) -> tuple[float, set[int]]:
    """Return the milliseconds per round of some rounds in a row, and the numbers of clients that trained."""
    found = set()
    started = time.perf_counter()
    for _ in range(rounds):
        found.add(side.round())
    return 1e3 * (time.perf_counter() - started) / rounds, found


def spread(values: Sequence[float]) -> str:
    """Return the median, and the range in brackets."""
    return f"{short(statistics.median(values))} ({short(min(values))} to {short(max(values))})"


def short(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def row(*cells: object) -> None:
    """Print a row of a markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def heading(*cells: str) -> None:
    """Print the first two rows of a markdown table."""
    row(*cells)
    row(*["---"] * len(cells))
