"""SVG written by hand: bars, small charts and heat maps, in colours that a page's style sheet decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape as _escape
from typing import Any

from isthmus.core.outside import printable

WIDTH = 760.0
GUTTER = 96.0  # for names at the left
NOTES = 96.0  # for numbers at the right
ROW = 22.0
BAR = 15.0
GAP = 1.5  # between two parts of a bar
MAX_DEPTH = 6.0  # decades below 100 % that a chart of shares shows

# For a heat map in a file of its own, where no page decides.
FILE_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #52514e; }
.title { font-size: 15px; font-weight: 600; fill: #111111; }
.tiny { font-size: 10px; }
.on-cell { fill: #fcfcfb; }
.cell { fill: #2a78d6; }
.cell-empty { fill: none; stroke: #e1e0d9; stroke-width: 0.75; }
.cell-own { fill: #e1e0d9; }
"""


@dataclass(frozen=True)
class Part:
    """A part of a bar: its colour's class, its length in the bar's unit, and words that show when pointed at."""

    style: str
    length: float
    words: str


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: its name, its parts from left to right, and a note behind it."""

    name: str
    parts: tuple[Part, ...]
    note: str = ""


def escape(words: str) -> str:
    """Return words from elsewhere as markup that shows them: escaped, and without control characters."""
    return _escape(printable(words), quote=True)


def tag(name: str, /, *inside: str, **attributes: Any) -> str:
    """Return an element; attributes are escaped (`_` becomes `-`, a trailing one is dropped), `inside` is markup."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{_attribute(v)}"' for key, v in attributes.items())
    return f"<{name}{words}>{''.join(inside)}</{name}>" if inside else f"<{name}{words}/>"


def _attribute(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))


def text(words: str, x: float, y: float, style: str = "", anchor: str = "start") -> str:
    """Return words at a place; (x, y) is on their base line."""
    return tag("text", escape(words), x=x, y=y, class_=style, text_anchor=anchor)


def drawing(label: str, width: float, height: float, *inside: str) -> str:
    """Return an SVG of its own coordinates, as wide as there is room for but no wider than drawn."""
    box = f"0 0 {_attribute(width)} {_attribute(height)}"
    style = f"max-width:{_attribute(width)}px"
    return tag("svg", *inside, viewBox=box, style=style, role="img", aria_label=label)


def shortened(words: str, length: int) -> str:
    """Return words cut to a length, with an ellipsis where something was cut."""
    return words if len(words) <= length else words[: length - 1] + "\u2026"


def bar_chart(
    label: str, bars: Sequence[Bar], total: float, ticks: Mapping[float, str], mark: float | None = None
) -> str:
    """Return horizontal bars, each of parts one behind the other; `total` is as long as there is room for.

    `mark` is a value of the whole to compare with, a line through all bars.
    """
    room = WIDTH - GUTTER - NOTES
    scale = room / total if total > 0 else 0.0
    bottom = ROW * len(bars) + 6
    inside = []
    for value, words in ticks.items():
        x = GUTTER + value * scale
        inside.append(tag("line", x1=x, x2=x, y1=2.0, y2=bottom, class_="grid"))
        inside.append(text(words, x, bottom + 14, "small", "middle"))
    for index, bar in enumerate(bars):
        inside += _bar(bar, 4 + ROW * index, scale)
    if mark is not None:
        inside.append(tag("line", x1=GUTTER + mark * scale, x2=GUTTER + mark * scale, y1=2.0, y2=bottom, class_="mark"))
    return drawing(label, WIDTH, bottom + 20, *inside)


def _bar(bar: Bar, top: float, scale: float) -> list[str]:
    base = top + BAR - 3
    inside = [text(shortened(bar.name, 14), GUTTER - 8, base, "name", "end")]
    x = GUTTER
    for part in bar.parts:
        width = part.length * scale
        if width > 0:
            drawn = width - GAP if width > 3 * GAP else width
            words = tag("title", escape(part.words))
            inside.append(tag("rect", words, x=x, y=top, width=drawn, height=BAR, class_=part.style))
        x += width
    return [*inside, text(bar.note, WIDTH - NOTES + 8, base, "small")] if bar.note else inside


