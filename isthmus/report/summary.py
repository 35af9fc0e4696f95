"""What a run came to, from journals only: the table of the federation and each client, and what monitors measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.core.outside import some
from isthmus.report.drawing import heat_map_file


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


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Column:
    """One method's scores."""

    title: str
    whole: float | None
    clients_mean: float | None
    clients: Mapping[str, float]
    covered: str = ""  # whose scores are in the mean, where not everybody's are: "2 of 3"
    spent: Mapping[str, float] = field(default_factory=dict)  # what guards used up in all: epsilon


def end_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last event of a finished run."""
    ends = [event for event in events if event["event"] == "end"]
    if ends:
        return ends[-1]
    of_sites = any(event.get("sites") for event in events if event["event"] == "course")
    command = "isthmus serve KIT --resume" if of_sites else "isthmus run --resume"
    raise BadInput(f"the journal has no end: the run was not finished; go on with: {command} RUN")


MODELS = ("global_model", "local_model")


def score_of(
    metrics: Mapping[str, Mapping[str, Any]], graph: str, metric: str, model: str = "global_model"
) -> float | None:
    """Return a metric on a graph: the global model's, or the mean of the local ones where there is none.

    With `model` "local_model" it is the other way round; None where neither has the metric.
    """
    modes = (f"{each}/{graph}" for each in (model, *(other for other in MODELS if other != model)))
    found = (metrics.get(mode, {}).get(metric) for mode in modes)
    return next((value for value in found if value is not None), None)


def clients_of(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the clients of a course, whether they could be scored or not."""
    sites = next((event["sites"] for event in events if event["event"] == "course" and event.get("sites")), None)
    told = [event["client"] for event in events if event["event"] == "client"]
    return list(dict.fromkeys(sites or told or end_of(events)["client_scores"]))


def missing_of(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the clients of a finished course that its scores have nothing of."""
    scored = end_of(events)["client_scores"]
    return [client for client in clients_of(events) if client not in scored]


def headline(metric: str, events: Sequence[dict[str, Any]], by: str = "") -> str:
    """Return what a table of a finished run shows: the metric, the round that is kept, and whose scores are missing."""
    end, missing = end_of(events), missing_of(events)
    chosen = f" by {by}" if by and by != metric else ""
    text = f"test {metric}, best round{chosen} {end['best_round']} of {end['num_rounds']}"
    return text + (f"; {_covered(events)} clients; {some(missing)} missing" if missing else "")


def _covered(events: Sequence[dict[str, Any]]) -> str:
    total, missing = len(clients_of(events)), len(missing_of(events))
    return f"{total - missing} of {total}" if missing else ""


def column(title: str, events: Sequence[dict[str, Any]], metric: str) -> Column:
    """Return a method's scores from its journal; the global model's where there is one, else the local models'."""
    end = end_of(events)
    own = {client: scores[metric] for client, scores in end["client_scores"].items() if metric in scores}
    personal = end["metrics"].get("local_model/local_graph", {}).get(metric)
    mean = personal if personal is not None else score_of(end["metrics"], "local_graph", metric)
    return Column(
        title, score_of(end["metrics"], "global_graph", metric), mean, own, _covered(events), spent_of(events)
    )


def spent_of(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what a run's guards used up in all its rounds, by name; nothing where no guard counts anything."""
    rounds = [event for event in events if event["event"] == "round"]
    found: dict[str, float] = rounds[-1].get("spent", {}) if rounds else {}
    return found


def run_table(runs: Mapping[str, Sequence[dict[str, Any]]], metric: str) -> Table:
    """Return the table of finished runs of one federation, titles to journals; the first says who is in it."""
    first = next(iter(runs.values()))
    facts = {event["client"]: event["text"] for event in first if event["event"] == "client"}
    columns = [column(title, events, metric) for title, events in runs.items()]
    return results_table(columns, clients_of(first), facts)


def results_table(columns: Sequence[Column], clients: Sequence[str], facts: Mapping[str, str] | None = None) -> Table:
    """Return one row per client and one for the whole, one column per method, in percent where below 1."""
    rows = []
    for client in clients:
        rows.append((client, (facts or {}).get(client, ""), *(_number(c.clients.get(client)) for c in columns)))
    means = [_number(c.clients_mean) + (f" ({c.covered})" if c.covered else "") for c in columns]
    rows.append(("all clients, own graphs", "", *means))
    rows.append(("whole graph", "", *(_number(c.whole) for c in columns)))
    for name in dict.fromkeys(name for c in columns for name in c.spent):
        rows.append((name, "", *(f"{c.spent[name]:.3g}" if name in c.spent else "-" for c in columns)))
    return Table(("test on", "holds", *(c.title for c in columns)), tuple(rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


# ---- what monitors measured

SHOWN = 5  # absent clients that a line names


def last_measured(events: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the last event of each of these monitors that has one."""
    found = {event["name"]: event for event in events if event["event"] == "monitor"}
    return {name: found[name] for name in names if name in found}


def monitor_line(event: dict[str, Any]) -> str:
    """Return what was measured on one line: mean, least and largest over pairs of clients, or over clients."""
    number = len(event["clients"])
    clients = f"{number} client" if number == 1 else f"{number} clients"
    head = f"{event['name']}, round {event['round']}" if event["round"] else event["name"]
    over = f"pairs of {clients}" if "matrix" in event else clients
    numbers = [f"{key} {event[key]:.4f}" for key in ("mean", "least", "largest") if event[key] is not None]
    words = f"{head}: {', '.join(numbers) or 'no numbers'} over {over}"
    return f"{words}; absent: {some(event['absent'], SHOWN)}" if event["absent"] else words


def monitor_figure(event: dict[str, Any]) -> str:
    """Return a heat map as the text of an SVG file; nothing where there is a number for each client only."""
    if "matrix" not in event:
        return ""
    mean = "" if event["mean"] is None else f", mean {event['mean']:.4f}"
    title = f"{event['name']}{', round ' + str(event['round']) if event['round'] else ''}{mean}"
    return heat_map_file(title, event["clients"], event["matrix"], event["largest"] or 0.0, 4)
