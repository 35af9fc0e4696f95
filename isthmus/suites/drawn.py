"""What a figure shows, as values that can be kept: a table beside its picture, from which it is drawn anew."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.core.errors import BadInput
from isthmus.report.charts import Chart, Panel, Point, Series, Words, curve_chart, grouped_bars, line_chart
from isthmus.suites.figure_spec import Figure

COLUMNS = ("panel", "series", "x", "name", "y", "std", "reference")


@dataclass(frozen=True)
class Drawn:
    """What a figure shows.

    Fields:
        panels: its panels, with the points of their lines or bars
        names:  numbers along the x axis -> what they are called; none where they are called by themselves
    """

    panels: tuple[Panel, ...]
    names: Mapping[float, str]

    def chart(self, figure: Figure, metric: str) -> Chart:
        """Draw it; `metric` is the suite's."""
        along = {"lines": figure.x, "rounds": "round", "clients": "client"}[figure.kind]
        measured = metric if figure.kind == "lines" else figure.metric
        words = Words(figure.title, figure.x_label or along, figure.y_label or measured)
        if figure.kind == "lines":
            names = self.names or None
            return line_chart(self.panels, words, x_names=names, log_x=figure.log_x, shared_y=figure.shared_y)
        if figure.kind == "rounds":
            return curve_chart(self.panels, words, shared_y=figure.shared_y)
        return grouped_bars(self.panels, list(self.names.values()), words, shared_y=figure.shared_y)

    def to_csv(self) -> str:
        """Return it as a table, a row for each point; a line or bar without any has a row without numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for panel in self.panels:
            for series in panel.series:
                for point in series.points:
                    name, std = self.names.get(point.x, ""), "" if point.std is None else point.std
                    reference = "yes" if series.reference else ""
                    writer.writerow((panel.title, series.name, point.x, name, point.y, std, reference))
                if not series.points:
                    writer.writerow((panel.title, series.name, "", "", "", "", ""))
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str, source: str) -> Drawn:
        """Return what a table shows; `source` is its file, for messages."""
        panels: dict[str, dict[str, Series]] = {}
        names: dict[float, str] = {}
        try:
            for row in csv.DictReader(io.StringIO(text)):
                mine = panels.setdefault(row["panel"], {})
                series = mine.get(row["series"], Series(row["series"], (), row["reference"] == "yes"))
                if row["x"]:
                    point = Point(float(row["x"]), float(row["y"]), float(row["std"]) if row["std"] else None)
                    series = Series(series.name, (*series.points, point), series.reference)
                    names |= {point.x: row["name"]} if row["name"] else {}
                mine[row["series"]] = series
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{source} is no table of a figure's points, {', '.join(COLUMNS)}: {error}") from None
        drawn = tuple(Panel(title, tuple(mine.values())) for title, mine in panels.items())
        return cls(drawn, dict(sorted(names.items())))
