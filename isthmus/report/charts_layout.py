"""How charts lie on a sheet: axes with round numbers, panels in a grid, one legend above them all."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.report.drawing import escape, shortened, tag, text

EDGE = 12.0
HEIGHT = 220.0  # of a panel
WIDTHS = {1: 560.0, 2: 390.0, 3: 290.0}  # of a panel, by how many are side by side
MAX_WIDTH = 1600.0
BETWEEN = 22.0  # two panels
LINE = 18.0  # of text
SAMPLE = 30.0  # of a line, in the legend
MAX_NAME = 48  # letters of a name in the legend
MAX_LABEL = 28  # letters of a name below an axis
SLANT = 35.0  # degrees, of names that would lie over each other
CLOSEST = 24.0  # slanted names may be

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #333333; }
.title { font-size: 15px; font-weight: 600; fill: #111111; }
.head { font-weight: 600; fill: #111111; }
.tick { font-size: 11px; fill: #52514e; }
.grid { stroke: #e4e3de; stroke-width: 1; }
.axis { stroke: #6b6a66; stroke-width: 1; fill: none; }
"""


@dataclass(frozen=True)
class Axis:
    """The range of an axis, with words at some of its values; `named` if these are names rather than numbers."""

    low: float
    high: float
    ticks: Mapping[float, str]
    log: bool = False
    named: bool = False

    def share(self, value: float) -> float:
        """Return how far along the axis a value lies: 0 at its low end, 1 at its high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Frame:
    """The place of a panel on the sheet, with its axes."""

    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies on the sheet."""
        return self.left + self.width * self.x.share(x), self.top + self.height * (1 - self.y.share(y))


@dataclass(frozen=True)
class Plot:
    """A panel that has no place yet: its title, its axes, and what draws its inside once it has one."""

    title: str
    x: Axis
    y: Axis
    draw: Callable[[Frame], list[str]]


@dataclass(frozen=True)
class Entry:
    """A line of the legend: a name, what draws the sample before it, from a point at its left, and its width."""

    name: str
    sample: Callable[[float, float], str]
    width: float = SAMPLE


@dataclass(frozen=True)
class Words:
    """What is written around a chart."""

    title: str = ""
    x_label: str = ""
    y_label: str = ""


NO_WORDS = Words()


def drawable(value: float | None) -> bool:
    """Return whether a value has a place on an axis: missing ones, NaN and what has diverged have none."""
    return value is not None and abs(value) < 1e300


