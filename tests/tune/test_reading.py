"""Study files: what they say, and every mistake that is told before the first trial."""

from __future__ import annotations

import re
from typing import Any

import pytest

from isthmus.core.errors import BadInput
from isthmus.tune.objectives import Objective
from isthmus.tune.reading import read_study
from isthmus.tune.searches import Hyperband, RandomSearch
from isthmus.tune.spec import Budget, Study
from isthmus.tune.table import Rung

USUAL: dict[str, Any] = {
    "base": {"dataset": "csbm", "num_clients": 2, "rounds": 8},
    "space": {"algorithm.optimizer.lr": [0.1, 0.2]},
    "budget": {"trials": 4},
}


def study(**changes: Any) -> Study:
    return read_study({**USUAL, **changes}, "s.yaml", "mine")


def test_what_is_not_said_is_a_random_search_for_accuracy_with_the_course_s_own_rounds_and_seed() -> None:
    found = study()
    assert (found.title, found.rungs, found.search) == ("mine", (Rung(8, {}, 1),), RandomSearch())
    assert (found.objectives, found.budget) == ((Objective("val/accuracy"),), Budget(trials=4))
    assert (found.seeds, found.final_seeds, found.parallel, found.seed) == ((0,), (), 1, 0)


def test_a_study_says_all_that_it_can_say() -> None:
    found = study(
        fidelity={"rounds": [2, 4, 8], "sampling.fraction": [0.5, 0.5, 1.0], "seeds": [1, 1, 3]},
        search={"name": "hyperband", "factor": 3},
        objectives=["val/loss", "bytes"],
        seeds=[4, 5, 6],
        final_seeds=2,
        at="last",
        parallel=3,
        seed=9,
    )
    assert found.rungs == tuple(
        Rung(*each)
        for each in (
            (2, {"sampling.fraction": 0.5}, 1),
            (4, {"sampling.fraction": 0.5}, 1),
            (8, {"sampling.fraction": 1.0}, 3),
        )
    )
    assert found.search == Hyperband(factor=3.0) and found.final_seeds == (7, 8)
    assert [each.lower for each in found.objectives] == [True, True] and found.objectives[0].at == "last"
    course = found.course({"algorithm.optimizer.lr": 0.2}, 0, 5)
    assert (course.algorithm.optimizer.lr, course.rounds, course.seed, course.sampling.fraction) == (0.2, 8, 5, 0.5)


@pytest.mark.parametrize(
    ("said", "rounds"),
    [
        ({"low": 1, "high": 8}, [1, 2, 4, 8]),
        ({"low": 4, "high": 64, "factor": 3}, [4, 12, 36, 64]),
        ({"low": 3, "high": 3}, [3]),
        ({"low": 1, "high": 3, "factor": 1.2}, [1, 2, 3]),
    ],
)
def test_a_ladder_of_rounds(said: Any, rounds: list[int]) -> None:
    assert [rung.rounds for rung in study(fidelity={"rounds": said}).rungs] == rounds


def test_what_trials_cost_is_counted_from_where_they_were_frozen() -> None:
    found = study(
        base={**USUAL["base"], "num_clients": 5},
        fidelity={"rounds": [2, 6], "sampling.fraction": [0.4, 1.0], "seeds": [1, 3]},
        seeds=3,
    )
    assert found.cohort(0) == 2 and found.cohort(1) == 5
    assert (found.cost(0, None), found.cost(1, 0), found.cost(1, None)) == (4, 5 * (4 + 6 + 6), 5 * 18)
    pooled = study(base={**USUAL["base"], "algorithm": "global"})
    assert pooled.cost(0, None) == 8


def test_numbers_that_yaml_takes_for_words_are_numbers() -> None:
    found = study(space={"algorithm.optimizer.lr": ["1e-3", "1e-2", 0.1], "stopping.metric": ["accuracy", "loss"]})
    rates, words = found.space.dimensions.values()
    assert rates.choices == (0.001, 0.01, 0.1) and rates.ordered
    assert words.choices == ("accuracy", "loss") and not words.ordered


def test_settings_of_single_clients_join_those_of_the_base() -> None:
    found = study(
        base={**USUAL["base"], "client_settings": {"client-0": {"local_steps": 2}}},
        space={"optimizer.lr": {"choices": [0.1, 0.3], "each": "client"}},
    )
    point = {"client_settings.client-0.optimizer.lr": 0.3, "client_settings.client-1.optimizer.lr": 0.1}
    settings = found.course(point).client_settings
    assert settings == {"client-0": {"local_steps": 2, "optimizer.lr": 0.3}, "client-1": {"optimizer.lr": 0.1}}


