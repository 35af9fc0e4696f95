"""A lookup table: what every configuration comes to after every round, so that a search takes milliseconds.

A table is a file of arrays (`.npz`) and says itself what it is of. Searches on it see what they would see of courses: a
trial on a rung is read off the curve of its share of clients at its round. (Where shares differ from rung to rung, the
curve of the rung's own share stands for what a course would be that began with another.)
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file, some
from isthmus.tune.cost import CostModel
from isthmus.tune.objectives import BEST, BYTES, ROUND_SECONDS, Objective
from isthmus.tune.space import Values
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table, Trial

Array: TypeAlias = np.ndarray[Any, Any]
LISTS = ("points", "fractions", "seeds", "metrics")
ARRAYS = ("values", "kept", "final", "down", "up", "client_seconds")


@dataclass(frozen=True, eq=False)
class Curves:
    """What configurations come to; the axes of all arrays begin with (points, fractions, seeds).

    Fields:
        facts:          what they are of, in words and plain values
        points:         the configurations
        fractions:      shares of the clients that take part in a round
        seeds:          of splits and initial parameters
        metrics:        what is known of each round
        values:         (.., metrics, rounds); NaN in rounds that were not evaluated
        kept:           (.., rounds): the round that is kept so far, from 1; 0: none
        final:          (..): the score on test examples of the model that is kept in the end
        down, up:       (..): bytes of a client in a round
        client_seconds: (..): that a client computed in a round, on the computer that filled the table
        clients:        how many there are
    """

    facts: Mapping[str, Any]
    points: tuple[Values, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    clients: int
    values: Array = field(repr=False)
    kept: Array = field(repr=False)
    final: Array = field(repr=False)
    down: Array = field(repr=False)
    up: Array = field(repr=False)
    client_seconds: Array = field(repr=False)

    @property
    def rounds(self) -> int:
        """How many rounds the curves have."""
        return int(self.values.shape[-1])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {_key(point): place for place, point in enumerate(self.points)}

    def place(self, values: Values) -> int:
        """Return the number of a configuration."""
        found = self._places.get(_key(values))
        if found is None:
            raise BadInput(
                f"the table has no {dict(values)}; it has {len(self.points)} points such as {self.points[0]}"
            )
        return found

    def cohort(self, fraction: float) -> int:
        """Return how many clients take part in a round."""
        return min(self.clients, max(1, math.ceil(fraction * self.clients - 1e-9)))

    def value(self, objective: Objective, point: int, fraction: int, seed: int, rounds: int, model: CostModel) -> float:
        """Return an objective after so many rounds."""
        at = (point, fraction, seed)
        number = self.cohort(self.fractions[fraction])
        if objective.name in BYTES:
            ways = {"bytes": self.down[at] + self.up[at], "bytes_down": self.down[at], "bytes_up": self.up[at]}
            return float(ways[objective.name]) * number * rounds
        if objective.name == ROUND_SECONDS:
            return self.round_seconds(point, fraction, seed, model)
        curve = self.values[(*at, self.metrics.index(objective.name))][:rounds]
        if objective.at == BEST:
            kept = int(self.kept[at][rounds - 1])
            return float(curve[kept - 1]) if kept else math.nan
        measured = curve[~np.isnan(curve)]
        return float(measured[-1]) if len(measured) else math.nan

    def round_seconds(self, point: int, fraction: int, seed: int, model: CostModel) -> float:
        """Return how long a round would take."""
        at = (point, fraction, seed)
        number = self.cohort(self.fractions[fraction])
        return model.round_seconds(number, float(self.down[at]), float(self.up[at]), float(self.client_seconds[at]))

    def truth(self, fraction: float | None = None, seeds: Sequence[int] | None = None) -> Array:
        """Return (points,): the final score of each, in the mean over seeds, all by default; of the largest share.

        A configuration whose course failed is worth nothing.
        """
        place = self.fractions.index(max(self.fractions) if fraction is None else fraction)
        places = [self.seeds.index(seed) for seed in (self.seeds if seeds is None else seeds)]
        found: Array = np.nan_to_num(self.final[:, place, places].astype(np.float64)).mean(axis=1)
        return found

    # ---- files

    def save(self, path: Path) -> None:
        """Write the table."""
        told = {
            "facts": dict(self.facts),
            "points": [dict(point) for point in self.points],
            "fractions": list(self.fractions),
            "seeds": list(self.seeds),
            "metrics": list(self.metrics),
            "clients": self.clients,
        }
        text = np.frombuffer(json.dumps(told).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=text, **{name: getattr(self, name) for name in ARRAYS})
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Curves:
        """Read a table."""
        try:
            with np.load(path, allow_pickle=False) as found:
                about = json.loads(found["about"].tobytes())
                arrays = {name: found[name] for name in ARRAYS}
            lists: dict[str, Any] = {name: tuple(about[name]) for name in LISTS}
            return cls(facts=about["facts"], clients=about["clients"], **lists, **arrays)
        except FileNotFoundError:
            raise BadInput(f"{path} does not exist; isthmus tune --table makes one") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is no table of curves: {error}") from None


def _key(values: Values) -> str:
    plain = {key: float(value) if isinstance(value, int | float) else value for key, value in values.items()}
    return json.dumps(plain, sort_keys=True)


# ---- searches on it


@dataclass(frozen=True)
class LookedUp:
    """Trials whose rows are read off a table."""

    study: Study
    curves: Curves
    model: CostModel = CostModel()

    def __post_init__(self) -> None:
        require_same(self.study, self.curves)

    def start(self, trial: Trial, table: Table) -> None:
        """Do nothing: it is all there."""

    def row(self, trial: Trial, table: Table) -> Row:
        """Return the row of a trial."""
        study, curves, rung = self.study, self.curves, self.study.rungs[trial.rung]
        point, fraction = curves.place(trial.values), curves.fractions.index(study.fraction(trial.rung))
        seeds = [curves.seeds.index(seed) for seed in study.seeds[: rung.seeds]]
        scores = tuple(
            math.fsum(curves.value(each, point, fraction, seed, rung.rounds, self.model) for seed in seeds) / len(seeds)
            for each in study.objectives
        )
        firsts = tuple(
            curves.value(study.objectives[0], point, fraction, seed, rung.rounds, self.model) for seed in seeds
        )
        before = [row.trial.rung for row in table.rows if row.trial.arm == trial.arm and row.done]
        cost = study.cost(trial.rung, max(before, default=None))
        rounds = cost / curves.cohort(study.fraction(trial.rung)) / len(seeds)
        seconds = sum(rounds * curves.round_seconds(point, fraction, seed, self.model) for seed in seeds)
        return Row(trial, True, scores, firsts, cost, seconds)


def require_same(study: Study, curves: Curves) -> None:
    """Refuse a table that has not what a study asks for."""
    lacking: list[str] = []
    if not study.space.finite:
        ranges = [key for key, dimension in study.space.dimensions.items() if not dimension.finite]
        lacking += [f"values between its points: make {some(ranges)} choices"]
    else:
        lacking += [f"the point {dict(p)}" for p in study.space.listed if _key(p) not in curves._places]
    lacking += [f"the seed {seed}" for seed in study.seeds if seed not in curves.seeds]
    fractions = {study.fraction(rung) for rung in range(len(study.rungs))}
    lacking += [f"the fraction {share:g}" for share in sorted(fractions) if share not in curves.fractions]
    lacking += [f"the round {study.rungs[-1].rounds}"] * (study.rungs[-1].rounds > curves.rounds)
    known = (*curves.metrics, *BYTES, ROUND_SECONDS)
    lacking += [f"the objective {each.name!r}" for each in study.objectives if each.name not in known]
    if study.search.forks:
        lacking += ["courses that go on from others"]
    if lacking:
        raise BadInput(f"{study.source}: the table of {curves.facts.get('title')!r} lacks {some(lacking)}")


def regrets(table: Table, curves: Curves, seeds: Sequence[int] | None = None) -> list[tuple[float, float]]:
    """Return by trial the client-rounds so far, and how far the best so far is in truth from the best there is.

    The truth is by the seeds given, all by default: those that the search did not see tell more.
    """
    truth = curves.truth(seeds=seeds)
    return [(spent, float(truth.max() - truth[curves.place(best.trial.values)])) for spent, best in table.so_far()]


def unseen(study: Study, curves: Curves) -> tuple[int, ...]:
    """Return the seeds of a table that a study does not see; all, where it sees all."""
    return tuple(seed for seed in curves.seeds if seed not in study.seeds) or curves.seeds


def points_of(study: Study, number: int) -> Sequence[dict[str, Any]]:
    """Return the configurations that a table of a study has."""
    return study.space.listed if study.space.finite else tuple(study.space.points(number))
