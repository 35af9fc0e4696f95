"""Where a run spent its time, from its journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.core.protocol import EvaluateModel, KeepBest
from isthmus.report.summary import Table

# Exchanges that belong to the evaluation of a course, not to its method.
EVALUATION = (EvaluateModel.__name__, KeepBest.__name__)

PARTS = {
    "set-up": "loading and dividing the data, building clients and model",
    "local compute": "handlers of the clients, but for evaluation",
    "codec": "encoding, decoding and measuring messages",
    "aggregation": "checking replies, folding them, the server's own steps",
    "evaluation": "the clients' evaluations, and the scores at the end",
    "engine": "carrying requests and replies, putting clients together",
    "checkpoints": "writing them",
    "monitors": "measuring them",
}


def time_by_part(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds that went to each of `PARTS`.

    Where clients work at the same time (between sites), their compute counts as long as the slowest took.
    """
    spent = dict.fromkeys(PARTS, 0.0)
    in_rounds = 0.0
    for event in events:
        for part, seconds in _parts_of(event).items():
            spent[part] += seconds
        in_rounds += event["seconds"] if event["event"] == "exchange" and event["round"] > 0 else 0.0
    # What a round took beyond its exchanges is the server's own work.
    spent["aggregation"] = max(spent["aggregation"] - in_rounds, 0.0)
    return spent


def _parts_of(event: dict[str, Any]) -> dict[str, float]:
    """Return the parts that an event tells of, with their seconds."""
    kind = event["event"]
    if kind == "setup":
        return {"set-up": event["load_seconds"] + event["build_seconds"]}
    if kind == "round":
        return {"aggregation": event.get("wall_seconds", 0.0)}
    if kind != "exchange":
        part = {"scored": "evaluation", "checkpoint": "checkpoints", "monitor": "monitors"}.get(kind)
        return {} if part is None else {part: event.get("seconds", 0.0)}
    codec = event.get("codec_seconds", 0.0)
    taking_in = event.get("fold_seconds", 0.0) + event.get("check_seconds", 0.0)
    compute = min(event["client_seconds"], max(event["seconds"] - codec - taking_in, 0.0))
    engine = max(event["seconds"] - compute - codec - taking_in, 0.0)
    if event["request"] in EVALUATION:
        return {"evaluation": compute + codec + taking_in + engine}
    return {"local compute": compute, "codec": codec, "aggregation": taking_in, "engine": engine}


def profile_table(events: Sequence[dict[str, Any]]) -> Table:
    """Return the parts with their seconds and shares, the largest first."""
    spent = time_by_part(events)
    total = sum(spent.values())
    rows = [
        (part, PARTS[part], f"{seconds:.3f}", f"{100 * seconds / total:.1f} %" if total else "-")
        for part, seconds in sorted(spent.items(), key=lambda item: -item[1])
    ]
    return Table(("part", "what it is", "seconds", "share"), (*rows, ("all", "", f"{total:.3f}", "100.0 %")))
