"""Output that cannot be written: a sentence for a result, a note for a log, and files that are named."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from isthmus.cli.federation import interruptible, say
from isthmus.cli.output import LastingStream
from isthmus.cli.predict import _write
from isthmus.cli.progress import ProgressBar
from isthmus.core.outside import naming, replace_file
from isthmus.runs.folder import Journal
from tests.processes import isthmus

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@needs_full
@pytest.mark.parametrize("words", [("run", "--json", "rounds=1"), ("list", "algorithms"), ("--help",)])
def test_a_result_that_cannot_be_written_is_one_sentence_and_an_exit_code(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with FULL.open("w") as full:
        done = isthmus(*words, stdout=full, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: standard output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@needs_full
def test_a_log_that_cannot_be_written_is_told_once_and_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    with suppress(OSError), FULL.open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        monkeypatch.setattr(sys, "stdout", output)
        with interruptible(), ProgressBar("fedavg", 3, "accuracy") as bar:
            for number in range(5):
                say(f"line {number}")
                bar.show(number, None, None, 0, 0)
    told = "standard error cannot be written: No space left on device; the work goes on\n"
    assert output.getvalue() == told


def test_a_closed_pipe_ends_nothing_either_and_a_log_goes_on_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as pipe:
        error, output = io.StringIO(), LastingStream(pipe, "standard output", other := io.StringIO())
        for _ in range(3):
            print("line", file=output, flush=True)
        assert other.getvalue() == "standard output cannot be written: Broken pipe; the work goes on\n"
        assert not error.getvalue()
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())

    class Busy(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    log = Busy()
    lasting = LastingStream(log, "standard error")
    print("lost", file=lasting)
    log.full = False
    print("kept", file=lasting)
    assert log.getvalue() == "kept\n"


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        replace_file(tmp_path / "model.safetensors", b"x")
    assert caught.value.filename == str(tmp_path / "model.safetensors") and caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError) as missing, naming(tmp_path):
        (tmp_path / "other").read_bytes()
    assert missing.value.filename == str(tmp_path / "other")  # one that has its file keeps it


@needs_full
def test_a_journal_on_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as caught:
        Journal(tmp_path / "journal.jsonl").write("note", text="x" * 100_000)
    assert caught.value.filename == str(tmp_path / "journal.jsonl")


@needs_full
@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_predictions_on_a_full_disk_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / f".{name}.{os.getpid()}.part").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as caught:
        _write(pd.DataFrame({"label": ["red"] * 10_000}), tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
