from __future__ import annotations

import contextlib
import lzma
import math
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Form
from isthmus.privacy.compression.planes import (
    difference,
    in_order,
    side_by_side,
    spread_as,
    squeezed,
    undifferenced,
    unsqueezed,
)
from tests.core.toys import same

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1.5]


@pytest.mark.parametrize("dtype", FLOATS)
def test_differences_give_the_tensor_back_to_the_bit_whatever_it_holds(dtype: torch.dtype) -> None:
    base = torch.cat([torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.tensor(SPECIAL)]).to(dtype)
    for value in (base.flip(0), -base, base + 0.1, base):
        data = difference(value, base)
        assert len(data) == base.numel() * base.element_size()
        assert same(undifferenced(data, base), value)
    assert not any(difference(base, base))


def test_close_numbers_differ_in_few_bits_in_both_directions() -> None:
    base = torch.tensor([1.0, 1.0, -1.0])
    near = base.view(torch.int32) + torch.tensor([1, -1, 2], dtype=torch.int32)
    # As whole numbers 1, -1, 2 further: twice as much, one less below zero; the lowest bytes first.
    assert difference(near.view(torch.float32), base) == bytes([2, 1, 4]) + bytes(9)


def test_differences_of_another_length_are_refused() -> None:
    with pytest.raises(BadMessage, match="differences of 5 bytes for float32"):
        undifferenced(b"12345", torch.zeros(2))


@given(st.binary(max_size=80), st.sampled_from([1, 2, 4, 8]))
def test_bytes_stand_side_by_side_and_come_back(data: bytes, width: int) -> None:
    data = data[: len(data) // width * width]
    moved = side_by_side(data, width)
    assert moved == b"".join(data[start::width] for start in range(width))
    assert in_order(moved, width) == data


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["zlib", "lzma"]))
def test_packed_bytes_come_back(data: bytes, method: str) -> None:
    assert unsqueezed(squeezed(data, method, 6), method, len(data)) == data


@pytest.mark.parametrize("method", ["zlib", "lzma"])
def test_no_byte_is_made_beyond_the_size_that_is_expected(method: str) -> None:
    packed = bytes(squeezed(bytes(50_000_000), method, 9))
    for size in (0, 10, 49_999_999, 50_000_001):
        with pytest.raises(BadMessage, match="coded tensor"):
            unsqueezed(packed, method, size)
    for odd in (packed[:-4], packed + b"x", b"", b"nonsense"):
        with pytest.raises(BadMessage, match="coded tensor"):
            unsqueezed(odd, method, 50_000_000)


def test_a_bomb_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = zlib.decompressobj

    class Watched:
        def __init__(self) -> None:
            self.real = real()

        def decompress(self, data: bytes, most: int) -> bytes:
            asked.append(most)
            found: bytes = self.real.decompress(data, most)
            return found

        eof, unused_data = False, b""

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    with pytest.raises(BadMessage):
        unsqueezed(zlib.compress(bytes(10**6)), "zlib", 100)
    assert asked == [101]


def test_a_stream_that_wants_a_large_dictionary_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}]
    packed = lzma.compress(bytes(100), lzma.FORMAT_XZ, filters=filters)
    with pytest.raises(BadMessage, match="cannot be unpacked"):
        unsqueezed(packed, "lzma", 100)


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["zlib", "lzma"]), st.integers(0, 100))
def test_any_bytes_are_unpacked_or_refused(data: bytes, method: str, size: int) -> None:
    with contextlib.suppress(BadMessage):
        assert len(unsqueezed(data, method, size)) == size


def test_bytes_belong_together_by_number() -> None:
    kinds = (torch.float64, torch.float32, torch.int16, torch.uint8, torch.bool)
    assert [spread_as(Form(kind, (1,))) for kind in kinds] == [8, 4, 2, 1, 1]
