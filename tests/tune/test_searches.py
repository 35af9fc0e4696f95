"""Searches: each keeps to the rules, and its special cases are what they should be."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from isthmus.testing import SEARCH_CHECKS, check_search
from isthmus.testing.searches import MadeUp, toy_study
from isthmus.tune.objectives import Objective, not_dominated
from isthmus.tune.running import search
from isthmus.tune.search import Search
from isthmus.tune.searches import (
    SEARCHES,
    Asha,
    Bohb,
    Gp,
    Grid,
    Hyperband,
    Nsga2,
    PopulationBased,
    Racing,
    RandomSearch,
    SuccessiveHalving,
    Tpe,
)
from isthmus.tune.searches.halving import Bracket
from isthmus.tune.space import Dimension, Space
from isthmus.tune.spec import Budget, Study
from isthmus.tune.table import Row, Rung, Table, Trial

# With few trials before a model is asked, so that it is.
SMALL: dict[str, Search] = {
    "sha": SuccessiveHalving(arms=9),
    "bohb": Bohb(enough=4),
    "tpe": Tpe(start=4),
    "gp": Gp(start=4),
    "nsga2": Nsga2(start=5),
    "pbt": PopulationBased(size=4),
    "racing": Racing(arms=5),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "gp" else n for n in SEARCHES])
def test_every_search_keeps_to_the_rules(name: str) -> None:
    assert check_search(SMALL.get(name, SEARCHES[name]())) == list(SEARCH_CHECKS)


STEPS = Dimension(choices=(1, 2, 4))


def carried(found: Search, **changes: Any) -> Table:
    study = toy_study(found, **changes)
    return search(study, MadeUp(study))


def trials(table: Table) -> list[tuple[int, int]]:
    return [(row.trial.arm, row.trial.rung) for row in table.rows]


# ---- identities


def test_halving_with_one_rung_is_random_search() -> None:
    rungs = (Rung(4, {}, 2),)
    halved = carried(SuccessiveHalving(arms=12), rungs=rungs, budget=Budget())
    drawn = carried(RandomSearch(), rungs=rungs, budget=Budget(trials=12))
    assert halved.rows == drawn.rows and len(halved.rows) == 12


def test_hyperband_asha_and_bohb_with_one_rung_are_random_search() -> None:
    rungs = (Rung(4, {}, 2),)
    drawn = carried(RandomSearch(), rungs=rungs)
    for found in (Hyperband(), Asha(), Bohb(random_fraction=1.0)):
        assert carried(found, rungs=rungs).rows == drawn.rows


def test_bohb_that_draws_all_at_random_is_hyperband() -> None:
    assert carried(Bohb(random_fraction=1.0)).rows == carried(Hyperband()).rows


def slow_halving(study: Study, number: int, factor: float) -> list[tuple[int, int]]:
    """Return the trials of a successive halving, written as one reads it: no table, no tie that is not stated."""
    answers, empty = MadeUp(study), study.table()
    alive = {arm: empty.drawn(arm) for arm in range(number)}
    found = []
    for rung in range(len(study.rungs)):
        scores = {}
        for arm, values in alive.items():
            found.append((arm, rung))
            scores[arm] = answers.row(Trial(arm, values, rung), empty).scores[0]
        keep = max(1, int(len(alive) / factor + 1e-9))
        best = sorted(scores, key=lambda arm: (-scores[arm], arm))[:keep]
        alive = {arm: alive[arm] for arm in best}
    return found


@pytest.mark.parametrize(("number", "factor"), [(9, 2.0), (9, 3.0), (16, 4.0), (5, 1.5), (2, 4.0)])
def test_halving_is_the_slow_one_however_many_trials_are_under_way(number: int, factor: float) -> None:
    for parallel in (1, 3, 20):
        study = toy_study(SuccessiveHalving(arms=number, factor=factor), parallel=parallel, budget=Budget())
        assert trials(search(study, MadeUp(study))) == slow_halving(study, number, factor)


def test_halving_without_a_number_takes_all_points_of_a_finite_space() -> None:
    space = Space({"algorithm.local_steps": Dimension(choices=(1, 2, 4, 8))})
    study = replace(toy_study(SuccessiveHalving(), budget=Budget()), space=space)
    table = search(study, MadeUp(study))
    assert [v["algorithm.local_steps"] for v in table.arms.values()] == [1, 2, 4, 8]
    assert [rung for _, rung in trials(table)] == [0, 0, 0, 0, 1, 1, 2]
    assert table.best() is not None and table.best().trial.arm == 3  # type: ignore[union-attr]


def test_a_space_that_is_too_large_to_be_taken_as_a_whole_is_refused_and_drawn_from() -> None:
    wide = Space({"a": Dimension(low=1, high=10**9), "b": Dimension(choices=(1, 2))})
    problem = SuccessiveHalving().problem(wide, (Rung(1),), 1, 1)
    assert problem == "arms is 0, which takes all points, and the space has 2,000,000,000 points: say how many to draw"
    assert "a range" in SuccessiveHalving().problem(toy_study(RandomSearch()).space, (Rung(1),), 1, 1)
    assert SuccessiveHalving(arms=3).problem(wide, (Rung(1),), 1, 1) == ""
    assert len({wide.drawn(number, 0)["a"] for number in range(5)}) == 5


def test_a_tie_is_the_first_one_s() -> None:
    rows = [Row(Trial(arm, {}, 0), True, (score,)) for arm, score in enumerate((0.5, 0.7, 0.7, float("nan"), 0.7))]
    table = Table(Space({}), (Rung(1), Rung(2)), rows=rows)
    assert [row.trial.arm for row in table.ranked(rows)] == [1, 2, 4, 0, 3]
    lower = replace(table, lower=(True,))
    assert [row.trial.arm for row in lower.ranked(reversed(rows))] == [0, 1, 2, 4, 3]


def test_hyperband_s_brackets_are_those_of_the_paper() -> None:
    # Li et al., Table 1: factor 3, five rungs (1, 3, 9, 27, 81): 81, 34, 15, 8, 5 configurations at the start.
    brackets = Hyperband(factor=3.0).brackets(4)
    first = [next(brackets) for _ in range(6)]
    assert [(each.num_arms, each.lowest) for each in first] == [(81, 0), (34, 1), (15, 2), (8, 3), (5, 4), (81, 0)]
    assert [each.first for each in first] == [0, 81, 115, 130, 138, 143]
    assert [each.sizes(4) for each in first[:3]] == [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1]]


def test_a_bracket_never_keeps_nobody() -> None:
    assert Bracket(0, 3, 0, 4.0).sizes(3) == [3, 1, 1, 1]


def test_asha_takes_up_who_is_among_the_best_of_a_rung_and_does_not_wait() -> None:
    table = carried(Asha(factor=2.0), budget=Budget(trials=6))
    found = trials(table)
    assert found[:3] == [(0, 0), (1, 0), found[2]] and found[2][1] == 1  # of two, the better one
    for place, (arm, rung) in enumerate(found):
        if rung:
            below = [row for row in table.rows[:place] if row.trial.rung == rung - 1]
            best = table.ranked(below)[: len(below) // 2]
            assert arm in [row.trial.arm for row in best]


def test_a_grid_has_every_point_once() -> None:
    table = carried(Grid(points=2), budget=Budget())
    points = [tuple(values.values()) for values in table.arms.values()]
    assert points == [(lr, steps) for lr in (0.01, 1.0) for steps in (1, 2, 4)]
    assert {rung for _, rung in trials(table)} == {2}


# ---- those that learn


def regret(found: Search, seed: int) -> float:
    study = toy_study(found, seed=seed, budget=Budget(trials=24), rungs=(Rung(64, {}, 1),))
    table = search(study, MadeUp(study))
    values = table.best().trial.values  # type: ignore[union-attr]
    noiseless = 0.1 * values["algorithm.local_steps"]
    from math import log10

    return 0.4 - (noiseless - (log10(values["algorithm.optimizer.lr"]) + 1) ** 2)


@pytest.mark.parametrize("found", [Tpe(start=8), pytest.param(Gp(start=8), marks=pytest.mark.slow)])
def test_a_model_finds_better_points_than_chance(found: Search) -> None:
    ours, chance = ([regret(each, seed) for seed in range(4)] for each in (found, RandomSearch()))
    assert sum(ours) < sum(chance)


def test_several_objectives_are_ranked_by_fronts() -> None:
    rows = [Row(Trial(arm, {}, 0), True, scores) for arm, scores in enumerate([(1, 9), (3, 9), (2, 1), (1, 1)])]
    table = Table(Space({}), (Rung(1),), lower=(False, True), rows=rows)
    assert [row.trial.arm for row in table.ranked(rows)] == [1, 2, 3, 0]
    two = (Objective("val/accuracy"), Objective("bytes"))
    for found in (Nsga2(start=4), Tpe(start=4), SuccessiveHalving(arms=6)):
        assert len(carried(found, objectives=two, budget=Budget(trials=12)).rows) >= 9
    assert "one objective" in Gp().problem(Space({}), (Rung(1),), 2, 1)


def test_what_was_drawn_is_drawn_again_only_where_nothing_else_is_left() -> None:
    """A trial repeats to the bit: to draw its configuration again would tell nothing."""
    space = Space({"a": Dimension(choices=(1, 2, 3)), "b": Dimension(low=1, high=4)})
    for seed in range(5):
        table = Table(space, (Rung(1),), seed=seed)
        points = [tuple(table.drawn(arm).values()) for arm in range(12)]
        assert len(set(points)) == 12
        again = Table(space, (Rung(1),), seed=seed)  # whatever was asked for before
        assert tuple(again.drawn(11).values()) == points[11] and tuple(again.drawn(0).values()) == points[0]
        assert len({tuple(table.drawn(arm).values()) for arm in range(12, 24)}) == 12
    # As long as nothing is drawn twice they are plain draws.
    wide = toy_study(RandomSearch()).space
    assert [Table(wide, (Rung(1),), seed=7).drawn(arm) for arm in range(9)] == [
        wide.draw(7, "arm", arm) for arm in range(9)
    ]


@pytest.mark.parametrize("found", [Tpe(start=3), Bohb(enough=3, random_fraction=0.0)], ids=["tpe", "bohb"])
def test_a_model_proposes_no_configuration_twice_as_long_as_there_are_others(found: Search) -> None:
    space = Space({"algorithm.optimizer.lr": Dimension(choices=(0.01, 0.1, 1.0)), "algorithm.local_steps": STEPS})
    study = replace(toy_study(found, budget=Budget(trials=9)), space=space)
    table = search(study, MadeUp(study))
    assert len({tuple(values.values()) for values in table.arms.values()}) == len(table.arms) == 9


def test_a_model_looks_at_what_is_under_way() -> None:
    """What nobody knows yet counts as bad, so that trials at a time are not all in one place."""
    space = Space({"algorithm.optimizer.lr": Dimension(low=0.0, high=1.0)})
    rungs = (Rung(1),)
    done = [Row(Trial(n, {"algorithm.optimizer.lr": n / 12}, 0), True, (-abs(n / 12 - 0.5),)) for n in range(12)]
    spread = []
    for place in (0, 1):
        near = []
        for seed in range(6):
            waiting = [Row(Trial(12 + n, {"algorithm.optimizer.lr": 0.5 + n / 100}, 0)) for n in range(6)] * place
            table = Table(space, rungs, seed=seed, rows=[*done, *waiting])
            trial = Tpe().next(table)
            assert trial is not None
            near.append(abs(trial.values["algorithm.optimizer.lr"] - 0.5))
        spread.append(sum(near))
    assert spread[1] > 1.5 * spread[0]


def test_a_configuration_that_fails_is_learned_from_as_a_bad_one() -> None:
    space = Space({"algorithm.optimizer.lr": Dimension(low=0.0, high=1.0)})
    rows = [
        Row(Trial(n, {"algorithm.optimizer.lr": n / 40}, 0), True, (float("nan") if n > 20 else n * 7 % 10 / 10,))
        for n in range(40)
    ]
    drawn = []
    for seed in range(12):
        trial = Tpe().next(Table(space, (Rung(1),), seed=seed, rows=rows))
        assert trial is not None
        drawn.append(trial.values["algorithm.optimizer.lr"])
    assert sum(value > 0.55 for value in drawn) <= 2


def test_bohb_learns_from_as_many_good_ones_as_the_paper_says() -> None:
    # Falkner et al., section 3.2: with d keys it begins with d + 3 observations, of which the best
    # max(d + 1, 15 %) are good ones.
    assert [Bohb().num_good(number, 2) for number in (5, 6, 20, 21, 40)] == [3, 3, 3, 4, 6]
    space = toy_study(RandomSearch()).space
    table = Table(space, (Rung(1), Rung(2)))
    rows = [Row(Trial(n, table.drawn(n), 0), True, (float(n),)) for n in range(5)]
    for number, is_model in ((4, False), (5, True)):
        part = Table(space, (Rung(1), Rung(2)), rows=rows[:number])
        found = Bohb(random_fraction=0.0).fresh(part, 0)
        assert (found.values != table.drawn(number)) == is_model


def slow_fronts(scores: Sequence[Sequence[float]], lower: Sequence[bool]) -> list[int]:
    """Return the fronts as one says them: NaN is worse than any number."""

    def cost(row: Sequence[float]) -> list[float]:
        return [float("inf") if s != s else s if less else -s for s, less in zip(row, lower, strict=True)]

    costs, found = [cost(row) for row in scores], {}
    while len(found) < len(costs):
        left = [i for i in range(len(costs)) if i not in found]
        beaten = {i for i in left for j in left if costs[j] != costs[i] and all(map(float.__le__, costs[j], costs[i]))}
        found |= {i: max(found.values(), default=-1) + 1 for i in left if i not in beaten}
    return [found[i] for i in range(len(costs))]


@pytest.mark.parametrize("lower", [(False,), (True, False), (False, True, True)])
def test_fronts_are_those_that_one_peels_off(lower: tuple[bool, ...]) -> None:
    rng = random.Random(0)
    for _ in range(30):
        number = rng.randrange(12)
        values = [float("nan"), 0.0, 1.0, 2.0, 3.0, 4.0]
        scores = [[rng.choice(values) for _ in lower] for _ in range(number)]
        assert not_dominated(scores, lower) == slow_fronts(scores, lower)


def test_the_best_so_far_is_the_best_of_the_rows_so_far() -> None:
    for objectives in ((Objective("val/accuracy"),), (Objective("val/accuracy"), Objective("bytes"))):
        table = carried(Asha(), objectives=objectives, budget=Budget(trials=12))
        found = list(table.so_far())
        for number, (spent, best) in enumerate(found, start=1):
            part = replace(table, rows=table.rows[:number])
            assert best == part.best() and spent == sum(row.cost for row in part.rows)
        assert len(found) == len(table.rows)


def test_a_thousand_trials_with_two_objectives_are_ranked_in_a_second() -> None:
    rng = random.Random(0)
    rows = [Row(Trial(arm, {}, 0), True, (rng.random(), rng.random())) for arm in range(1000)]
    table = Table(Space({}), (Rung(1),), lower=(False, True), rows=rows)
    started = time.process_time()
    assert len(table.ranked(rows)) == len(list(table.so_far())) == 1000 and table.best() is not None
    assert time.process_time() - started < 1.0


# ---- populations


def test_a_population_goes_on_from_checkpoints_and_the_worst_from_those_of_the_best() -> None:
    table = carried(PopulationBased(size=4, replaced=0.25), budget=Budget())
    found = [(row.trial.arm, row.trial.rung, row.trial.parent) for row in table.rows]
    assert [rung for _, rung, _ in found] == [0] * 4 + [1] * 4 + [2] * 4
    ranked = [row.trial.arm for row in table.ranked(table.at(0))]
    parents = {arm - 4: parent for arm, rung, parent in found if rung == 1}
    assert parents == {arm: ranked[0] if arm == ranked[-1] else arm for arm in range(4)}
    values = {row.trial.arm: row.trial.values for row in table.rows}
    for arm in range(4):
        assert (values[arm + 4] == values[arm]) == (arm != ranked[-1])
    moved, best = values[ranked[-1] + 4], values[ranked[0]]
    rates = [each["algorithm.optimizer.lr"] for each in (moved, best)]
    assert (
        rates[0] / rates[1] == pytest.approx(1.2)
        or rates[0] / rates[1] == pytest.approx(1 / 1.2)
        or rates[0] in (0.01, 1.0)
    )


def test_a_population_refuses_what_cannot_change_mid_course() -> None:
    space = Space({"model.gnn.hidden": Dimension(choices=(4, 8))})
    lr = Space({"algorithm.optimizer.lr": Dimension(choices=(0.1, 1.0))})
    assert "seeds" in PopulationBased().problem(lr, (Rung(1, {}, 1), Rung(2, {}, 2)), 1, 2)
    assert PopulationBased().problem(lr, (Rung(1, {}, 2), Rung(2, {}, 2)), 1, 2) == ""
    assert "model.gnn.hidden cannot change" in PopulationBased().problem(space, (Rung(1),), 1, 1)


# ---- races


@dataclass(frozen=True)
class Given:
    """Answers with what is given for each arm and seed."""

    each: Sequence[Sequence[float]]

    def start(self, trial: Trial, table: Table) -> None:
        pass

    def row(self, trial: Trial, table: Table) -> Row:
        each = tuple(self.each[trial.arm][: table.rungs[trial.rung].seeds])
        return Row(trial, True, (sum(each) / len(each),), each)


def test_a_race_drops_who_is_worse_on_nearly_every_split_and_keeps_who_may_be_as_good() -> None:
    rungs = tuple(Rung(4, {}, seeds) for seeds in (2, 4, 6, 8))
    good = [0.80, 0.70, 0.90, 0.75, 0.85, 0.65, 0.95, 0.72]
    bad = [each - 0.02 - 0.001 * place for place, each in enumerate(good)]
    like = [each + (0.03 if place % 2 else -0.031) for place, each in enumerate(good)]
    study = toy_study(Racing(arms=3), rungs=rungs, seeds=tuple(range(8)), budget=Budget())
    table = search(study, Given((good, bad, like)))
    seen = {arm: max(rung for each, rung in trials(table) if each == arm) for arm in range(3)}
    # With four pairs nobody can be told to be worse at 5 %: the smallest value is 1/16; with six it is 1/64.
    assert seen == {0: 3, 1: 2, 2: 3}
    assert "more seeds" in Racing().problem(Space({}), (Rung(1), Rung(2)), 1, 1)


# ---- the check


@dataclass(frozen=True)
class Forgetful(Search):
    """Proposes something else whenever it is asked."""

    def next(self, table: Table) -> Trial | None:
        COUNT.append(0)
        return None if len(table.arms) >= 3 else table.fresh(0, {**table.drawn(len(COUNT))})


@dataclass(frozen=True)
class Endless(Search):
    """Says that it ends."""

    def next(self, table: Table) -> Trial | None:
        return table.fresh()


@dataclass(frozen=True)
class Outside(Search):
    """Leaves the space."""

    def next(self, table: Table) -> Trial | None:
        return None if table.arms else table.fresh(0, {"algorithm.optimizer.lr": 7.0})


@dataclass(frozen=True)
class Twice(Search):
    """Proposes a trial again."""

    def next(self, table: Table) -> Trial | None:
        return Trial(0, table.drawn(0), 0)


@dataclass(frozen=True)
class Nothing(Search):
    """Proposes nothing."""

    def next(self, table: Table) -> Trial | None:
        return None


COUNT: list[int] = []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Forgetful(), "'forgets': of the same table"),
        (Endless(), "'proposes': it has proposed"),
        (Outside(), "'proposes': algorithm.optimizer.lr is 7.0"),
        (Twice(), "which it has proposed before"),
        (Nothing(), "it proposes nothing"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_check_finds_what_breaks_a_rule(found: Search, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_search(found)
    with pytest.raises(ValueError, match=r"Did you mean 'proposes'\?"):
        check_search(found, skip=["propose"])
