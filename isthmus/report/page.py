"""A page of one file: no script, nothing loaded from elsewhere, readable on a light and on a dark screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.report.drawing import escape, tag
from isthmus.report.summary import Table

NUM_COLORS = 8

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
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .band { opacity: 0.18; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
pre { overflow-x: auto; font-size: 13px; margin: 0; }
ul { margin: 0; padding-left: 20px; color: var(--soft); overflow-wrap: anywhere; }
@media print { body { background: none; padding: 0; } section { break-inside: avoid; } details > * { display: block; } }
svg .dot, svg .cell, .fill-accent { fill: var(--accent); background: var(--accent); }
svg .cell-empty { fill: none; stroke: var(--line); stroke-width: 0.75; }
svg .cell-own { fill: var(--line); }
.fill-rest { fill: var(--rest); background: var(--rest); }
COLOR_CLASSES
"""


def page(title: str, body: Iterable[str], generator: str) -> str:
    """Return a page; `body` is markup, `generator` the command that it is of."""
    # Nothing may be loaded, whatever a name in the data looks like.
    policy = tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'")
    head = [
        '<meta charset="utf-8"/>',
        policy,
        tag("meta", name="generator", content=generator),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", escape(title)),
        tag("style", _style()),
    ]
    whole = tag("html", tag("head", *head), "\n", tag("body", tag("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def section(title: str, words: str, *inside: str) -> str:
    """Return a part of a page under a heading."""
    return tag("section", tag("h2", escape(title)), tag("p", escape(words)), *inside)


def table_markup(table: Table) -> str:
    """Return a table as markup."""
    head = tag("tr", *(tag("th", escape(title)) for title in table.headings))
    rows = (tag("tr", *(f"<td>{escape(cell)}</td>" for cell in row)) for row in table.rows)
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _style() -> str:
    def colors(values: Sequence[str]) -> str:
        return " ".join(f"--color-{i}: {value};" for i, value in enumerate(values))

    classes = "\n".join(
        f".fill-{i} {{ fill: {color}; background: {color}; }}\n.stroke-{i} {{ stroke: {color}; }}"
        for i, color in enumerate(f"var(--color-{i})" for i in range(NUM_COLORS))
    )
    filled = STYLE.replace("LIGHT_COLORS", colors(LIGHT)).replace("DARK_COLORS", colors(DARK))
    return filled.replace("COLOR_CLASSES", classes)
