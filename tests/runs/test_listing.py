"""Which runs there are: how far they are, what is asked of them, and what is no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.errors import BadInput
from isthmus.runs.listing import COLUMNS, Condition, Listed, conditions, listed


def write_run(path: Path, algorithm: str, score: float | None, lr: float = 0.1) -> None:
    path.mkdir(parents=True)
    (path / "course.yaml").write_text("rounds: 3\n")
    course = {
        "algorithm": {"name": algorithm, "optimizer": {"lr": lr}},
        "dataset": {"name": "cora"},
        "num_clients": 5,
        "task": {"metrics": ["accuracy"]},
    }
    events: list[dict[str, Any]] = [{"event": "course", "time": 0.0, "course": course}]
    events += [{"event": "round", "round": at, "metrics": {}} for at in (1, 2)]
    if score is not None:
        metrics = {"global_model/global_graph": {"accuracy": score}}
        events.append({"event": "end", "num_rounds": 2, "seconds": 1.5, "metrics": metrics, "client_scores": {}})
    (path / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "a", "fedavg", 0.7)
    write_run(tmp_path / "deep" / "b", "fedgl", 0.9, lr=0.01)
    write_run(tmp_path / "c", "fedgl", None)
    (tmp_path / "none").mkdir()
    return tmp_path


def names(found: list[Listed]) -> list[str]:
    return [run.facts["run"] for run in found]


def test_runs_at_any_depth_are_told_with_how_far_they_are(folder: Path) -> None:
    found = {run.facts["run"]: run.facts for run in listed(folder)}
    assert list(found) == ["a", "c", "deep/b"]
    assert [found["a"][name] for name in ("algorithm", "dataset", "clients", "state", "round", "score", "metric")] == [
        "fedavg", "cora", 5, "finished", 2, 0.7, "accuracy",
    ]  # fmt: skip
    assert (found["c"]["state"], found["c"]["round"], found["c"]["score"]) == ("unfinished", 2, None)
    assert set(found["a"]) == set(COLUMNS)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("algorithm=fedgl and score>0.8", ["deep/b"]),
        ("algorithm=fedgl", ["c", "deep/b"]),
        ("algorithm!=fedgl", ["a"]),
        ("algorithm.optimizer.lr<=0.01", ["deep/b"]),
        ("state = unfinished", ["c"]),
        ("score>=0.7", ["a", "deep/b"]),
        ("score<0.9", ["a"]),
        ("dataset='cora' and score > 2", []),
    ],
)
def test_those_of_which_it_is_so(folder: Path, where: str, wanted: list[str]) -> None:
    assert names(listed(folder, where)) == wanted


def test_numbers_are_compared_as_numbers_and_words_as_words() -> None:
    run = Listed(Path("x"), {**dict.fromkeys(COLUMNS), "score": 10.0, "algorithm": "b"}, {})
    assert Condition("score", ">", "9").holds(run) and not Condition("score", "<", "9").holds(run)
    assert Condition("algorithm", ">", "a").holds(run)
    assert conditions("a >= 1 and b.c='x y'") == [Condition("a", ">=", "1"), Condition("b.c", "=", "x y")]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("algorithm", "--where has 'algorithm'; say KEY=VALUE"),
        ("algorithm=fedgl or score>1", "--where has"),
        ("algoritm=fedgl", "which no run has.*Did you mean 'algorithm'"),
        ("__import__('os')", "--where has"),
    ],
)
def test_what_cannot_be_asked_is_refused(folder: Path, where: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        listed(folder, where)


def test_what_cannot_be_read_is_named_and_harms_no_other(folder: Path) -> None:
    (folder / "a" / "journal.jsonl").write_text("{rubbish\n")
    (folder / "c" / "journal.jsonl").open("a").write('{"event": "ro')  # cut short
    (folder / "loop").symlink_to(folder)
    found = {run.facts["run"]: run.facts["state"] for run in listed(folder)}
    assert found == {"a": "unreadable", "c": "unfinished", "deep/b": "finished"}
    with pytest.raises(BadInput, match="is not a folder"):
        listed(folder / "nowhere")


def test_of_a_long_journal_the_ends_are_read(folder: Path) -> None:
    path = folder / "a" / "journal.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(
        first + 30_000 * '{"event": "note", "text": "............................................"}\n' + "".join(rest)
    )
    assert listed(folder)[0].facts["score"] == 0.7
