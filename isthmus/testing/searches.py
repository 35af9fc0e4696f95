"""What every search must keep to, as one check for searches of one's own.

    from isthmus.testing import check_search
    check_search(MySearch(my_field=3))

The search is asked for trials on a made-up response, or on a study of yours. AssertionError says which rule is broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isthmus.config.build import Builder, describe
from isthmus.core.errors import IsthmusError, nearest
from isthmus.core.random import numpy_generator
from isthmus.testing.inspection import require_frozen
from isthmus.tune.running import search as carried_out
from isthmus.tune.search import Search
from isthmus.tune.space import Dimension, Space
from isthmus.tune.spec import Budget, Study
from isthmus.tune.table import Row, Rung, Table, Trial

MOST = 60  # trials of a search that does not end by itself


def toy_study(search: Search, **changes: object) -> Study:
    """Return a study whose trials nobody computes: two keys that may change mid-course, three rungs."""
    space = Space(
        {
            "algorithm.optimizer.lr": Dimension(low=0.01, high=1.0, log=True),
            "algorithm.local_steps": Dimension(choices=(1, 2, 4)),
        }
    )
    # Where trials go on from others, all of these have the same seeds.
    rungs = tuple(Rung(rounds, {}, 3 if search.forks else seeds) for rounds, seeds in ((1, 1), (2, 2), (4, 3)))
    fields = {"rungs": rungs, "search": search, "seeds": (0, 1, 2), "budget": Budget(trials=MOST // 3), **changes}
    return Study(title="toy", base={"rounds": 4}, space=space, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MadeUp:
    """Answers without a course: the best rate is 0.1, more steps are better, and low rungs are noisy."""

    study: Study

    def start(self, trial: Trial, table: Table) -> None:
        """Do nothing."""

    def row(self, trial: Trial, table: Table) -> Row:
        """Return what comes of a trial."""
        rung = self.study.rungs[trial.rung]
        each = tuple(self._score(trial, seed, rung.rounds) for seed in range(rung.seeds))
        scores = (sum(each) / len(each), *(float(rung.rounds) for _ in self.study.objectives[1:]))
        return Row(trial, True, scores, each, self.study.cost(trial.rung, None))

    def _score(self, trial: Trial, seed: int, rounds: int) -> float:
        rate = float(trial.values.get("algorithm.optimizer.lr", 0.1))
        steps = float(trial.values.get("algorithm.local_steps", 1))
        noise = float(numpy_generator(trial.arm, trial.rung, seed, "noise").normal()) / rounds
        return 0.1 * steps - (math.log10(rate) + 1) ** 2 + 0.1 * noise


def check_search(search: Search, *, study: Study | None = None, skip: Sequence[str] = ()) -> list[str]:
    """Run every check (`SEARCH_CHECKS`) but those in `skip`; raise AssertionError for a broken rule.

    Returns the names of the checks that were made. A study of yours must have the search's own budget.
    """
    for name in skip:
        if name not in SEARCH_CHECKS:
            raise ValueError(f"skip has {name!r}; {nearest(name, SEARCH_CHECKS)}")
    made = toy_study(search) if study is None else replace(study, search=search)
    names = [name for name in SEARCH_CHECKS if name not in skip]
    for name in names:
        try:
            SEARCH_CHECKS[name](made)
        except (AssertionError, IsthmusError) as error:
            raise AssertionError(f"{type(search).__name__}, check {name!r}: {error}") from error
    return names


def _sayable(study: Study) -> None:
    """Check that it is a frozen dataclass, and that a file can say it."""
    require_frozen(study.search)
    plain = describe(study.search)
    again = Builder("a study").build(Search, plain, "search")
    assert again == study.search, f"{plain} is read back as {again}"


def _can(study: Study) -> None:
    """Check that it says itself that it can search the space."""
    problem = study.search.problem(study.space, study.rungs, len(study.objectives), len(study.seeds))
    assert not problem, problem


def _proposes(study: Study) -> None:
    """Check that it proposes points of the space, and ends where it says so."""
    free = replace(study, budget=Budget()) if study.search.ends else study
    table = carried_out(free, _Bounded(MadeUp(free)))
    assert table.rows, "it proposes nothing"
    for row in table.rows:
        values = row.trial.values
        assert study.space.there(values) == dict(values), (
            f"{dict(values)} has keys that are not there beside the others"
        )
        for key, value in values.items():
            dimension = study.space.dimensions[key]
            ends = (dimension.low or 0.0, dimension.high or 0.0)
            inside = value in dimension.choices if dimension.choices else ends[0] <= value <= ends[1]
            assert inside, f"{key} is {value!r}, which is not in the space"


@dataclass
class _Bounded:
    """Refuses to answer for ever."""

    answers: MadeUp
    number: int = 0

    def start(self, trial: Trial, table: Table) -> None:
        """Count."""
        self.number += 1
        assert self.number <= 10 * MOST, f"it has proposed {self.number} trials, and does not end"

    def row(self, trial: Trial, table: Table) -> Row:
        """Return what comes of a trial."""
        return self.answers.row(trial, table)


def _forgets(study: Study) -> None:
    """Check that it has no memory but the table: one that is new proposes the same, wherever the table stands."""
    table = carried_out(study, MadeUp(study))
    again = Builder("a study").build(Search, describe(study.search), "search")
    for number in sorted({0, 1, len(table.rows) // 2, len(table.rows) - 1}):
        part = study.table(tuple(table.rows[:number]))
        first, second, third = study.search.next(part), study.search.next(part), again.next(part)
        assert first == second == third, f"of the same table it makes {first}, {second} and, being new, {third}"


def _in_any_number(study: Study) -> None:
    """Check that with several trials at a time it comes to an end too, each time the same."""
    several = replace(study, parallel=4)
    one, two = (carried_out(several, MadeUp(several)) for _ in range(2))
    assert one.rows == two.rows, "with four trials at a time it proposes other trials each time"
    assert all(row.done for row in one.rows) and one.rows, "trials are left over"


SEARCH_CHECKS: dict[str, Callable[[Study], None]] = {
    "sayable": _sayable,
    "can": _can,
    "proposes": _proposes,
    "forgets": _forgets,
    "in any number": _in_any_number,
}
