from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import replace_file
from isthmus.core.protocol import Evaluation, Failure, Position
from isthmus.core.training import RoundReport
from isthmus.runs.folder import Journal
from isthmus.runs.journal import read_journal


def write_rounds(journal: Journal, last: int) -> None:
    journal.write("course", version="0")
    journal.write("note", text="client-3 has no training examples")
    for round in range(last + 1):
        journal.write("exchange", round=round)
        if round:
            journal.write("round", round=round)
    journal.write("checkpoint", round=last)


def names(events: Any) -> list[tuple[str, int | None]]:
    return [(event["event"], event.get("round")) for event in events]


# ---- writing and reading


def test_events_come_back_in_order_with_their_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("course", course={"seed": 3, "name": "Zürich\u2028\n"})
    journal.write("end", metrics={"test/accuracy": 0.25}, path=tmp_path)
    found = list(read_journal(tmp_path / "journal.jsonl"))
    assert [event["event"] for event in found] == ["course", "end"]
    assert found[0]["course"] == {"seed": 3, "name": "Zürich\u2028\n"}
    assert found[1]["path"] == str(tmp_path)
    assert found[0]["time"] <= found[1]["time"]
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2


def test_a_journal_without_a_folder_stays_in_memory(tmp_path: Path) -> None:
    journal = Journal(None)
    write_rounds(journal, 1)
    journal.rewind(0)
    assert names(journal.events)[0] == ("course", None) and len(journal.events) == 6
    assert list(tmp_path.iterdir()) == []


def test_each_event_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for number in range(3):
        journal.write("note", number=number)
        assert [event["number"] for event in read_journal(tmp_path / "journal.jsonl")] == list(range(number + 1))


def test_an_exchange_is_written_with_bytes_seconds_and_failures() -> None:
    journal = Journal(None)
    failure = Failure("b", "late", "answered after 3 s")
    journal.exchanged(
        ExchangeReport(Position(1, 2, 3), "TrainModel", 4, 100, 200, 0.5, 0.75, (failure,), 0.1, 0.2, 0.3)
    )
    (event,) = journal.events
    assert {key: event[key] for key in event if key != "time"} == {
        "event": "exchange",
        "round": 2,
        "exchange": 3,
        "request": "TrainModel",
        "num_clients": 4,
        "bytes_down": 100,
        "bytes_up": 200,
        "seconds": 0.5,
        "client_seconds": 0.75,
        "codec_seconds": 0.1,
        "check_seconds": 0.2,
        "fold_seconds": 0.3,
        "failures": [{"client": "b", "kind": "late", "reason": "answered after 3 s"}],
    }


def failed(round: int, *failures: Failure, request: str = "TrainModel") -> ExchangeReport:
    return ExchangeReport(Position(0, round, 0), request, 5, 0, 0, 0.0, 0.0, failures)


def test_failures_are_told_by_reason_with_clients_and_rounds() -> None:
    journal = Journal(None)
    assert journal.failure_notes() == []
    nan = "params['w'] has 1 of 1 entries that are NaN"
    journal.exchanged(failed(0, Failure("a", "error", "no"), request="DescribeEncoder"))
    for round in (1, 2, 3):
        several = [Failure(client, "not_finite", nan) for client in "abcde"[: 4 - (round == 3)]]
        journal.exchanged(failed(round, *several) if round != 2 else failed(round))
        journal.write("round", round=round)
    assert journal.failure_notes() == [
        "a failed before the first round: DescribeEncoder: error: no",
        f"a, b, c and 1 more clients failed in 2 of 3 rounds: TrainModel: not_finite: {nan}",
    ]
    journal.exchanged(failed(2, Failure("a", "error", "no"), request="DescribeEncoder"))
    assert journal.failure_notes()[0] == "a failed in 1 of 3 rounds: DescribeEncoder: error: no"
    for reason in ("away", "slow", "busy"):
        journal.exchanged(failed(3, Failure("a", "late", reason)))
    assert journal.failure_notes()[3] == "clients failed for 2 more reasons, which the journal has"


def test_a_round_is_written_with_metrics_weighted_by_examples() -> None:
    journal = Journal(None)
    evaluations = {
        "a": Evaluation({"val": {"accuracy": 1.0, "loss": 2.0}, "train": {"accuracy": 0.5}}, {"val": 1, "train": 4}),
        "b": Evaluation({"val": {"accuracy": 0.0, "loss": 4.0}, "train": {"accuracy": 1.0}}, {"val": 3, "train": 4}),
    }
    journal.round_done(RoundReport(5, ("a", "b"), 1.5, 10, 20, evaluations, 0.25, True, 1.75))
    (event,) = journal.events
    assert event["metrics"] == {"train/accuracy": 0.75, "val/accuracy": 0.25, "val/loss": 3.5}
    assert (event["round"], event["cohort"], event["num_clients"]) == (5, ["a", "b"], 2)
    assert (event["seconds"], event["wall_seconds"]) == (1.5, 1.75)
    assert (event["score"], event["is_best"], event["bytes_down"], event["bytes_up"]) == (0.25, True, 10, 20)


