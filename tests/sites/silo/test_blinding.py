"""Ids as points that silos multiply: against the curve's own formulas, slowly."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from isthmus.core.errors import BadMessage
from isthmus.sites.silo.blinding import (
    ORDER,
    A,
    P,
    blinds,
    drawn,
    is_on_curve,
    multiplied,
    point_of,
    points_of,
)

Point = tuple[int, int] | None


def root(square: int) -> int:
    """Return a square root modulo 2^255 - 19 (which is 5 modulo 8)."""
    found = pow(square, (P + 3) // 8, P)
    if found * found % P != square:
        found = found * pow(2, (P - 1) // 4, P) % P
    assert found * found % P == square
    return found


def added(one: Point, two: Point) -> Point:
    """Add two points of v^2 = u^3 + A u^2 + u, as textbooks do."""
    if one is None or two is None:
        return two if one is None else one
    (u1, v1), (u2, v2) = one, two
    if u1 == u2:
        if (v1 + v2) % P == 0:
            return None
        slope = (3 * u1 * u1 + 2 * A * u1 + 1) * pow(2 * v1, -1, P)
    else:
        slope = (v2 - v1) * pow(u2 - u1, -1, P)
    u = (slope * slope - A - u1 - u2) % P
    return u, (slope * (u1 - u) - v1) % P


def times(number: int, point: Point) -> Point:
    found: Point = None
    while number:
        if number & 1:
            found = added(found, point)
        point, number = added(point, point), number >> 1
    return found


def affine(content: bytes) -> Point:
    u = int.from_bytes(content, "little")
    return u, root(u * (u * u + A * u + 1) % P)


def test_points_are_on_the_curve_and_one_for_each_id() -> None:
    found = [point_of(f"customer {number}") for number in range(200)]
    assert len(set(found)) == 200 and all(is_on_curve(int.from_bytes(point, "little")) for point in found)
    assert point_of("caf\u00e9") == point_of("cafe\u0301") != point_of("cafe")
    assert affine(found[0])  # a root there is


def test_points_are_even_in_every_byte() -> None:
    found = points_of([str(number) for number in range(2_000)])[:, :31]
    counts = torch.bincount(found.reshape(-1).long(), minlength=256)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_the_order_of_the_subgroup_is_that_of_the_base_point() -> None:
    assert times(ORDER, affine((9).to_bytes(32, "little"))) is None


def test_multiplying_is_the_textbooks() -> None:
    number, points = drawn(), points_of(["a", "b"])
    found = multiplied(points, number)
    for row in range(2):
        wanted = times(number, affine(points[row].numpy().tobytes()))
        assert wanted is not None and found[row].numpy().tobytes() == wanted[0].to_bytes(32, "little")


def test_a_blind_comes_off_and_leaves_the_secret_whoever_multiplied_in_between() -> None:
    points = points_of([f"id {number}" for number in range(10)])
    mine, others = drawn(), [drawn(), drawn()]
    blind, number = blinds(mine)
    for form in (mine, blind, number):
        assert form % 8 == 0 and 2**254 <= form < 2**255
    passed = multiplied(points, blind)
    assert not any(torch.equal(one, two) for one, two in zip(passed, points, strict=True))
    for other in others:
        passed = multiplied(passed, other)
    found = multiplied(passed, number)
    plain = multiplied(multiplied(multiplied(points, others[1]), mine), others[0])
    assert torch.equal(found, plain)


@pytest.mark.parametrize("u", [0, 1, P - 1, P, P + 1])
def test_points_of_small_order_are_refused(u: int) -> None:
    points = points_of(["a"])
    odd = torch.tensor([list(u.to_bytes(32, "little"))], dtype=torch.uint8)
    with pytest.raises(BadMessage, match="small order"):
        multiplied(torch.cat([points, odd]), drawn())


@pytest.mark.parametrize("points", [torch.zeros(3, 31, dtype=torch.uint8), torch.zeros(32), torch.zeros(2, 32)])
def test_what_is_no_row_of_points_is_refused(points: torch.Tensor) -> None:
    with pytest.raises(BadMessage, match="rows of 32 bytes"):
        multiplied(points, drawn())


def test_no_points_at_all_are_fine() -> None:
    assert multiplied(points_of([]), drawn()).shape == (0, 32)
