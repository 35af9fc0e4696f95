"""Searches on the lookup table that ships with isthmus, FedEx beside them, and what carrying a study out costs.

    python benchmarks/tuning.py regret      every search with 20 seeds at a fifth of the grid's cost, on the table; with
                                            --seen 4 a trial is on four splits, and costs as much more as the grid does
    python benchmarks/tuning.py fedex       FedEx on the table's five splits, for as long as one configuration takes
    python benchmarks/tuning.py overhead    what is spent beside training in a study of many short trials

A search sees the validation accuracy on one split, or in the mean over four. What it finds is worth its test accuracy
on the others, its test accuracy on all five, and what it was asked for. Regret is how far that is from the best
configuration by the same measure, in points. The whole grid is what a search comes to that finds the best validation
accuracy there is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import binom, wilcoxon

import isthmus.tune
from isthmus.algorithms import FedAvg, FedEx
from isthmus.report.summary import Table
from isthmus.runs.simulated import run
from isthmus.tune import backends
from isthmus.tune.backends import Here
from isthmus.tune.cost import CostModel
from isthmus.tune.curves import Curves, LookedUp
from isthmus.tune.reading import load_study, read_study
from isthmus.tune.running import Computed, search
from isthmus.tune.search import Search
from isthmus.tune.searches import Asha, Bohb, Grid, Hyperband, RandomSearch, SuccessiveHalving, Tpe
from isthmus.tune.spec import Budget, Study

TABLES = Path(isthmus.tune.__file__).parent / "tables"
SHARE = 0.2  # of the grid's cost
MEASURES = ("other splits, test", "all splits, test", "own splits, validation")
SEARCHES: dict[str, Search] = {
    "random": RandomSearch(),
    "sha": SuccessiveHalving(factor=3.0),
    "hyperband": Hyperband(factor=3.0),
    "asha": Asha(factor=3.0),
    "bohb": Bohb(factor=3.0),
    "tpe": Tpe(),
    "the whole grid": Grid(),
}


def shipped() -> tuple[Study, Curves]:
    """Return the study and the table that ship with isthmus."""
    return load_study(TABLES / "cora.yaml"), Curves.load(TABLES / "cora.npz")


def regret_of(
    study: Study, curves: Curves, found: Search, seed: int, share: float, seen: int = 1
) -> tuple[float, float, float, float]:
    """Return the regrets of a search by `MEASURES`, in points, and its share of the cost."""
    places = [(seed + number) % len(curves.seeds) for number in range(seen)]
    splits = tuple(curves.seeds[place] for place in places)
    grid = study.whole_cost() / len(study.seeds) * len(curves.points) * seen
    rungs = tuple(replace(rung, seeds=seen) for rung in study.rungs)
    budget = Budget() if isinstance(found, Grid) else Budget(client_rounds=share * grid)
    made = replace(study, search=found, seeds=splits, rungs=rungs, seed=seed, budget=budget)
    table = search(made, LookedUp(made, curves))
    best = table.best()
    assert best is not None
    others = [other for other in curves.seeds if other not in splits]
    place, last, objective = curves.place(best.trial.values), len(curves.fractions) - 1, study.objectives[0]
    own = np.asarray(
        [
            np.mean([curves.value(objective, each, last, which, curves.rounds, CostModel()) for which in places])
            for each in range(len(curves.points))
        ]
    )
    worth = (curves.truth(seeds=others), curves.truth(), own)
    first, second, third = (100 * float(each.max() - each[place]) for each in worth)
    return first, second, third, sum(row.cost for row in table.rows) / grid


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return a median with the 95 % interval that order statistics give, whatever the distribution."""
    ordered, number = np.sort(values), len(values)
    below = int(binom.ppf(0.025, number, 0.5))
    return float(np.median(ordered)), float(ordered[max(below - 1, 0)]), float(ordered[min(number - below, number - 1)])


