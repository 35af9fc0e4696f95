from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression import grid
from isthmus.privacy.compression.blob import Body
from isthmus.privacy.compression.grid import BITS, WHOLE, read_numbers, step, write_numbers


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def through(values: Tensor, bits: int, bucket: int, draws: torch.Generator | None) -> Tensor:
    body = Body(memoryview(b"".join(write_numbers(values, bits, bucket, draws))))
    found = read_numbers(body, len(values))
    body.end()
    return found


def slow(values: Tensor, bits: int, bucket: int, uniform: list[float] | None) -> list[float]:
    """Number by number, as the module's head says."""
    top, found = max(1, 2 ** (bits - 1) - 1), []
    for start in range(0, len(values), bucket):
        group = values[start : start + bucket].tolist()
        scale = max(abs(x) for x in group)
        if bits == 1 and uniform is None:
            scale = sum(abs(x) for x in group) / len(group)
        for place, x in enumerate(group):
            if bits == 1 and uniform is None:
                found.append(scale if x >= 0 else -scale)
                continue
            share = x / scale if scale else 0.0
            level = (share + 1) / 2 if bits == 1 else share * top
            rest = 0.5 if uniform is None else uniform[start + place]
            whole = math.floor(level + rest)
            found.append(scale * (2 * whole - 1) if bits == 1 else scale * min(whole, top) / top)
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 300),
    st.sampled_from(BITS),
    st.sampled_from([1, 3, 64, 1000]),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_numbers_are_as_a_slow_loop_has_them(
    number: int, bits: int, bucket: int, drawn: bool, seed: int, size: float
) -> None:
    values = torch.randn(number, generator=stream(seed)) * size
    found = through(values, bits, bucket, stream(seed) if drawn else None)
    padded = number + -number % bucket
    uniform = torch.rand(padded, generator=stream(seed)).tolist() if drawn else None
    assert torch.allclose(found / size, torch.tensor(slow(values, bits, bucket, uniform)) / size, atol=1e-5)


@pytest.mark.parametrize("pieces", [2**18, 64])
def test_pieces_do_not_show(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_PIECE", pieces)
    values = torch.randn(1000, generator=stream())
    expected = slow(values, 8, 32, torch.rand(1024, generator=stream(1)).tolist())
    assert torch.allclose(through(values, 8, 32, stream(1)), torch.tensor(expected), atol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_drawn_numbers_are_right_on_average_and_their_error_is_as_stated(bits: int) -> None:
    values, draws, repeats = torch.randn(64, generator=stream(1)), stream(2), 4000
    found = torch.stack([through(values, bits, 16, draws) for _ in range(repeats)]).double()
    steps = torch.tensor([step(float(s), bits) for s in values.view(-1, 16).abs().amax(dim=1)]).repeat_interleave(16)
    assert bool(((found - values).abs() <= steps * (1 + 1e-6)).all())
    # A mean of so many draws is off by no more than five of its standard deviations, half a step each at most.
    assert bool(((found.mean(dim=0) - values).abs() <= 5 * 0.5 * steps / math.sqrt(repeats)).all())
    assert bool((found.var(dim=0) <= steps**2 / 4 * 1.05).all())


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_nearest_level_is_off_by_half_a_step_at_most(bits: int) -> None:
    values = torch.randn(5000, generator=stream(3))
    found = through(values, bits, 5000, None)
    assert float((found - values).abs().max()) <= step(float(values.abs().max()), bits) * 0.5 * (1 + 1e-5)


def test_the_sign_alone_takes_away_the_share_of_the_error_that_it_can() -> None:
    values = torch.randn(5000, generator=stream(3))
    found = through(values, 1, 5000, None)
    left = float((found - values).square().sum() / values.square().sum())
    assert left == pytest.approx(1 - 2 / math.pi, abs=0.02)  # of normal numbers


@pytest.mark.parametrize("bits", BITS)
def test_sizes_are_as_stated(bits: int) -> None:
    size = len(b"".join(write_numbers(torch.randn(4096), bits, 1024, stream())))
    assert size == 1 + 4 + 4 * 4 + 4096 * bits // 8


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_zeros_the_largest_and_tiny_numbers_come_back(bits: int) -> None:
    values = torch.tensor([0.0, 3.0, -3.0, 0.0, 0.0, 0.0, 1e-42, 0.0])
    found = through(values, bits, 4, stream())
    assert found[:4].tolist() == [0.0, 3.0, -3.0, 0.0]
    assert bool(torch.isfinite(found).all())
    assert through(torch.zeros(5), bits, 4, None).tolist() == [0.0] * 5


def test_whole_floats_come_back_to_the_bit() -> None:
    values = torch.tensor([0.1, -0.0, math.inf, math.nan])
    assert through(values, WHOLE, 1, None).view(torch.int32).tolist() == values.view(torch.int32).tolist()


def hostile(bits: int, bucket: int, scales: list[float], levels: bytes) -> Body:
    return Body(memoryview(struct.pack(f"<BI{len(scales)}f", bits, bucket, *scales) + levels))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (hostile(3, 4, [1.0], b"1234"), "numbers of 3 bits; known are 1, 2, 4, 8 and 32"),
        (hostile(8, 0, [1.0], b"1234"), "buckets of 0 numbers"),
        (hostile(8, 4, [math.nan], b"1234"), "no number"),
        (hostile(8, 4, [math.inf], b"1234"), "no number"),
        (hostile(8, 4, [-1.0], b"1234"), "negative"),
        (hostile(8, 4, [1.0], b"123\xff"), "level 255 of a grid that ends at 254"),
        (hostile(4, 4, [1.0], b"\x0f\x00"), "level 15 of a grid that ends at 14"),
        (hostile(8, 4, [1.0], b"123"), "ends early"),
        (hostile(8, 1, [1.0], b""), "ends early"),
        (Body(memoryview(b"\x20abc")), "ends early"),
    ],
)
def test_numbers_that_cannot_be_are_refused(body: Body, words: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read_numbers(body, 4)
    assert words in str(caught.value)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60), st.integers(0, 20))
def test_any_bytes_are_numbers_or_refused(data: bytes, number: int) -> None:
    for head in (b"", bytes([8]), bytes([4]) + struct.pack("<I", 7), bytes([32])):
        try:
            found = read_numbers(Body(memoryview(head + data)), number)
        except BadMessage:
            continue
        assert found.shape == (number,)