def number_axis(values: Iterable[float], count: int = 5, *, tight: bool = False, whole: bool = False) -> Axis:
    """Return an axis for values with about `count` round numbers on it, which also end it unless it is `tight`.

    `whole` is for counts, between which there is nothing.
    """
    known = [value for value in values if drawable(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    single = high - low <= 1e-9 * max(abs(low), abs(high))
    if single:  # a range of its own size around it, or there would be none
        half = 0.05 * abs(low) or 0.5
        low, high = low - half, high + half
    step = max(_round_step((high - low) / count), 1.0 if whole else 0.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = {i * step: number_words(i * step, step) for i in range(first, last + 1)}
    if tight and not single:
        inside = {value: words for value, words in ticks.items() if low - 1e-9 * step <= value <= high + 1e-9 * step}
        return Axis(low, high, inside)
    return Axis(first * step, last * step, ticks)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough * (1 - 1e-9))


def number_words(value: float, step: float) -> str:
    """Return a number with as many digits as tell it from the next one, a step away."""
    if step < 1e-5 or abs(value) >= 1e7:
        return f"{value:.4g}"
    digits = next(d for d in range(8) if abs(step * 10**d - round(step * 10**d)) < 1e-6)
    return f"{value + 0.0:,.{digits}f}"


def named_axis(names: Mapping[float, str], *, log: bool = False) -> Axis:
    """Return an axis with a name at each of some values, and a little room at both ends."""
    if log and any(value <= 0 for value in names):
        raise ValueError("an axis in logarithms has no place for 0 and below")
    places = [math.log10(value) if log else value for value in names] or [0.0]
    span = max(places) - min(places)
    room = 0.06 * span if span > 0 else 0.5
    low, high = min(places) - room, max(places) + room
    named = not all(_is_number(name) for name in names.values())
    return Axis(10**low, 10**high, names, log, named) if log else Axis(low, high, names, named=named)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def text_width(words: str, size: float = 12.0) -> float:
    """Return about how wide a text is, rather too much than too little."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in words)
    return size * (0.6 * (len(words) - wide) + wide)


def sheet(plots: Sequence[Plot], entries: Sequence[Entry], words: Words, least_width: float = 0.0) -> str:
    """Return an SVG file of panels, three or less side by side, each at least so wide."""
    across, width = _columns(len(plots), least_width)
    slanted = any(_slanted(plot.x, width) for plot in plots)
    gutter = max((text_width(t, 11) for plot in plots for t in plot.y.ticks.values()), default=0.0) + 10
    left = EDGE + (LINE if words.y_label else 0.0)
    if slanted:  # the first name goes to the left of its place
        left = max(left, EDGE + max(_overhang(plot.x, width) for plot in plots) - gutter)
    right = left + across * (gutter + width) + (across - 1) * BETWEEN + EDGE
    inside, top = _above(entries, words, left + gutter, right - EDGE)
    head = 20.0 if any(plot.title for plot in plots) else 8.0
    foot = 12 + (max(_depth(plot.x) for plot in plots) if slanted else 14.0)
    for index, plot in enumerate(plots):
        x = left + gutter + (index % across) * (gutter + width + BETWEEN)
        y = top + head + (index // across) * (head + HEIGHT + foot)
        frame = Frame(x, y, width, HEIGHT, plot.x, plot.y)
        inside += [*_scales(frame, slanted), *plot.draw(frame), *_head(plot.title, frame)]
    rows = -(-len(plots) // across)
    bottom = top + rows * (head + HEIGHT + foot)
    if words.x_label:
        inside.append(text(words.x_label, (left + gutter + right - EDGE) / 2, bottom + 8, "", "middle"))
        bottom += LINE
    if words.y_label:
        inside.append(_upright(words.y_label, EDGE + 10, top + head + (bottom - top - head - foot) / 2))
    return _file(words, right, bottom + EDGE / 2, inside)


def _file(words: Words, width: float, height: float, inside: Sequence[str]) -> str:
    paper = tag("rect", class_="paper", width=width, height=height, fill="#ffffff")
    size = {"width": width, "height": height, "viewBox": f"0 0 {width:.2f} {height:.2f}"}
    label = words.title or "chart"
    xmlns = "http://www.w3.org/2000/svg"
    return tag("svg", tag("style", STYLE), paper, *inside, xmlns=xmlns, **size, role="img", aria_label=label) + "\n"


def _columns(count: int, least_width: float) -> tuple[int, float]:
    """Return how many panels are side by side, and how wide each is."""
    across = {0: 1, 1: 1, 2: 2, 4: 2}.get(count, 3)
    while across > 1 and WIDTHS[across] < least_width:
        across -= 1
    return across, max(WIDTHS[across], min(least_width, MAX_WIDTH))


def _above(entries: Sequence[Entry], words: Words, left: float, right: float) -> tuple[list[str], float]:
    """Return the title and the legend, and where they end."""
    inside: list[str] = []
    top = EDGE
    for line in textwrap.wrap(words.title, max(20, int((right - left) / 8.5)), max_lines=3, placeholder=" \u2026"):
        top += 20
        inside.append(text(line, left, top - 5, "title"))
    row: list[tuple[Entry, float]] = []
    place = left
    for entry in entries:
        wide = entry.width + 6 + text_width(shortened(entry.name, MAX_NAME)) + 16
        if row and place + wide > right:
            inside += _row(row, top)
            row, place, top = [], left, top + LINE
        row.append((entry, place))
        place += wide
    if row:
        inside += _row(row, top)
        top += LINE + 4
    return inside, top


def _row(row: Sequence[tuple[Entry, float]], top: float) -> list[str]:
    inside = []
    for entry, x in row:
        name = text(shortened(entry.name, MAX_NAME), x + entry.width + 6, top + 13)
        inside.append(tag("g", tag("title", escape(entry.name)), entry.sample(x, top + 9), name, class_="entry"))
    return inside


def _head(title: str, frame: Frame) -> list[str]:
    if not title:
        return []
    room = max(4, int(frame.width / 7.5))
    return [text(shortened(title, room), frame.left + frame.width / 2, frame.top - 7, "head", "middle")]


def _scales(frame: Frame, slanted: bool) -> list[str]:
    """Return both axes of a panel with their words, and a line across at each number."""
    bottom, right = frame.top + frame.height, frame.left + frame.width
    inside = []
    for value, words in frame.y.ticks.items():
        y = frame.at(frame.x.low, value)[1]
        inside.append(tag("line", x1=frame.left, x2=right, y1=y, y2=y, class_="grid"))
        inside.append(text(words, frame.left - 6, y + 4, "tick", "end"))
    inside.append(tag("path", d=f"M{frame.left:.2f} {frame.top:.2f}V{bottom:.2f}H{right:.2f}", class_="axis"))
    for value in frame.x.ticks:
        x = frame.at(value, frame.y.low)[0]
        inside.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
    for x, words in _labels(frame.x, frame.left, frame.width, slanted):
        if slanted:
            turn = f"rotate({-SLANT:g} {x:.2f} {bottom + 14:.2f})"
            short = escape(shortened(words, MAX_LABEL))
            place = {"x": x + 2, "y": bottom + 14, "class_": "tick", "text_anchor": "end", "transform": turn}
            inside.append(tag("text", short, **place))
        else:
            inside.append(text(shortened(words, MAX_LABEL), x, bottom + 17, "tick", "middle"))
    return inside


def _labels(axis: Axis, left: float, width: float, slanted: bool) -> list[tuple[float, str]]:
    """Return where words stand below an axis; of those that would lie over each other, the later is left out."""
    found: list[tuple[float, str]] = []
    end = -math.inf
    for value in sorted(axis.ticks):
        x, words = left + width * axis.share(value), axis.ticks[value]
        half = CLOSEST / 2 if slanted else text_width(shortened(words, MAX_LABEL), 11) / 2
        if x - half >= end:
            found.append((x, words))
            end = x + half + (0 if slanted else 5)
    return found


def _slanted(axis: Axis, width: float) -> bool:
    """Return whether an axis' names need more room than there is side by side."""
    return axis.named and len(_labels(axis, 0.0, width, False)) < len(axis.ticks)


def _longest(axis: Axis) -> float:
    return max((text_width(shortened(words, MAX_LABEL), 11) for words in axis.ticks.values()), default=0.0)


def _depth(axis: Axis) -> float:
    return 14 + _longest(axis) * math.sin(math.radians(SLANT))


def _overhang(axis: Axis, width: float) -> float:
    """Return how far slanted names reach to the left of the axis."""
    reach = math.cos(math.radians(SLANT))
    named = axis.ticks.items()
    return max((text_width(shortened(t, MAX_LABEL), 11) * reach - width * axis.share(v) for v, t in named), default=0.0)


def _upright(words: str, x: float, y: float) -> str:
    """Return words that are read from below."""
    turn = f"rotate(-90 {x:.2f} {y:.2f})"
    return tag("text", escape(words), x=x, y=y, text_anchor="middle", transform=turn)
