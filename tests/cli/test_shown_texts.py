"""Text of other parties on the screen: no markup is obeyed, no control character gets through."""

from __future__ import annotations

import io
import sys

import pytest

from isthmus.cli.federation import say
from isthmus.cli.output import explain
from isthmus.cli.progress import ProgressBar
from isthmus.core.errors import CourseFailed
from isthmus.core.federation import ExchangeReport
from isthmus.core.protocol import Failure, Position
from isthmus.core.training import RoundReport

HOSTILE = "[bold]\x1b[2J[/nothing] {task.oops}"


def test_an_error_with_words_of_another_party_keeps_its_lines_and_loses_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    explain(CourseFailed(f"first\n  {HOSTILE}"))
    assert capsys.readouterr().err == "error: first\n  [bold]?[2J[/nothing] {task.oops}\n"


def test_the_progress_bar_takes_titles_and_failures_for_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    report = ExchangeReport(Position(0, 1, 0), "TrainModel", 1, 0, 0, 0.0, 0.0, (Failure("a", "error", HOSTILE),))
    with ProgressBar(HOSTILE, 3, "accuracy") as bar:
        bar.exchanged(report)
        bar.show(1, 0.5, 0.5, 10, 10)
    shown = capsys.readouterr().err
    assert "\x1b[2J" not in shown
    assert "a: error: [bold]?[2J[/nothing] {task.oops}" in shown.replace("\n", " ")
    assert shown.count("[/nothing]") >= 2  # in the failure, and in the title


def test_a_line_is_written_in_one_piece_so_that_threads_do_not_mix_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Screen())
    say("bank-a is gone\x1b")
    assert pieces and pieces[0] == "bank-a is gone?\n" and not "".join(pieces[1:])


def test_the_progress_line_says_what_is_used_up(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("noisy", 3, "accuracy") as bar:
        bar.round_done(RoundReport(1, ("a",), 0.1, 0, 0, {}, 0.5, True, spent={"epsilon": 1.234}))
    assert "val accuracy 0.500 epsilon 1.23 up" in " ".join(capsys.readouterr().err.split())
