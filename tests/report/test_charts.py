from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest

from isthmus.report.charts import (
    Panel,
    Point,
    Series,
    Words,
    curve_chart,
    grouped_bars,
    line_chart,
    scatter_chart,
)
from isthmus.report.charts_layout import HEIGHT, named_axis, number_axis

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<b>&\"'\x1b\x00\ud800\ufffe]]>"


def shapes(svg: str, name: str, style: str = "") -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(SVG + name)
    return [e for e in found if not style or style in e.get("class", "").split()]


def number(element: ElementTree.Element, key: str) -> float:
    return float(element.attrib[key])


def words(svg: str, style: str = "") -> list[str]:
    return [e.text or "" for e in shapes(svg, "text", style)]


def titles(svg: str, style: str) -> list[str]:
    """Return what is said by elements of a class."""
    elements = ElementTree.fromstring(svg).iter()
    chosen = [e for e in elements if style in e.get("class", "").split()]
    return [said.text or "" for e in chosen for said in e.findall(SVG + "title")]


def frame(svg: str, index: int = 0) -> tuple[float, float]:
    """Return the top and the bottom of a panel, from the path of its axes."""
    down = [e.attrib["d"] for e in shapes(svg, "path", "axis") if "V" in e.attrib["d"]][index]
    top, bottom = down.split("H")[0].split()[1].split("V")
    return float(top), float(bottom)


def series(name: str, *values: float, std: float | None = None, start: int = 0) -> Series:
    return Series(name, tuple(Point(start + i, value, std) for i, value in enumerate(values)))


def all_charts(panels: list[Panel], said: Words) -> dict[str, str]:
    groups = [f"g{i}" for i in range(8)]
    return {
        "lines": line_chart(panels, said),
        "curves": curve_chart(panels, said),
        "bars": grouped_bars(panels, groups, said),
        "scatter": scatter_chart(panels, said, scales=True),
    }


def test_a_known_value_lies_where_it_should() -> None:
    svg = line_chart([Panel("", (series("a", 0.6, 0.675, 0.9),))])
    top, bottom = frame(svg)
    assert bottom - top == HEIGHT
    ticks = [word for word in words(svg, "tick") if "." in word]
    assert ticks == ["0.6", "0.7", "0.8", "0.9"]  # not from 0
    low, between, high = (number(e, "cy") for e in shapes(svg, "circle", "marker") if e.find(SVG + "title") is not None)
    assert low == pytest.approx(bottom) and high == pytest.approx(top)
    assert between == pytest.approx(bottom - HEIGHT / 4, abs=0.01)
    (line,) = shapes(svg, "polyline")
    assert [float(pair.split(",")[1]) for pair in line.attrib["points"].split()] == [low, between, high]


def test_lines_have_markers_error_bars_and_one_entry_in_the_legend_for_all_panels() -> None:
    lines = (series("a", 0.6, 0.7, 0.8, std=0.02), series("b", 0.7, 0.8, 0.9))
    svg = line_chart([Panel("left", lines), Panel("right", lines)], Words("Title", "rate", "accuracy"))
    assert len(shapes(svg, "polyline")) == 4 and len(shapes(svg, "path", "error")) == 6
    assert len(titles(svg, "marker")) == 12
    assert titles(svg, "entry") == ["a", "b"]
    assert titles(svg, "marker")[0] == "a, 0: 0.6 ± 0.02" and "b, 2: 0.9" in titles(svg, "marker")
    assert {"Title", "left", "right", "rate", "accuracy"} <= set(words(svg))
    colors = {e.get("stroke") for e in shapes(svg, "polyline")}
    assert len(colors) == 2
    # The second series is told from the first by its marker as well.
    assert len(shapes(svg, "circle", "marker")) == 7 and len(shapes(svg, "polygon", "marker")) == 7


def test_an_error_bar_goes_one_deviation_either_way() -> None:
    svg = line_chart([Panel("", (series("a", 0.2, 0.8), Series("b", (Point(0, 0.5, 0.3),))))])
    top, bottom = frame(svg)
    (path,) = shapes(svg, "path", "error")
    high, low = (float(part.split("h")[0].split()[1]) for part in path.attrib["d"].split("M")[1:3])
    assert (high, low) == (pytest.approx(top), pytest.approx(bottom))


