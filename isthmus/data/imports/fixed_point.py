"""Plain decimal numbers in a text, thousands at a time: -12, 0.637, .5 and 3. but not 1e5.

Eight characters are one integer of 64 bits, the first of them in its lowest byte, and what is done to the integer is
done to all eight: a few operations of numpy on many such integers. A number without its point is a whole one of at most
14 digits, which a double holds exactly, as it does the power of ten that the point stands for. One division of the two
rounds once, so that the result is what `float` would return.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Read = tuple[Integers, Integers]

# So many characters of a number are looked at in one go. The eighth byte of a word stands for what comes after them.
WINDOW = 7
MOST_CHARACTERS = 2 * WINDOW
# What must stand before the first number: a word may begin there.
BEFORE = b"0" * MOST_CHARACTERS


def _each(byte: int) -> np.uint64:
    """Return a word of eight equal bytes."""
    return np.uint64(byte * 0x0101010101010101)


BITS, ONE, BYTE = np.uint64(4), np.uint64(1), np.uint64(8)
# "0" to "9" with these bits turned are 0 to 9; the point has then the one bit that no digit has.
ZEROS, NO_DIGIT, POINT = _each(ord("0")), _each(0x10), np.uint64(ord(".") ^ ord("0"))
# What the point's bit is after the last character, for numbers that have none.
AFTER_LAST, ALL = np.uint64(0x10 << 8 * WINDOW), np.uint64((1 << 8 * WINDOW) - 1)
# Bytes above 9 reach the highest bit when this is added.
ABOVE_NINE, HIGHEST = _each(0x7F - 9), _each(0x80)
# The last characters of a window, by how many there are.
LAST = np.array([(1 << 8 * WINDOW) - (1 << 8 * (WINDOW - number)) for number in range(WINDOW + 1)], dtype=np.uint64)
# Multiplied by 1 in byte j, the highest byte is 7 - j.
PLACES, HIGHEST_BYTE = np.uint64(0x0706050403020100), np.uint64(56)
# Two digits in every other byte become four, and those become eight.
PAIRS, TWO_BYTES, FOUR_BYTES = np.uint64(0x000000FF000000FF), np.uint64(16), np.uint64(32)
FIRST_PAIRS, SECOND_PAIRS = np.uint64(100 + (1_000_000 << 32)), np.uint64(1 + (10_000 << 32))


def _powers() -> Doubles:
    """Return what a number without its point is divided by, by the point's place from the end of its two windows."""
    powers = np.full((WINDOW + 1, WINDOW + 1), np.nan)  # a point in both is none of a plain number
    powers[0] = [10.0**place for place in range(WINDOW + 1)]
    powers[1:, 0] = [10.0 ** (place + WINDOW) for place in range(1, WINDOW + 1)]
    return powers.ravel()


POWERS = _powers()


def fixed_points(text: bytes, starts: Integers, ends: Integers) -> Doubles | None:
    """Return the numbers that start and end at some places of a text; None unless each is a plain decimal.

    There must be some text (`BEFORE`) before the first, and a character after the last.
    """
    lengths = ends - starts
    if b"-" not in text:
        return _unsigned(text, ends, lengths)
    is_negative = np.frombuffer(text, dtype=np.uint8)[starts] == ord("-")
    lengths -= is_negative
    values = _unsigned(text, ends, lengths)
    if values is not None:
        np.negative(values, out=values, where=is_negative)
    return values


def _unsigned(text: bytes, ends: Integers, lengths: Integers) -> Doubles | None:
    """Return numbers by their ends and how many characters they have, signs not counted."""
    longest = lengths.max(initial=0)
    if longest > MOST_CHARACTERS:
        return None
    words = np.ndarray(len(text) - WINDOW, dtype="<u8", buffer=text, strides=(1,))  # each overlaps the next
    later = _read(words[ends - WINDOW], lengths)
    if later is None or _has_none(lengths, later[1]):
        return None
    if longest <= WINDOW:
        return _divided(*later)
    earlier = _read(words[ends - 2 * WINDOW], lengths - WINDOW)
    if earlier is None:
        return None
    values = _divided(*_joined(*earlier, *later))
    return None if np.isnan(values).any() else values


def _has_none(lengths: Integers, place: Integers) -> bool:
    """Return whether a number has no digit: it is nothing, or a point alone."""
    shortest = lengths.min(initial=2)
    return bool(shortest == 0 or (shortest == 1 and (place[lengths == 1] == 1).any()))


def _divided(whole: Integers, place: Integers) -> Doubles:
    values = whole.astype(np.float64)
    values /= POWERS.take(place, mode="clip")  # which no place needs, and which is faster
    return values


def _joined(earlier: Integers, earlier_place: Integers, later: Integers, later_place: Integers) -> Read:
    """Return two windows as one; where the earlier has a point, the later needs one more 0 as well."""
    np.multiply(later, 10, out=later, where=earlier_place > 0)
    return earlier * 10**WINDOW + later, earlier_place * (WINDOW + 1) + later_place


def _read(words: Words, lengths: Integers) -> Read | None:
    """Return the digits in the last characters of words as a whole number, and where in it their point stands.

    The place is 0 for no point, and the whole number has one more 0 for any. None if there is any other character.
    """
    words ^= ZEROS
    words &= LAST.take(lengths, mode="clip")
    points = words & NO_DIGIT
    points |= AFTER_LAST
    points &= np.negative(points)  # the first of them
    points >>= BITS
    words ^= points * POINT
    words &= ALL
    before = words & (points - ONE)
    words ^= before
    stray = np.bitwise_or.reduce(words & (points * np.uint64(0xFF)))  # another character was taken for a point
    before <<= BYTE
    words |= before
    above = words + ABOVE_NINE
    above |= words
    if stray | (np.bitwise_or.reduce(above) & HIGHEST):
        return None
    points *= PLACES
    points >>= HIGHEST_BYTE
    return _whole(words).view(np.int64), points.view(np.int64)


def _whole(digits: Words) -> Words:
    """Return the whole numbers that have these eight digits."""
    pairs = digits >> BYTE
    digits *= np.uint64(10)
    pairs += digits
    second = pairs >> TWO_BYTES
    second &= PAIRS
    second *= SECOND_PAIRS
    pairs &= PAIRS
    pairs *= FIRST_PAIRS
    pairs += second
    pairs >>= FOUR_BYTES
    return pairs
