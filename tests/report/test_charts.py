"""Charts: what their specifications hold, and what the files say that are made of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from isthmus.core.errors import BadInput
from isthmus.report.charts import (
    COLORS,
    Panel,
    Point,
    Series,
    Words,
    curve_chart,
    grouped_bars,
    line_chart,
    scatter_chart,
    to_svg,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<b>&\"'\x1b\x00\ud800\ufffe]]>"
SHOWN = "<b>&\"'????]]>"


def series(name: str, *values: float, std: float | None = None) -> Series:
    return Series(name, tuple(Point(i, value, std) for i, value in enumerate(values)))


def spec(chart: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(chart.to_json())
    return found


def rows(chart: Any) -> list[dict[str, Any]]:
    return list(spec(chart)["data"]["values"])


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(SVG + "text")]


def labels(svg: str, role: str) -> list[str]:
    """Return what a file says of its marks of one kind, such as symbols or bars."""
    marks = ElementTree.fromstring(svg).iter()
    return [e.attrib["aria-label"] for e in marks if e.get("aria-roledescription") == role]


GROUPS = [f"g{i}" for i in range(8)]
CHARTS: dict[str, Callable[[list[Panel], Words], Any]] = {
    "lines": line_chart,
    "curves": curve_chart,
    "bars": lambda panels, words: grouped_bars(panels, GROUPS, words),
    "scatter": lambda panels, words: scatter_chart(panels, words, scales=True),
}


def test_rows_say_every_point_with_its_deviation_from_left_to_right() -> None:
    points = (Point(3, 0.1), Point(1, 0.2, 0.05), Point(2, 0.3))
    found = rows(line_chart([Panel("p", (Series("a", points),))]))
    assert [(row["x"], row["y"], row["value"]) for row in found] == [
        (1, 0.2, "0.2 ± 0.05"),
        (2, 0.3, "0.3"),
        (3, 0.1, "0.1"),
    ]
    assert (found[0]["low"], found[0]["high"]) == (pytest.approx(0.15), pytest.approx(0.25))
    assert found[1]["low"] == found[1]["high"] == 0.3


@pytest.mark.parametrize("missing", [math.nan, math.inf, 1e305])
def test_a_missing_value_parts_the_line_and_is_drawn_nowhere(missing: float) -> None:
    panel = Panel("", (series("a", 0.6, 0.7, missing, 0.8, 0.9, missing, 0.7),))
    for kind, chart in CHARTS.items():
        found = rows(chart([panel], Words()))
        assert [row["part"][-1] for row in found] == ["0", "0", "1", "1", "2"], kind
    layers = spec(line_chart([panel]))["layer"]
    (line,) = [layer for layer in layers if layer["mark"]["type"] == "line"]
    assert line["encoding"]["detail"]["field"] == "part"


def test_a_reference_is_one_dashed_rule_without_a_marker() -> None:
    chart = line_chart([Panel("", (series("a", 0.6, 0.8), Series("b", (Point(7, 0.7, 0.1), Point(8, 0.9)), True)))])
    (reference,) = [row for row in rows(chart) if row["reference"]]
    assert (reference["y"], reference["low"], reference["high"]) == (0.7, 0.7, 0.7)
    layers = {layer["mark"]["type"]: layer for layer in spec(chart)["layer"] if layer["mark"].get("strokeDash")}
    assert list(layers) == ["rule"] and layers["rule"]["transform"] == [{"filter": "datum.reference"}]
    assert "x" not in layers["rule"]["encoding"]
    assert 7 not in spec(chart)["layer"][1]["encoding"]["x"]["axis"]["values"]
    svg = to_svg(chart)
    assert len(labels(svg, "point")) == 2 and len(labels(svg, "rule mark")) == 1


def test_series_look_the_same_in_every_panel_and_one_without_points_keeps_its_colour() -> None:
    left, right = Panel("l", (series("a", 1, 2), Series("b"), series("c", 3, 4))), Panel("r", (series("c", 1, 2),))
    colors = spec(line_chart([left, right]))["spec"]["layer"][1]["encoding"]["color"]
    assert colors["scale"] == {"domain": ["a", "b", "c"], "range": list(COLORS[:3])}
    assert colors["legend"]["values"] == ["a", "c"]


def test_a_file_has_its_words_its_marks_and_one_entry_in_the_legend_for_all_panels() -> None:
    lines = (series("a", 0.6, 0.7, 0.8, std=0.02), series("b", 0.7, 0.8, 0.9))
    svg = to_svg(line_chart([Panel("left", lines), Panel("right", lines)], Words("Title", "rate", "accuracy")))
    found = texts(svg)
    assert {"Title", "left", "right", "rate", "accuracy"} <= set(found)
    assert found.count("a") == found.count("b") == 1
    assert len(labels(svg, "point")) == 12 and len(labels(svg, "rule mark")) == 6
    assert labels(svg, "point")[0].endswith("series: a; place: 0; value: 0.6 ± 0.02")


def test_a_known_value_lies_where_it_should() -> None:
    svg = to_svg(line_chart([Panel("", (series("a", 0.6, 0.675, 0.9),))]))
    marks = [e for e in ElementTree.fromstring(svg).iter() if e.get("aria-roledescription") == "point"]
    low, between, high = (float(e.attrib["transform"].rstrip(")").split(",")[1]) for e in marks)
    assert low - between == pytest.approx((low - high) / 4)


def test_names_and_logarithms_of_the_x_axis() -> None:
    names = {0.0: "low", 1.0: "mid'dle\"", 2.0: "high"}
    chart = line_chart([Panel("", (series("a", 0.1, 0.2, 0.3),))], x_names=names)
    assert [row["place"] for row in rows(chart)] == list(names.values())
    assert set(names.values()) <= set(texts(to_svg(chart)))
    points = tuple(Point(x, 0.5) for x in (0.01, 0.1, 10.0))
    chart = line_chart([Panel("", (Series("a", points),))], log_x=True)
    assert spec(chart)["layer"][1]["encoding"]["x"]["scale"]["type"] == "log"
    with pytest.raises(ValueError, match="logarithms"):
        line_chart([Panel("", (series("a", 0, 2),))], log_x=True)


def test_logarithms_of_the_y_axis_and_panels_with_an_x_axis_of_their_own() -> None:
    points = tuple(Point(x, 10 * x) for x in (1.0, 10.0, 100.0))
    panels = [Panel("few", (Series("a", points),)), Panel("many", (Series("a", points[1:]),))]
    chart = spec(line_chart(panels, log_x=True, log_y=True, shared_x=False, shared_y=True))
    assert chart["spec"]["layer"][1]["encoding"]["y"]["scale"]["type"] == "log"
    assert chart["resolve"]["scale"] == {"x": "independent", "y": "shared"}
    for bad in (
        Series("a", (Point(1.0, 0.0),)),
        Series("a", (Point(1.0, 1.0, 1.0),)),
        Series("a", (Point(0, 0),), True),
    ):
        with pytest.raises(ValueError, match="logarithms"):
            line_chart([Panel("", (bad,))], log_y=True)


def test_curves_have_bands_of_a_deviation_and_dashes() -> None:
    one = Series("a", tuple(Point(k, 0.5 + k / 1000, 0.1) for k in range(1, 201)))
    two = Series("b", tuple(Point(k, 0.4) for k in range(1, 101)))
    chart = curve_chart([Panel("", (one, two))])
    band, line = spec(chart)["layer"]
    assert (band["mark"]["type"], line["mark"]["type"]) == ("area", "line")
    assert (band["encoding"]["y"]["field"], band["encoding"]["y2"]["field"]) == ("low", "high")
    assert band["transform"] == [{"filter": "datum.low < datum.high"}]
    first, second = line["encoding"]["strokeDash"]["scale"]["range"]
    assert first != second
    assert line["encoding"]["x"]["axis"] == {"tickMinStep": 1}
    for panels in ([Panel("", (one, two))], [Panel("left", (one, two)), Panel("right", (two,))]):
        found = texts(to_svg(curve_chart(panels)))
        assert found.count("a") == found.count("b") == 1  # a legend for all panels


def test_bars_stand_side_by_side_from_zero_under_the_names_of_their_groups() -> None:
    chart = grouped_bars([Panel("", (series("a", 0.1, 0.8, std=0.01), series("b", 0.4)))], ["g", "h"])
    svg = to_svg(chart)
    assert len(labels(svg, "bar")) == 3 and len(labels(svg, "rule mark")) == 2
    assert {"g", "h"} <= set(texts(svg))
    assert [row["place"] for row in rows(chart)] == ["g", "h", "g"]
    (bars, _) = spec(chart)["layer"]
    assert bars["encoding"]["xOffset"]["scale"]["domain"] == ["a", "b"]
    assert "scale" not in bars["encoding"]["y"]  # the default of bars is from 0


def test_panels_have_ranges_of_their_own_or_one_for_all() -> None:
    panels = [Panel("p", (series("a", 0.1, 0.2),)), Panel("q", (series("a", 0.8, 0.9),))]
    for draw in (line_chart, curve_chart, lambda p, **how: grouped_bars(p, ["g", "h"], **how)):
        assert spec(draw(panels))["resolve"]["scale"] == {"x": "shared", "y": "independent"}
        assert spec(draw(panels, shared_y=True))["resolve"]["scale"]["y"] == "shared"
    assert spec(scatter_chart(panels))["resolve"]["scale"] == {"x": "independent", "y": "independent"}
    assert spec(line_chart(panels))["facet"]["sort"] == ["p", "q"]


def test_scatter_colours_classes_and_shows_numbers_only_when_asked() -> None:
    classes = tuple(series(f"class {c}", *(0.1 * c + 0.01 * i for i in range(20))) for c in range(3))
    panels = [Panel("p", classes)]
    (layer,) = spec(scatter_chart(panels))["layer"]
    assert layer["encoding"]["x"]["axis"] is None and layer["encoding"]["shape"]["scale"]["domain"][2] == "class 2"
    (layer,) = spec(scatter_chart(panels, scales=True))["layer"]
    assert layer["encoding"]["x"]["axis"] is not None
    assert len(labels(to_svg(scatter_chart([Panel("p", classes), Panel("q", classes)])), "point")) == 120


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_of_nothing_is_a_chart(kind: str) -> None:
    for panels in ([], [Panel("p", ())], [Panel("p", (Series("a"), series("b", math.nan)))]):
        found = texts(to_svg(CHARTS[kind](panels, Words("nothing"))))
        assert "nothing" in found and any("no data" in text for text in found) and "b" not in found


@pytest.mark.parametrize("kind", CHARTS)
def test_whatever_a_name_holds_is_shown_and_not_obeyed(kind: str) -> None:
    panels = [Panel(HOSTILE, (series(HOSTILE, 0.1, 0.2, std=0.1),)), Panel("q", (series("b", 0.1),))]
    svg = to_svg(CHARTS[kind](panels, Words(HOSTILE, HOSTILE, HOSTILE)))
    assert not list(ElementTree.fromstring(svg.encode()).iter(SVG + "b"))
    assert texts(svg).count(SHOWN) >= 5  # the title, a panel, an entry of the legend, two axes
    assert "<script" not in svg and "http://" not in svg.replace("http://www.w3.org", "")


def test_the_same_chart_is_the_same_file() -> None:
    panels = [Panel("p", (series("a", 0.1, 0.2),)), Panel("q", (series("a", 0.8, 0.9),))]
    assert to_svg(line_chart(panels)) == to_svg(line_chart(panels))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = line_chart([Panel("", (series("a", 1, 2),))])
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(BadInput, match=r"pip install 'isthmus\[charts\]'"):
        to_svg(chart)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(BadInput, match=r"pip install 'isthmus\[charts\]'"):
        line_chart([Panel("", ())])