def test_a_reference_goes_through_the_whole_panel_and_has_no_marker() -> None:
    svg = line_chart([Panel("", (series("a", 0.6, 0.8), Series("b", (Point(7, 0.7),), reference=True)))])
    top, bottom = frame(svg)
    (line,) = shapes(svg, "line", "reference")
    grid = shapes(svg, "line", "grid")[0]
    assert (number(line, "x1"), number(line, "x2")) == (number(grid, "x1"), number(grid, "x2"))
    assert number(line, "y1") == number(line, "y2") == pytest.approx((top + bottom) / 2)
    assert line.get("stroke-dasharray") and titles(svg, "reference") == ["b: 0.7"]
    assert "7" not in words(svg, "tick") and len(titles(svg, "marker")) == 2


@pytest.mark.parametrize("missing", [math.nan, math.inf, 1e305])
def test_a_missing_value_breaks_the_line(missing: float) -> None:
    panel = Panel("", (series("a", 0.6, 0.7, missing, 0.8, 0.9, missing, 0.7),))
    svg = line_chart([panel])
    assert [len(e.attrib["points"].split()) for e in shapes(svg, "polyline")] == [2, 2]
    assert len(titles(svg, "marker")) == 5
    curves = curve_chart([panel])
    assert len(shapes(curves, "polyline", "curve")) == 2 and len(titles(curves, "marker")) == 1
    assert len(shapes(grouped_bars([panel], list("abcdefg")), "rect", "bar")) == 5
    assert len(titles(scatter_chart([panel]), "marker")) == 5


def test_a_chart_of_nothing_is_a_chart() -> None:
    for panels in ([], [Panel("p", ())], [Panel("p", (Series("a"), series("b", math.nan)))]):
        for svg in all_charts(panels, Words("nothing")).values():
            assert words(svg, "title") == ["nothing"]
            assert words(svg).count("no data") == len(panels) and titles(svg, "entry") == []
    assert ElementTree.fromstring(grouped_bars([], [])).tag == SVG + "svg"


def test_an_empty_series_keeps_its_colour_and_is_not_in_the_legend() -> None:
    svg = line_chart([Panel("", (series("a", 1, 2), Series("b"), series("c", 3, 4)))])
    assert titles(svg, "entry") == ["a", "c"]
    whole = line_chart([Panel("", (series("a", 1, 2), series("b", 2, 3), series("c", 3, 4)))])
    assert shapes(svg, "polyline")[1].get("stroke") == shapes(whole, "polyline")[2].get("stroke")


@pytest.mark.parametrize("value", [0.8, 0.0, -3.0, 1e-12, 1e12])
def test_equal_values_and_single_points_have_a_range_around_them(value: float) -> None:
    for panel in (Panel("", (series("a", value, value),)), Panel("", (series("a", value),))):
        svg = line_chart([panel])
        top, bottom = frame(svg)
        places = [number(e, "cy") for e in shapes(svg, "circle", "marker") if e.find(SVG + "title") is not None]
        assert all(top < y < bottom for y in places)
        assert all(ElementTree.fromstring(chart) is not None for chart in all_charts([panel], Words()).values())


def test_categories_and_logarithms() -> None:
    svg = line_chart([Panel("", (series("a", 0.1, 0.2, 0.3),))], x_names={0.0: "low", 1.0: "middle", 2.0: "high"})
    assert {"low", "middle", "high"} <= set(words(svg, "tick")) and titles(svg, "marker")[1] == "a, middle: 0.2"
    points = tuple(Point(x, 0.5) for x in (0.01, 0.1, 10.0))
    marks = shapes(line_chart([Panel("", (Series("a", points),))], log_x=True), "circle", "marker")
    first, second, third = (number(e, "cx") for e in marks if e.find(SVG + "title") is not None)
    assert third - second == pytest.approx(2 * (second - first), abs=0.05)
    with pytest.raises(ValueError, match="logarithms"):
        line_chart([Panel("", (series("a", 1, 2),))], log_x=True)


