"""A journal as it is read: JSON lines, one object per event, the one record of a run, from which reports are made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput

JOURNAL_FILE = "journal.jsonl"
_Number = (int, float)
_Score = (int, float, type(None))
# What readers of a journal rely on, by the kind of event; events of other kinds, and more fields, may stand in it.
FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "setup": {"load_seconds": _Number, "build_seconds": _Number},
    "client": {"client": str, "text": str},
    "note": {"text": str},
    "exchange": {
        "round": int,
        "request": str,
        "bytes_down": int,
        "bytes_up": int,
        "seconds": _Number,
        "client_seconds": _Number,
        "failures": list,
    },
    "round": {"round": int, "metrics": dict, "score": _Score, "seconds": _Number},
    "checkpoint": {"round": int, "seconds": _Number},
    "monitor": {"name": str, "round": int, "clients": list, "absent": list, "seconds": _Number},
    "scored": {"seconds": _Number},
    "end": {
        "num_rounds": int,
        "best_round": int,
        "best_score": _Score,
        "seconds": _Number,
        "metrics": dict,
        "client_scores": dict,
    },
}
# Of these the events of other versions may have some or none.
_SECONDS = ("seconds", "wall_seconds", "codec_seconds", "check_seconds", "fold_seconds")
MORE_FIELDS = dict.fromkeys(("time", *_SECONDS), _Number)
FAILURE_FIELDS: dict[str, type | tuple[type, ...]] = {"client": str, "kind": str, "reason": str}


class StoredEvents(Sequence[dict[str, Any]]):
    """The events of a journal file, read from it whenever they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return read_whole_journal(self.path) if self.path.is_file() else iter(())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; a last line that was cut off is left out, any other bad line is an error."""
    try:
        with path.open(encoding="utf-8") as file:
            broken = ""  # of the last line that is forgiven
            for number, line in enumerate(file, start=1):
                if broken:
                    raise BadInput(broken)
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    broken = f"{path}: line {number} is not JSON: {line[:60]!r}"
                    continue
                yield _checked(path, number, entry, line)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _checked(path: Path, number: int, entry: Any, line: str) -> dict[str, Any]:
    """Return an event that is at least that."""
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        raise BadInput(f"{path}: line {number} is no event: {line[:60]!r}")
    if type(entry.get("round", 0)) is not int:
        problem = f"its 'round' is {str(entry['round'])[:40]!r}"
        raise BadInput(f"{path}: line {number}, the event {entry['event'][:40]!r}, is damaged: {problem}")
    return entry


def read_whole_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, each with all that readers rely on; one with holes is an error."""
    for number, entry in enumerate(read_journal(path), start=1):
        problem = _hole_in(entry)
        if problem:
            raise BadInput(f"{path}: line {number}, the event {entry['event'][:40]!r}, is damaged: {problem}")
        yield entry


def _hole_in(entry: dict[str, Any]) -> str:
    """Return what an event lacks of what readers rely on."""
    more = {name: kind for name, kind in MORE_FIELDS.items() if name in entry}
    problem = _problem(entry, {**more, **FIELDS.get(entry["event"], {})})
    if problem:
        return problem
    if entry["event"] == "exchange":
        return next(filter(None, (_problem(failure, FAILURE_FIELDS) for failure in entry["failures"])), "")
    if entry["event"] == "end":
        odd = [n for n in ("metrics", "client_scores") if not all(map(_are_scores, entry[n].values()))]
        return f"its {odd[-1]!r} are no scores" if odd else ""
    return ""


def _are_scores(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(value, _Score) and not _is_huge(value) for value in found.values()
    )


def _is_huge(value: Any) -> bool:
    """Whether a whole number is more than anything that is counted, and than a float can hold."""
    return isinstance(value, int) and abs(value) > 2**63


def _problem(entry: Any, fields: dict[str, type | tuple[type, ...]]) -> str:
    if not isinstance(entry, dict):
        return f"{str(entry)[:40]!r} is no record"
    for name, kind in fields.items():
        if name not in entry:
            return f"it has no {name!r}"
        if not isinstance(entry[name], kind) or _is_huge(entry[name]):
            return f"its {name!r} is {str(entry[name])[:40]!r}"
    return ""
