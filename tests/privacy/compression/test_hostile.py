"""Bytes of liars in the place of coded tensors: refused with place and remedy, or a tensor of the form expected."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.guards.guard import Guard
from isthmus.privacy.compression.blob import Form, Kind, write_blob
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK
from tests.privacy.compression.toys import ALL, Answer, Pair, Question, model

GUARDS: list[Guard] = [
    Quantise(bits=8, bucket=64, **ALL),
    Quantise(bits=4, bucket=64, **ALL),
    Quantise(bits=1, error_feedback=True, **ALL),
    TopK(fraction=0.1, **ALL),
    TopK(fraction=0.1, bits=32, **ALL),
    LowRank(rank=2, **ALL),
    RandomK(fraction=0.1, **ALL),
    Delta(**ALL),
    Entropy(),
    Entropy("lzma"),
]
FORM = Form(torch.float32, (20, 30))


def prepared(guard: Guard) -> Pair:
    """A server and a client that have had two exchanges, and what they are about to exchange."""
    guard = replace(guard, max_drift=1e9) if isinstance(guard, Coder) else guard
    pair = Pair(guard)
    for seed in range(3):
        pair.down({"a": Question(model(seed))})
        pair.up("a", Answer(model(10 + seed, near=model(seed)["w"], by=0.01), {}))
    return pair


def at_server(pair: Pair, wire: Tensor) -> Tensor:
    found: Any = pair.guard.accept(Answer({"w": wire}, {}), pair.believed["a"], "a", pair.at_server())
    return found.params["w"]  # type: ignore[no-any-return]


def at_client(pair: Pair, wire: Tensor) -> Tensor:
    found: Any = pair.guard.receive(Question({"w": wire}), pair.at_client("a"))
    return found.params["w"]  # type: ignore[no-any-return]


def judged(read: Callable[[Pair, Tensor], Tensor], pair: Pair, wire: Tensor) -> str:
    """Return what is said of a wire; a tensor that is made of it has the form that is expected, or is left as it is."""
    try:
        found = read(pair, wire)
    except BadMessage as error:
        assert ".params['w']" in str(error), error
        assert "install the same at all parties" in str(error) or "after this it is sent all of it" in str(error)
        return str(error)
    assert isinstance(pair.guard, Entropy) or Form.of(found) == FORM or found is wire
    return ""


@pytest.mark.parametrize("guard", GUARDS, ids=repr)
@pytest.mark.parametrize("read", [at_server, at_client])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_changed_bytes_are_refused_or_a_tensor_of_the_form(
    read: Callable[[Pair, Tensor], Tensor], guard: Guard, data: st.DataObject
) -> None:
    pair = prepared(guard)
    before = dict(pair.clients["a"].state), dict(pair.server)
    sent: Any = pair.wire if read is at_server else pair.leaving["a"]
    wire = sent.params["w"]
    if wire.dtype != torch.uint8:
        return
    raw = bytearray(unpack(wire))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1) | st.integers(0, min(60, len(raw) - 1)))
        raw[place] = data.draw(st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, None, 0, 7, len(raw) // 2, len(raw) - 1]))
    judged(read, pair, pack(bytes(raw[:cut]) + data.draw(st.sampled_from([b"", b"", b"x", bytes(100)]))))
    if read is at_server:  # what a liar sends leaves nothing behind at the server
        assert dict(pair.server) == before[1]


def chosen(number: int, bits: int, last: bytes, size: int, unary: bytes, *rest: bytes) -> Tensor:
    head = struct.pack("<QB", number, bits) + last + struct.pack("<Q", size) + unary
    return write_blob(Kind.CHOSEN, FORM, [head, *rest])


def grid(bits: int, bucket: int, scales: list[float], levels: int, kind: Kind = Kind.GRID, head: bytes = b"") -> Tensor:
    body = struct.pack(f"<BI{len(scales)}f", bits, bucket, *scales) + bytes(levels)
    return write_blob(kind, FORM, [head, body])


NAN = float("nan")
WIRES: list[tuple[Guard, Tensor, str]] = [
    (Quantise(bits=8), grid(8, 1024, [NAN], 600), "a scale that is no number"),
    (Quantise(bits=8), grid(8, 1024, [float("inf")], 600), "a scale that is no number"),
    (Quantise(bits=8), grid(8, 1024, [-1.0], 600), "or negative"),
    (Quantise(bits=8), grid(8, 1024, [1.0], 599), "ends early: 599 bytes are left, 600 are needed"),
    (Quantise(bits=8), grid(8, 1024, [1.0], 601), "1 bytes too many"),
    (Quantise(bits=8), grid(8, 2**32 - 1, [1.0], 10**6), "999400 bytes too many"),
    (Quantise(bits=8), grid(8, 1, [1.0], 600), "ends early"),
    (Quantise(bits=8), grid(7, 1024, [1.0], 600), "numbers of 7 bits; known are 1, 2, 4, 8 and 32"),
    (Quantise(bits=8), write_blob(Kind.GRID, Form(torch.float32, (2**29,)), []), "stands for float32 of shape"),
    (Quantise(bits=8), write_blob(Kind.GRID, Form(torch.float64, (20, 30)), []), "stands for float64"),
    (Quantise(bits=8), write_blob(Kind.CHOSEN, FORM, []), "is of kind 3, expected grid (2)"),
    (TopK(), chosen(601, 3, b"", 0, b""), "names 601 places"),
    (TopK(), chosen(2**63, 3, b"", 0, b""), "places with 3 bits, of 600 numbers"),
    (TopK(), chosen(1, 60, bytes(8), 1, b"\x01"), "with 60 bits"),
    (TopK(), chosen(1, 10, b"\xff\x03", 1, b"\x01"), "names the place 1023 of 600 numbers"),
    (TopK(), chosen(1, 0, b"", 2**40, b""), "bytes of gaps for 1 places"),
    (TopK(), chosen(2, 3, b"\x00", 1, b"\x01"), "1 gaps for 2 places"),
    (LowRank(), grid(8, 256, [NAN], 40, Kind.LOW_RANK, b"\x02\x00"), "a scale that is no number"),
    (LowRank(), grid(8, 256, [1.0], 40, Kind.LOW_RANK, b"\xff\xff"), "factors of rank 65535, expected 2"),
    (Delta(), write_blob(Kind.DIFFERENCE, FORM, [bytes(3)]), "ends early"),
]


@pytest.mark.parametrize(("guard", "wire", "words"), WIRES, ids=[words for _, _, words in WIRES])
def test_what_cannot_be_is_refused_with_value_place_and_remedy_at_once(guard: Guard, wire: Tensor, words: str) -> None:
    pair = prepared(guard)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        said = judged(at_server, pair, wire)
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert words in said
    assert said.startswith(".params['w']: ") and said.endswith("install the same at all parties")
    assert most < 5_000_000 and time.perf_counter() - started < 1.0


def test_what_is_no_wire_of_drawn_places_stays_what_it_is_and_is_no_model() -> None:
    for wire in (pack(bytes(60)), torch.zeros(59), torch.zeros(60, dtype=torch.float64)):
        assert at_server(prepared(RandomK(fraction=0.1, **ALL)), wire) is wire


def test_numbers_that_are_none_go_to_whoever_names_them() -> None:
    """Whole floats may say NaN: that is a reply with a NaN, which is a failure of its own kind."""
    wire = write_blob(Kind.GRID, FORM, [b"\x20", struct.pack("<600f", *([NAN] * 600))])
    assert not bool(torch.isfinite(at_server(prepared(Quantise(bits=8)), wire)).any())
