"""FS-G (Wang et al., 2022), Fig. 6: what successive halving finds by its fidelity, read off a table of curves.

    isthmus tune papers/fs_g/fig6/gcn.yaml --table --fractions 0.2,0.4,0.8,1.0 --data-root DATA --out results/fig6/gcn
    python papers/fs_g/fig6/heatmaps.py papers/fs_g/fig6/gcn.yaml results/fig6/gcn/curves.npz

For every number of rounds between two halvings, share of clients and seed, all configurations are halved by the
validation accuracy that they have on that seed's split. What is found is ranked among all configurations by the truth:
the test accuracy after all rounds with all clients, in the mean over the seeds of the table; what is equal shares a
rank. Prints the mean rank over the seeds, the mean regret in points with its deviation, and what chance would come to.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from isthmus.report.summary import Table, as_csv
from isthmus.tune.curves import Curves, LookedUp
from isthmus.tune.reading import load_study
from isthmus.tune.running import search
from isthmus.tune.spec import Study
from isthmus.tune.table import Rung

STEPS = (1, 2, 4, 8)  # rounds between two halvings
HALVINGS = 7  # 72, 36, 18, 9, 4, 2, 1


@dataclass(frozen=True)
class Cell:
    """What was found at one fidelity: by seed, the rank (1 is the best) and the regret."""

    step: int
    fraction: float
    ranks: tuple[float, ...]
    regrets: tuple[float, ...]
    cost: float


def cells(study: Study, curves: Curves, steps: Sequence[int] = STEPS) -> list[Cell]:
    """Return what is found at every fidelity."""
    truth = curves.truth()
    ranks, found = rankdata(-truth, method="average"), []
    for fraction in curves.fractions:
        for step in steps:
            rungs = tuple(Rung(step * number, {"sampling.fraction": fraction}) for number in range(1, HALVINGS + 1))
            picks, cost = [], 0.0
            for seed in curves.seeds:
                made = replace(study, rungs=rungs, seeds=(seed,))
                table = search(made, LookedUp(made, curves))
                best = table.best()
                assert best is not None
                picks.append(curves.place(best.trial.values))
                cost = sum(row.cost for row in table.rows)
            regrets = tuple(float(truth.max() - truth[pick]) for pick in picks)
            found.append(Cell(step, fraction, tuple(float(ranks[pick]) for pick in picks), regrets, cost))
    return found


def heat_map(found: Sequence[Cell], what: str) -> Table:
    """Return a table of rounds by share of clients."""
    steps = list(dict.fromkeys(cell.step for cell in found))
    rows = []
    for fraction in dict.fromkeys(cell.fraction for cell in found):
        mine = [cell for cell in found if cell.fraction == fraction]
        rows.append((f"{fraction:.0%}", *(told(cell, what) for cell in mine)))
    return Table(("clients", *(f"{step} rounds" for step in steps)), tuple(rows))


def told(cell: Cell, what: str) -> str:
    """Return a number of a cell: mean and deviation over the seeds."""
    values = np.asarray(cell.ranks if what == "rank" else [100 * regret for regret in cell.regrets])
    spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


def trends(found: Sequence[Cell]) -> list[str]:
    """Return in words how ranks and regrets go with fidelity."""
    lines = []
    for name, of in (("rounds", lambda cell: cell.step), ("share of clients", lambda cell: cell.fraction)):
        for what in ("ranks", "regrets"):
            pairs = [(of(cell), value) for cell in found for value in getattr(cell, what)]
            if len({x for x, _ in pairs}) > 1:
                rho, p = spearmanr(*zip(*pairs, strict=True))
                lines.append(f"Spearman of {what} with {name}: {rho:+.2f} (p = {p:.2g}, {len(pairs)} searches)")
    return lines


def main() -> None:
    """Print the heat maps, and write what is behind them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="gcn.yaml or gprgnn.yaml beside this file")
    parser.add_argument("curves", type=Path, help="the table that isthmus tune --table has made of it")
    parser.add_argument("--csv", type=Path, help="where ranks and regrets of every search go")
    words = parser.parse_args()
    curves = Curves.load(words.curves)
    study = replace(load_study(words.study), seeds=curves.seeds)
    found, truth = cells(study, curves), curves.truth()
    print(f"{study.title}: {len(curves.points)} configurations, seeds {', '.join(map(str, curves.seeds))}")
    close = int((truth >= truth.max() - 0.01).sum())
    print(f"best {truth.max():.4f}, worst {truth.min():.4f}; {close} configurations within a point of the best")
    for what in ("rank", "regret"):
        print(f"\nmean {what}{' in points' * (what == 'regret')}\n\n{heat_map(found, what).markdown()}")
    print(f"by chance: rank {(len(truth) + 1) / 2:.1f}, regret {100 * (truth.max() - truth.mean()):.2f}")
    for line in trends(found):
        print(line)
    if words.csv:
        rows = [["step", "fraction", "seed", "rank", "regret", "client_rounds"]]
        for cell in found:
            for seed, rank, regret in zip(curves.seeds, cell.ranks, cell.regrets, strict=True):
                rows.append([*map(str, (cell.step, cell.fraction, seed, rank, regret, cell.cost))])
        words.csv.write_text(as_csv(rows))


if __name__ == "__main__":
    main()
