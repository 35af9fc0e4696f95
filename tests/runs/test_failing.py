"""What people are told of failures: one line for what is the same but for its numbers, and counts of what is odd."""

from __future__ import annotations

from typing import Any

from isthmus.runs.folder import failure_notes


def journal(*rounds: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return events of rounds, each with failures: client, kind, reason."""
    events: list[dict[str, Any]] = []
    for number, failures in enumerate(rounds, start=1):
        told = [{"client": client, "kind": kind, "reason": reason} for client, kind, reason in failures]
        events.append({"event": "exchange", "round": number, "request": "TrainModel", "failures": told})
        events.append({"event": "round", "round": number})
    return events


def test_reasons_that_differ_by_numbers_alone_are_one_line_with_the_first_ones_words() -> None:
    odd = [[("client-1", "suspicious", f"its norm is {norm}, 1e-05 is agreed on")] for norm in (3, 4.5, 1e-7, 2e30)]
    assert failure_notes(journal(*odd, [])) == [
        "client-1 failed in 4 of 5 rounds: TrainModel: suspicious: its norm is 3, 1e-05 is agreed on",
        "suspicious replies, which were not counted: client-1 4",
    ]


def test_numbers_in_names_tell_reasons_apart() -> None:
    lines = failure_notes(
        journal(*([("client-1", "suspicious", f"it is the reply of {name}")] for name in ("client-2", "client-3")))
    )
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["client-2", "client-3"]


def test_suspicious_replies_are_counted_for_each_client_and_nothing_else_is() -> None:
    rounds = [[("a", "suspicious", "x"), ("b", "suspicious", "x"), ("c", "late", "y")], [("b", "suspicious", "x")]]
    assert failure_notes(journal(*rounds))[-1] == "suspicious replies, which were not counted: b 2, a 1"
    assert failure_notes(journal([("c", "late", "y")])) == ["c failed in 1 of 1 rounds: TrainModel: late: y"]
    assert failure_notes(journal([])) == []


def test_of_many_reasons_three_are_told() -> None:
    rounds = [[("a", "error", f"because of {letter}")] for letter in "pqrst"]
    lines = failure_notes(journal(*rounds))
    assert len(lines) == 4
    assert lines[-1] == "clients failed for 2 more reasons, which the journal has"
