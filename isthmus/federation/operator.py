"""The operator's process: it hands a course to the server, watches it, and brings the run folder home."""

from __future__ import annotations

import importlib.util
import json
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode, unpack
from isthmus.core.errors import BadInput, BadMessage, CourseFailed, MissingExtra
from isthmus.federation.kit import SERVER, Kit, hold
from isthmus.federation.messages import News, Receipt, RunFile, Submission
from isthmus.federation.preflight import connection_problem, wait_for_server
from isthmus.monitor.folder import ID_FILE, RunFolder
from isthmus.monitor.journal import replace_file

# What the server may write into the operator's run folder.
RUN_FILES = ("course.yaml", "course_id", "journal.jsonl", "checkpoint.isth", "model.safetensors", "report.md")


def submit(
    kit: Kit,
    course: Course,
    run_dir: Path,
    *,
    on_news: Callable[[dict[str, Any]], None] = lambda fact: None,
    say: Callable[[str], None] = print,
    patience_seconds: float = 60.0,
    silence_seconds: float = 3600.0,
) -> None:
    """Submit a course and wait for its end; the run folder is brought to `run_dir`. Ctrl-C cancels the course."""
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("nvflare", "sites", "submitting a course")
    RunFolder.check_new(run_dir)
    deadline = time.monotonic() + patience_seconds
    if not wait_for_server(kit, say, lambda: time.monotonic() > deadline):
        raise BadInput(connection_problem(kit) or "the server came too late; try again")
    with hold(kit):
        _submit(kit, course, run_dir, on_news, silence_seconds)


def _submit(
    kit: Kit, course: Course, run_dir: Path, on_news: Callable[[dict[str, Any]], None], silence_seconds: float
) -> None:
    from isthmus.runtime.flare.link import Credentials, Link

    inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
    link = Link(
        kit.party,
        f"{kit.host}:{kit.port}",
        Credentials(kit.root, kit.certificate, kit.key),
        {SERVER},
        lambda peer, kind, ident, data: inbox.put((kind, data)),
        on_up=lambda peer: inbox.put(("up", b"")),
        on_down=lambda peer: inbox.put(("down", b"")),
    )
    try:
        _take(inbox, "up", 30.0)
        link.send(SERVER, "submit", "submission", encode(Submission(course_to_yaml(course), __version__)))
        receipt: Receipt = decode(_take(inbox, "answer", 60.0), Receipt)
        if receipt.problem:
            raise BadInput(f"the server does not take the course: {receipt.problem}")
        _follow(inbox, run_dir, on_news, silence_seconds)
        # Marks the folder as one that came from elsewhere, whatever the server left out.
        (run_dir / ID_FILE).touch()
    except KeyboardInterrupt:
        link.send(SERVER, "cancel", "", b"")
        raise
    finally:
        link.stop()


def _take(inbox: queue.Queue[tuple[str, bytes]], wanted: str, seconds: float) -> bytes:
    try:
        kind, data = inbox.get(timeout=seconds)
    except queue.Empty:
        raise CourseFailed(f"the server did not answer within {seconds:.0f} s") from None
    if kind != wanted:
        raise CourseFailed(f"the server said {kind!r} where {wanted!r} was expected")
    return data


def _follow(
    inbox: queue.Queue[tuple[str, bytes]],
    run_dir: Path,
    on_news: Callable[[dict[str, Any]], None],
    silence_seconds: float,
) -> None:
    """Take news and files until the last file."""
    while True:
        try:
            kind, data = inbox.get(timeout=silence_seconds)
        except queue.Empty:
            raise CourseFailed(f"the server has been silent for {silence_seconds:.0f} s") from None
        try:
            if kind == "news":
                news: News = decode(data, News)
                on_news(json.loads(news.events))
            elif kind == "file":
                file: RunFile = decode(data, RunFile)
                if not file.name:
                    if file.problem:
                        raise CourseFailed(file.problem)
                    return
                if file.name not in RUN_FILES:
                    raise CourseFailed(f"the server sent a file that is no part of a run: {file.name[:60]!r}")
                run_dir.mkdir(parents=True, exist_ok=True)
                replace_file(run_dir / file.name, unpack(file.content))
            elif kind == "down":
                raise CourseFailed("the connection to the server was lost; the course may go on there")
        except (BadMessage, ValueError) as error:
            raise CourseFailed(f"the server sent nonsense: {error}") from None
