"""Accuracy of the global model after the last round, when 2 of 10 clients poison it: folds and checks in the rows.

Cora, split into 10 communities, FedAvg with its defaults, 60 rounds; a mean over seeds (each with its own split) and
the standard deviation, in per cent of the whole graph's test nodes. Nothing is chosen by validation: the model is that
of the last round. Honest changes have norms from 0.3 to 0.9.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from timing import heading, row

from guarding.settings import Settings
from isthmus.algorithms import FedAvg
from isthmus.attacks.poisoning import (
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Poisoning,
    RandomUpdate,
    Scaling,
    SignFlip,
    run_poisoned,
)
from isthmus.config.course import Course
from isthmus.core.errors import TooFewReplies
from isthmus.core.folding import (
    BoundedMean,
    Bulyan,
    CentredClipping,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
)
from isthmus.core.guards.guard import Guard
from isthmus.core.outside import data_root
from isthmus.core.training import EarlyStopping
from isthmus.privacy import DistanceToMedian, NormBound, Quarantine, RobustFold
from isthmus.runs.simulation import Scenario, load_scenario

CLIENTS, ROUNDS = 10, 60
WRONG = ("client-3", "client-7")
ATTACKS: Mapping[str, Sequence[Poisoning]] = {
    "none": (),
    "labels flipped": (LabelFlip(WRONG),),
    "signs flipped": (SignFlip(WRONG, times=4.0),),
    "model replacement": (LabelFlip(WRONG), Scaling(WRONG, times=CLIENTS)),
    "noise": (RandomUpdate(WRONG, scale=1.0),),
    "a little is enough": (LittleIsEnough(WRONG, deviations=1.5),),
    "inner product, 0.5": (InnerProduct(WRONG, epsilon=0.5),),
    "inner product, 10": (InnerProduct(WRONG, epsilon=10.0),),
}
RADIUS = 0.5
# What the server has of its own for FLTrust: so many of the nodes, at random, of which 60 % are for training.
SHARE = 0.05
DEFENCES: Mapping[str, Sequence[Guard]] = {
    "mean": (),
    "median": (RobustFold(Median()),),
    "trimmed mean, 0.2": (RobustFold(TrimmedMean(0.2)),),
    "krum, f = 2": (RobustFold(Krum(2)),),
    "multi-krum, f = 2, best 6": (RobustFold(Krum(2, num_selected=6)),),
    "bulyan, f = 1": (RobustFold(Bulyan(1)),),
    "geometric median": (RobustFold(GeometricMedian()),),
    f"centred clipping, {RADIUS}": (RobustFold(CentredClipping(RADIUS)),),
    f"norm bound (fold), {RADIUS}": (RobustFold(BoundedMean(RADIUS)),),
    "foolsgold": (RobustFold(FoolsGold()),),
    f"fltrust, {SHARE:.0%} of the graph": (RobustFold(FLTrust(root="server")),),
    "check norm_bound, 3 medians": (NormBound(times_median=3.0), Quarantine(after=5)),
    "check distance_to_median, 3": (DistanceToMedian(times=3.0), Quarantine(after=5)),
}


def course_of(seed: int, guards: Sequence[Guard], quick: bool = False) -> Course:
    """Return the course of a seed."""
    kept = EarlyStopping(patience=0, keep="last")
    rounds = 3 if quick else ROUNDS
    return Course(
        num_clients=CLIENTS,
        algorithm=FedAvg(),
        guards=tuple(guards),
        rounds=rounds,
        seed=seed,
        stopping=kept,
        server_share=SHARE if any(isinstance(getattr(guard, "by", None), FLTrust) for guard in guards) else 0.0,
        evaluate_every=rounds,
    )


def accuracies(
    guards: Sequence[Guard], attack: Sequence[Poisoning], scenarios: Mapping[int, Scenario], quick: bool
) -> list[float]:
    """Return the accuracy in per cent for each seed; NaN for a model that is no more than that."""
    found = []
    for seed, scenario in scenarios.items():
        try:
            result = run_poisoned(course_of(seed, guards, quick), *attack, scenario=scenario)
        except TooFewReplies:  # no client could learn from it any more
            found.append(math.nan)
            continue
        scores = result.metrics["global_model/global_graph"]
        found.append(100.0 * scores["accuracy"] if "accuracy" in scores else math.nan)
    return found


def show(settings: Settings) -> None:
    """Print the table."""
    root: Path = data_root(None) if settings.data_root is None else settings.data_root
    seeds = range(1 if settings.quick else settings.seeds)
    scenarios = {seed: load_scenario(course_of(seed, ()), root) for seed in seeds}
    attacks = dict(list(ATTACKS.items())[:3]) if settings.quick else ATTACKS
    heading("fold or check", *attacks)
    for name, guards in list(DEFENCES.items())[: 2 if settings.quick else None]:
        cells = [accuracies(guards, attack, scenarios, settings.quick) for attack in attacks.values()]
        row(name, *(_told(cell) for cell in cells))


def _told(values: Sequence[float]) -> str:
    diverged = sum(map(math.isnan, values))
    if diverged:
        return f"diverged in {diverged} of {len(values)}"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"
