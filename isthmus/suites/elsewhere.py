"""Courses of a suite on the workers of a cluster: each on one, and its run folder comes back.

    server -> worker   Errand     the course as text, and what its run folder holds so far
    worker -> server   Done       what the run folder holds now

A worker loads the data itself, so it must have it; only the bundled data come with the package.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from isthmus import __version__
from isthmus.config.load import load_course
from isthmus.core.codec import decode_own, encode, pack, unpack
from isthmus.core.errors import BadInput, IsthmusError
from isthmus.core.outside import parse_yaml, replace_file
from isthmus.core.record import Record
from isthmus.runs.at_workers import portable
from isthmus.runs.folder import set_aside
from isthmus.runs.simulated import crew_for
from isthmus.suites.same_data import Finishing, LastScenario, finish_course
from isthmus.suites.spec import Point


@dataclass(frozen=True)
class Errand(Record):
    """A course to run to its end."""

    version: str
    """Of isthmus at the server."""
    course: str
    """The course, as a file has it."""
    data_root: str
    """Where the worker finds datasets; empty: where it looks by itself."""
    files: dict[str, Tensor]
    """What the run folder holds, by path."""


@dataclass(frozen=True)
class Done(Record):
    """What became of it."""

    error: str
    """Why it failed."""
    note: str
    """What became of an earlier run that could not be resumed."""
    files: dict[str, Tensor]
    """What the run folder holds now, by path."""


# Of a worker, which may have several threads; torch's settings are of the whole process.
_one_at_a_time = threading.Lock()
_data = LastScenario()


def run_errand(message: bytes) -> bytes:
    """Run a course to its end in a worker."""
    errand: Errand = decode_own(message, Errand, share=True)
    if errand.version != __version__:
        return encode(Done(f"the worker runs isthmus {__version__}, the server {errand.version}", "", {}))
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="isthmus-course-") as folder:
        path = Path(folder) / "run"
        unpacked(errand.files, path)
        root = Path(errand.data_root) if errand.data_root else None
        try:
            course = load_course(parse_yaml(errand.course, "a course of a suite"))
            error, note = finish_course(course, path, root, _data)
        except IsthmusError as failure:
            error, note = str(failure), ""
        return encode(Done(error, note, packed(path)))


def on_cluster(points: Sequence[Point], folder: Path, data_root: Path | None, address: str) -> Finishing:
    """Run courses on a cluster, each on one worker; yield each as its run folder is here."""
    with crew_for(None, address) as crew:
        assert crew is not None
        under_way: dict[Any, Point] = {}
        waiting = list(reversed(points))
        # A few more than there are workers: one that joins finds something to do, and Ctrl-C leaves no long queue.
        while waiting or under_way:
            while waiting and len(under_way) < 2 * max(len(crew.workers()), 1):
                point = waiting.pop()
                files = packed(point.path(folder))
                errand = Errand(__version__, portable(point.course), str(data_root or ""), files)
                under_way[crew.start(run_errand, encode(errand))] = point
            future = crew.first(list(under_way))
            point = under_way.pop(future)
            path = point.path(folder)
            try:
                done: Done = decode_own(future.result(), Done, share=True)
            except Exception as error:  # lost again and again, or it has not what it needs
                yield point, f"{type(error).__name__}: {error}", ""
                continue
            if done.note and path.exists():
                set_aside(path, done.note)
            unpacked(done.files, path)
            yield point, done.error, done.note


def packed(path: Path) -> dict[str, Tensor]:
    """Return the files of a folder, by path; nothing where there is none."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return {file.relative_to(path).as_posix(): pack(file.read_bytes()) for file in files}


def unpacked(files: dict[str, Tensor], path: Path) -> None:
    """Write files into a folder, the journal last: it is what shows that a run is finished."""
    for name in sorted(files, key=lambda name: name.endswith(".jsonl")):
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise BadInput(f"a worker sent the file {name!r}, which lies outside of its run folder")
        target = path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, unpack(files[name]))
