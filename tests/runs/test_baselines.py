from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.algorithms import FedAvg, FedGRL, Local, Pooled
from isthmus.core.errors import BadInput
from isthmus.learn.optimizers import Adam
from isthmus.privacy import NormBound, RobustFold
from isthmus.runs.simulated import baseline, table_of
from isthmus.testing import toy_course, toy_scenario

COURSE = toy_course(FedAvg(local_steps=3, optimizer=Adam(lr=0.02)), rounds=2)


def test_a_baseline_has_the_same_local_training_as_far_as_the_course_has_it() -> None:
    assert baseline(COURSE, "local").algorithm == Local(local_steps=3, optimizer=Adam(lr=0.02))
    alone = baseline(toy_course(FedAvg(), min_replies=2), "global")
    assert isinstance(alone.algorithm, Pooled) and alone.min_replies == 1
    assert baseline(toy_course(FedGRL()), "local").algorithm == Local(optimizer=FedGRL().optimizer)


def test_results_come_by_title_and_are_those_of_single_runs(tmp_path: Path) -> None:
    scenario = toy_scenario()
    results = ist.run_with_baselines(COURSE, scenario=scenario, run_dir=tmp_path / "run")
    assert list(results) == ["fedavg", "Local", "Global (centralised)"]
    assert results["fedavg"].metrics == ist.run(COURSE, scenario=scenario).metrics
    assert results["Local"].client_scores == ist.run(baseline(COURSE, "local"), scenario=scenario).client_scores
    places = [result.run_dir for result in results.values()]
    assert places == [tmp_path / "run", tmp_path / "run/baselines/local", tmp_path / "run/baselines/global"]
    heading, *rows = (tmp_path / "run/report.md").read_text().splitlines()
    assert [cell.strip() for cell in heading.split("|")[3:6]] == list(results)
    assert (tmp_path / "run/report.md").read_text() == table_of(results).markdown()
    assert len(rows) == 1 + len(scenario.parts) + 2


def test_a_run_leaves_its_table_whoever_started_it(tmp_path: Path) -> None:
    result = ist.run(COURSE, scenario=toy_scenario(), run_dir=tmp_path / "run")
    assert (tmp_path / "run/report.md").read_text() == table_of({"fedavg": result}).markdown()


def test_every_run_is_watched_and_a_folder_that_is_there_is_refused_first(tmp_path: Path) -> None:
    seen: list[tuple[str, str, Any]] = []

    class Watched:
        def __init__(self, title: str, course: Any, path: Any) -> None:
            seen.append((title, type(course.algorithm).__name__, path))

        def __enter__(self) -> list[Any]:
            return []

        def __exit__(self, *error: Any) -> None: ...

    ist.run_with_baselines(COURSE, scenario=toy_scenario(), watch=Watched)
    assert seen == [("fedavg", "FedAvg", None), ("Local", "Local", None), ("Global (centralised)", "Pooled", None)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine").write_text("")
    with pytest.raises(BadInput, match="exists already"):
        ist.run_with_baselines(COURSE, run_dir=tmp_path / "run", data_root=tmp_path / "none")


def test_baselines_have_no_messages_and_so_no_guards() -> None:
    """A check that needs several replies, or a fold, would refuse a course of one client, or of none that is asked."""
    course = toy_course(FedAvg(local_steps=1), guards=(NormBound(times_median=3.0), RobustFold()), rounds=1)
    results = ist.run_with_baselines(course, scenario=toy_scenario())
    assert [len(result.course.guards) for result in results.values()] == [2, 0, 0]
