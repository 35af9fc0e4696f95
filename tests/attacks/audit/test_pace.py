"""How much of an audit is left: runs are counted before it begins, and what was measured says how long they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks import Lira, PropertyInference, Vocabulary
from isthmus.attacks.audit.pace import Pace, Standing, Work, in_time
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import Audit, Cell
from isthmus.attacks.poisoning import LabelFlip
from isthmus.cli import app
from isthmus.learn.optimizers import SGD
from isthmus.privacy import ClientDP, Entropy, NormBound, Quantise, SecureSum
from tests.attacks.audit.test_audit import course

TINY = Lira(shadows=4)


def pace_of(work: Work) -> tuple[Pace, list[str], list[Standing]]:
    said: list[str] = []
    stood: list[Standing] = []
    return Pace(work, said.append, stood.append), said, stood


def test_what_is_to_be_run_is_said_before_anything_is() -> None:
    _, said, _ = pace_of(Work(10, 5, {"lira": 24, "property_inference": 1}, 2))
    wanted = (
        "10 courses, 5 more with somebody malicious, 25 shadows (24 of lira, 1 of property_inference) in 2 processes"
    )
    assert said == [f"to be run: {wanted}"]
    assert pace_of(Work(1, 0, {}, 1))[1] == ["to be run: 1 course"]
    assert pace_of(Work(0, 0, {}, 1))[1] == []  # everything is there


def test_the_first_course_stands_for_all_until_more_was_measured() -> None:
    pace, said, stood = pace_of(Work(4, 4, {"lira": 20}, 2))
    pace.doing("the course")
    assert pace.left() is None
    pace.ran_course(3.0)  # 4 courses of 3 s, each again with somebody malicious; 20 shadows, two at a time
    assert pace.left() == pytest.approx(4 * 6.0 + 20 * 1.5)
    assert said[1:] == ["a course took 3 s: about 54 s are left, without what attacks compute"]
    for _ in range(10):
        pace.ran_shadows(1, 2.0)
    assert pace.left() == pytest.approx(4 * 6.0 + 10 * 2.0)
    pace.ran_course(100.0)
    pace.finished(10.0)
    assert pace.left() == pytest.approx(3 * 10.0 + 10 * 2.0)
    assert said[2:] == ["the first course with all attacks on it took 30 s: about 50 s are left"]
    pace.finished(20.0)
    pace.doing("vocabulary")
    assert [(each.done, each.number, each.doing, each.left) for each in stood] == [
        (0, 28, "the course", None),
        (12, 28, "vocabulary", 2 * 15.0 + 10 * 2.0),
    ]
    assert len(said) == 3


def test_seconds_are_said_as_people_say_them() -> None:
    said = {0.25: "250 ms", 12.4: "12 s", 100.0: "2 min", 3600.0: "60 min", 7500.0: "2 h 05 min"}
    assert {seconds: in_time(seconds) for seconds in said} == said


# ---- of an audit


def test_an_audit_counts_what_is_not_there_yet(tmp_path: Path) -> None:
    small = course(rounds=1, evaluate_every=1)
    made = Audit(small, (Vocabulary(), TINY, LabelFlip(malicious=1)), ((), (SecureSum(),), (Quantise(),)), (0,))
    said: list[str] = []
    stood: list[Standing] = []
    carry_out(made, tmp_path, workers=1, say=said.append, watch=stood.append)
    # Under a secure sum lira's shadows are those without it.
    assert said[0] == (
        "to be run: 3 courses, 3 more with somebody malicious, 8 shadows (8 of lira(shadows=4)) in 1 process"
    )
    assert [text.split(" took ")[0] for text in said[1:]] == ["a course", "the first course with all attacks on it"]
    assert {each.number for each in stood} == {14} and len(list((tmp_path / "shadows").iterdir())) == 8
    assert [each.done for each in stood] == sorted(each.done for each in stood)
    assert stood[-1].done == 13 and stood[-1].doing == "seed 0, guards quantise: label_flip(malicious=1)"
    again: list[str] = []
    carry_out(made, tmp_path, say=again.append)
    assert again == []
    kept = [line for line in (tmp_path / "rows.jsonl").read_text().splitlines() if '"lira' not in line]
    (tmp_path / "rows.jsonl").write_text("\n".join(kept) + "\n")
    carry_out(made, tmp_path, workers=1, say=again.append)
    assert again.pop(0) == "to be run: 3 courses"  # their shadows are there
    again.clear()
    carry_out(replace(made, seeds=(0, 1), lines=((),)), tmp_path, workers=1, say=again.append)
    assert again[0].startswith("to be run: 1 course, 1 more with somebody malicious, 4 shadows")


@pytest.mark.parametrize(
    ("guards", "left"),
    [
        ((SecureSum(),), ()),
        ((Entropy(),), ()),
        ((Quantise(), Entropy(), SecureSum()), (Quantise(),)),
        ((SecureSum(min_holders=2),), (SecureSum(min_holders=2),)),
        ((SecureSum(max_norm=1.0),), (SecureSum(max_norm=1.0),)),
        ((NormBound(largest=9.0),), (NormBound(largest=9.0),)),
        ((ClientDP(mode="local"),), (ClientDP(mode="local"),)),
    ],
    ids=str,
)
def test_who_reads_the_last_model_alone_imitates_the_course_without_guards_that_keep_it(guards: Any, left: Any) -> None:
    made = replace(course(algorithm=FedAvg(local_steps=1, optimizer=SGD(lr=0.1), weighting="uniform")), guards=())
    object.__setattr__(made, "guards", guards)  # some need more beside them to be a course
    assert TINY.imitated(made).guards == left
    assert PropertyInference().imitated(made) is made  # it reads updates, which a sum hides


@pytest.mark.parametrize("guard", [SecureSum(), Entropy()], ids=str)
def test_a_course_comes_to_the_same_with_guards_that_say_so(guard: Any) -> None:
    plain = isthmus.run(course(rounds=3))
    guarded = isthmus.run(course(rounds=3, guards=(guard,)))
    assert guard.keeps_models
    assert all(torch.allclose(plain.params[name], each, atol=1e-5) for name, each in guarded.params.items())


def test_shadows_that_serve_two_courses_say_the_same_of_both(tmp_path: Path) -> None:
    made = Audit(course(rounds=1, evaluate_every=1), (TINY,), ((), (SecureSum(),)), (0,))
    rows = [row for row in carry_out(made, tmp_path, workers=1).rows if row["what"] == "attack"]
    assert rows[0]["scores"] == pytest.approx(rows[1]["scores"], abs=1e-3)
    cells = list(made.cells())
    assert TINY.imitated(cells[1].course) == cells[0].course and isinstance(cells[0], Cell)


def test_the_command_says_how_much_there_is_and_where_it_stands(tmp_path: Path) -> None:
    words = ["audit", "--attacks", "vocabulary", "--attacks", "{name: lira, shadows: 4}", "--seeds", "1"]
    words += ["--guards", "secure_sum", "--workers", "1", "--out", str(tmp_path / "a")]
    result = CliRunner().invoke(app, [*words, "rounds=1", "num_clients=3", "model.gnn.hidden=4"])
    lines = list(_lines(result.stderr))
    assert lines[0] == "to be run: 2 courses, 4 shadows (4 of lira(shadows=4)) in 1 process"
    assert "0 of 6 runs; seed 0, guards none: the course" in lines
    assert "5 of 6 runs; seed 0, guards secure_sum: the course" in lines
    assert any(line.startswith("a course took ") and "are left" in line for line in lines)
    quiet = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "b"), "--json", "rounds=1", "num_clients=3"])
    assert "to be run" not in quiet.output and quiet.exit_code == 0


def _lines(text: str) -> Iterator[str]:
    yield from (line.strip() for line in text.splitlines())
