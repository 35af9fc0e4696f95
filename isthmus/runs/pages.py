"""The page of a run folder, drawn from its journal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from isthmus.core.outside import replace_file
from isthmus.report.run_page import run_page
from isthmus.report.story import story_of
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import read_whole_journal


def page_of(folder: RunFolder, events: Sequence[dict[str, Any]] | None = None) -> str:
    """Return the page of a run; `events` are those of its journal, where somebody has them already."""
    found = list(read_whole_journal(folder.journal)) if events is None else events
    command = "" if folder.is_of_sites else f"isthmus run {shlex.quote(str(folder.course))}"
    return run_page(story_of(folder.path.resolve().name, found), found, command)


def write_page(folder: RunFolder, events: Sequence[dict[str, Any]] | None = None) -> None:
    """Write `report.html` into a run folder."""
    replace_file(folder.page, page_of(folder, events).encode())
