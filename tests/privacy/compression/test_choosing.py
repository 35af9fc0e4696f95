from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Body
from isthmus.privacy.compression.choosing import (
    drawn_places,
    largest_places,
    number_of,
    read_places,
    scattered,
    write_places,
)


def slow_bits(places: list[int], bits: int) -> tuple[str, str]:
    """Rice's code of the gaps, as text: last bits from the lowest, and unary."""
    last, unary, before = "", "", -1
    for place in places:
        gap = place - before - 1
        before = place
        last += "".join(str(gap >> b & 1) for b in range(bits))
        unary += "0" * (gap >> bits) + "1"
    return last, unary


def as_bytes(text: str) -> bytes:
    padded = text + "0" * (-len(text) % 8)
    return bytes(int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3000), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_places_come_back_and_are_written_as_stated(numbers: int, share: float, seed: int) -> None:
    chosen = np.flatnonzero(np.random.default_rng(seed).random(numbers) < share)
    data = b"".join(write_places(chosen, numbers))
    number, bits = struct.unpack_from("<QB", data)
    last, unary = slow_bits(chosen.tolist(), bits)
    size = struct.pack("<Q", len(as_bytes(unary)))
    assert data == struct.pack("<QB", len(chosen), bits) + as_bytes(last) + size + as_bytes(unary)
    body = Body(memoryview(data))
    assert read_places(body, numbers).tolist() == chosen.tolist()
    body.end()
    assert number == len(chosen)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001])
def test_places_take_little_more_than_their_entropy(share: float) -> None:
    numbers = 200_000
    chosen = np.flatnonzero(np.random.default_rng(0).random(numbers) < share)
    entropy = numbers * -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8
    assert len(b"".join(write_places(chosen, numbers))) < 1.05 * entropy + 40


def test_the_largest_are_those_that_sorting_finds() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for number in (1, 10, 999, 1000, 2000):
        expected = sorted(values.abs().argsort(descending=True)[:number].tolist())
        assert largest_places(values, number).tolist() == expected
    assert largest_places(-torch.ones(100), 7).tolist() == list(range(7))  # as many as asked for, also of equals
    assert [number_of(f, 10) for f in (0.01, 0.1, 0.11, 1.0)] == [1, 1, 2, 10]


def test_zeros_are_not_among_the_largest() -> None:
    values = torch.tensor([0.0, -0.0, 3.0, 0.0, -1.0, 1e-45, 0.0])
    assert [largest_places(values, number).tolist() for number in (1, 2, 3, 6)] == [[2], [2, 4], [2, 4, 5], [2, 4, 5]]
    assert largest_places(torch.zeros(9), 4).tolist() == []


def test_drawn_places_are_one_of_each_run_each_as_likely() -> None:
    numbers, number, counts = 17, 5, np.zeros(17)
    edges = [i * numbers // number for i in range(number + 1)]
    for seed in range(20_000):
        places, lengths = drawn_places(seed, number, numbers)
        assert all(edges[i] <= place < edges[i + 1] for i, place in enumerate(places))
        assert lengths.tolist() == [edges[i + 1] - edges[i] for i in range(number)]
        counts[places] += 1
    chances = np.repeat(1 / lengths, lengths)
    assert np.abs(counts / 20_000 - chances).max() < 5 * math.sqrt(0.25 / 20_000)


def test_drawn_places_are_the_same_on_every_machine() -> None:
    words = hashlib.shake_128((12345).to_bytes(8, "little")).digest(48)
    edges = [100 * i // 6 for i in range(7)]
    expected = [
        edges[i] + int.from_bytes(words[8 * i : 8 * i + 8], "little") % (edges[i + 1] - edges[i]) for i in range(6)
    ]
    assert drawn_places(12345, 6, 100)[0].tolist() == expected == [13, 16, 36, 59, 82, 90]
    assert drawn_places(12346, 6, 100)[0].tolist() != expected
    assert drawn_places(0, 10, 10)[0].tolist() == list(range(10))


def test_scattered_numbers_stand_among_zeros() -> None:
    assert scattered(np.array([1, 3]), torch.tensor([5.0, 7.0]), 5).tolist() == [0.0, 5.0, 0.0, 7.0, 0.0]


def hostile(number: int, bits: int, last: bytes, size: int, unary: bytes) -> Body:
    return Body(memoryview(struct.pack("<QB", number, bits) + last + struct.pack("<Q", size) + unary))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (hostile(11, 0, b"", 2, b"\xff\xff"), "names 11 places with 0 bits, of 10 numbers"),
        (hostile(2**63, 0, b"", 2, b""), "places"),
        (hostile(1, 40, bytes(5), 1, b"\x01"), "with 40 bits"),
        (hostile(2, 0, b"", 100, bytes(100)), "100 bytes of gaps for 2 places of 10 numbers"),
        (hostile(2, 0, b"", 1, b"\x01"), "1 gaps for 2 places"),
        (hostile(1, 0, b"", 2, b"\x00\x80"), "names the place 15 of 10 numbers"),
        (hostile(1, 4, b"\x0f", 1, b"\x01"), "names the place 15 of 10 numbers"),
        (hostile(3, 4, b"", 0, b""), "bytes of gaps"),
        (hostile(1, 0, b"", 1, b""), "ends early"),
    ],
)
def test_places_that_cannot_be_are_refused(body: Body, words: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read_places(body, 10)
    assert words in str(caught.value) or "ends early" in str(caught.value)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 12), st.integers(0, 6), st.binary(max_size=40), st.integers(0, 50))
def test_any_bytes_are_places_or_refused(number: int, bits: int, data: bytes, numbers: int) -> None:
    head = struct.pack("<QB", number, bits) + data[: -(-number * bits // 8)]
    rest = data[-(-number * bits // 8) :]
    for body in (data, head + struct.pack("<Q", len(rest)) + rest):
        try:
            found = read_places(Body(memoryview(body)), numbers).tolist()
        except BadMessage:
            continue
        assert found == sorted(set(found)) and all(0 <= place < numbers for place in found)
