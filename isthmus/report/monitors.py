"""What monitors measured, as a line and as a figure, from journals only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from isthmus.report.drawing import heat_map_file

SHOWN = 5  # absent clients that a line names


def last_measured(events: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the last event of each of these monitors that has one."""
    found = {event["name"]: event for event in events if event["event"] == "monitor"}
    return {name: found[name] for name in names if name in found}


def summary(event: dict[str, Any]) -> str:
    """Return what was measured on one line: mean, least and largest over pairs of clients, or over clients."""
    number = len(event["clients"])
    clients = f"{number} client" if number == 1 else f"{number} clients"
    head = f"{event['name']}, round {event['round']}" if event["round"] else event["name"]
    over = f"pairs of {clients}" if "matrix" in event else clients
    numbers = [f"{key} {event[key]:.4f}" for key in ("mean", "least", "largest") if event[key] is not None]
    words = f"{head}: {', '.join(numbers) or 'no numbers'} over {over}"
    absent = event["absent"]
    if not absent:
        return words
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"{words}; absent: {', '.join(absent[:SHOWN])}{more}"


def figure(event: dict[str, Any]) -> str:
    """Return a heat map as the text of an SVG file; nothing where there is a number for each client only."""
    if "matrix" not in event:
        return ""
    mean = "" if event["mean"] is None else f", mean {event['mean']:.4f}"
    title = f"{event['name']}{', round ' + str(event['round']) if event['round'] else ''}{mean}"
    return heat_map_file(title, event["clients"], event["matrix"], event["largest"] or 0.0, 4)
