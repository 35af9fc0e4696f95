"""What others can make happen as often as they like is said now and then, and counted."""

from __future__ import annotations

import logging

import pytest

from isthmus.runtime.seldom import MAX_KINDS, Seldom, SeldomHandler


def test_the_first_is_said_at_once_and_then_one_a_while_with_the_number_left_unsaid() -> None:
    said, now = list[str](), [0.0]
    seldom = Seldom(said.append, 60.0, clock=lambda: now[0])
    for _ in range(100_000):
        seldom("refused a", "refused")
    assert said == ["refused"]
    now[0] = 60.0
    seldom("refused a", "refused")
    assert said[1:] == ["refused (and 99999 like it before, unsaid)"]
    seldom("refused b", "another")
    assert said[2:] == ["another"]


def test_a_burst_is_said_whole() -> None:
    said, now = list[str](), [0.0]
    seldom = Seldom(said.append, 60.0, 3, clock=lambda: now[0])
    for number in range(5):
        seldom("kind", str(number))
    now[0] = 61.0
    seldom("kind", "5")
    assert said == ["0", "1", "2", "5 (and 2 like it before, unsaid)"]


def test_many_kinds_cost_no_more_memory_than_some() -> None:
    said: list[str] = []
    seldom = Seldom(said.append, 60.0, clock=lambda: 0.0)
    for number in range(10 * MAX_KINDS):
        seldom(str(number), "x")
    assert len(said) <= MAX_KINDS + 1 and len(seldom._counts) <= MAX_KINDS + 1


def test_log_records_of_one_place_are_written_once_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.Logger("somewhere")
    log.addHandler(SeldomHandler())
    for number in range(1000):
        log.error("bad frame %d \x1b[31m", number)
    written = capsys.readouterr().err
    assert written.count("\n") <= 1 and "\x1b" not in written
