from __future__ import annotations

import struct
import time
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.codec import pack
from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Form, Kind, is_blob, write_blob
from isthmus.privacy.compression.entropy import MAX_EXPANSION, PIECE, SMALL, Entropy, packed, unpacked
from isthmus.privacy.compression.planes import squeezed
from tests.core.toys import same, tensors
from tests.privacy.compression.toys import Answer, Pair, Question, model

METHODS = [("zlib", 1), ("zlib", 6), ("lzma", 1)]


@settings(deadline=None, max_examples=60)
@given(tensors(), st.sampled_from(METHODS))
def test_any_tensor_comes_back_to_the_bit(tensor: Tensor, method: tuple[str, int]) -> None:
    tensor = tensor.detach()
    wire = packed(tensor, *method, always=True)
    assert wire is not None
    assert same(unpacked(wire), tensor.contiguous())


def test_messages_come_back_both_ways_with_what_looks_packed_and_is_not() -> None:
    pair, zeros = Pair(Entropy()), torch.zeros(300)
    for leaf in (zeros, torch.arange(7, dtype=torch.uint8), write_blob(Kind.PACKED, Form.of(zeros), [b"no"])):
        sent, answer = Question({"w": leaf}), Answer({"w": leaf}, model(1))
        assert same(pair.down({"a": sent})["a"], sent) and same(pair.believed["a"], sent)
        assert same(pair.up("a", answer), answer)


def test_only_what_gets_smaller_is_packed() -> None:
    pair = Pair(Entropy())
    small, noise = torch.zeros(SMALL // 4 - 1), torch.randint(-(2**31), 2**31 - 1, (500,), dtype=torch.int32)
    pair.down({"a": Question({"small": small, "noise": noise.view(torch.float32), "zeros": torch.zeros(500)})})
    leaving = pair.leaving["a"].params  # type: ignore[attr-defined]
    assert leaving["small"] is small and leaving["noise"].dtype == torch.float32
    assert is_blob(leaving["zeros"], Kind.PACKED) and leaving["zeros"].numel() < 110


def test_numbers_whose_high_bytes_are_alike_take_little_more_than_their_entropy() -> None:
    levels = torch.distributions.Binomial(20, torch.tensor(0.5)).sample((100_000,)).to(torch.uint8)
    shares = torch.bincount(levels.long()).double() / len(levels)
    entropy = float(-(shares[shares > 0] * shares[shares > 0].log2()).sum()) * len(levels) / 8
    wire = packed(levels, "zlib", 1, always=True)
    assert wire is not None
    assert entropy < wire.numel() < 1.05 * entropy


def test_pieces_that_hold_nothing_but_chance_cross_as_they_are_and_others_are_packed() -> None:
    noise = torch.randint(0, 256, (PIECE,), dtype=torch.uint8)
    wire = packed(torch.cat([noise, torch.zeros(PIECE, dtype=torch.uint8), noise[:1000]]), "zlib", 1, always=True)
    assert wire is not None
    assert PIECE + 1000 < wire.numel() < PIECE + 1000 + 300
    assert torch.equal(wire[14 + 9 :][:PIECE], noise)  # as it is, after the head and its own
    floats = torch.randn(PIECE)
    assert same(unpacked(packed(floats, "zlib", 1, always=True)), floats)  # type: ignore[arg-type]


def bomb(size: int, shape: tuple[int, ...]) -> Tensor:
    data = squeezed(bytes(size), "zlib", 9)
    return write_blob(Kind.PACKED, Form(torch.uint8, shape), [struct.pack("<BQ", 1, len(data)), data])


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (bomb(10_000_000, (10_000_000,)), "is above the limit of"),
        (bomb(10_000_000, (100_000,)), "coded tensor"),
        (bomb(10, (2**30,)), "is above the limit of"),
        (write_blob(Kind.PACKED, Form(torch.uint8, (9,)), [struct.pack("<BQ", 3, 0)]), "has the method 3"),
        (write_blob(Kind.PACKED, Form(torch.uint8, (9,)), [struct.pack("<BQ", 1, 2**62)]), "ends early"),
        (
            write_blob(Kind.PACKED, Form(torch.uint8, (9,)), [struct.pack("<BQ", 0, 8), bytes(8)]),
            "has 8 bytes of a piece",
        ),
        (write_blob(Kind.PACKED, Form(torch.uint8, (9,)), [struct.pack("<BQ", 1, 4), b"junk"]), "cannot be unpacked"),
        (pack(b"no blob at all"), "starts with"),
    ],
)
def test_bombs_and_nonsense_are_refused_at_once_and_take_no_memory(wire: Tensor, words: str) -> None:
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(BadMessage, match=words):
        unpacked(wire)
    assert time.perf_counter() - started < 1.0
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_who_unpacks_makes_at_most_so_many_bytes_of_one_and_who_packs_keeps_to_it() -> None:
    wire = packed(torch.zeros(10_000_000), "zlib", 9, always=True)
    assert wire is not None
    assert 40_000_000 / MAX_EXPANSION <= wire.numel() < 1.01 * 40_000_000 / MAX_EXPANSION
    assert torch.equal(unpacked(wire), torch.zeros(10_000_000))


def test_a_refusal_says_where_and_what_may_help() -> None:
    pair = Pair(Entropy())
    pair.down({"a": Question(model(0))})
    with pytest.raises(BadMessage) as caught:
        pair.guard.accept(Answer({"w": pack(b"junk")}, {}), pair.believed["a"], "a", pair.at_server())
    assert str(caught.value).startswith(".params['w']: coded tensor starts with b'ju'")
    assert str(caught.value).endswith("install the same at all parties")


def test_the_fast_way_packs_runs_and_frequent_bytes_and_higher_levels_find_repeats() -> None:
    row = bytes(torch.randint(0, 255, (512,), dtype=torch.uint8).tolist())
    fast, slow = (len(squeezed(row * 100, "zlib", level)) for level in (1, 6))
    assert slow < 0.1 * fast
    assert zlib.decompress(bytes(squeezed(row, "zlib", 1))) == row


@pytest.mark.parametrize("bad", [{"method": "stored"}, {"method": "gzip"}, {"level": 0}, {"level": 10}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"known:|from 1 to 9"):
        Entropy(**bad)  # type: ignore[arg-type]
