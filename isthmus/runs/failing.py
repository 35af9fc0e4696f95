"""What a journal's failures come to, for people: who gave no reply that counts, how often, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

MOST_REASONS = 3  # of failures that are told one by one
MOST_NAMES = 3
SUSPICIOUS = "suspicious"
# A number that is no part of a name. What a guard finds odd, it finds odd again in the next round, by another number.
_NUMBER = re.compile(r"(?<![\w-])\d[\d.]*(e[+-]?\d+)?(?![\w-])")


def failure_notes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason for which clients gave no reply: who, in how many rounds, what was asked.

    And one on how many suspicious replies there were of each client, if there were any.
    """
    found: dict[tuple[str, str, str], dict[str, set[int]]] = {}
    said: dict[tuple[str, str, str], str] = {}
    doubted: Counter[str] = Counter()
    total = 0
    for event in events:  # once: a journal may be long, and is read from its file
        total += event["event"] == "round"
        for failure in _failures(event):
            why = (event["request"], failure["kind"], _NUMBER.sub("#", failure["reason"]))
            said.setdefault(why, failure["reason"])
            found.setdefault(why, {}).setdefault(failure["client"], set()).add(event["round"])
            doubted[failure["client"]] += failure["kind"] == SUSPICIOUS
    lines = [_line(why, said[why], clients, total) for why, clients in list(found.items())[:MOST_REASONS]]
    if len(found) > MOST_REASONS:
        lines.append(f"clients failed for {len(found) - MOST_REASONS} more reasons, which the journal has")
    each = [f"{client} {number}" for client, number in doubted.most_common() if number]
    return [*lines, f"suspicious replies, which were not counted: {', '.join(each)}"] if each else lines


def _line(why: tuple[str, str, str], reason: str, clients: Mapping[str, set[int]], total: int) -> str:
    request, kind, _ = why
    rounds = set().union(*clients.values()) - {0}  # 0 is the setup
    when = f"in {len(rounds)} of {total} rounds" if rounds else "before the first round"
    return f"{_named(clients)} failed {when}: {request}: {kind}: {reason}"


def _failures(event: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = event.get("failures", ()) if event["event"] == "exchange" else ()
    return found


def _named(clients: Iterable[str]) -> str:
    names = list(clients)
    more = f" and {len(names) - MOST_NAMES} more clients" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
