"""Output that may break while the work goes on: a full log disk or a closed pipe is told once, and ends nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from isthmus.core.outside import naming


class LastingStream:
    """A text stream that takes what it is given, whether or not it can be written.

    What cannot be written is told once on `other`. Every later write is tried again, so a log goes on when there is
    room for it.
    """

    def __init__(self, stream: IO[str], name: str, other: IO[str] | None = None) -> None:
        self._stream, self._name, self._other = stream, name, other
        self._told = False

    def write(self, text: str) -> int:
        """Write, if that is possible."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._tell(error)
            return len(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        try:
            self._stream.flush()
        except OSError as error:
            self._tell(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _tell(self, error: OSError) -> None:
        if self._told:
            return
        self._told = True
        if self._other is not None:
            try:
                print(f"{self._name} cannot be written: {error.strerror or error}; the work goes on", file=self._other)
                self._other.flush()
            except OSError:
                self._other = None  # neither can be written, so nobody can be told


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let standard output and error break without ending what goes on within."""
    before = sys.stdout, sys.stderr
    sys.stdout = LastingStream(before[0], OUTPUT, before[1])
    sys.stderr = LastingStream(before[1], "standard error", before[0])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


class NamedStream:
    """A text stream whose errors name it, as those of files do."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        """Write; an error names the stream."""
        with naming(Path(self._name)):
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush; an error names the stream."""
        with naming(Path(self._name)):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


OUTPUT = "standard output"


@contextmanager
def named_output() -> Iterator[None]:
    """Let an error of standard output be told from one of a file, also one that comes with its last bytes.

    Standard error is for what is said on the way: where it cannot be written, the work goes on.
    """
    before, said = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = NamedStream(before, OUTPUT), LastingStream(said, "standard error")
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # What is left in the buffer would be tried again at the end of the process, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), before.fileno())
            raise
        finally:
            sys.stdout, sys.stderr = before, said