def nice_ticks(largest: float) -> dict[float, str]:
    """Return round numbers from 0 up to `largest`, about four of them, with their words."""
    if largest <= 0:
        return {0.0: "0"}
    rough = largest / 4
    power = 10 ** math.floor(math.log10(rough))
    step = max(1.0, next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough))
    return {step * i: f"{step * i:,.10g}" for i in range(int(largest / step + 1e-9) + 1)}


def degree_bins(counts: Mapping[Any, int]) -> list[tuple[float, float]]:
    """Return (degree, share of the nodes for each degree) of bins that grow by half: 0, 1, 2, 3-4, 5-7, ...

    A bin's degree is the geometric mean of its ends; its share is that of all its nodes, divided by how many degrees
    it spans, so that a straight line in double logarithms stays one.
    """
    nodes = {int(degree): number for degree, number in counts.items()}
    total = sum(nodes.values())
    low, largest = 0, max(nodes, default=-1)
    bins = []
    while low <= largest:
        high = max(low + 1, math.ceil(low * 1.5)) if low else 1  # the first degree of the next bin
        inside = sum(number for degree, number in nodes.items() if low <= degree < high)
        if inside:
            bins.append((math.sqrt(low * (high - 1)), inside / total / (high - low)))
        low = high
    return bins


