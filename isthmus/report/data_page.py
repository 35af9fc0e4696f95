"""One page about who holds what, from the plain numbers of a survey: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.report.data_tables import (
    clients_table,
    common_labels,
    count,
    heterogeneity_table,
    labels_table,
    largest_overlap,
    losses,
    number,
    percent,
)
from isthmus.report.drawing import Bar, Part, bar_chart, degree_charts, escape, heat_map, nice_ticks, tag
from isthmus.report.summary import Table

MAX_CLIENTS = 60  # drawn unless all are asked for; the table of numbers always has all
NUM_COLORS = 8
GENERATOR = "isthmus data show"  # by which a page is known as one that may be drawn again
QUARTERS = {0.0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
MAPS = {"label_js": "Jensen-Shannon divergence of labels", "walk_distance_5": "Distance of anonymous walks"}
SPLITS = ("train", "val", "test")

# Hues that also the colour-blind tell apart, in the order of the classes: for a light page and for a dark one.
LIGHT = ("#2a78d6", "#1baf7a", "#eda100", "#008300", "#4a3aa7", "#e34948", "#e87ba4", "#eb6834")
DARK = ("#3987e5", "#199e70", "#c98500", "#2f9e2f", "#9085e9", "#e66767", "#d55181", "#d95926")

STYLE = """
:root { color-scheme: light dark; --page: #f9f9f7; --card: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --faint: #898781;
  --line: #e1e0d9; --rest: #c3c2b7; --accent: #2a78d6; --on-accent: #fcfcfb; LIGHT_COLORS }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --ink: #ffffff; --soft: #c3c2b7;
  --faint: #898781; --line: #2c2c2a; --rest: #52514e; --accent: #3987e5; --on-accent: #ffffff; DARK_COLORS } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px 20px 48px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 860px; margin: 0 auto; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--soft); overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px;
  margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-top: 16px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.3; }
