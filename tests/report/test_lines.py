"""Lines with bands: where points lie, what is left out, and what is never drawn."""

from __future__ import annotations

import math
import re

import pytest

from isthmus.report.lines import HEIGHT, LEFT, RIGHT, WIDTH, Line, legend, line_drawing, thinned, ticks


def places(drawn: str, element: str = "polyline") -> list[list[tuple[float, float]]]:
    found = re.findall(rf'<{element} points="([^"]*)"', drawn)
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in found]  # type: ignore[misc]


def test_points_lie_in_proportion_from_left_to_right_and_larger_ones_higher() -> None:
    (line,) = places(line_drawing("it", [Line("a", [(1.0, 0.0), (2.0, 5.0), (5.0, 10.0)])], "round"))
    xs, ys = [x for x, _ in line], [y for _, y in line]
    assert xs[0] == LEFT and xs[2] == WIDTH - RIGHT
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[0]) / 4, abs=0.1)
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1) and 0 < ys[2] < ys[0] < HEIGHT


def test_a_band_goes_along_its_upper_end_and_back_along_its_lower_one() -> None:
    drawn = line_drawing("it", [Line("a", [(0.0, 1.0), (1.0, 1.0)], [(0.0, 0.0, 2.0), (1.0, 0.5, 1.5)])], "round")
    (band,) = places(drawn, "polygon")
    assert [x for x, _ in band] == [LEFT, WIDTH - RIGHT, WIDTH - RIGHT, LEFT]
    assert band[0][1] < band[1][1] < band[2][1] < band[3][1]  # down the page are smaller values


def test_what_has_no_place_is_left_out_and_a_chart_of_nothing_is_none() -> None:
    odd = [(0.0, math.nan), (1.0, math.inf), (2.0, 1e301)]
    assert line_drawing("it", [Line("a", odd)], "round") == ""
    assert line_drawing("it", [], "round") == ""
    (line,) = places(line_drawing("it", [Line("a", [*odd, (3.0, 1.0), (4.0, 1.0)])], "round"))
    assert len(line) == 2


def test_one_point_is_a_dot_and_a_level_line_has_room() -> None:
    assert "<circle" in line_drawing("it", [Line("a", [(1.0, 3.0)])], "round")
    (line,) = places(line_drawing("it", [Line("a", [(1.0, 3.0), (2.0, 3.0)])], "round"))
    assert 0 < line[0][1] < HEIGHT


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.123, 0.127), (-3.0, 1e6), (1.0, 30.0), (2.0, 2.0)])
def test_ticks_are_few_round_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high) for value in found)
    assert found == sorted(set(found))


def test_of_many_points_the_least_and_the_largest_of_each_stretch_stay() -> None:
    points = [(float(i), math.sin(i / 500)) for i in range(50_000)]
    points[31_111] = (31_111.0, 50.0)
    points[7] = (7.0, -50.0)
    found = thinned(points, 600)
    assert len(found) <= 600 and found == sorted(found)
    assert {points[0], points[-1], points[31_111], points[7]} <= set(found) <= set(points)
    assert thinned(points[:600], 600) == points[:600]


def test_names_are_escaped() -> None:
    name = '<script>alert("x")</script>'
    drawn = line_drawing(name, [Line(name, [(0.0, 1.0), (1.0, 2.0)])], name) + legend([name])
    assert "<script" not in drawn and "&lt;script&gt;" in drawn
