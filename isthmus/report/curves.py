"""A run's curves as a chart of Altair's, for notebooks and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.core.errors import BadInput, nearest
from isthmus.report.charts import Chart, Panel, Point, Series, Words, curve_chart
from isthmus.report.story import story_of


def plotted(runs: Mapping[str, Sequence[dict[str, Any]]], metrics: Sequence[str]) -> Chart:
    """Return metrics over the rounds of runs, titles to journals: a panel for each metric, a curve for each run."""
    stories = [story_of(title, events) for title, events in runs.items()]
    known = {name for story in stories for each in story.rounds for name in each["metrics"]}
    for metric in metrics:
        if metric not in known:
            raise BadInput(f"no round has {metric!r}; {nearest(metric, known)}")
    panels = [
        Panel(metric, tuple(Series(s.title, tuple(Point(x, y) for x, y in s.curve(metric))) for s in stories))
        for metric in metrics
    ]
    return curve_chart(panels, Words(x="round"))