def test_points_are_joined_from_left_to_right() -> None:
    points = (Point(3, 0.1), Point(1, 0.2), Point(2, 0.3))
    (line,) = shapes(line_chart([Panel("", (Series("a", points),))]), "polyline")
    places = [float(pair.split(",")[0]) for pair in line.attrib["points"].split()]
    assert places == sorted(places)


def test_curves_have_bands_and_dashes() -> None:
    one = Series("a", tuple(Point(k, 0.5 + k / 1000, 0.1) for k in range(1, 201)))
    two = Series("b", tuple(Point(k, 0.4) for k in range(1, 101)))
    svg = curve_chart([Panel("", (one, two))])
    (band,) = shapes(svg, "polygon", "band")
    assert len(band.attrib["points"].split()) == 400
    first, second = shapes(svg, "polyline", "curve")
    assert len(first.attrib["points"].split()) == 200 and len(second.attrib["points"].split()) == 100
    assert first.get("stroke-dasharray") is None and second.get("stroke-dasharray")
    assert titles(svg, "marker") == [] and {"50", "100", "150", "200"} <= set(words(svg, "tick"))


def test_bars_start_at_zero_or_where_a_mark_says_that_they_do_not() -> None:
    svg = grouped_bars([Panel("", (series("a", 0.1, 0.8), series("b", 0.4)))], ["g", "h"])
    top, _ = frame(svg)
    first, second, third = shapes(svg, "rect", "bar")
    assert number(second, "height") == pytest.approx(HEIGHT) and number(second, "y") == pytest.approx(top)
    assert number(first, "height") == pytest.approx(HEIGHT / 8, abs=0.01)
    assert number(third, "x") >= number(first, "x") + number(first, "width")
    assert number(third, "x") + number(third, "width") < number(second, "x")
    assert shapes(svg, "path", "break") == [] and titles(svg, "bar")[2] == "b, g: 0.4"

    svg = grouped_bars([Panel("", (series("a", 0.7, 0.9, std=0.01),))], ["g", "h"])
    assert titles(svg, "break") == ["the axis starts at 0.5, not at 0"] and len(shapes(svg, "path", "error")) == 2
    scale = HEIGHT / (1.0 - 0.5)  # 0.91 does not fit below 0.9
    assert [number(e, "height") for e in shapes(svg, "rect", "bar")] == pytest.approx([0.2 * scale, 0.4 * scale])

    svg = grouped_bars([Panel("", (series("a", -1.0, 2.0),))], ["g", "h"])
    below, above = shapes(svg, "rect", "bar")
    assert number(below, "y") == pytest.approx(number(above, "y") + number(above, "height"), abs=0.02)


def test_panels_have_ranges_of_their_own_or_one_for_all() -> None:
    panels = [Panel("p", (series("a", 0.1, 0.2),)), Panel("q", (series("a", 0.8, 0.9),))]
    assert not {"0.5"} & set(words(line_chart(panels), "tick"))
    for svg in (
        line_chart(panels, shared_y=True),
        curve_chart(panels, shared_y=True),
        grouped_bars(panels, ["g", "h"], shared_y=True),
    ):
        ticks = words(svg, "tick")
        assert ticks.count("0.4") == 2 and ticks.count("0.8") == 2


def test_scatter_colours_classes_and_shows_numbers_only_when_asked() -> None:
    classes = tuple(series(f"class {c}", *(0.1 * c + 0.01 * i for i in range(20))) for c in range(3))
    svg = scatter_chart([Panel("p", classes), Panel("q", classes)])
    assert len(titles(svg, "marker")) == 120 and titles(svg, "entry") == ["class 0", "class 1", "class 2"]
    assert words(svg, "tick") == [] and words(scatter_chart([Panel("p", classes)], scales=True), "tick")


def test_whatever_a_name_holds_is_shown_and_not_obeyed() -> None:
    panels = [Panel(HOSTILE, (series(HOSTILE, 0.1, 0.2, std=0.1),))]
    for kind, svg in all_charts(panels, Words(HOSTILE, HOSTILE, HOSTILE)).items():
        root = ElementTree.fromstring(svg.encode())
        assert not list(root.iter(SVG + "b")), kind
        assert "<b>&\"'????]]>" in words(svg), kind
    svg = grouped_bars(panels, [HOSTILE, HOSTILE])
    assert "<b>&\"'????]]>" in words(svg, "tick")


