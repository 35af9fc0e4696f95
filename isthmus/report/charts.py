"""Charts as Altair specifications: lines, curves, bars and scatters, in panels with one legend; `to_svg` makes a file.

Every chart is a function of panels of series of points. A specification serves pages, notebooks and files alike; an SVG
file needs nothing else, no script and no style sheet, and says the numbers of its marks to those who cannot see them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from isthmus.core.errors import BadInput
from isthmus.core.outside import foreign

Chart: TypeAlias = Any  # one of altair's, which is imported when a chart is drawn

# Okabe and Ito's colours, which also the colour-blind tell apart, without their yellow, which is faint on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d", "#882255")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2])
# One less than colours, so that pairs of a colour and a shape last long.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left")
LOOKS: dict[str, Sequence[Any]] = {"Color": COLORS, "Shape": SHAPES, "StrokeDash": DASHES}
TOLD = ["series:N", "place:N", "value:N"]  # of a point that is pointed at
HEIGHT = 220  # of a panel
WIDTHS = {1: 560, 2: 390, 3: 290}  # of a panel, by how many are side by side
LARGEST = 1e300  # what is larger cannot be drawn
MOST_LETTERS = 200  # of a name or a title


@dataclass(frozen=True)
class Point:
    """A point with its standard deviation; NaN where nothing was measured."""

    x: float
    y: float
    std: float | None = None


@dataclass(frozen=True)
class Series:
    """Points under a name. A `reference` is one number that holds along the whole axis: that of its first point."""

    name: str
    points: tuple[Point, ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """One of the charts side by side. The series of one name look the same in all of them."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Words:
    """What is written at a chart: above it, and at its axes."""

    title: str = ""
    x: str = ""
    y: str = ""


def line_chart(
    panels: Sequence[Panel],
    words: Words = Words(),
    *,
    x_names: Mapping[float, str] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    shared_x: bool = True,
    shared_y: bool = False,
) -> Chart:
    """Return lines with a marker at each point, error bars where there are deviations, and dashed references.

    `x_names` names values of the x axis, in place of their numbers.
    """
    alt = _altair()
    rows = _rows(panels, x_names)
    on_x, on_y = [row["x"] for row in rows if not row["reference"]], [row["low"] for row in rows]
    if min([*(on_x if log_x else ()), *(on_y if log_y else ())], default=1) <= 0:
        raise ValueError("an axis of logarithms has no place for 0 or less")
    x_scale, y_scale = (alt.Scale(type="log") if log else alt.Scale(zero=False) for log in (log_x, log_y))
    places = _named(x_names, rows) if shared_x else alt.Axis(format="~s", labelOverlap=True)
    x = alt.X("x:Q", title=_text(words.x), scale=x_scale, axis=places)
    y = alt.Y("y:Q", title=_text(words.y), scale=y_scale)
    moving, still = "!datum.reference", "datum.reference"
    color = _channel("Color", panels)
    points = alt.Chart().encode(x=x, y=y, color=color, tooltip=TOLD)
    lines = points.transform_filter(moving).mark_line().encode(detail="part:N")
    bars = points.transform_filter(f"{moving} && datum.low < datum.high").mark_rule().encode(y="low:Q", y2="high:Q")
    marks = points.transform_filter(moving).mark_point(filled=True, size=55, opacity=1)
    marks = marks.encode(shape=_channel("Shape", panels))
    rules = alt.Chart().transform_filter(still).mark_rule(strokeDash=[6, 4], strokeWidth=1.5)
    rules = rules.encode(y=y, color=color, tooltip=TOLD)
    return _sheet(alt.layer(rules, lines, bars, marks), rows, panels, words, shared_y, shared_x)


