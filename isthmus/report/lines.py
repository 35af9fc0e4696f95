"""Lines with bands as SVG, by hand: the page decides on colours, light or dark, and a run waits for no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.report.drawing import drawing, escape, tag, text

WIDTH, HEIGHT = 760.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 10.0, 34.0
MOST_POINTS = 600  # of a line; more are not seen
NUM_STROKES = 8


@dataclass(frozen=True)
class Line:
    """Points from left to right under a name; a band is (x, low, high), as it lies about the line."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


def line_drawing(label: str, lines: Sequence[Line], x_words: str) -> str:
    """Return lines over a common axis; nothing where no line has a point that can be drawn."""
    shown = [_drawable(line) for line in lines]
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for y in (*(y for _, y in line.points), *(end for _, *ends in line.band for end in ends))]
    if not xs:
        return ""
    across, up = _Axis.over(xs, LEFT, WIDTH - RIGHT), _Axis.over(ys, HEIGHT - BOTTOM, TOP)
    inside = []
    for value in ticks(up.low, up.high):
        inside.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=up.at(value), y2=up.at(value), class_="grid"))
        inside.append(text(f"{value:.4g}", LEFT - 8, up.at(value) + 4, "small", "end"))
    for value in ticks(across.low, across.high):
        inside.append(text(f"{value:,.10g}", across.at(value), HEIGHT - BOTTOM + 16, "small", "middle"))
    inside.append(text(x_words, WIDTH - RIGHT, HEIGHT - 4, "small", "end"))
    inside += [_band(line, place, across, up) for place, line in enumerate(shown) if len(line.band) > 1]
    for place, line in enumerate(shown):
        inside += _line(line, place, across, up)
    return tag("div", drawing(label, WIDTH, HEIGHT, *inside), class_="scroll wide")


def legend(names: Sequence[str]) -> str:
    """Return what colour each line has; an empty element needs its closing tag in HTML, so something is inside."""
    marks = (
        tag("span", f'<i class="fill-{place % NUM_STROKES}"></i>', escape(name)) for place, name in enumerate(names)
    )
    return tag("div", *marks, class_="legend")


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from low to high, about five of them."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= (high - low) / 5)
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return no more points than can be seen: of each stretch of the axis the least and the largest, in their order."""
    if len(points) <= most:
        return list(points)
    found, stretch = [points[0]], 2.0 * (len(points) - 2) / (most - 2)
    for number in range((most - 2) // 2):
        part = range(1 + round(number * stretch), 1 + round((number + 1) * stretch))
        ends = {min(part, key=lambda i: points[i][1]), max(part, key=lambda i: points[i][1])}
        found += [points[i] for i in sorted(ends)]
    return [*found, points[-1]]


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        room = 0.0 if high > low else 0.5 * (abs(high) or 1.0)
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _drawable(line: Line) -> Line:
    """Return a line without what has no place on paper."""
    band = [part for part in line.band if all(map(_has_place, part))]
    step = math.ceil(len(band) / MOST_POINTS) if band else 1
    return Line(line.name, thinned([each for each in line.points if all(map(_has_place, each))]), band[::step])


def _has_place(value: float) -> bool:
    return math.isfinite(value) and abs(value) < 1e300


def _band(line: Line, place: int, across: _Axis, up: _Axis) -> str:
    there = [f"{across.at(x):.1f},{up.at(high):.1f}" for x, _, high in line.band]
    back = [f"{across.at(x):.1f},{up.at(low):.1f}" for x, low, _ in reversed(line.band)]
    return tag("polygon", points=" ".join([*there, *back]), class_=f"fill-{place % NUM_STROKES} band")


def _line(line: Line, place: int, across: _Axis, up: _Axis) -> list[str]:
    places = [f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line.points]
    style = f"stroke-{place % NUM_STROKES}"
    if not places:
        return []
    (x, y), words = line.points[-1], tag("title", escape(f"{line.name}: {line.points[-1][1]:.6g} at the end"))
    if len(places) == 1:
        return [tag("circle", words, cx=across.at(x), cy=up.at(y), r=3.0, class_=f"fill-{place % NUM_STROKES}")]
    return [tag("polyline", words, points=" ".join(places), class_=f"curve {style}")]
