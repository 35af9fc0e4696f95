"""The journal: JSON lines, one object per event, the one record of a run. Reports are made from it alone."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import naming, replace_file, some
from isthmus.core.training import Callback, RoundReport, weighted_metric

JOURNAL_FILE = "journal.jsonl"
MOST_REASONS = 3  # of failures that are told one by one
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
MORE_FIELDS = dict.fromkeys(
    ("time", "seconds", "wall_seconds", "codec_seconds", "check_seconds", "fold_seconds"), (int, float)
)
FAILURE_FIELDS: dict[str, type | tuple[type, ...]] = {"client": str, "kind": str, "reason": str}


class StoredEvents(Sequence[dict[str, Any]]):
    """The events of a journal file, read from it whenever they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return read_whole_journal(self.path) if self.path.is_file() else iter(())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return list(self)[index]


class Journal(Callback):
    """Appends events to `journal.jsonl`, or keeps them in memory when there is no folder.

    With `keep` False nothing is kept in memory: a server's course may go on for days, so its events are read back.
    """

    def __init__(self, path: Path | None, keep: bool = True) -> None:
        self.path = path
        self._kept: list[dict[str, Any]] | None = [] if keep or path is None else None

    @property
    def events(self) -> Sequence[dict[str, Any]]:
        """What was written so far."""
        if self._kept is not None:
            return self._kept
        assert self.path is not None
        return StoredEvents(self.path)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the time it happened."""
        entry = {"event": event, "time": round(time.time(), 3), **fields}
        if self._kept is not None:
            self._kept.append(entry)
        if self.path is not None:
            with naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))

    def exchanged(self, report: ExchangeReport) -> None:
        """Write an exchange."""
        place, failures = report.position, [dataclasses.asdict(failure) for failure in report.failures]
        facts = {key: value for key, value in vars(report).items() if key not in ("position", "failures")}
        facts = {key: round(value, 6) if isinstance(value, float) else value for key, value in facts.items()}
        self.write("exchange", round=place.round, exchange=place.exchange, **facts, failures=failures)

    def noted(self, round: int, text: str) -> None:
        """Write what the algorithm says."""
        self.write("note", round=round, text=text)

    def failure_notes(self) -> list[str]:
        """Return a line for each reason for which clients gave no reply: who, in how many rounds, what was asked."""
        found: dict[tuple[str, str, str], dict[str, set[int]]] = {}
        for event in self.events:
            for failure in event.get("failures", ()) if event["event"] == "exchange" else ():
                why = (event["request"], failure["kind"], failure["reason"])
                found.setdefault(why, {}).setdefault(failure["client"], set()).add(event["round"])
        total = sum(event["event"] == "round" for event in self.events)
        lines = []
        for (request, kind, reason), clients in list(found.items())[:MOST_REASONS]:
            more = f" and {len(clients) - 3} more clients" if len(clients) > 3 else ""
            rounds = set().union(*clients.values()) - {0}  # 0 is the setup
            when = f"in {len(rounds)} of {total} rounds" if rounds else "before the first round"
            lines.append(f"{', '.join(list(clients)[:3])}{more} failed {when}: {request}: {kind}: {reason}")
        if len(found) > MOST_REASONS:
            lines.append(f"clients failed for {len(found) - MOST_REASONS} more reasons, which the journal has")
        return lines

    def scoring_notes(self, best_round: int) -> list[str]:
        """Return lines on who did not score the round that is kept, and on the rounds it was not compared with."""
        scored = [e for e in self.events if e["event"] == "round" and e.get("score") is not None and "num_scored" in e]
        kept = next((event for event in scored if event["round"] == best_round), None)
        return [] if kept is None else [*_unscored_note(kept), *_not_compared_note(kept, scored)]

    def round_done(self, report: RoundReport) -> None:
        """Write a round with its metrics, pooled over clients by their number of examples and client by client."""
        found = report.evaluations
        names = {(s, m) for e in found.values() for s, values in e.metrics.items() for m in values}
        self.write(
            "round",
            round=report.round,
            num_clients=len(report.cohort) - len(report.missing),  # of whom everything that was asked came back
            num_asked=len(report.cohort),
            cohort=list(report.cohort),
            missing=list(report.missing),
            num_scored=len(report.scorers),
            unscored=list(report.unscored),
            seconds=round(report.seconds, 6),
            wall_seconds=round(report.wall_seconds, 6),
            bytes_down=report.bytes_down,
            bytes_up=report.bytes_up,
            metrics={f"{s}/{m}": weighted_metric(found, s, m) for s, m in sorted(names)},
            score=report.score,
            is_best=report.is_best,
        )

    def rewind(self, round: int) -> bool:
        """Forget what was written after `round`, so that a resumed run tells each round once.

        Return False where the journal is lost: then it begins anew, and says so.
        """
        if self.path is None:
            return True
        found = self.path.is_file()
        entries = [
            entry
            for entry in (read_journal(self.path) if found else ())
            if entry.get("round", 0) <= round and entry["event"] != "end" and not entry.get("at_end")
        ]
        if self._kept is not None:
            self._kept = entries
        replace_file(self.path, "".join(map(_line, entries)).encode())
        if not found:
            self.write("note", text=f"the journal was missing: it has nothing of the rounds up to {round}")
        return found


def _unscored_note(kept: Mapping[str, Any]) -> list[str]:
    if not kept["unscored"]:
        return []
    total = kept["num_scored"] + len(kept["unscored"])
    return [
        f"round {kept['round']}, which is kept, was scored by {kept['num_scored']} of {total} clients: "
        f"{some(kept['unscored'])} missing"
    ]


def _not_compared_note(kept: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]) -> list[str]:
    fewer = [event for event in scored if event["num_scored"] < kept["num_scored"]]
    if not fewer:
        return []
    away = dict.fromkeys(client for event in fewer for client in event["unscored"])
    who = f" ({some(list(away))} missing)" if away else ""
    return [
        f"{len(fewer)} of {len(scored)} scored rounds were scored by fewer clients than round {kept['round']}, "
        f"which is kept, and are not compared with it{who}; stopping.keep=last would keep the last round"
    ]


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(without_infinity(entry), default=str) + "\n"


def without_infinity(value: Any) -> Any:
    """Return a value for JSON in which a number that is infinite is nothing: no score is, and no reader expects one."""
    if isinstance(value, dict):
        return {key: without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


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
    if not problem and entry["event"] == "exchange":
        return next((found for failure in entry["failures"] if (found := _problem(failure, FAILURE_FIELDS))), "")
    if not problem and entry["event"] == "end":
        odd = [n for n in ("metrics", "client_scores") if not all(map(_are_scores, entry[n].values()))]
        return f"its {odd[-1]!r} are no scores" if odd else ""
    return problem


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