def curve_chart(panels: Sequence[Panel], words: Words = Words(), *, shared_y: bool = False) -> Chart:
    """Return curves of many points without markers, in a band of one standard deviation where there is one."""
    alt = _altair()
    rows = _rows(panels)
    whole = {"tickMinStep": 1} if all(float(row["x"]).is_integer() for row in rows) else {}
    x = alt.X("x:Q", title=_text(words.x), scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(**whole))
    y = alt.Y("y:Q", title=_text(words.y), scale=alt.Scale(zero=False))
    # Symbols of the legend are lines, not what a band is drawn with.
    symbols = {"symbolType": "stroke", "symbolOpacity": 1.0, "symbolSize": 400, "symbolStrokeWidth": 2}
    color, dash = (_channel(kind, panels, **symbols) for kind in ("Color", "StrokeDash"))
    points = alt.Chart().encode(x=x, y=y, detail="part:N", tooltip=TOLD)
    bands = points.transform_filter("datum.low < datum.high").mark_area(opacity=0.18)
    bands = bands.encode(y="low:Q", y2="high:Q", color=color)
    lines = points.mark_line(strokeWidth=1.8).encode(color=color, strokeDash=dash)
    return _sheet(alt.layer(bands, lines), rows, panels, words, shared_y)


def grouped_bars(
    panels: Sequence[Panel], groups: Sequence[str], words: Words = Words(), *, shared_y: bool = False
) -> Chart:
    """Return bars side by side in groups, from 0; the x of a point is the number of its group."""
    alt = _altair()
    names = {float(number): str(name) for number, name in enumerate(groups)}
    x = alt.X("x:O", title=_text(words.x), axis=alt.Axis(labelExpr=_label_expression(names), labelAngle=-35))
    y = alt.Y("y:Q", title=_text(words.y))
    places = alt.XOffset("series:N", sort=None, scale=alt.Scale(domain=_names(panels)))
    points = alt.Chart().encode(x=x, xOffset=places, tooltip=TOLD)
    bars = points.mark_bar().encode(y=y, color=_channel("Color", panels))
    errors = points.transform_filter("datum.low < datum.high").mark_rule(color="#222222").encode(y="low:Q", y2="high:Q")
    return _sheet(alt.layer(bars, errors), _rows(panels, names), panels, words, shared_y)


def scatter_chart(panels: Sequence[Panel], words: Words = Words(), *, scales: bool = False) -> Chart:
    """Return points in a colour and a shape for each series, each panel in a range of its own.

    Embeddings have no unit, so that numbers beside them tell nothing; `scales` shows them.
    """
    alt = _altair()
    axis: Any = alt.Axis() if scales else None
    loose = alt.Scale(zero=False)
    points = alt.Chart().mark_point(filled=True, size=22).encode(
        x=alt.X("x:Q", title=_text(words.x), scale=loose, axis=axis),
        y=alt.Y("y:Q", title=_text(words.y), scale=loose, axis=axis),
        color=_channel("Color", panels),
        shape=_channel("Shape", panels),
        tooltip=TOLD,
    )  # fmt: skip
    return _sheet(alt.layer(points), _rows(panels), panels, words, shared_y=False, shared_x=False)


def to_svg(chart: Chart) -> str:
    """Return a chart as the text of an SVG file."""
    try:
        import vl_convert
    except ImportError:
        raise BadInput("files of charts need vl-convert; install it with: pip install 'isthmus[charts]'") from None
    return str(vl_convert.vegalite_to_svg(chart.to_json(), vl_version="v6.1"))


# ---- what charts are made of


def _altair() -> Any:
    try:
        import altair
    except ImportError:
        raise BadInput("charts need altair; install it with: pip install 'isthmus[charts]'") from None
    altair.data_transformers.disable_max_rows()
    return altair


def _drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) < LARGEST


def _text(words: str) -> str:
    """Return words as they can be drawn: on one line, and not too long."""
    return foreign(words, MOST_LETTERS)


def _rows(panels: Sequence[Panel], x_names: Mapping[float, str] | None = None) -> list[dict[str, Any]]:
    """Return a row for each point that has a place, from left to right; a missing one parts a line in two."""
    return [
        {"panel": _text(panel.title), **row}
        for panel in panels
        for series in panel.series
        for row in _rows_of(series, x_names or {})
    ]


