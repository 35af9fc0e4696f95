"""How the time of a round grows: with the clients, the nodes, the edges and the features; `simulation.py --growth`.

    python benchmarks/simulation.py --growth --figure growth.svg
    python benchmarks/growth.py growth.svg    draws it anew from growth.csv, without measuring

One thing grows at a time. `exponent` is that of the growth since the row above: 1 is in proportion, 0 is for nothing.
The bare loop of torch_geometric layers is left out ("-") where it would take too long: with more than `MAX_CLIENTS`
clients, or with more than `MAX_DENSE` numbers in its dense features.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sides import BareLoop, Ours, course_of
from synthetic import BlockSplitter, Synthetic
from timing import Side, Times, heading, interleaved, row, short

import isthmus as ist
from isthmus.core.outside import replace_file
from isthmus.report.charts import Panel, Point, Series, Words, line_chart, to_svg
from isthmus.runs.simulation import load_scenario
from isthmus.suites.drawn import Drawn

MAX_CLIENTS = 500
MAX_DENSE = 100_000_000
# A turn of a side takes about this time at most, but not less than one round.
LONGEST_TURN = 1.0
SIDES = ("isthmus", "PyG")

# What does not grow.
NUM_CLIENTS, NODES, PAIRS, FEATURES, WORDS = 20, 8_000, 40_000, 1_500, 20
GROUP = 30  # nodes of a client in the second table


@dataclass(frozen=True)
class Curve:
    """One table and one panel of the figure: `sizes` of what `grows`, with a course for each."""

    title: str
    grows: str
    sizes: list[int]
    courses: list[ist.Course]


def curves(quick: bool) -> list[Curve]:
    """Return what is measured; quick: only the smallest sizes."""
    shape = {"num_nodes": NODES, "num_pairs": PAIRS, "num_features": FEATURES, "words": WORDS}
    if quick:
        shape |= {"num_nodes": 2_000, "num_pairs": 10_000}

    def sizes(*full: int) -> list[int]:
        return list(full[:2] if quick else full)

    def synthetic(num_clients: int = NUM_CLIENTS, **changes: int) -> ist.Course:
        dataset = Synthetic(num_groups=num_clients, **(shape | changes))
        return course_of(num_clients, dataset=dataset, splitter=BlockSplitter())

    clients = sizes(5, 20, 100, 500, 2_000)
    nodes = sizes(2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
    pairs = sizes(10_000, 40_000, 160_000, 640_000)
    features = sizes(500, 1_000, 2_000, 4_000, 8_000)
    fixed = f"{NUM_CLIENTS} clients"
    return [
        Curve("Cora, divided among more and more clients", "clients", clients, [course_of(k) for k in clients]),
        Curve(
            f"More and more clients of {GROUP} nodes and {5 * GROUP} edges",
            "clients",
            clients,
            [synthetic(k, num_nodes=GROUP * k, num_pairs=5 * GROUP * k) for k in clients],
        ),
        Curve(f"{fixed}, {shape['num_pairs']:,} edges", "nodes", nodes, [synthetic(num_nodes=n) for n in nodes]),
        Curve(f"{fixed}, {shape['num_nodes']:,} nodes", "edges", pairs, [synthetic(num_pairs=m) for m in pairs]),
        Curve(
            f"{fixed}, {shape['num_nodes']:,} nodes, {WORDS} features set at each",
            "features",
            features,
            [synthetic(num_features=f) for f in features],
        ),
    ]


def measure(curve: Curve, rounds: int, repeats: int) -> Times:
    """Let all sizes take turns, so that what disturbs the machine disturbs all; names are "isthmus 500", "PyG 500"."""
    sides: dict[str, Side] = {}
    for size, course in zip(curve.sizes, curve.courses, strict=True):
        scenario = load_scenario(course, Path())
        ours = sides[f"isthmus {size}"] = Ours(course, scenario)
        dense = scenario.whole.num_nodes * scenario.whole.num_features
        if course.num_clients <= MAX_CLIENTS and dense <= MAX_DENSE:
            sides[f"PyG {size}"] = BareLoop(scenario, ours.params(), 0.5)
    return interleaved(sides, rounds, repeats, longest=LONGEST_TURN)


def grow(rounds: int, repeats: int, figure: Path | None, quick: bool) -> None:
    """Print a table for each thing that grows; draw them, if a figure is asked for."""
    if figure is not None:
        to_svg(line_chart([]))  # what is missing for it is said before minutes of measuring
    found = []
    for curve in curves(quick):
        print(f"\n{curve.title}\n")
        heading(curve.grows, "clients that train", "isthmus ms", "exponent", "PyG ms", "exponent", "PyG / isthmus")
        times = measure(curve, rounds, repeats)
        found.append((curve, times))
        for size in curve.sizes:
            ours, bare = f"isthmus {size}", f"PyG {size}"
            mine = [short(times.median(ours)), exponent(curve, times, "isthmus", size)]
            if bare not in times.clients:
                row(f"{size:,}", times.trained(ours), *mine, "-", "-", "-")
                continue
            theirs = [short(times.median(bare)), exponent(curve, times, "PyG", size)]
            row(f"{size:,}", times.trained(ours, bare), *mine, *theirs, short(times.ratio(bare, ours)))
    if figure is not None:
        draw(found, figure)
        print(f"\nwrote {figure}")


def exponent(curve: Curve, times: Times, side: str, size: int) -> str:
    """Return b of time ~ size^b from the size before to this one."""
    at = curve.sizes.index(size)
    if at == 0:
        return ""
    before = curve.sizes[at - 1]
    return f"{math.log(times.ratio(f'{side} {size}', f'{side} {before}')) / math.log(size / before):.2f}"


def draw(found: Sequence[tuple[Curve, Times]], path: Path) -> None:
    """Write the curves, with logarithmic axes, and beside them the table that they are drawn from."""
    panels = tuple(Panel(f"{curve.title}: {curve.grows}", tuple(series(curve, times))) for curve, times in found)
    replace_file(path.with_suffix(".csv"), Drawn(panels, {}).to_csv().encode())
    redraw(path)


def series(curve: Curve, times: Times) -> Iterator[Series]:
    """Yield the line of each side: where it was measured, the median."""
    for side in SIDES:
        sizes = [size for size in curve.sizes if f"{side} {size}" in times.clients]
        yield Series(side, tuple(Point(float(size), times.median(f"{side} {size}")) for size in sizes))


def redraw(path: Path) -> None:
    """Draw a figure anew from the table beside it."""
    table = path.with_suffix(".csv")
    panels = Drawn.from_csv(table.read_text(encoding="utf-8"), str(table)).panels
    words = Words("", "", "ms per round")
    replace_file(
        path, to_svg(line_chart(panels, words, log_x=True, log_y=True, shared_x=False, shared_y=True)).encode()
    )


def main() -> None:
    """Draw figures anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="+", metavar="FIGURE.svg", help="with FIGURE.csv beside it")
    for path in parser.parse_args().figures:
        redraw(path)


if __name__ == "__main__":
    main()
