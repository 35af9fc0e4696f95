"""Words: the rounding that is stated, and sums that cannot leave them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.privacy.secure_sum.fixed_point import FixedPoint, arrived, beyond, crossing


def test_a_number_is_the_nearest_multiple_of_the_unit_halves_to_even() -> None:
    way = FixedPoint(32, 2.0**29, 2)  # units of 1/2
    assert way.fraction_bits == 1 and way.unit == 0.5
    numbers = torch.tensor([0.0, 0.25, 0.26, 0.75, -0.25, -0.26, 3.5, -7.0], dtype=torch.float64)
    assert way.words(numbers).view(np.int32).tolist() == [0, 0, 1, 2, 0, -1, 7, -14]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("num", [1, 2, 3, 10, 50, 1000])
@pytest.mark.parametrize("bound", [1.0, 0.3, 7.0, 64.0, 100.0, 1e5, 2.0**20])
def test_no_sum_within_the_bound_leaves_the_words_and_one_more_place_could(bits: int, num: int, bound: float) -> None:
    way = FixedPoint(bits, bound, num)
    worst = Fraction(bound) / Fraction(2) ** -way.fraction_bits + Fraction(num, 2)
    assert worst < 2 ** (bits - 1)
    assert 2 * Fraction(bound) / Fraction(2) ** -way.fraction_bits + (num + 1) // 2 > 2 ** (bits - 1) - 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.sampled_from([32, 64]), st.floats(0.01, 1e4), st.integers(0, 2**31))
def test_sums_are_off_by_half_a_unit_for_each_at_most(num: int, bits: int, bound: float, seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    way = FixedPoint(bits, bound, num)
    parts = torch.rand(num, generator=gen, dtype=torch.float64)
    parts /= parts.sum()
    numbers = bound * (2 * torch.rand(num, 40, generator=gen, dtype=torch.float64) - 1)
    numbers[:, 0], numbers[:, 1] = bound, -bound  # the largest sums there can be
    words = sum(way.words(row, float(part)).astype(object) for row, part in zip(numbers, parts, strict=True))
    kind = np.uint32 if bits == 32 else np.uint64
    found = way.numbers(np.array([int(word) % 2**bits for word in words], dtype=kind))
    wanted = (numbers * parts[:, None]).sum(0)
    assert float((found - wanted).abs().max()) <= way.error + 1e-15 * bound * num
    assert way.error == num * way.unit / 2


def test_words_wrap_around_and_come_back() -> None:
    way = FixedPoint(32, 100.0, 3)
    numbers = torch.tensor([-100.0, 100.0, -1e-7, 0.0])
    assert torch.allclose(way.numbers(way.words(numbers)), numbers.double(), atol=way.unit / 2)


@pytest.mark.parametrize(("bits", "bound", "num"), [(32, 1.0, 2**33), (32, 100.0, 2**32 - 100)])
def test_bounds_that_leave_no_places_are_refused_with_the_numbers(bits: int, bound: float, num: int) -> None:
    with pytest.raises(ValueError, match=f"words of {bits} bits cannot hold sums of {num} numbers"):
        FixedPoint(bits, bound, num)


@pytest.mark.parametrize(
    ("bits", "bound", "num", "what"),
    [
        (16, 1.0, 2, "bits is 16"),
        (32, 0.0, 2, "bound is 0.0"),
        (32, float("nan"), 2, "bound is nan"),
        (32, 1.0, 0, "num"),
    ],
)
def test_what_cannot_be_is_refused(bits: int, bound: float, num: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        FixedPoint(bits, bound, num)


def test_beyond_tells_numbers_above_the_bound_and_those_that_are_none() -> None:
    assert beyond(torch.tensor([1.0, -2.0]), 2.0) is None
    assert beyond(torch.tensor([1.0, -2.5]), 2.0) == 2.5
    assert beyond(torch.tensor([1.0, float("nan")]), 2.0) is not None
    assert beyond(torch.empty(0), 2.0) is None


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_words_cross_with_all_their_bits(kind: type) -> None:
    words = np.array([0, 1, np.iinfo(kind).max, np.iinfo(kind).max // 2 + 1], dtype=kind)
    back = arrived(crossing(words))
    assert back.dtype == kind and np.array_equal(back, words)
    back += kind(1)  # a copy: what came may be added to
    assert words[0] == 0