.tile span { color: var(--soft); font-size: 13px; }
.maps h2 { font-size: 14px; font-weight: 500; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 20px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 4px 0 10px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.scroll { overflow-x: auto; margin-top: 14px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 8px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.wide svg { min-width: 560px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .name { fill: var(--ink); }
svg .small { font-size: 11px; fill: var(--faint); }
svg .tiny { font-size: 10px; fill: var(--soft); }
svg .on-cell { fill: var(--on-accent); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .mark { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .line-own { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
svg .line-whole { fill: none; stroke: var(--rest); stroke-width: 2; stroke-linejoin: round; }
svg .dot, svg .cell, .fill-accent { fill: var(--accent); background: var(--accent); }
svg .cell-empty { fill: none; stroke: var(--line); stroke-width: 0.75; }
svg .cell-own { fill: var(--line); }
.fill-rest { fill: var(--rest); background: var(--rest); }
COLOR_CLASSES
"""


def data_page(facts: Mapping[str, Any], limit: int | None = MAX_CLIENTS) -> str:
    """Return the page; `facts` are those of a survey, with words on where they come from under "origin"."""
    names, number_of_all = list(facts["clients"])[:limit], len(facts["clients"])
    drawn = "" if len(names) == number_of_all else f" The first {len(names)} of {number_of_all} clients."
    title = f"Who holds what: {facts['dataset'] or 'unnamed'}"
    body = [
        tag("h1", escape(title)),
        tag("p", escape(facts.get("origin", ""))),
        _tiles(facts),
        _labels(facts, names, drawn),
        _sizes(facts, names, drawn),
        _degrees(facts, names, drawn),
        _homophily(facts, names, drawn),
        _maps(facts, names, drawn),
        _numbers(facts),
    ]
    # Nothing may be loaded, whatever a name in the data looks like.
    policy = tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'")
    head = [
        '<meta charset="utf-8"/>',
        policy,
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", escape(title)),
        tag("style", _style()),
    ]
    page = tag("html", tag("head", *head), "\n", tag("body", tag("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _style() -> str:
    def colors(values: Sequence[str]) -> str:
        return " ".join(f"--color-{i}: {value};" for i, value in enumerate(values))

    classes = "\n".join(
        f".fill-{i} {{ fill: var(--color-{i}); background: var(--color-{i}); }}" for i in range(NUM_COLORS)
    )
    filled = STYLE.replace("LIGHT_COLORS", colors(LIGHT)).replace("DARK_COLORS", colors(DARK))
    return filled.replace("COLOR_CLASSES", classes)


def _section(title: str, words: str, *inside: str) -> str:
    return tag("section", tag("h2", escape(title)), tag("p", escape(words)), *inside)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    # An empty element needs its closing tag in HTML, so something must be inside.
    spans = (tag("span", f'<i class="{style}"></i>', escape(name)) for style, name in entries)
    return tag("div", *spans, class_="legend")


def _wide(chart: str) -> str:
    """Return a chart that is scrolled on a narrow screen, where it could not be read."""
    return tag("div", chart, class_="scroll wide")


def _tiles(facts: Mapping[str, Any]) -> str:
    apart = facts["heterogeneity"]
    tiles = [
        (count(len(facts["clients"])), "clients"),
        (count(facts["whole"]["num_items"]), f"{facts['item']}s in the whole"),
        (number(apart["label_js"]["mean"], 3), "mean Jensen-Shannon divergence of labels"),
        (number(apart["walk_distance_5"]["mean"], 3), "mean distance of anonymous walks"),
    ]
    if facts["missing_edge_fraction"] is not None:
        tiles.insert(2, (percent(facts["missing_edge_fraction"]), "of the edges held by no client"))
    shown = (tag("div", tag("b", escape(value)), tag("span", escape(words)), class_="tile") for value, words in tiles)
    return tag("div", *shown, class_="tiles")


def _labels(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    titles: list[str] = facts["label_names"]
    chosen = common_labels(facts["whole"]["label_counts"], NUM_COLORS)
    rest = len(titles) - len(chosen)
    bars = []
    for name, figures in [*((name, facts["clients"][name]) for name in names), ("whole", facts["whole"])]:
        counts, total = figures["label_counts"], sum(figures["label_counts"])
        pieces = [(f"fill-{place}", titles[label], counts[label]) for place, label in enumerate(chosen)]
        if rest:
            pieces.append(("fill-rest", f"{rest} others", total - sum(counts[label] for label in chosen)))
        parts = [
            Part(style, part / total, f"{name}, {title}: {part:,} ({percent(part / total)})")
            for style, title, part in pieces
            if part
        ]
        bars.append(Bar(name, tuple(parts), count(total)))
    entries = [(f"fill-{place}", titles[label]) for place, label in enumerate(chosen)]
    legend = _legend([*entries, ("fill-rest", f"{rest} others")] if rest else entries)
    words = f"Share of each class among the labels of a client; at the right, how many it has.{drawn}"
    return _section("Labels", words, legend, _wide(bar_chart("labels of each client", bars, 1.0, QUARTERS)))


def _sizes(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    bars = []
    largest = max((facts["clients"][name]["num_items"] for name in names), default=0)
    for name in names:
        figures = facts["clients"][name]
        sizes = [figures[f"num_{split}"] for split in SPLITS]
        total = figures["num_items"]
        pieces = [*zip(("fill-0", "fill-1", "fill-2"), SPLITS, sizes, strict=True)]
        pieces.append(("fill-rest", "in none", max(total - sum(sizes), 0)))
        parts = tuple(Part(style, float(size), f"{name}, {title}: {size:,}") for style, title, size in pieces if size)
        bars.append(Bar(name, parts, f"{count(total)}, {percent(sizes[0] / total) if total else '-'}"))
    legend = _legend([("fill-0", "train"), ("fill-1", "val"), ("fill-2", "test"), ("fill-rest", "in none of them")])
    item = facts["item"]
    words = f"{item.capitalize()}s of each client; at the right, how many, and the share that is trained on.{drawn}"
    chart = bar_chart("sizes of clients", bars, float(largest), nice_ticks(largest))
    return _section("Sizes", words, legend, _wide(chart))


def _degrees(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    charts = {name: facts["clients"][name]["degree_counts"] for name in names}
    words = (
        "Share of the nodes that have each number of neighbours, both in logarithms; nodes without any are at the "
        f"left.{drawn}"
    )
    legend = _legend([("fill-accent", "the client"), ("fill-rest", "the whole")])
    drawn_charts = degree_charts("degrees of each client's nodes", charts, facts["whole"]["degree_counts"])
    return _section("Degrees", words, legend, _wide(drawn_charts))


def _homophily(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    whole = facts["whole"]["homophily"]
    if whole is None and all(facts["clients"][name]["homophily"] is None for name in names):
        return ""
    bars = []
    for name in names:
        share = facts["clients"][name]["homophily"]
        parts = () if share is None else (Part("fill-accent", share, f"{name}: {share:.3f}"),)
        bars.append(Bar(name, parts, number(share, 3)))
    words = "Share of a client's edges that join nodes of one class"
    words += "." if whole is None else f"; the dashed line is the whole's, {whole:.3f}."
    return _section("Homophily", words + drawn, _wide(bar_chart("homophily of clients", bars, 1.0, QUARTERS, whole)))


def _maps(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    size, maps = len(names), []
    for key, title in (("overlap", f"Shared {facts['item']}s"), ("node_overlap", "Shared nodes")):
        if facts[key] is not None:
            matrix = [row[:size] for row in facts[key][:size]]
            maps.append(_map(title, names, matrix, float(largest_overlap(matrix)), 0))
    for key, title in MAPS.items():
        matrix = [row[:size] for row in facts["heterogeneity"][key]["between"][:size]]
        # Clients that are about alike should look alike: no scale ends below 0.1.
        largest = max((value for row in matrix for value in row if value is not None), default=0.0)
        maps.append(_map(title, names, matrix, max(largest, 0.1), 3))
    words = " ".join(f"{line[0].upper()}{line[1:]}." for line in losses(facts))
    return _section("Between clients", words + drawn, tag("div", *maps, class_="maps"))


def _map(title: str, names: Sequence[str], matrix: Sequence[Sequence[Any]], largest: float, digits: int) -> str:
    return tag("div", tag("h2", escape(title)), heat_map(title, names, matrix, largest, digits))


def _numbers(facts: Mapping[str, Any]) -> str:
    labels = labels_table(facts, None, len(facts["label_names"]))
    tables = [heterogeneity_table(facts), clients_table(facts, None), labels]
    words = "A divergence is 0 between clients that are alike. KL counts every class once more than it is there."
    return _section("Numbers", words, *(tag("div", _table(table), class_="scroll") for table in tables))


def _table(table: Table) -> str:
    head = tag("tr", *(tag("th", escape(title)) for title in table.headings))
    rows = (tag("tr", *(f"<td>{escape(cell)}</td>" for cell in row)) for row in table.rows)
    return tag("table", tag("thead", head), tag("tbody", *rows))