def _rows_of(series: Series, x_names: Mapping[float, str]) -> list[dict[str, Any]]:
    """Return the rows of a series; of a reference, the first."""
    name, part = _text(series.name), 0
    rows: list[dict[str, Any]] = []
    for point in sorted((point for point in series.points if _drawable(point.x)), key=lambda point: point.x):
        if not _drawable(point.y):
            part += 1
            continue
        spread = (point.std or 0.0) if _drawable(point.std) and not series.reference else 0.0
        place = x_names.get(point.x, f"{point.x:g}")
        told = f"{point.y:.4g}" + (f" ± {point.std:.2g}" if _drawable(point.std) else "")
        row = {"series": name, "x": point.x, "y": point.y, "place": _text(place), "value": told}
        ends = {"low": point.y - spread, "high": point.y + spread}
        rows.append({**row, **ends, "part": f"{name}/{part}", "reference": series.reference})
    return rows[:1] if series.reference else rows


def _names(panels: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(_text(series.name) for panel in panels for series in panel.series))


def _channel(kind: str, panels: Sequence[Panel], **symbols: Any) -> Any:
    """Return an encoding of series by their number, the same in every panel, with or without points.

    `symbols` says how its legend draws them, where not as the chart does.
    """
    alt, names, looks = _altair(), _names(panels), LOOKS[kind]
    scale = alt.Scale(domain=names, range=[looks[number % len(looks)] for number in range(len(names))])
    drawn = {row["series"] for row in _rows(panels)}  # a series without points is in no legend
    shown = [name for name in names if name and name in drawn]
    legend = alt.Legend(title=None, values=shown, **symbols) if shown else None
    return getattr(alt, kind)("series:N", scale=scale, legend=legend)


def _named(names: Mapping[float, str] | None, rows: Sequence[Mapping[str, Any]]) -> Any:
    alt = _altair()
    if names is None:
        values = sorted({row["x"] for row in rows if not row["reference"]})
        return alt.Axis(values=values, format="~g", labelOverlap=True)
    return alt.Axis(values=sorted(names), labelExpr=_label_expression(names), labelOverlap=True)


def _label_expression(names: Mapping[float, str]) -> str:
    """Return a Vega expression that names values; each name is a quoted literal, whatever is in it."""
    table = json.dumps({f"{value:g}": _text(name) for value, name in names.items()})
    return f"{table}[format(datum.value, '~g')] || ''"


def _sheet(
    layers: Any,
    rows: Sequence[Mapping[str, Any]],
    panels: Sequence[Panel],
    words: Words,
    shared_y: bool,
    shared_x: bool = True,
) -> Any:
    """Return the panels in a grid under one title, with one legend."""
    alt = _altair()
    columns = min(max(len(panels), 1), 3)
    shown = layers.properties(width=WIDTHS[columns], height=HEIGHT)
    titles = [_text(panel.title) for panel in panels]
    if len(panels) > 1:
        head = alt.Facet("panel:N", title=None, sort=titles, header=alt.Header(labelFontWeight="bold"))
        chart = shown.facet(facet=head, columns=columns, data=alt.Data(values=rows))
        ranges = {"x": shared_x, "y": shared_y}
        chart = chart.resolve_scale(**{axis: "shared" if same else "independent" for axis, same in ranges.items()})
    else:
        chart = shown.properties(data=alt.Data(values=rows))
    title = [part for part in (_text(words.title), *(titles if len(panels) == 1 else ())) if part]
    if not rows:
        title.append("no data")
    if title:
        chart = chart.properties(title=alt.TitleParams(title[0], subtitle=title[1:], anchor="start"))
    return chart.configure_legend(orient="top", columns=4, labelLimit=320).configure_axis(gridColor="#e4e3de")
