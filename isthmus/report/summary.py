"""The table at the end of a run: the whole federation and each client, beside the baselines, from journals only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.core.errors import BadInput


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table as Markdown, columns aligned."""
        lines = [self.headings, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        texts = [
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
        ]
        rule = "| " + " | ".join("-" * w for w in widths) + " |"
        return "\n".join([texts[0], rule, *texts[1:]]) + "\n"


@dataclass(frozen=True)
class Column:
    """One method's scores."""

    title: str
    whole: float | None
    clients_mean: float | None
    clients: Mapping[str, float]


def end_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last event of a finished run."""
    ends = [event for event in events if event["event"] == "end"]
    if ends:
        return ends[-1]
    raise BadInput("the journal has no end: the run was not finished; go on with: isthmus run --resume RUN")


def column(title: str, events: Sequence[dict[str, Any]], metric: str) -> Column:
    """Return a method's scores from its journal; the global model's where there is one, else the local models'."""
    end = end_of(events)

    def pick(graph: str) -> float | None:
        for model in ("global_model", "local_model"):
            value = end["metrics"].get(f"{model}/{graph}", {}).get(metric)
            if value is not None:
                return float(value)
        return None

    own = {client: scores[metric] for client, scores in end["client_scores"].items() if metric in scores}
    personal = end["metrics"].get("local_model/local_graph", {}).get(metric)
    mean = personal if personal is not None else pick("local_graph")
    return Column(title, pick("global_graph"), mean, own)


def results_table(columns: Sequence[Column], clients: Sequence[str], facts: Mapping[str, str] | None = None) -> Table:
    """Return one row per client and one for the whole, one column per method, in percent where below 1."""
    rows = []
    for client in clients:
        rows.append((client, (facts or {}).get(client, ""), *(_number(c.clients.get(client)) for c in columns)))
    rows.append(("all clients, own graphs", "", *(_number(c.clients_mean) for c in columns)))
    rows.append(("whole graph", "", *(_number(c.whole) for c in columns)))
    return Table(("test on", "holds", *(c.title for c in columns)), tuple(rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
