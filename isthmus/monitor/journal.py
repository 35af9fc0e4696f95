"""The journal: JSON lines, one object per event, the one record of a run. Reports are made from it alone."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.core.course import RoundReport, weighted_metric
from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport

FILE_NAME = "journal.jsonl"
MOST_REASONS = 3  # of failures that are told one by one


class Journal:
    """Appends events to `journal.jsonl`, or keeps them in memory when there is no folder."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the time it happened."""
        entry = {"event": event, "time": round(time.time(), 3), **fields}
        self.events.append(entry)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, default=str) + "\n")

    def exchanged(self, report: ExchangeReport) -> None:
        """Write an exchange."""
        self.write(
            "exchange",
            round=report.position.round,
            exchange=report.position.exchange,
            request=report.request,
            num_clients=report.num_clients,
            bytes_down=report.bytes_down,
            bytes_up=report.bytes_up,
            seconds=round(report.seconds, 6),
            client_seconds=round(report.client_seconds, 6),
            codec_seconds=round(report.codec_seconds, 6),
            check_seconds=round(report.check_seconds, 6),
            fold_seconds=round(report.fold_seconds, 6),
            failures=[dataclasses.asdict(failure) for failure in report.failures],
        )

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

    def round_done(self, report: RoundReport) -> None:
        """Write a round with its metrics, pooled over clients by their number of examples and client by client."""
        found = report.evaluations
        names = {(s, m) for e in found.values() for s, values in e.metrics.items() for m in values}
        self.write(
            "round",
            round=report.round,
            num_clients=len(report.cohort),
            cohort=list(report.cohort),
            seconds=round(report.seconds, 6),
            wall_seconds=round(report.wall_seconds, 6),
            bytes_down=report.bytes_down,
            bytes_up=report.bytes_up,
            metrics={f"{s}/{m}": weighted_metric(found, s, m) for s, m in sorted(names)},
            score=report.score,
            is_best=report.is_best,
        )

    def rewind(self, round: int) -> None:
        """Forget what was written after `round`, so that a resumed run tells each round once."""
        if self.path is None:
            return
        self.events = [
            entry
            for entry in read_journal(self.path)
            if entry.get("round", 0) <= round and entry["event"] != "end" and not entry.get("at_end")
        ]
        lines = "".join(json.dumps(entry, default=str) + "\n" for entry in self.events)
        replace_file(self.path, lines.encode())


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; a last line that was cut off is left out, any other bad line is an error."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise BadInput(f"{path}: line {number} is not JSON: {line[:60]!r}") from None
        if not isinstance(entry, dict) or "event" not in entry:
            raise BadInput(f"{path}: line {number} is no event: {line[:60]!r}")
        yield entry


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
