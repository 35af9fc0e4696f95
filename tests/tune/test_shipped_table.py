"""The lookup table that ships with isthmus: it is of the study beside it, small, and searched in milliseconds."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np
import pytest

import isthmus.tune
from isthmus.runs.simulated import run
from isthmus.tune.curves import Curves, LookedUp
from isthmus.tune.filling import Filling
from isthmus.tune.reading import load_study
from isthmus.tune.running import search
from isthmus.tune.searches import RandomSearch, SuccessiveHalving

TABLES = Path(isthmus.tune.__file__).parent / "tables"
STUDY, CURVES = load_study(TABLES / "cora.yaml"), Curves.load(TABLES / "cora.npz")


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "tuning.py"
    spec = importlib.util.spec_from_file_location("tuning_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tuning_benchmark"] = module
    spec.loader.exec_module(module)
    return module


def test_it_is_of_the_study_beside_it_and_small() -> None:
    facts = Filling.of(STUDY, CURVES.fractions).facts()
    assert {key: value for key, value in facts.items() if CURVES.facts.get(key) != value} == {}
    assert CURVES.values.shape == (144, 2, len(STUDY.seeds), 4, 27) and CURVES.seeds == STUDY.seeds
    assert (TABLES / "cora.npz").stat().st_size < 1_000_000
    assert not np.isnan(CURVES.final).any() and (CURVES.kept[..., 0] == 1).all()
    assert 0.8 < CURVES.truth().max() < 0.9 and CURVES.truth().min() < 0.35


def test_a_curve_of_it_is_what_the_course_gives_today() -> None:
    point = 143
    course = replace(STUDY.course(CURVES.points[point], None, 1), rounds=2, threads=1)
    result = run(course)
    rounds = [event for event in result.events if event["event"] == "round"]
    place = CURVES.metrics.index("val/accuracy")
    curve = CURVES.values[point, CURVES.fractions.index(1.0), CURVES.seeds.index(1), place]
    # Another processor may add up in another order; a score moves by whole examples.
    assert [event["metrics"]["val/accuracy"] for event in rounds] == pytest.approx(curve[:2].tolist(), abs=0.02)


def test_halving_finds_better_configurations_than_chance_for_half_of_the_cost() -> None:
    found = benchmark()
    each = {
        search: [found.regret_of(STUDY, CURVES, search, seed, 0.2) for seed in range(5)]
        for search in (SuccessiveHalving(factor=3.0), RandomSearch())
    }
    halving, chance = each.values()
    assert median(r for r, *_ in halving) < median(r for r, *_ in chance)
    assert max(cost for *_, cost in halving) < 0.6 * min(cost for *_, cost in chance)


def test_the_interval_of_a_median_is_that_of_order_statistics() -> None:
    # Of 20 values the 6th and the 15th: below the 6th there are at most 5, which has the probability 0.0207.
    assert benchmark().median_interval([float(n) for n in range(1, 21)]) == (10.5, 6.0, 15.0)


def test_looking_up_takes_milliseconds() -> None:
    import time

    made = replace(STUDY, seeds=(0,), rungs=tuple(replace(rung, seeds=1) for rung in STUDY.rungs))
    started = time.process_time()
    table = search(made, LookedUp(made, CURVES))
    assert len(table.rows) == 144 + 48 + 16 + 5 and time.process_time() - started < 1.0
