"""Audits: rows beside the prior, the same whatever stopped them, guards that stop what they claim to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks import ATTACKS, FeatureSpan, LabelShares, Lira, Vocabulary
from isthmus.attacks.attack import CURIOUS_SERVER, Deciding, NothingSeen
from isthmus.attacks.audit import running
from isthmus.attacks.audit.results import facts_of, write_results
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import Audit, guards_told, told
from isthmus.attacks.audit.table import Mean, attack_table, cost_table, findings, half_width, in_words
from isthmus.cli import app
from isthmus.core.errors import BadInput, CourseFailed, TooFewReplies
from isthmus.core.guards.guard import Guard
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import Quantise, SecureSum


def course(**changes: Any) -> isthmus.Course:
    return isthmus.Course(
        **{
            "num_clients": 3,
            "rounds": 2,
            "evaluate_every": 2,
            "model": ModelSpec(gnn=GCN(hidden=4)),
            "algorithm": FedAvg(local_steps=1, optimizer=SGD(lr=0.1)),
            **changes,
        }
    )


def audit(**changes: Any) -> Audit:
    fields: dict[str, Any] = {
        "course": course(),
        "attacks": (Vocabulary(), LabelShares()),
        "lines": ((), (SecureSum(),)),
        "seeds": (0, 1),
    }
    return Audit(**{**fields, **changes})


@dataclass(frozen=True)
class Unbearable(Guard):
    """No client answers under it."""

    def release(self, reply: Any, request: Any, at: Any) -> Any:
        raise ValueError("it cannot be borne")


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return carry_out(audit(), tmp_path_factory.mktemp("audits") / "one")


def test_what_is_found_stands_beside_the_prior_and_falls_to_it_under_the_guard_that_stops_it(carried: Any) -> None:
    found = {(told(each.attack), each.guards): each for each in findings(carried)}
    assert set(found) == {(name, line) for name in ("vocabulary", "label_shares") for line in ("none", "secure_sum")}
    open_, hidden = found["vocabulary", "none"], found["vocabulary", "secure_sum"]
    assert open_.scores["precision"].value == 1.0 and open_.scores["f1"].value > open_.priors["f1"].value
    assert hidden.scores["f1"].value == pytest.approx(hidden.priors["f1"].value, abs=0.05) and not hidden.learns
    shares = found["label_shares", "secure_sum"]
    assert shares.scores["distance"].value == pytest.approx(shares.priors["distance"].value, abs=0.05)
    assert found["label_shares", "none"].scores["distance"].value < 0.1 * shares.scores["distance"].value
    assert found["label_shares", "none"].gains["distance"].value > 0.0  # less distance is a gain


def test_scores_are_means_over_seeds_with_their_interval(carried: Any) -> None:
    rows = [r for r in carried.rows if r.get("attack") == "vocabulary" and r["guards"] == "none"]
    each = [row["scores"]["recall"] for row in rows]
    mean = next(f for f in findings(carried) if told(f.attack) == "vocabulary").scores["recall"]
    assert len(each) == 2 and mean.value == pytest.approx(sum(each) / 2)
    assert mean.half == pytest.approx(12.706 * abs(each[0] - each[1]) / 2, rel=1e-3)  # t of one degree of freedom
    assert str(Mean.of([0.5])) == "0.500" and str(Mean.of([])) == str(Mean.of([float("nan")])) == "-"
    assert half_width([1.0, 2.0, 3.0, 4.0]) == pytest.approx(3.182 * 1.29099 / 2, rel=1e-3)


def test_tables_and_files_say_it(carried: Any, tmp_path: Path) -> None:
    table = attack_table(list(findings(carried))).markdown()
    assert "| vocabulary   | curious server | secure_sum | f1 0." in table
    costs = cost_table(carried)
    assert [row[0] for row in costs.rows] == ["none", "secure_sum"] and costs.rows[0][2:4] == ("1.00", "1.00")
    assert float(costs.rows[1][2]) > 1.0
    files = {path.name: path.read_text() for path in write_results(carried, tmp_path)}
    assert set(files) == {"findings.json", "audit.md", "audit.html"}
    assert json.loads(files["findings.json"])["findings"][0]["learns"] is True
    for text in (files["audit.md"], files["audit.html"]):
        assert "What fedavg on cora gives away" in text and "secure_sum" in text
    assert "<script" not in files["audit.html"] and "<li>from ModelUpdate.params" in files["audit.html"]


def test_words_are_by_message_and_name_what_nothing_reads(carried: Any) -> None:
    lines = in_words(carried, list(findings(carried)))
    assert any(line.startswith("from ModelUpdate.params a curious server learns which features") for line in lines)
    assert any("(vocabulary: f1 " in line for line in lines)  # several attacks may be after the same
    assert "Evaluation.counts is seen by the server, and no attack here reads it" in lines
    assert not any("ModelUpdate.params is seen" in line for line in lines)


def test_an_audited_course_is_the_course(carried: Any) -> None:
    row = next(row for row in carried.rows if row["what"] == "course" and row["guards"] == "none" and row["seed"] == 1)
    plain = isthmus.run(replace(course(), seed=1))
    assert row["score"] == plain.score() and row["metric"] == "accuracy"
    assert row["bytes"] == pytest.approx((plain.bytes_down + plain.bytes_up) / 2 / 3)


# ---- goes on


def test_what_is_there_is_not_done_again_and_more_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = audit(lines=((),), seeds=(0,), attacks=(Vocabulary(),))
    first = carry_out(small, tmp_path)
    before = (tmp_path / "rows.jsonl").read_text()
    monkeypatch.setattr(running, "Simulation", None)  # nothing is run
    assert carry_out(small, tmp_path).rows == first.rows and (tmp_path / "rows.jsonl").read_text() == before
    monkeypatch.undo()
    more = carry_out(replace(small, attacks=(Vocabulary(), LabelShares())), tmp_path)
    assert more.rows[:2] == first.rows and len(more.rows) == 3
    assert (tmp_path / "rows.jsonl").read_text().startswith(before)


def test_a_line_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    small = audit(lines=((),), seeds=(0,))
    whole = carry_out(small, tmp_path)
    text = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(text[:-30])
    again = carry_out(small, tmp_path)
    assert [r for r in again.rows if r["what"] == "attack"] == [r for r in whole.rows if r["what"] == "attack"]


def test_another_course_or_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    carry_out(audit(lines=((),), seeds=(0,), attacks=(Vocabulary(),)), tmp_path / "a")
    with pytest.raises(BadInput, match="holds the audit of another course"):
        carry_out(audit(course=course(rounds=3)), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("all my work")
    with pytest.raises(BadInput, match="is not empty and holds no audit"):
        carry_out(audit(), tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]


def test_shadows_are_the_same_in_processes_and_those_that_are_there_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = audit(lines=((),), seeds=(0,), attacks=(Lira(shadows=4),), course=course(rounds=1, evaluate_every=1))
    here = carry_out(small, tmp_path / "here", workers=1)
    calls: list[int] = []

    def threads(work: Any, arguments: Any, number: int) -> Any:
        for place, each in enumerate(arguments):
            calls.append(each[2])
            yield place, work(*each)

    monkeypatch.setattr(running, "in_processes", threads)
    shadow = next((tmp_path / "here" / "shadows").iterdir())
    there = carry_out(small, tmp_path / "there", workers=2)
    assert calls == [0, 1, 2, 3]
    assert [row["scores"] for row in there.rows[1:]] == [row["scores"] for row in here.rows[1:]]
    (tmp_path / "there" / "rows.jsonl").unlink()
    (tmp_path / "there" / "shadows" / shadow.name).unlink()
    assert carry_out(small, tmp_path / "there", workers=1).rows[1]["scores"] == here.rows[1]["scores"]
    assert len(list((tmp_path / "there" / "shadows").iterdir())) == 4


def test_a_killed_audit_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "isthmus", "audit", "--attacks", "{name: lira, shadows: 4}", "--attacks"]
    command += ["vocabulary", "--seeds", "2", "--out", "out", "--workers", "1", "rounds=2", "num_clients=3"]
    command += ["model.gnn.hidden=4"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if len(list((tmp_path / "out" / "shadows").glob("*.bin"))) >= 2:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out" / "shadows").iterdir()}
    made = isthmus.load_course(None, ["rounds=2", "num_clients=3", "model.gnn.hidden=4"])
    wanted = Audit(made, (Lira(shadows=4), Vocabulary()), ((),), (0, 1))
    after, straight = (carry_out(wanted, tmp_path / name, workers=1) for name in ("out", "straight"))
    assert [row for row in after.rows if row["what"] == "attack"] == [
        row for row in straight.rows if row["what"] == "attack"
    ]
    left = {path.name: path.read_bytes() for path in (tmp_path / "out" / "shadows").iterdir()}
    assert len(left) == 8 and all(left[name] == data for name, data in kept.items() if name.endswith(".bin"))


# ---- what goes wrong


@dataclass(frozen=True)
class Blind(Deciding):
    """Needs what nobody sees."""

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "anything"
    knows: ClassVar[str] = "nothing"

    def known(self, case: Any) -> Any: ...

    def guess(self, seen: Any, known: Any) -> Any:
        raise NothingSeen("it is night")

    def prior(self, known: Any, clients: Any) -> Any:
        return torch.zeros(2)

    def truth(self, case: Any, known: Any) -> Any:
        return torch.tensor([True, False])


def test_who_sees_nothing_has_the_priors_score_and_the_reason(tmp_path: Path) -> None:
    found = carry_out(audit(attacks=(Blind(),), lines=((),), seeds=(0,)), tmp_path)
    row = found.rows[1]
    assert row["scores"] == row["prior"] and row["reason"] == "it is night"
    write_results(found, tmp_path)
    assert "saw nothing: it is night" in (tmp_path / "audit.md").read_text()


def test_what_cannot_be_tried_is_named_and_if_nothing_can_the_audit_is_refused(tmp_path: Path) -> None:
    by_adam = course(algorithm=FedAvg(local_steps=1, optimizer=Adam()))
    found = carry_out(
        audit(course=by_adam, attacks=(Vocabulary(), FeatureSpan()), lines=((),), seeds=(0,)), tmp_path / "a"
    )
    assert "only algorithm.optimizer.name=sgd" in found.skipped["feature_span"]
    assert "feature_span" in facts_of(found)["skipped"] and {row.get("attack") for row in found.rows} == {
        None,
        "vocabulary",
    }
    with pytest.raises(BadInput, match="no attack can be tried on this course: feature_span: it reads gradients"):
        carry_out(audit(course=by_adam, attacks=(FeatureSpan(),)), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_shadows_that_fail_are_named_and_too_many_end_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = audit(lines=((),), seeds=(0,), attacks=(Lira(shadows=4),), course=course(rounds=1, evaluate_every=1))
    real, said = running.run, []

    def failing(numbers: set[int]) -> Any:
        count = iter(range(100))

        def run(*arguments: Any, **options: Any) -> Any:
            if next(count) in numbers:
                raise CourseFailed("the shadow tripped")
            return real(*arguments, **options)

        return run

    monkeypatch.setattr(running, "run", failing({1}))
    found = carry_out(small, tmp_path / "a", workers=1, say=said.append)
    assert any("shadow 1: the shadow tripped" in text for text in said) and len(found.rows) == 2
    monkeypatch.setattr(running, "run", failing({0, 1, 2}))
    with pytest.raises(CourseFailed, match="3 of 4 shadows of lira"):
        carry_out(small, tmp_path / "b", workers=1)


def test_a_course_that_fails_under_a_guard_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    lines = ((), (Unbearable(),), (SecureSum(),))
    made = carry_out(audit(lines=lines, seeds=(0,)), tmp_path / "a")
    assert [row["guards"] for row in made.rows if "failed" in row] == [guards_told((Unbearable(),))]
    assert {each.guards for each in findings(made)} == {"none", "secure_sum"}
    told_of = next(row for row in cost_table(made).rows if row[0] == guards_told((Unbearable(),)))
    assert "seed 0: round 1" in told_of[1] and "it cannot be borne" in told_of[1]
    before = (tmp_path / "a" / "rows.jsonl").read_text()
    carry_out(audit(lines=lines, seeds=(0,)), tmp_path / "a")
    assert (tmp_path / "a" / "rows.jsonl").read_text() == before
    with pytest.raises(TooFewReplies, match="it cannot be borne"):  # nothing is left to compare with
        carry_out(audit(course=course(guards=(Unbearable(),)), lines=((Unbearable(),),)), tmp_path / "b")


def test_an_audit_of_nothing_or_of_something_twice_is_refused() -> None:
    for changes, told_ in (
        ({"attacks": ()}, "an audit without attacks"),
        ({"seeds": ()}, "an audit without seeds"),
        ({"attacks": (Vocabulary(), Vocabulary())}, "attacks has 'vocabulary' twice"),
        ({"lines": ((Quantise(),), (Quantise(),))}, "guards has 'quantise' twice"),
    ):
        with pytest.raises(ValueError, match=told_):
            audit(**changes)


def test_parts_are_told_by_what_is_not_as_usual() -> None:
    assert told(Lira()) == "lira" and told(Lira(shadows=64)) == "lira(shadows=64)"
    assert guards_told(()) == "none" and guards_told((Quantise(bits=4), SecureSum())) == "quantise(bits=4), secure_sum"


# ---- the command


def test_the_command_audits_and_says_what_it_found(tmp_path: Path) -> None:
    words = ["audit", "--attacks", "vocabulary", "--seeds", "1", "--guards", "secure_sum", "--out", str(tmp_path / "a")]
    result = CliRunner().invoke(app, [*words, "rounds=1", "num_clients=3", "model.gnn.hidden=4"])
    assert result.exit_code == 0, result.output
    assert "gives away" in result.output and "from ModelUpdate.params" in result.output
    facts = CliRunner().invoke(app, [*words, "--json", "rounds=1", "num_clients=3", "model.gnn.hidden=4"])
    assert json.loads(facts.stdout)["seeds"] == [0]


@pytest.mark.parametrize(
    ("words", "told_"),
    [
        (["--attacks", "vocabularly"], "vocabulary"),
        (["--attacks", "{name: lira, shadows: 2}"], "at least 4"),
        (["--guards", "robust_fold", "--guards", "[secure_sum, robust_fold]"], "must be the last guard"),
        (["--attacks", "lira", "--attacks", "lira"], "twice"),
    ],
)
def test_what_the_command_cannot_use_is_refused_before_anything_runs(
    words: list[str], told_: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["audit", *words, "--out", str(tmp_path / "x")])
    assert isinstance(result.exception, BadInput) and told_ in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_every_attack_of_the_table_says_what_it_is() -> None:
    for kind in ATTACKS.values():
        attack = kind()
        assert attack.position and attack.learns and attack.knows and attack.measures