def test_names_below_an_axis_do_not_lie_over_each_other_nor_outside() -> None:
    names = [f"a rather long name {i}" for i in range(12)]
    svg = grouped_bars([Panel("", (series("a", *range(1, 13)),))], names)
    slanted = [e for e in shapes(svg, "text", "tick") if "rotate(-35" in e.get("transform", "")]
    assert [e.text for e in slanted] == names
    width = number(ElementTree.fromstring(svg), "width")
    assert all(number(e, "x") - 0.82 * 0.6 * 11 * len(e.text or "") >= 0 for e in slanted)
    assert all(number(e, "x") <= width for e in slanted)
    many = grouped_bars([Panel("", (series("a", *range(1, 501)),))], [f"client-{i}" for i in range(500)])
    places = [number(e, "x") for e in shapes(many, "text", "tick") if "rotate(-35" in e.get("transform", "")]
    assert 10 < len(places) < 100 and min(b - a for a, b in itertools.pairwise(places)) >= 20
    # Of numbers that are too close, some are left out.
    crowded = line_chart([Panel("", (series("a", *range(200)),))])
    assert 5 < sum(word.isdigit() for word in words(crowded, "tick")) < 60
    assert not any("rotate(-35" in e.get("transform", "") for e in shapes(crowded, "text", "tick"))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_everything_lies_inside_the_sheet(count: int) -> None:
    lines = tuple(series(f"method {i} of a paper", 0.5 + i / 50, 0.6, std=0.05) for i in range(9))
    svg = line_chart([Panel(f"panel {i}", lines) for i in range(count)], Words("A title " * 40, "x", "y"))
    root = ElementTree.fromstring(svg)
    width, height = number(root, "width"), number(root, "height")
    for e in shapes(svg, "text"):
        assert 0 <= number(e, "x") <= width and 0 < number(e, "y") < height
    for e in shapes(svg, "line"):
        assert 0 <= number(e, "x1") <= number(e, "x2") <= width
    entries = [e.find(SVG + "text") for e in shapes(svg, "g", "entry")]
    places = {(number(e, "x"), number(e, "y")) for e in entries if e is not None}
    assert len(places) == 9 and max(y for _, y in places) < frame(svg)[0]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.61, 0.84), ["0.60", "0.65", "0.70", "0.75", "0.80", "0.85"]),
        ((0.6, 0.9), ["0.6", "0.7", "0.8", "0.9"]),
        ((0.8, 0.8), ["0.76", "0.78", "0.80", "0.82", "0.84"]),
        ((0.0, 0.0), ["-0.6", "-0.4", "-0.2", "0.0", "0.2", "0.4", "0.6"]),
        ((3.0, 12_000.0), ["0", "2,500", "5,000", "7,500", "10,000", "12,500"]),
        ((), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_axes_end_at_round_numbers(values: tuple[float, ...], ticks: list[str]) -> None:
    axis = number_axis(values)
    assert list(axis.ticks.values()) == ticks
    assert axis.low == pytest.approx(min(axis.ticks)) and axis.high == pytest.approx(max(axis.ticks))


def test_an_axis_of_counts_has_nothing_between_them_and_a_tight_one_no_room() -> None:
    axis = number_axis([1, 2], tight=True, whole=True)
    assert (axis.low, axis.high, list(axis.ticks.values())) == (1, 2, ["1", "2"])
    axis = number_axis([1, 400], tight=True, whole=True)
    assert (axis.low, axis.high, list(axis.ticks.values())) == (1, 400, ["100", "200", "300", "400"])


def test_an_axis_of_one_name_has_room_on_both_sides() -> None:
    assert named_axis({3.0: "x"}).share(3.0) == pytest.approx(0.5)
    assert named_axis({3.0: "3"}, log=True).share(3.0) == pytest.approx(0.5)
    assert named_axis({0.0: "1", 1.0: "b"}).named and not named_axis({0.0: "1", 1.0: "2e3"}).named
