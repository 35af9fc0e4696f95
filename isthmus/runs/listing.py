"""Which runs there are below a folder, in a line each, and those of them that somebody asks for."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput, nearest
from isthmus.report.run_page import leaves_of
from isthmus.report.summary import score_of
from isthmus.runs.folder import COURSE_FILE
from isthmus.runs.journal import JOURNAL_FILE

COLUMNS = ("run", "began", "algorithm", "dataset", "clients", "state", "round", "score", "metric", "seconds")
TAIL_BYTES = 1 << 20  # of a journal, in which the last events are looked for
DEEPEST = 6  # folders below the one that is looked through
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*(?P<key>[\w.\-]+)\s*(?P<sign>>=|<=|!=|=|>|<)\s*(?P<value>\"[^\"]*\"|'[^']*'|\S+)\s*")


@dataclass(frozen=True)
class Listed:
    """A run in few words; `keys` are those of its course."""

    path: Path
    facts: Mapping[str, Any]
    keys: Mapping[str, str]


@dataclass(frozen=True)
class Condition:
    """What is asked of a run: a column or a key of its course, compared with a value."""

    key: str
    sign: str
    value: str

    def holds(self, run: Listed) -> bool:
        """Whether it is so; of a run that has no such key nothing is but that it is something else."""
        found = run.facts[self.key] if self.key in COLUMNS else run.keys.get(self.key)
        if found is None:
            return self.sign == "!="
        try:
            return _OPERATORS[self.sign](float(found), float(self.value))
        except ValueError:
            return _OPERATORS[self.sign](str(found), self.value)


def conditions(text: str) -> list[Condition]:
    """Return what is asked for in words like `algorithm=fedgl and score>0.8`."""
    found = []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise BadInput(
                f"--where has {part!r}; say KEY=VALUE (or !=, <, <=, >, >=), several of them joined by `and`: "
                "algorithm=fedgl and score>0.8"
            )
        found.append(Condition(match["key"], match["sign"], match["value"].strip("\"'")))
    return found


def runs_below(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yield every run folder below one, or the one itself, in the order of their names."""
    if (folder / COURSE_FILE).is_file() and (folder / JOURNAL_FILE).is_file():
        yield folder
    if deepest and folder.is_dir():
        for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from runs_below(inner, deepest - 1)


def listed(folder: Path, where: str = "") -> list[Listed]:
    """Return the runs below a folder of which all is so that is asked for; those that cannot be read are named so."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; say in which runs lie")
    asked = conditions(where) if where else []
    found = [_read(path, folder) for path in runs_below(folder)]
    keys = {key for run in found for key in run.keys}
    for each in asked:
        if found and each.key not in COLUMNS and each.key not in keys:
            raise BadInput(f"--where asks for {each.key!r}, which no run has; {nearest(each.key, {*COLUMNS, *keys})}")
    return [run for run in found if all(each.holds(run) for each in asked)]


def _read(path: Path, root: Path) -> Listed:
    """Return a run by the first event of its journal and the last ones."""
    name = str(path.relative_to(root)) if path != root else path.name
    facts: dict[str, Any] = {**dict.fromkeys(COLUMNS), "run": name}
    try:
        first, last = _ends(path / JOURNAL_FILE)
    except (OSError, ValueError):
        return Listed(path, {**facts, "state": "unreadable"}, {})
    course = first.get("course") if isinstance(first.get("course"), dict) else {}
    assert isinstance(course, dict)
    keys = dict(leaves_of(course))
    metric = str((course.get("task", {}).get("metrics") or [""])[0]) if isinstance(course.get("task"), dict) else ""
    facts |= {
        "began": first.get("time"),
        "algorithm": keys.get("algorithm.name"),
        "dataset": keys.get("dataset.name"),
        "clients": course.get("num_clients"),
        "metric": metric or None,
    }
    return Listed(path, {**facts, **_state(last, metric)}, keys)


def _state(events: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return how far a run is, by its last events."""
    for event in reversed(events):
        if event.get("event") == "end" and isinstance(event.get("metrics"), dict):
            whole = score_of(event["metrics"], "global_graph", metric)
            score = score_of(event["metrics"], "local_graph", metric) if whole is None else whole
            facts = {"round": event.get("num_rounds"), "score": score, "seconds": event.get("seconds")}
            return {"state": "finished", **facts}
        if event.get("event") in ("round", "resume"):
            return {"state": "unfinished", "round": event.get("round", event.get("after"))}
    return {"state": "unfinished", "round": 0}


def _ends(journal: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first event of a journal, and the last ones, without reading what lies between."""
    with journal.open("rb") as file:
        first = json.loads(file.readline())
        if not isinstance(first, dict):
            raise ValueError("no event")
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().splitlines()[1 if size > TAIL_BYTES else 0 :]
    events = (_event(line) for line in lines)
    return first, [event for event in events if event is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    """Return an event; nothing of a line that is none, as one that is being written."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
