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
from isthmus.report.page import NUM_COLORS, page, section, table_markup

MAX_CLIENTS = 60  # drawn unless all are asked for; the table of numbers always has all
GENERATOR = "isthmus data show"  # by which a page is known as one that may be drawn again
QUARTERS = {0.0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
MAPS = {"label_js": "Jensen-Shannon divergence of labels", "walk_distance_5": "Distance of anonymous walks"}
SPLITS = ("train", "val", "test")


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
    return page(title, body, GENERATOR)


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
    return section("Labels", words, legend, _wide(bar_chart("labels of each client", bars, 1.0, QUARTERS)))


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
    return section("Sizes", words, legend, _wide(chart))


def _degrees(facts: Mapping[str, Any], names: Sequence[str], drawn: str) -> str:
    charts = {name: facts["clients"][name]["degree_counts"] for name in names}
    words = (
        "Share of the nodes that have each number of neighbours, both in logarithms; nodes without any are at the "
        f"left.{drawn}"
    )
    legend = _legend([("fill-accent", "the client"), ("fill-rest", "the whole")])
    drawn_charts = degree_charts("degrees of each client's nodes", charts, facts["whole"]["degree_counts"])
    return section("Degrees", words, legend, _wide(drawn_charts))


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
    return section("Homophily", words + drawn, _wide(bar_chart("homophily of clients", bars, 1.0, QUARTERS, whole)))


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
    return section("Between clients", words + drawn, tag("div", *maps, class_="maps"))


def _map(title: str, names: Sequence[str], matrix: Sequence[Sequence[Any]], largest: float, digits: int) -> str:
    return tag("div", tag("h2", escape(title)), heat_map(title, names, matrix, largest, digits))


def _numbers(facts: Mapping[str, Any]) -> str:
    labels = labels_table(facts, None, len(facts["label_names"]))
    tables = [heterogeneity_table(facts), clients_table(facts, None), labels]
    words = "A divergence is 0 between clients that are alike. KL counts every class once more than it is there."
    return section("Numbers", words, *(tag("div", table_markup(table), class_="scroll") for table in tables))
