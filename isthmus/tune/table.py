"""What a search knows: the trials so far, and what came of those that have come to an end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from isthmus.tune.objectives import not_dominated
from isthmus.tune.space import Space, Values


@dataclass(frozen=True)
class Rung:
    """What a trial is given.

    Fields:
        rounds:  of the course, from its start
        changes: keys of the course that are another on this rung
        seeds:   how many of the study's seeds it is run with
    """

    rounds: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1


@dataclass(frozen=True)
class Trial:
    """A configuration that is taken up to a rung.

    Fields:
        arm:    the number of the configuration, in the order in which they were proposed
        values: what it is
        rung:   how far it is taken; from where it was frozen before, if it was
        parent: the arm that it goes on from, where it does not start anew
    """

    arm: int
    values: Values
    rung: int
    parent: int | None = None


@dataclass(frozen=True)
class Row:
    """A trial, and what came of it.

    Fields:
        done:    whether it has come to an end
        scores:  by objective, the mean over the seeds; NaN where there is none
        each:    by seed, the first objective
        cost:    client-rounds that it took, from where it was frozen before
        seconds: of training, by the clock of whoever did it
        error:   why it failed
    """

    trial: Trial
    done: bool = False
    scores: tuple[float, ...] = ()
    each: tuple[float, ...] = ()
    cost: float = 0.0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Table:
    """The rows of a study, in the order in which they were proposed.

    Fields:
        space: what is searched
        rungs: what trials can be given, the least first
        lower: by objective, whether less is better
        seed:  of the search
        rows:  what was proposed so far; not all of it has come to an end
    """

    space: Space
    rungs: tuple[Rung, ...]
    lower: tuple[bool, ...] = (False,)
    seed: int = 0
    rows: Sequence[Row] = ()

    @property
    def top(self) -> int:
        """The last rung."""
        return len(self.rungs) - 1

    @cached_property
    def arms(self) -> dict[int, Values]:
        """The configurations, by number."""
        return {row.trial.arm: row.trial.values for row in self.rows}

    @cached_property
    def begun(self) -> frozenset[tuple[int, int]]:
        """The (arm, rung) that were proposed."""
        return frozenset((row.trial.arm, row.trial.rung) for row in self.rows)

    @cached_property
    def _done(self) -> Mapping[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            if row.done:
                found.setdefault(row.trial.rung, []).append(row)
        return found

    def at(self, rung: int, arms: Iterable[int] | None = None) -> list[Row]:
        """Return the rows of a rung that are done; of some arms, where they are named."""
        rows = self._done.get(rung, [])
        if arms is None:
            return list(rows)
        wanted = set(arms)
        return [row for row in rows if row.trial.arm in wanted]

    def ranked(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows, the best first: by the first objective, or by the fronts that they are in and by it there.

        Of rows that are equal the one that was proposed first is first.
        """
        every = list(rows)
        front = not_dominated([row.scores for row in every], self.lower) if len(self.lower) > 1 else [0] * len(every)
        key = [(front[i], self.cost_of(row), row.trial.arm, i) for i, row in enumerate(every)]
        return [every[place] for *_, place in sorted(key)]

    def cost_of(self, row: Row) -> float:
        """Return the first objective so that less is better; infinity where there is none."""
        value = row.scores[0]
        return math.inf if math.isnan(value) else value if self.lower[0] else -value

    def drawn(self, arm: int) -> dict[str, Any]:
        """Return the point that is drawn for an arm: the same in every search of the study."""
        return self.space.drawn(arm, self.seed, "arm")

    def fresh(self, rung: int = 0, values: Values | None = None) -> Trial:
        """Return a trial of one more configuration, drawn at random if it is not given."""
        arm = len(self.arms)
        return Trial(arm, self.drawn(arm) if values is None else values, rung)

    def promoted(self, row: Row) -> Trial:
        """Return the trial that takes a configuration up one rung."""
        return Trial(row.trial.arm, row.trial.values, row.trial.rung + 1)

    def so_far(self) -> Iterator[tuple[float, Row]]:
        """Yield after each row the client-rounds so far, and the best row so far of the highest rung so far."""
        spent, best = 0.0, None
        for row in self.rows:
            spent += row.cost
            if row.done and math.isfinite(self.cost_of(row)) and (best is None or self._takes_over(row, best)):
                best = row
            if best is not None:
                yield spent, best

    def _takes_over(self, row: Row, best: Row) -> bool:
        if row.trial.rung != best.trial.rung:
            return row.trial.rung > best.trial.rung
        return self.ranked((row, best))[0] is row

    def best(self) -> Row | None:
        """Return the best row of the highest rung that any is on."""
        for rung in range(self.top, -1, -1):
            rows = [row for row in self.at(rung) if math.isfinite(self.cost_of(row))]
            if rows:
                least = min(map(self.cost_of, rows))  # nothing beats it but what is as good in the first objective
                return self.ranked(row for row in rows if self.cost_of(row) == least)[0]
        return None
