"""Suites that give every method the same budget in place of a grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.runs.simulated import run
from isthmus.suites.spec import load_suite
from isthmus.tune.of_suites import studies, tuned
from tests.cli.command import call

KEYS = ("algorithm.optimizer.lr", "algorithm.local_steps")
PLAIN: dict[str, Any] = {
    "title": "Mine",
    "seeds": [0, 1],
    "base": {
        "dataset": {"name": "csbm", "num_nodes": 60, "num_features": 8},
        "num_clients": 2,
        "splitter": "random",
        "model.gnn.hidden": 4,
        "rounds": 4,
    },
    "axes": {
        "method": {
            "FedAvg": {
                "algorithm.name": "fedavg",
                "search": {"algorithm.optimizer.lr": [1.0e-6, 0.5], "algorithm.local_steps": [1, 2]},
            },
            "Global": {"algorithm.name": "global", "search": {"algorithm.optimizer.lr": [1.0e-6, 0.5]}},
            "Plain": {"algorithm.name": "fedavg"},
        },
        "score": {"Accuracy": {"metric": "accuracy"}, "Loss": {"metric": "loss"}},
    },
    "tune": {"client_rounds": 24, "search": {"name": "sha"}, "fidelity": {"rounds": [2, 4]}, "seeds": [7]},
}


def suite(folder: Path, **changes: Any) -> Any:
    (folder / "s.yaml").write_text(yaml.safe_dump({**PLAIN, **changes}))
    return load_suite(folder / "s.yaml")


def test_every_method_with_a_search_has_a_study_of_as_many_client_rounds_on_splits_of_its_own(tmp_path: Path) -> None:
    found = studies(suite(tmp_path))
    assert [point.cell["method"] for point, _ in found] == ["FedAvg", "Global"]  # once, however many metrics are read
    assert {study.budget.client_rounds for _, study in found} == {24}
    assert {study.seeds for _, study in found} == {(7,)}
    assert [len(study.space.listed) for _, study in found] == [4, 2]
    assert [study.cohort(0) for _, study in found] == [2, 1]
    assert studies(suite(tmp_path, tune={"client_rounds": 24}))[0][1].seeds == (2,)


def test_the_row_is_that_of_the_best_point_and_the_table_says_what_it_cost(tmp_path: Path) -> None:
    made = suite(tmp_path)
    told: list[str] = []
    after = tuned(made, tmp_path / "out", None, None, None, told.append)
    assert "24 client-rounds for each row, on splits of seed 7" in after.title and not after.tune
    assert len(told) == 2 and all(point.searched == {} for point in after.points())
    courses = {point.cell["method"]: point.course for point in after.points()}
    _, study = studies(made)[0]
    scores = {}
    for values in study.space.listed:  # 4 x 2 rounds and 2 x 2 more of 2 clients: 24
        result = run(replace(study.course(values, None, 7), rounds=4))
        scores[tuple(values[key] for key in KEYS)] = max(e["score"] for e in result.events if e["event"] == "round")
    chosen = courses["FedAvg"].algorithm
    assert scores[(chosen.optimizer.lr, chosen.local_steps)] == max(scores.values())
    assert courses["Plain"].algorithm == FedAvg()
    assert sorted(path.name[:6] for path in (tmp_path / "out" / "tune").iterdir()) == ["FedAvg", "Global"]


def test_compare_tunes_first_and_goes_on_where_it_was(tmp_path: Path) -> None:
    suite(tmp_path)
    words = ("compare", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"), "--workers", "1")
    code, output = call(*words)
    assert code == 0 and "24 client-rounds" in (tmp_path / "out" / "table.md").read_text(), output
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("journal.jsonl")}
    assert call(*words)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"client_round": 3}, "tune.client_round is not a known key; .*Did you mean 'client_rounds'"),
        ({"search": "sha"}, "tune.client_rounds is missing"),
        ({"client_rounds": 9, "seeds": [1]}, "tune.seeds has 1, which is a seed of the table"),
        ({"client_rounds": 9, "search": "shaa"}, "Did you mean 'sha'"),
        ({"client_rounds": 9, "fidelity": {"rounds": [4, 2]}}, "must not become fewer"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(tune: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        studies(suite(tmp_path, tune=tune))


def test_data_that_are_drawn_for_each_seed_are_refused(tmp_path: Path) -> None:
    axes = {
        "method": {
            "FedAvg": {
                "algorithm.name": "fedavg",
                "seeded": ["dataset.graph_seed"],
                "search": {"algorithm.local_steps": [1, 2]},
            }
        }
    }
    with pytest.raises(BadInput, match=r"tune cannot draw dataset\.graph_seed"):
        studies(suite(tmp_path, axes=axes))
