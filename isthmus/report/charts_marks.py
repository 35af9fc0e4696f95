"""What stands in the panels of a chart: markers, lines, bands and bars, each series in a look of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from isthmus.report.charts_layout import SAMPLE, Frame, drawable
from isthmus.report.drawing import escape, tag

# Okabe and Ito's colours, which also the colour-blind tell apart, without their yellow, which is faint on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d", "#882255")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2")
REFERENCE_DASHES = ("7 4", "2.5 3", "10 3 2.5 3", "4 2", "12 5")
# Corners of markers, in units of their radius; the first is round. One less than colours, so that pairs last long.
MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    (
        *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
        *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
    ),
    ((-1.3, 0), (0.8, -1.1), (0.8, 1.1)),
)
RADIUS = 3.6
SMALL = 12.0  # sample of a marker or a bar
WIDEST = 48.0  # a bar may be
INK = "#222222"  # of error bars on bars


@dataclass(frozen=True)
class Point:
    """A point with its standard deviation; NaN where nothing was measured."""

    x: float
    y: float
    std: float | None = None

    @property
    def spread(self) -> float:
        """How far the error bar goes either way."""
        return self.std if self.std is not None and drawable(self.std) else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """Where the error bar ends, below and above."""
        return self.y - self.spread, self.y + self.spread

    @property
    def words(self) -> str:
        """The number with its deviation."""
        known = self.std is not None and drawable(self.std)
        return f"{self.y:.4g} ± {self.std:.2g}" if known else f"{self.y:.4g}"


@dataclass(frozen=True)
class Series:
    """Points under a name. A `reference` is one number that holds along the whole axis: that of its first point."""

    name: str
    points: tuple[Point, ...] = ()
    reference: bool = False

    def known(self) -> list[Point]:
        """Return the points that have a place, from left to right."""
        return [point for run in self.runs() for point in run]

    def runs(self) -> list[list[Point]]:
        """Return the runs of neighbouring points that have a value; a missing one breaks the line."""
        runs: list[list[Point]] = [[]]
        for point in sorted((p for p in self.points if drawable(p.x)), key=lambda p: p.x):
            if drawable(point.y):
                runs[-1].append(point)
            else:
                runs.append([])
        return [run for run in runs if run]


@dataclass(frozen=True)
class Look:
    """How the series of one name look, by their number."""

    number: int

    @property
    def color(self) -> str:
        """Of everything."""
        return COLORS[self.number % len(COLORS)]

    def stroke(self, width: float, dashes: Sequence[str] = ("",)) -> dict[str, str | float]:
        """Return the attributes of a line in this look; its dash is one of some."""
        dash = dashes[self.number % len(dashes)]
        stroke: dict[str, str | float] = {"fill": "none", "stroke": self.color, "stroke_width": width}
        return {**stroke, "stroke_linejoin": "round", **({"stroke_dasharray": dash} if dash else {})}

    def marker(self, x: float, y: float, radius: float = RADIUS, said: str = "", opacity: float = 1.0) -> str:
        """Return a marker, round or with corners, in a thin white rim so that two over each other stay two."""
        fill = {"fill": self.color, "fill_opacity": opacity, "stroke": "#ffffff", "stroke_width": radius / 6}
        inside = [tag("title", escape(said))] if said else []
        corners = MARKERS[self.number % len(MARKERS)]
        if not corners:
            return tag("circle", *inside, cx=x, cy=y, r=radius, **fill, class_="marker")
        points = " ".join(f"{x + radius * dx:.2f},{y + radius * dy:.2f}" for dx, dy in corners)
        return tag("polygon", *inside, points=points, **fill, class_="marker")

    # samples in the legend, from a point at their left and half way up

    def line_sample(self, x: float, y: float) -> str:
        """Return a piece of a line with a marker on it."""
        line = tag("line", x1=x, x2=x + SAMPLE, y1=y, y2=y, **self.stroke(1.8))
        return line + self.marker(x + SAMPLE / 2, y)

    def reference_sample(self, x: float, y: float) -> str:
        """Return a piece of a reference."""
        return tag("line", x1=x, x2=x + SAMPLE, y1=y, y2=y, **self.stroke(1.8, REFERENCE_DASHES))

    def curve_sample(self, x: float, y: float) -> str:
        """Return a piece of a curve."""
        return tag("line", x1=x, x2=x + SAMPLE, y1=y, y2=y, **self.stroke(2.0, DASHES))

    def marker_sample(self, x: float, y: float) -> str:
        """Return a marker."""
        return self.marker(x + SMALL / 2, y)

    def bar_sample(self, x: float, y: float) -> str:
        """Return a piece of a bar."""
        return tag("rect", x=x, y=y - SMALL / 2, width=SMALL, height=SMALL, fill=self.color)


def draw_line(series: Series, look: Look, frame: Frame, names: Mapping[float, str]) -> list[str]:
    """Return a line with error bars and markers, or a reference through the whole panel; `names` are those of x."""
    known = series.known()
    if series.reference:
        return [_reference(series.name, known[0], look, frame)] if known else []
    runs = [run for run in series.runs() if len(run) > 1]
    parts = [tag("polyline", points=_places(run, frame), **look.stroke(1.8)) for run in runs]
    parts += [_error_bar(p, look.color, frame.at(p.x, p.y)[0], frame) for p in known if p.spread]
    for point in known:
        said = f"{series.name}, {names.get(point.x, f'{point.x:g}')}: {point.words}"
        parts.append(look.marker(*frame.at(point.x, point.y), said=said))
    return parts


def _reference(name: str, point: Point, look: Look, frame: Frame) -> str:
    y = frame.at(frame.x.low, point.y)[1]
    said = tag("title", escape(f"{name}: {point.words}"))
    place = {"x1": frame.left, "x2": frame.left + frame.width, "y1": y, "y2": y}
    return tag("line", said, **place, **look.stroke(1.8, REFERENCE_DASHES), class_="reference")


def _places(points: Iterable[Point], frame: Frame) -> str:
    return " ".join("{:.2f},{:.2f}".format(*frame.at(point.x, point.y)) for point in points)


def _error_bar(point: Point, color: str, x: float, frame: Frame, half: float = 3.5) -> str:
    low, high = (frame.at(point.x, y)[1] for y in point.ends)
    caps = "".join(f"M{x - half:.2f} {y:.2f}h{2 * half:.2f}" for y in (high, low))
    path = f"{caps}M{x:.2f} {high:.2f}V{low:.2f}"
    return tag("path", d=path, fill="none", stroke=color, stroke_width=1.2, stroke_opacity=0.75, class_="error")


def draw_curve(series: Series, look: Look, frame: Frame) -> list[str]:
    """Return a curve without markers; a single point, which would not be seen, has one."""
    parts = []
    for run in series.runs():
        last = run[-1]
        said = f"{series.name}, {last.x:g}: {last.words}"
        if len(run) == 1:
            parts.append(look.marker(*frame.at(last.x, last.y), said=said))
        else:
            points, title = _places(run, frame), tag("title", escape(said))
            parts.append(tag("polyline", title, points=points, **look.stroke(1.6, DASHES), class_="curve"))
    return parts


def draw_band(series: Series, look: Look, frame: Frame) -> list[str]:
    """Return the area of one standard deviation around a curve."""
    parts = []
    for run in series.runs():
        if len(run) > 1 and any(point.spread for point in run):
            above = _places((replace(p, y=p.ends[1]) for p in run), frame)
            below = _places((replace(p, y=p.ends[0]) for p in reversed(run)), frame)
            parts.append(tag("polygon", points=f"{above} {below}", fill=look.color, fill_opacity=0.15, class_="band"))
    return parts


def draw_bars(series: Series, place: tuple[int, int], look: Look, frame: Frame, groups: Sequence[str]) -> list[str]:
    """Return one bar in each group; `place` is which of how many the series is there."""
    number, count = place
    width = min(frame.width / max(len(groups), 1) / (count + 0.8), WIDEST)
    drawn = width - min(1.0, width / 5)
    start = min(max(0.0, frame.y.low), frame.y.high)
    parts, errors = [], []
    for point in series.known():
        left = frame.at(point.x, start)[0] + (number - count / 2) * width
        top, bottom = sorted((frame.at(point.x, start)[1], frame.at(point.x, point.y)[1]))
        said = tag("title", escape(f"{series.name}, {groups[int(point.x)]}: {point.words}"))
        box = {"x": left, "y": top, "width": drawn, "height": bottom - top}
        parts.append(tag("rect", said, **box, fill=look.color, class_="bar"))
        if point.spread:
            errors.append(_error_bar(point, INK, left + drawn / 2, frame, min(3.0, width / 4)))
    return [*parts, *errors]


def draw_break(frame: Frame) -> list[str]:
    """Return a mark on an axis of bars that does not start at 0, and a line at 0 where bars go below it."""
    if frame.y.low < 0:
        zero = frame.at(frame.x.low, min(0.0, frame.y.high))[1]
        return [tag("line", x1=frame.left, x2=frame.left + frame.width, y1=zero, y2=zero, class_="axis")]
    if frame.y.low == 0:
        return []
    x, y = frame.left, frame.top + frame.height - 12
    said = tag("title", escape(f"the axis starts at {frame.y.ticks.get(frame.y.low, f'{frame.y.low:g}')}, not at 0"))
    gap = tag("line", x1=x, x2=x, y1=y - 3, y2=y + 3, stroke="#ffffff", stroke_width=3)
    path = f"M{x - 5:.2f} {y - 1:.2f}l10 -4M{x - 5:.2f} {y + 5:.2f}l10 -4"
    return [gap, tag("path", said, d=path, class_="axis break")]


def draw_dots(series: Series, look: Look, frame: Frame, radius: float) -> list[str]:
    """Return a marker for each point, through which others can be seen."""
    return [
        look.marker(*frame.at(p.x, p.y), radius, f"{series.name}: {p.x:.4g}, {p.y:.4g}", opacity=0.8)
        for p in series.known()
    ]
