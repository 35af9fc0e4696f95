from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import isthmus.suites.same_data as same_data
from isthmus.config.build import Builder
from isthmus.config.course import Course
from isthmus.data.zoo import Folders
from isthmus.suites.same_data import LastScenario, division, side_by_side
from isthmus.suites.spec import load_suite
from isthmus.testing import toy_scenario

FILE: dict[str, Any] = {
    "seeds": 3,
    "base": {"rounds": 2},
    "axes": {
        "clients": {"few": {"num_clients": 2}, "many": {"num_clients": 5}},
        "method": {"FedAvg": {"search": {"algorithm.local_steps": [1, 2]}}, "FedProx": {"algorithm.name": "fedprox"}},
    },
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({**FILE, **changes}))
    return path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes note of every course that is built."""
    found: list[str] = []
    fields = Builder.fields

    def noting(self: Builder, kind: type[Any], raw: Any, where: str, default: Any = None) -> Any:
        found.extend([self.source] * (kind is Course))
        return fields(self, kind, raw, where, default)

    monkeypatch.setattr(Builder, "fields", noting)
    return found


def test_every_course_is_built_once_and_seeds_are_only_put_in(tmp_path: Path, built: list[str]) -> None:
    suite = load_suite(written(tmp_path))
    points = suite.points()
    assert len(points) == 2 * 3 * 3 and len(built) == 2 * 3
    assert suite.points() == points and len(built) == 2 * 3
    whole = replace(suite, seeds=(2,)).points()
    assert [point for point in points if point.seed == 2] == whole


def test_courses_whose_other_keys_have_the_seed_too_are_built_for_each(tmp_path: Path, built: list[str]) -> None:
    axes = {"method": {"FedAvg": {"dataset.name": "csbm", "seeded": ["dataset.feature_seed"]}}}
    points = load_suite(written(tmp_path, axes=axes)).points()
    assert [point.course.dataset.feature_seed for point in points] == [0, 1, 2]  # type: ignore[attr-defined]
    assert len(built) == 3


def test_points_on_the_same_data_come_one_after_the_other(tmp_path: Path) -> None:
    points = load_suite(written(tmp_path)).points()
    order = side_by_side(points)
    seen = [(point.course.num_clients, point.seed) for point in order]
    assert len(order) == len(points) and all(any(a is b for b in points) for a in order)
    assert seen == [(n, seed) for n in (2, 5) for seed in (0, 1, 2) for _ in range(3)]


def test_what_decides_who_holds_what() -> None:
    course = Course()
    for same in ({"rounds": 9}, {"runtime": "loop"}, {"evaluate_every": 3}):
        assert division(replace(course, **same)) == division(course)
    for other in ({"seed": 1}, {"num_clients": 4}, {"global_graph": "merged"}):
        assert division(replace(course, **other)) != division(course)
    folders = replace(course, dataset=Folders(paths=("a", "b")), num_clients=2)
    assert division(folders) != division(replace(folders, rounds=9))  # its rules look at all of the course


def test_data_is_loaded_once_as_long_as_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, Path]] = []

    def load(course: Course, root: Path) -> Any:
        loaded.append((course.seed, root))
        return toy_scenario()

    monkeypatch.setattr(same_data, "load_scenario", load)
    data, course = LastScenario(), Course()
    first = data.of(course, tmp_path)
    assert data.of(replace(course, rounds=3), tmp_path) is first
    assert data.of(replace(course, seed=1), tmp_path) is not first
    assert data.of(course, tmp_path) is not first  # only the last is kept
    data.of(course, tmp_path / "elsewhere")
    assert loaded == [(0, tmp_path), (1, tmp_path), (0, tmp_path), (0, tmp_path / "elsewhere")]


def test_data_that_cannot_be_loaded_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(course: Course, root: Path) -> Any:
        raise ValueError("gone")

    data = LastScenario()
    monkeypatch.setattr(same_data, "load_scenario", fails)
    with pytest.raises(ValueError, match="gone"):
        data.of(Course(), tmp_path)
    monkeypatch.setattr(same_data, "load_scenario", lambda course, root: toy_scenario())
    assert data.of(Course(), tmp_path).parts
