from __future__ import annotations

from xml.etree import ElementTree

import pytest

from isthmus.report.drawing import (
    GAP,
    GUTTER,
    NOTES,
    WIDTH,
    Bar,
    Part,
    bar_chart,
    degree_bins,
    degree_charts,
    escape,
    heat_map,
    nice_ticks,
    shortened,
    tag,
)


def shapes(svg: str, name: str, style: str = "") -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(svg).iter(name) if not style or style in e.get("class", "").split()]


def number(element: ElementTree.Element, key: str) -> float:
    return float(element.attrib[key])


def test_whatever_a_name_holds_is_shown_and_not_obeyed() -> None:
    assert escape("<b>&'\"\x1b\ud800") == "&lt;b&gt;&amp;&#x27;&quot;??"
    assert tag("a", "x", class_='"><script>') == '<a class="&quot;&gt;&lt;script&gt;">x</a>'
    assert tag("rect", x=1.50, fill_opacity=0.1) == '<rect x="1.5" fill-opacity="0.1"/>'


def test_bars_are_as_long_as_their_parts() -> None:
    bars = [Bar("a", (Part("p", 0.25, "quarter"), Part("q", 0.75, "rest")), "8"), Bar("b", (Part("p", 0.5, "half"),))]
    svg = bar_chart("shares", bars, 1.0, {0.0: "0", 1.0: "1"}, mark=0.5)
    room = WIDTH - GUTTER - NOTES
    first, second, third = shapes(svg, "rect")
    assert number(first, "x") == GUTTER and number(first, "width") == pytest.approx(room / 4 - GAP)
    assert number(second, "x") == pytest.approx(GUTTER + room / 4)
    assert number(second, "x") + number(second, "width") == pytest.approx(GUTTER + room - GAP)
    assert number(third, "y") > number(first, "y") + number(first, "height")
    (mark,) = shapes(svg, "line", "mark")
    assert number(mark, "x1") == number(mark, "x2") == pytest.approx(GUTTER + room / 2)
    assert [e.text for e in shapes(svg, "text")] == ["0", "1", "a", "8", "b"]
    assert [e.text for e in shapes(svg, "title")] == ["quarter", "rest", "half"]


def test_a_chart_of_nothing_is_a_chart() -> None:
    assert shapes(bar_chart("none", [Bar("a", ())], 0.0, {0.0: "0"}), "rect") == []
    assert shapes(degree_charts("none", {"a": {}}, {}), "circle") == []
    assert shapes(heat_map("none", [], [], 0.0, 0), "rect") == []


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (771, ["0", "200", "400", "600"]),
        (100, ["0", "25", "50", "75", "100"]),
        (3, ["0", "1", "2", "3"]),
        (34_000, ["0", "10,000", "20,000", "30,000"]),
        (0, ["0"]),
    ],
)
def test_ticks_are_round_numbers(largest: float, words: list[str]) -> None:
    assert list(nice_ticks(largest).values()) == words


def test_degrees_are_put_in_bins_that_grow() -> None:
    assert degree_bins({}) == []
    bins = degree_bins({"0": 2, "1": 4, "3": 1, "4": 1, "7": 2})
    assert [share for _, share in bins] == pytest.approx([0.2, 0.4, 0.1, 0.2 / 3])
    assert [degree for degree, _ in bins] == pytest.approx([0.0, 1.0, 12**0.5, 35**0.5])


def test_degree_charts_are_logarithmic_both_ways() -> None:
    svg = degree_charts("degrees", {"a": {0: 10, 1: 900, 2: 90}}, {1: 1})
    zero, one, two = shapes(svg, "circle")
    assert number(zero, "cx") < number(one, "cx") < number(two, "cx")
    # Shares of 1 %, 90 % and 9 %: the second fall is by a decade, the first by 1.95 of them.
    decade = number(two, "cy") - number(one, "cy")
    assert number(zero, "cy") - number(one, "cy") == pytest.approx(1.954 * decade, rel=0.02)
    assert len(shapes(svg, "polyline", "line-own")) == 1 and shapes(svg, "polyline", "line-whole") == []


def test_every_dot_lies_inside_the_drawing() -> None:
    svg = degree_charts("degrees", {f"c{i}": {0: 1, 1: 10**7, 5000: 1} for i in range(7)}, {3: 1})
    _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    dots = shapes(svg, "circle")
    assert len(dots) == 21
    assert all(0 <= number(dot, "cx") <= width and 0 <= number(dot, "cy") <= height for dot in dots)


def test_a_heat_map_is_darker_for_more_and_plain_on_the_diagonal() -> None:
    svg = heat_map("shared", ["a", "b", "c"], [[9, 1, 4], [1, 9, None], [4, None, 9]], 4.0, 0)
    assert len(shapes(svg, "rect", "cell-own")) == 3 and len(shapes(svg, "rect", "cell-empty")) == 6
    depths = [number(e, "fill-opacity") for e in shapes(svg, "rect", "cell") if e.find("title") is not None]
    assert depths == pytest.approx([0.1 + 0.9 / 4, 1.0, 0.1 + 0.9 / 4, 1.0], abs=0.01)
    words = [e.text for e in shapes(svg, "title")]
    assert "a: 9" in words and "a, b: 1" in words and "b, c: none" in words


def test_long_names_are_shortened() -> None:
    assert shortened("abcdef", 6) == "abcdef" and shortened("abcdefg", 6) == "abcde\u2026"