def regret_table(study: Study, curves: Curves, seeds: Sequence[int], share: float, seen: int) -> Table:
    """Return what every search comes to."""
    rows: list[tuple[str, ...]] = []
    chance: dict[int, list[float]] = {}
    for name, found in SEARCHES.items():
        started = time.perf_counter()
        each = [regret_of(study, curves, found, seed, share, seen) for seed in seeds]
        seconds = (time.perf_counter() - started) / len(seeds)
        told = []
        for which in range(len(MEASURES)):
            values = [regrets[which] for regrets in each]
            beside = chance.setdefault(which, values)
            middle, low, high = median_interval(values)
            told += [f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{np.mean(values):.2f}", less(values, beside)]
        cost = f"{100 * np.mean([spent for *_, spent in each]):.1f} %"
        rows.append((name, *told, cost, f"{1000 * seconds:.0f}"))
    columns = [column for what in MEASURES for column in (f"{what}: median (95 %)", "mean", "p")]
    return Table(("search", *columns, "of the grid's cost", "ms"), tuple(rows))


def less(values: Sequence[float], beside: Sequence[float]) -> str:
    """Return the value of Wilcoxon's test, one-sided, for less regret than random search with the same seeds."""
    gaps = np.asarray(values) - np.asarray(beside)
    return f"{wilcoxon(gaps, alternative='less', zero_method='zsplit').pvalue:.2g}" if gaps.any() else ""


def fedex_table(study: Study, curves: Curves) -> Table:
    """Return what FedEx comes to on the splits of the table, with rates and steps to draw from."""
    rates, steps = study.space.dimensions["algorithm.optimizer.lr"], study.space.dimensions["algorithm.local_steps"]
    truth = curves.truth()
    best = curves.points[int(truth.argmax())]
    rows = []
    for title, times in (("as long as one configuration", 1), ("five times as long", 5)):
        scores = []
        for place, seed in enumerate(curves.seeds):
            course = study.course(best, None, seed)
            assert isinstance(course.algorithm, FedAvg)
            optimizer = replace(course.algorithm.optimizer, lr=1.0)
            inner = replace(course.algorithm, optimizer=optimizer)
            tuned = FedEx(inner=inner, rates=tuple(rates.choices), steps=tuple(steps.choices))
            result = run(replace(course, algorithm=tuned, rounds=times * curves.rounds, threads=1))
            scores.append(100 * (float(curves.final[:, -1, place].max()) - result.score()))
        rows.append((title, f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"))
    own = [
        100 * float(curves.final[:, -1, place].max() - curves.final[int(truth.argmax()), -1, place])
        for place in range(len(curves.seeds))
    ]
    rows.append(("the best configuration of the table", f"{np.mean(own):.2f} ± {np.std(own, ddof=1):.2f}"))
    return Table(("FedEx", "points behind the best of each split"), tuple(rows))


def overhead(number: int) -> str:
    """Return in words what a study of short trials on Cora costs beside its training, in processor time."""
    plain = {
        "base": {"dataset": "cora", "num_clients": 5, "rounds": 3, "model.gnn.hidden": 16},
        "space": {"algorithm.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True}, "algorithm.local_steps": [1, 2]},
        "fidelity": {"rounds": [1, 3]},
        "search": {"name": "asha", "factor": 3},
        "budget": {"trials": number},
    }
    study, inside, real = read_study(plain, "overhead", "overhead"), [0.0], backends.carry_out

    def timed(*words: object) -> object:
        started = time.process_time()
        try:
            return real(*words)  # type: ignore[arg-type]
        finally:
            inside[0] += time.process_time() - started

    backends.carry_out = timed  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as place:
        started, wall = time.process_time(), time.perf_counter()
        table = search(study, Computed(study, Path(place) / "out", Here()))
        whole, wall = time.process_time() - started, time.perf_counter() - wall
    each = (whole - inside[0]) / len(table.rows)
    return (
        f"{number} configurations, {len(table.rows)} trials: {whole:.1f} s of processor time, {wall:.1f} s in all; "
        f"{1000 * each:.2f} ms beside a trial, {100 * each / 30:.3f} % of 30 s"
    )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("regret", "fedex", "overhead"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--seen", type=int, default=1, choices=(1, 2, 3, 4), help="splits that a search sees")
    parser.add_argument("--share", type=float, default=SHARE, help="of the grid's cost")
    parser.add_argument("--trials", type=int, default=1000)
    words = parser.parse_args()
    if words.what == "overhead":
        print(overhead(words.trials))
        return
    study, curves = shipped()
    if words.what == "fedex":
        print(fedex_table(study, curves).markdown())
    else:
        seeds = range(words.first, words.first + words.seeds)
        print(regret_table(study, curves, seeds, words.share, words.seen).markdown())


if __name__ == "__main__":
    main()
