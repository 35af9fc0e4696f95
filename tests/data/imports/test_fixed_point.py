from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.data.imports.fixed_point import BEFORE, MOST_CHARACTERS, Doubles, fixed_points

DIGITS = "0123456789"


def parsed(told: list[str]) -> Doubles | None:
    """Return what is made of numbers with a comma after each."""
    values = [value.encode() for value in told]
    lengths = np.array([len(value) for value in values])
    ends = len(BEFORE) + np.cumsum(lengths + 1) - 1
    return fixed_points(BEFORE + b",".join([*values, b""]), ends - lengths, ends)


def bits(values: Doubles) -> list[int]:
    """Return numbers so that -0 is not 0."""
    found: list[int] = values.view(np.int64).tolist()
    return found


@st.composite
def decimals(draw: st.DrawFn) -> str:
    """Plain decimals: a sign or none, a point or none at any place, zeros in front or not."""
    digits = draw(st.text(DIGITS, min_size=1, max_size=MOST_CHARACTERS))
    place = draw(st.integers(0, len(digits)))
    has_point = len(digits) < MOST_CHARACTERS and draw(st.booleans())
    return draw(st.sampled_from(["", "-"])) + (digits[:place] + "." + digits[place:] if has_point else digits)


@given(st.lists(decimals(), min_size=1, max_size=40))
@example(["0", "-0", "-0.0", ".0", "0."])
@example([".5", "5.", "-.5", "-5.", "007", "007.50"])
@example(["1234567", "123456.", ".123456", "12345678", "1234567.", "0.123456", ".1234567"])
@example(["12345678901234", "-1234567890123.", "0.999999999999", "-.9999999999999", "99999999999999"])
def test_plain_decimals_are_what_float_makes_of_them(told: list[str]) -> None:
    values = parsed(told)
    assert values is not None
    assert bits(values) == bits(np.array([float(value) for value in told]))


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_a_rounded_number_is_read_to_the_bit(number: float, num_decimals: int) -> None:
    told = f"{number:.{num_decimals}f}"
    values = parsed([told])
    assert values is not None
    assert bits(values) == bits(np.array([float(told)]))


@given(st.lists(decimals(), max_size=20), st.text(DIGITS + ".-+eE, :/\0xé", max_size=18), st.integers(0, 20))
def test_anything_is_read_as_float_reads_it_or_left_alone(told: list[str], other: str, place: int) -> None:
    told.insert(place, other.replace(",", ""))
    values = parsed(told)
    if values is not None:
        assert bits(values) == bits(np.array([float(value) for value in told]))


ODD = [
    "",
    ".",
    "-",
    "-.",
    "--1",
    "+1",
    "1-",
    "1.-2",
    " 1",
    "1 ",
    "1e5",
    "1E5",
    "nan",
    "inf",
    "x",
    "1:2",
    "1/2",
    "1_0",
    "é",
]
TOO_LONG = ["123456789012345", "1.2345678901234", "0.12345678901234567", "-123456789012345", "0" * 40]
POINTS = ["1.2.3", "..", "1..2", ".1234567.", "1.2345678.9", "1234567.1234.67"]


@pytest.mark.parametrize("odd", ODD + TOO_LONG + POINTS)
def test_what_is_no_plain_decimal_is_left_alone(odd: str) -> None:
    assert parsed([odd]) is None
    assert parsed(["1.5", odd, "-12345678.25"]) is None


def test_each_character_but_those_of_a_number_is_noticed_at_each_place() -> None:
    others = sorted(set(range(256)) - {*(DIGITS + ".").encode()})
    for length in (1, 7, 8, 14):
        ends = np.array([len(BEFORE) + length])
        for place in range(length):
            for other in others:
                value = bytearray(b"1" * length)
                value[place] = other
                found = fixed_points(BEFORE + bytes(value) + b",", ends - length, ends)
                is_sign = other == ord("-") and place == 0 and length > 1
                assert (found is not None) == is_sign, (bytes(value), found)


def test_no_numbers_are_read_as_none() -> None:
    nowhere = np.zeros(0, dtype=np.int64)
    values = fixed_points(BEFORE + b"\n", nowhere, nowhere)
    assert values is not None and len(values) == 0