def test_a_round_says_who_replied_and_who_scored() -> None:
    journal = Journal(None)
    evaluations = {c: Evaluation({"val": {"accuracy": 1.0}}, {"val": 1}) for c in "ab"}
    report = RoundReport(3, ("a", "b", "c"), 1.5, 10, 20, evaluations, 0.25, True)
    journal.round_done(dataclasses.replace(report, missing=("c",), scorers=("a", "b"), unscored=("c",)))
    (event,) = journal.events
    assert (event["num_clients"], event["num_asked"], event["missing"]) == (2, 3, ["c"])
    assert (event["num_scored"], event["unscored"]) == (2, ["c"])


def scored(journal: Journal, round: int, scorers: str, unscored: str = "", counts: tuple[int, ...] = ()) -> None:
    report = RoundReport(round, ("a", "b", "c"), 1.0, 0, 0, {}, 0.5, False)
    journal.round_done(dataclasses.replace(report, scorers=tuple(scorers), counts=counts, unscored=tuple(unscored)))


def test_notes_say_who_did_not_score_the_round_that_is_kept_and_what_it_was_not_compared_with() -> None:
    journal = Journal(None)
    scored(journal, 1, "ab")  # c has no validation data
    scored(journal, 2, "ab")
    assert journal.scoring_notes(2) == []
    scored(journal, 3, "a", "b")
    scored(journal, 4, "a", "b")
    assert journal.scoring_notes(2) == [
        "2 of 4 scored rounds were scored by fewer clients than round 2, which is kept, and are not compared with it "
        "(b missing); stopping.keep=last would keep the last round"
    ]
    assert journal.scoring_notes(4) == ["round 4, which is kept, was scored by 1 of 2 clients: b missing"]
    old = Journal(None)
    old.write("round", round=1, score=0.5, is_best=True)  # as journals were before
    assert old.scoring_notes(1) == []


def test_rounds_that_as_many_clients_scored_on_other_examples_or_others_scored_are_noted() -> None:
    journal = Journal(None)
    scored(journal, 1, "ab", counts=(3, 4))
    scored(journal, 2, "ab", counts=(3, 4))
    assert journal.scoring_notes(2) == []
    scored(journal, 3, "ab", counts=(4, 3))
    scored(journal, 4, "ac", counts=(3, 4))
    scored(journal, 5, "a", counts=(3,))
    fewer, other = journal.scoring_notes(2)
    assert fewer.startswith("1 of 5 scored rounds were scored by fewer clients than round 2")
    assert other == (
        "2 of 5 scored rounds were scored by other clients, or on other numbers of validation examples, than round 2, "
        "which is kept, and are not compared with it; stopping.keep=last would keep the last round"
    )
    journal.events[0].pop("scored_on")  # as a version of before wrote it
    assert journal.scoring_notes(2)[1].startswith("2 of 5")


# ---- rewinding


def test_rewinding_forgets_later_rounds_and_the_end_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    write_rounds(journal, 4)
    journal.write("end", num_rounds=4)
    again = Journal(path)
    again.rewind(2)
    kept = [
        ("course", None),
        ("note", None),
        ("exchange", 0),
        ("exchange", 1),
        ("round", 1),
        ("exchange", 2),
        ("round", 2),
    ]
    assert names(read_journal(path)) == names(again.events) == kept
    again.write("resume", after=2)
    again.write("round", round=3)
    assert names(read_journal(path)) == [*kept, ("resume", None), ("round", 3)]


def test_rewinding_cleans_up_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_rounds(Journal(path), 2)
    with path.open("a") as file:
        file.write('{"event": "round", "rou')
    journal = Journal(path)
    journal.rewind(2)
    journal.write("resume", after=2)
    assert names(read_journal(path))[-2:] == [("checkpoint", 2), ("resume", None)]


# ---- damage


def test_a_last_line_that_was_cut_off_at_any_place_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = json.dumps({"event": "course", "x": "é"}) + "\n"
    last = json.dumps({"event": "round", "round": 12})
    for length in range(len(last)):
        path.write_text(whole + last[:length])
        assert [event["event"] for event in read_journal(path)] == ["course"]
    path.write_text(whole + last)
    assert [event["event"] for event in read_journal(path)] == ["course", "round"]


@pytest.mark.parametrize("line", ["not json", '{"event": ', "", "[1]", '"text"', '{"round": 3}'])
def test_a_bad_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "course"}\n' + line + '\n{"event": "end"}\n')
    with pytest.raises(BadInput, match=r"journal\.jsonl: line 2 is"):
        list(read_journal(path))


def test_a_missing_journal_or_one_of_other_bytes_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"journal\.jsonl: cannot be read: No such file"):
        list(read_journal(tmp_path / "journal.jsonl"))
    (tmp_path / "journal.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"journal\.jsonl: cannot be read"):
        list(read_journal(tmp_path / "journal.jsonl"))


# ---- whole or not at all


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()], ids=["full", "interrupted"])
def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), broken)
    with pytest.raises(type(error)):
        replace_file(path, b"new and much longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_content_is_on_disk_before_it_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        steps.append(f"fsync of {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        steps.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    replace_file(tmp_path / "file", b"12345")
    assert steps == ["fsync of 5 bytes", "replace"]