def degree_charts(label: str, charts: Mapping[str, Mapping[Any, int]], whole: Mapping[Any, int]) -> str:
    """Return one small chart for each client, degrees and shares both in logarithms; the whole's lies behind each."""
    behind = degree_bins(whole)
    found = {name: degree_bins(counts) for name, counts in charts.items()}
    points = [point for bins in (behind, *found.values()) for point in bins]
    decades_x = max(1.0, math.log10(max((degree for degree, _ in points), default=1.0) or 1.0))
    least = min((share for _, share in points), default=0.1)
    decades_y = min(MAX_DEPTH, max(1.0, float(math.ceil(-math.log10(least)))))
    across = 5
    wide, high = WIDTH / across, 124.0
    inside = []
    for index, (name, bins) in enumerate(found.items()):
        left, top = wide * (index % across), high * (index // across)
        chart = _Chart(left + 50, top + 20, wide - 64, high - 46, decades_x, decades_y)
        inside += [*chart.axes(), text(shortened(name, 16), left + 50, top + 12, "name")]
        inside += [chart.line(behind, "line-whole"), chart.line(bins, "line-own"), *chart.dots(bins, name)]
    rows = -(-len(found) // across)
    return drawing(label, WIDTH, high * max(rows, 1), *inside)


@dataclass(frozen=True)
class _Chart:
    """A small chart: degree 0 has a place of its own at the left, then degrees in logarithms."""

    left: float
    top: float
    width: float
    height: float
    decades_x: float
    decades_y: float

    def x(self, degree: float) -> float:
        zero = 0.12 * self.width
        return self.left + (zero + math.log10(degree) / self.decades_x * (self.width - zero) if degree >= 1 else 0.0)

    def y(self, share: float) -> float:
        return self.top + min(-math.log10(share), self.decades_y) / self.decades_y * self.height

    def axes(self) -> list[str]:
        right, bottom = self.left + self.width, self.top + self.height
        inside = []
        step = 1 if self.decades_y <= 3 else 2
        for decade in range(0, int(self.decades_y) + 1, step):
            y = self.y(10.0**-decade)
            inside.append(tag("line", x1=self.left, x2=right, y1=y, y2=y, class_="grid"))
            inside.append(text(f"{100 * 10.0**-decade:g}%", self.left - 4, y + 3, "tiny", "end"))
        for degree in [0, *(10**power for power in range(int(self.decades_x + 1e-9) + 1))]:
            inside.append(text(f"{degree:,}", self.x(degree), bottom + 12, "tiny", "middle"))
        return inside

    def line(self, bins: Sequence[tuple[float, float]], style: str) -> str:
        places = [f"{self.x(degree):.1f},{self.y(share):.1f}" for degree, share in bins if degree >= 1]
        return tag("polyline", points=" ".join(places), class_=style) if len(places) > 1 else ""

    def dots(self, bins: Sequence[tuple[float, float]], name: str) -> list[str]:
        drawn = []
        for degree, share in bins:
            words = tag("title", escape(f"{name}: degree {degree:.3g}, {100 * share:.3g} % of the nodes"))
            drawn.append(tag("circle", words, cx=self.x(degree), cy=self.y(share), r=2.0, class_="dot"))
        return drawn


def heat_map(
    label: str, names: Sequence[str], matrix: Sequence[Sequence[float | None]], largest: float, digits: int
) -> str:
    """Return a square of cells, darker for more; the diagonal is left plain, and None is crossed out.

    Numbers stand in the cells while these are large enough, and show when pointed at in any case.
    """
    inside, width, height = _heat_map(names, matrix, largest, digits)
    return drawing(label, width, height, *inside)


def heat_map_file(
    title: str, names: Sequence[str], matrix: Sequence[Sequence[float | None]], largest: float, digits: int
) -> str:
    """Return the same as the text of a file that needs nothing else, with its title above."""
    inside, width, height = _heat_map(names, matrix, largest, digits)
    width, height = max(width, 8.5 * len(title) + 16.0), height + 30.0  # the title is on one line
    drawn = [
        tag("style", FILE_STYLE),
        tag("rect", width=width, height=height, fill="#ffffff"),
        text(title, 8.0, 21.0, "title"),
        tag("g", *inside, transform="translate(0 30)") if inside else "",
    ]
    size = {"width": width, "height": height, "viewBox": f"0 0 {_attribute(width)} {_attribute(height)}"}
    words = {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "aria_label": title}
    return f"{tag('svg', *drawn, **words)}\n"


def _heat_map(
    names: Sequence[str], matrix: Sequence[Sequence[float | None]], largest: float, digits: int
) -> tuple[list[str], float, float]:
    """Return the cells with the names at their left and the scale below, and how wide and high that is."""
    size = max(3.0, min(40.0, 300.0 / max(len(names), 1)))
    left, top = 78.0, 8.0
    inside = []
    for i, row in enumerate(matrix):
        if i % max(1, math.ceil(10 / size)) == 0:  # no name over another
            inside.append(text(shortened(names[i], 12), left - 6, top + size * (i + 0.5) + 3.5, "tiny", "end"))
        for j, value in enumerate(row):
            inside += _cell(left + size * j, top + size * i, size, value, largest, (names[i], names[j]), digits)
    bottom = top + size * len(names)
    if largest > 0:
        inside += _scale(left, bottom + 10, largest, digits)
    return inside, max(left + size * len(names), left + 150.0) + 8, bottom + 42


def _cell(
    x: float, y: float, size: float, value: float | None, largest: float, ends: tuple[str, str], digits: int
) -> list[str]:
    shown = "none" if value is None else f"{value:,.{digits}f}"
    words = tag("title", escape(f"{', '.join(dict.fromkeys(ends))}: {shown}"))
    box: dict[str, Any] = {"x": x, "y": y, "width": size - min(1.5, size / 4), "height": size - min(1.5, size / 4)}
    same = ends[0] == ends[1]
    depth = 0.0 if value is None or largest <= 0 or same else min(value / largest, 1.0)
    inside = [tag("rect", words, **box, class_="cell-own" if same else "cell-empty")]
    if depth > 0:
        inside.append(tag("rect", words, **box, class_="cell", fill_opacity=round(0.1 + 0.9 * depth, 3)))
    if size >= 24:
        style = "tiny on-cell" if depth > 0.5 else "tiny"
        shown = "-" if value is None else f"{value:,.{min(digits, 2)}f}"
        inside.append(text(shown, x + size / 2 - 0.75, y + size / 2 + 3, style, "middle"))
    return inside


def _scale(left: float, top: float, largest: float, digits: int) -> list[str]:
    steps = 8
    inside = [
        tag("rect", x=left + 14.0 * i, y=top, width=14.0, height=9.0, class_="cell", fill_opacity=0.1 + 0.9 * i / steps)
        for i in range(steps + 1)
    ]
    end = left + 14.0 * (steps + 1)
    ends = [text("0", left, top + 21, "tiny"), text(f"{largest:,.{digits}f}", end, top + 21, "tiny", "end")]
    return [*inside, *ends]
