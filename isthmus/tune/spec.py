"""A study: a space over keys of a course, what trials are given, a search, what is wanted, and when it ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from isthmus.config.build import Builder, describe
from isthmus.config.course import Course
from isthmus.config.load import merge
from isthmus.core.errors import refuse
from isthmus.tune.objectives import Objective
from isthmus.tune.search import Search
from isthmus.tune.searches import RandomSearch
from isthmus.tune.space import OF_CLIENT, Space, Values
from isthmus.tune.table import Row, Rung, Table


@dataclass(frozen=True)
class Budget:
    """When a search proposes nothing more; null: not by this.

    Fields:
        trials:        configurations that are begun
        client_rounds: rounds, each counted once for every client that takes part in it
        seconds:       of training, by this machine's clock: no two machines have the same trials then
    """

    trials: int | None = None
    client_rounds: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "client_rounds", "seconds"):
            value = getattr(self, name)
            refuse(value is not None and not value > 0, self, name, "it must be positive, or null")


@dataclass(frozen=True)
class Study:
    """What is searched, and how.

    Fields:
        title:       for people
        base:        keys of the course that all trials have
        space:       keys that are searched
        rungs:       what a trial can be given, the least first
        search:      what proposes trials
        objectives:  what is wanted
        budget:      when it ends
        seeds:       of the courses; a rung may take the first few alone
        final_seeds: of the courses that the best point is scored by in the end; no trial has seen them
        seed:        of the search
        parallel:    how many trials may be under way when one more is proposed
        source:      the file, for messages
    """

    title: str
    base: Mapping[str, Any]
    space: Space
    rungs: tuple[Rung, ...]
    search: Search = RandomSearch()
    objectives: tuple[Objective, ...] = (Objective("val/accuracy"),)
    budget: Budget = Budget()
    seeds: tuple[int, ...] = (0,)
    final_seeds: tuple[int, ...] = ()
    seed: int = 0
    parallel: int = 1
    source: str = field(default="", compare=False)

    @property
    def top(self) -> int:
        """The last rung."""
        return len(self.rungs) - 1

    def course(self, values: Values, rung: int | None = None, seed: int | None = None) -> Course:
        """Return the course of a point: as on a rung, the last by default, with one of the seeds, the first by default.

        On every rung it says the rounds of the last one: a rung is a place on the way, and no end.
        """
        found = self.rungs[self.top if rung is None else rung]
        last = {"rounds": self.rungs[self.top].rounds, "seed": self.seeds[0] if seed is None else seed}
        raw = merge(self.base, self._changes({**values, **found.changes, **last}), self.source)
        course: Course = Builder(self.source).fields(Course, raw, "")
        return course

    def _changes(self, keys: Values) -> list[tuple[list[str], Any]]:
        """Return keys as paths; settings of single clients, whose own keys have dots, as a whole."""
        prefix = f"{OF_CLIENT}."
        own: dict[str, dict[str, Any]] = {}
        for key, value in keys.items():
            if key.startswith(prefix):
                client, _, name = key.removeprefix(prefix).partition(".")
                own.setdefault(client, {})[name] = value
        changes = [(key.split("."), value) for key, value in keys.items() if not key.startswith(prefix)]
        if own:
            said = self.base.get(OF_CLIENT) or {}
            changes.append(([OF_CLIENT], {**said, **{name: {**said.get(name, {}), **own[name]} for name in own}}))
        return changes

    @cached_property
    def first(self) -> Values:
        """Some point of the space."""
        return next(self.space.points(2))

    def table(self, rows: tuple[Row, ...] = ()) -> Table:
        """Return what the search knows when there are these rows."""
        return Table(self.space, self.rungs, tuple(each.lower for each in self.objectives), self.seed, rows)

    def cohort(self, rung: int) -> float:
        """Return how many clients take part in a round on a rung, in the mean."""
        return self._cohorts[rung]

    def fraction(self, rung: int) -> float:
        """Return the share of the clients that takes part in a round on a rung."""
        return self._fractions[rung]

    @cached_property
    def _fractions(self) -> tuple[float, ...]:
        return tuple(self.course(self.first, rung).sampling.fraction for rung in range(len(self.rungs)))

    @cached_property
    def _cohorts(self) -> tuple[float, ...]:
        courses = [self.course(self.first, rung) for rung in range(len(self.rungs))]
        return tuple(1.0 if c.algorithm.pooled else c.sampling.expected(c.num_clients) for c in courses)

    def cost(self, rung: int, before: int | None) -> float:
        """Return the client-rounds that a trial takes on a rung, from the rung it was frozen on before."""
        found = self.rungs[rung]
        done = Rung(0, seeds=0) if before is None else self.rungs[before]
        rounds = [found.rounds - (done.rounds if number < done.seeds else 0) for number in range(found.seeds)]
        return self.cohort(rung) * sum(rounds)

    def whole_cost(self) -> float:
        """Return the client-rounds of one configuration that is taken to the last rung at once."""
        return self.cost(self.top, None)

    def facts(self) -> dict[str, Any]:
        """Return what decides its trials, as plain values: all but how long it goes on."""
        return {
            "title": self.title,
            "base": json.loads(json.dumps(self.base, default=str)),
            "space": {key: describe(dimension) for key, dimension in self.space.dimensions.items()},
            "rungs": [describe(rung) for rung in self.rungs],
            "search": describe(self.search),
            "objectives": [describe(each) for each in self.objectives],
            "seeds": list(self.seeds),
            "seed": self.seed,
            "parallel": self.parallel,
        }


def digest_of(**facts: Any) -> str:
    """Return a few letters that tell facts apart."""
    return hashlib.sha256(json.dumps(describe(facts), sort_keys=True, default=str).encode()).hexdigest()[:10]
