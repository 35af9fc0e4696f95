"""Charts as SVG files of their own, written by hand: lines, bars, curves and scatters, in panels with one legend.

Every chart is a function of panels of series of points, and gives the text of a file that needs nothing else: no
script, no style sheet, no font. The numbers of a point or a bar show when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from isthmus.report.charts_layout import (
    NO_WORDS,
    Axis,
    Entry,
    Frame,
    Plot,
    Words,
    named_axis,
    number_axis,
    sheet,
)
from isthmus.report.charts_marks import (
    SMALL,
    Look,
    Point,
    Series,
    draw_band,
    draw_bars,
    draw_break,
    draw_curve,
    draw_dots,
    draw_line,
)
from isthmus.report.drawing import tag, text

__all__ = ["Panel", "Point", "Series", "Words", "curve_chart", "grouped_bars", "line_chart", "scatter_chart"]

BAR_ROOM = 9.0  # at least, for one bar; thinner when there are very many
MANY_DOTS = 400  # are drawn smaller


@dataclass(frozen=True)
class Panel:
    """One of the charts side by side. The series of one name look the same in all of them."""

    title: str
    series: tuple[Series, ...]


def line_chart(
    panels: Sequence[Panel],
    words: Words = NO_WORDS,
    *,
    x_names: Mapping[float, str] | None = None,
    log_x: bool = False,
    shared_y: bool = False,
) -> str:
    """Return lines with a marker at each point, error bars where there are deviations, and dashed references.

    `x_names` names values of the x axis, in place of their numbers.
    """
    every = [point.x for panel in panels for s in panel.series if not s.reference for point in s.known()]
    x = named_axis(x_names or {value: f"{value:g}" for value in every}, log=log_x)
    looks = _looks(panels)

    def draw(panel: Panel, frame: Frame) -> list[str]:
        return _grouped(draw_line(s, looks[s.name], frame, x.ticks) for s in panel.series)

    plots = [_plot(panel, x, number_axis(values), draw) for panel, values in _ranges(panels, shared_y)]
    references = {s.name for panel in panels for s in panel.series if s.reference}
    entries = [
        Entry(name, looks[name].reference_sample if name in references else looks[name].line_sample)
        for name in _named(panels)
    ]
    return sheet(plots, entries, words)


def curve_chart(panels: Sequence[Panel], words: Words = NO_WORDS, *, shared_y: bool = False) -> str:
    """Return curves of many points without markers, in a band of one standard deviation where there is one."""
    every = [point.x for panel in panels for s in panel.series for point in s.known()]
    x = number_axis(every, tight=True, whole=all(float(value).is_integer() for value in every))
    looks = _looks(panels)

    def draw(panel: Panel, frame: Frame) -> list[str]:
        bands = [part for s in panel.series for part in draw_band(s, looks[s.name], frame)]
        return [*bands, *_grouped(draw_curve(s, looks[s.name], frame) for s in panel.series)]

    plots = [_plot(panel, x, number_axis(values), draw) for panel, values in _ranges(panels, shared_y)]
    return sheet(plots, [Entry(name, looks[name].curve_sample) for name in _named(panels)], words)


def grouped_bars(
    panels: Sequence[Panel], groups: Sequence[str], words: Words = NO_WORDS, *, shared_y: bool = False
) -> str:
    """Return bars side by side in groups; the x of a point is the number of its group.

    Bars start at 0, or at a round number if they would all be long otherwise; then the axis is broken visibly.
    """
    x = Axis(-0.5, max(len(groups), 1) - 0.5, {float(i): name for i, name in enumerate(groups)}, named=True)
    looks = _looks(panels)

    def draw(panel: Panel, frame: Frame) -> list[str]:
        present = [s for s in panel.series if s.points]
        places = [(s, (i, len(present))) for i, s in enumerate(present)]
        bars = _grouped(draw_bars(s, place, looks[s.name], frame, groups) for s, place in places)
        return [*bars, *draw_break(frame)]

    plots = [_plot(panel, x, _bar_axis(values), draw) for panel, values in _ranges(panels, shared_y)]
    most = max((sum(bool(s.points) for s in panel.series) for panel in panels), default=1)
    entries = [Entry(name, looks[name].bar_sample, SMALL) for name in _named(panels)]
    return sheet(plots, entries, words, len(groups) * (most + 0.8) * BAR_ROOM)


def scatter_chart(panels: Sequence[Panel], words: Words = NO_WORDS, *, scales: bool = False) -> str:
    """Return points in a colour and a shape for each series, each panel in a range of its own.

    Embeddings have no unit, so that numbers beside them tell nothing; `scales` shows them.
    """
    looks = _looks(panels)
    radius = 2.2 if max((sum(len(s.points) for s in p.series) for p in panels), default=0) > MANY_DOTS else 3.0

    def draw(panel: Panel, frame: Frame) -> list[str]:
        return _grouped(draw_dots(s, looks[s.name], frame, radius) for s in panel.series)

    plots = []
    for panel in panels:
        known = [point for s in panel.series for point in s.known()]
        x, y = _loose_axis([p.x for p in known]), _loose_axis([p.y for p in known])
        if not scales:
            x, y = replace(x, ticks={}), replace(y, ticks={})
        plots.append(_plot(panel, x, y, draw))
    return sheet(plots, [Entry(name, looks[name].marker_sample, SMALL) for name in _named(panels)], words)


def _looks(panels: Sequence[Panel]) -> dict[str, Look]:
    """Return a look for each name, the same in every panel."""
    return {name: Look(i) for i, name in enumerate(dict.fromkeys(s.name for panel in panels for s in panel.series))}


def _named(panels: Sequence[Panel]) -> list[str]:
    """Return the names for the legend: those that have points somewhere."""
    drawn = {s.name for panel in panels for s in panel.series if s.known()}
    return [name for name in _looks(panels) if name and name in drawn]


def _grouped(series: Iterable[list[str]]) -> list[str]:
    return [tag("g", *parts, class_="series") for parts in series if parts]


def _ranges(panels: Sequence[Panel], shared: bool) -> list[tuple[Panel, list[float]]]:
    """Return each panel with the values that its y axis must hold, deviations and all."""
    found = []
    for panel in panels:
        marked = [(point, s.reference) for s in panel.series for point in s.known()]
        found.append([y for point, reference in marked for y in ((point.y,) if reference else point.ends)])
    everything = [value for values in found for value in values]
    return [(panel, everything if shared else values) for panel, values in zip(panels, found, strict=True)]


def _plot(panel: Panel, x: Axis, y: Axis, draw: Callable[[Panel, Frame], list[str]]) -> Plot:
    def inside(frame: Frame) -> list[str]:
        if any(series.known() for series in panel.series):
            return draw(panel, frame)
        return [text("no data", frame.left + frame.width / 2, frame.top + frame.height / 2, "tick", "middle")]

    return Plot(panel.title, x, y, inside)


def _loose_axis(values: Sequence[float]) -> Axis:
    """Return an axis that ends a little beyond the values on both sides."""
    axis = number_axis(values, tight=True)
    room = 0.05 * (axis.high - axis.low)
    return replace(axis, low=axis.low - room, high=axis.high + room)


def _bar_axis(values: Sequence[float]) -> Axis:
    """Return an axis from 0, or from a round number when all bars are more than half as long as the longest."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > high / 2:
        axis = number_axis([low - max(high - low, 0.05 * high) / 2, high])
        if axis.low > high / 3:  # else little would be won
            return axis
    return number_axis([low, high, 0.0] if low or high else [0.0, 1.0])