MU = {"choices": [0.1], "when": {"algorithm.name": ["fedprox", "ditto"]}}
FIVE = {"choices": [0.1], "when": {"algorithm.local_steps": 5}}
BIG = {"algorithm": {"weighting": "uniform"}, "guards": [{"name": "client_dp", "clip": 1.0, "noise": 1.0}]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spaces": {}}, "s.yaml: spaces is not a known key; .*Did you mean 'space'"),
        ({"space": {"algorithm.optimizer.lrr": [1]}}, "lrr is not a known key; .*Did you mean 'lr'"),
        ({"space": {"algorithm.optimizr.lr": [1]}}, "optimizr is not a known key; .*Did you mean 'optimizer'"),
        ({"space": {"algorithm.optimizer.lr": {"low": 1, "high": 0.1}}}, "between which there is nothing"),
        ({"space": {"algorithm.optimizer.lr": [0.1, -1]}}, "space.algorithm.optimizer.lr: .*lr is -1"),
        ({"space": {"algorithm.local_steps": [1, 1.5]}}, "local_steps is 1.5, expected a whole number"),
        ({"space": {"rounds": [1, 2]}}, "space.rounds cannot be searched"),
        ({"space": {"seed": [1, 2]}}, "space.seed cannot be searched"),
        (
            {"space": {"algorithm.name": ["fedavg", "fedprox"], "algorithm.mu": MU}},
            "mu.when: algorithm.name is never 'ditto'; it can be 'fedavg', 'fedprox'",
        ),
        (
            {"space": {"algorithm.local_steps": {"low": 1, "high": 4}, "algorithm.optimizer.lr": FIVE}},
            "lr.when: algorithm.local_steps is never 5; it can be from 1 to 4",
        ),
        ({"space": {"optimizer.lrr": {"choices": [0.1], "each": "client"}}}, "client_settings.client-0.*lrr"),
        ({"objectives": ["val/acuracy"]}, "no journal of the course has 'val/acuracy'; .*Did you mean 'val/accuracy'"),
        ({"objectives": ["test/accuracy"]}, "no journal of the course has 'test/accuracy'"),
        ({"objectives": ["epsilon"]}, "no guard of the course uses up an epsilon"),
        ({"objectives": []}, "expected a list of names"),
        ({"fidelity": {"epochs": 3}}, "fidelity.epochs is no fidelity; known: rounds, sampling.fraction, seeds"),
        ({"fidelity": {"rounds": [4, 2]}}, "must not become fewer"),
        ({"fidelity": {"rounds": [4, 4]}}, "twice: a rung must give more"),
        ({"fidelity": {"rounds": [1, 2, 3], "seeds": [1, 1]}}, "has 2 values, and another fidelity has 3"),
        ({"fidelity": {"seeds": 2}}, "seeds is 2, and the study has 1 seeds"),
        ({"fidelity": {"rounds": [0, 2]}}, "fidelity.rounds is 0, expected a whole number from 1 on"),
        ({"fidelity": {"sampling.fraction": [0.0]}}, "fraction is 0.0; it must be in"),
        ({"base": {**USUAL["base"], "evaluate_every": 3}, "fidelity": {"rounds": [2, 4]}}, "evaluated every 3 rounds"),
        (
            {
                "base": {**USUAL["base"], "algorithm": "global"},
                "fidelity": {"sampling.fraction": [0.5, 1.0], "rounds": [1, 2]},
            },
            "fidelity.sampling.fraction changes from rung to rung, and cannot in this course: global has one client",
        ),
        (
            {"base": {**USUAL["base"], **BIG}, "fidelity": {"sampling.fraction": [0.5, 1.0], "rounds": [1, 2]}},
            "the guard ClientDP counts",
        ),
        (
            {
                "space": {"algorithm.name": ["fedavg", "global"]},
                "fidelity": {"sampling.fraction": [0.5, 1.0], "rounds": [1, 2]},
            },
            "cannot in a course of the space: global has one client",
        ),
        ({"budget": {}}, "budget is missing, and the search would never end"),
        ({"budget": {"trials": 0}}, "trials is 0; it must be positive"),
        ({"budget": {"trail": 4}}, "trail is not a known key; .*Did you mean 'trials'"),
        ({"search": "shaa"}, "search.name is 'shaa'; .*Did you mean 'sha'"),
        ({"search": {"name": "sha", "arms": 4, "factor": 1}}, "factor is 1.0; it must be more than 1"),
        (
            {"search": "sha", "space": {"algorithm.optimizer.lr": {"low": 0.1, "high": 1.0}}},
            "search: arms is 0, which takes all points",
        ),
        ({"search": "racing"}, "each rung needs more seeds|budget"),
        ({"search": "pbt", "space": {"model.gnn.hidden": [4, 8]}}, "model.gnn.hidden cannot change"),
        ({"seeds": []}, "seeds is .., expected at least one"),
        ({"seeds": [1, 1]}, "which has a seed twice"),
        ({"seeds": [1, 2], "final_seeds": [2]}, "final_seeds has 2, which trials see"),
        ({"parallel": 0}, "parallel is 0, expected a whole number from 1 on"),
        ({"at": "first"}, "at is 'first'; choose from best, last"),
        ({"base": {"dataset": "coraa"}}, "s.yaml: base: dataset.name is 'coraa'"),
    ],
)
def test_mistakes_are_told_before_the_first_trial(changes: Any, words: str) -> None:
    if "search" in changes and changes["search"] == "racing":
        changes = {**changes, "fidelity": {"rounds": [1, 2]}}
    with pytest.raises(BadInput, match=words) as caught:
        study(**changes)
    assert re.match(r"s\.yaml", str(caught.value))
