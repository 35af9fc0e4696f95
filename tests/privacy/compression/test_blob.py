from __future__ import annotations

import contextlib
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.record import DTYPES
from isthmus.privacy.compression.blob import (
    TAG_BYTES,
    Body,
    Form,
    Kind,
    is_blob,
    raw_bytes,
    read_blob,
    read_since,
    tensor_from,
    write_blob,
    write_since,
)
from tests.core.toys import same, tensors

quick = settings(deadline=None, max_examples=60)


@quick
@given(tensors())
def test_a_tensor_comes_back_from_its_bytes_to_the_bit(tensor: torch.Tensor) -> None:
    tensor = tensor.detach()
    form = Form.of(tensor)
    wire = write_blob(Kind.GRID, form, [raw_bytes(tensor)])
    found, body = read_blob(wire, Kind.GRID, form)
    assert found == form
    assert same(tensor_from(body.take(form.size), form), tensor.contiguous())
    body.end()
    tag, inner = read_since(write_since(b"12345678", tensor), form.size)
    assert tag == b"12345678" and same(inner, tensor.contiguous())


def test_the_head_is_as_it_is_written_down() -> None:
    wire = write_blob(Kind.CHOSEN, Form(torch.float32, (3, 5)), [b"xy"])
    code = list(DTYPES.values()).index(torch.float32)
    assert unpack(wire) == b"Ib" + bytes([1, 3, code, 2]) + struct.pack("<QQ", 3, 5) + b"xy"
    assert is_blob(wire, Kind.CHOSEN) and not is_blob(wire, Kind.GRID)
    assert not is_blob(wire[:3], Kind.CHOSEN) and not is_blob(wire.view(1, -1), Kind.CHOSEN)
    assert not is_blob(wire.float(), Kind.CHOSEN)


WIRE = unpack(write_blob(Kind.GRID, Form(torch.float32, (4, 300)), [b"body"]))


def changed(place: int, *values: int) -> bytes:
    return WIRE[:place] + bytes(values) + WIRE[place + len(values) :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends early: 0 bytes are left, 4 are needed"),
        (WIRE[:3], "ends early"),
        (WIRE[:5], "ends early"),
        (WIRE[:20], "ends early"),
        (changed(0, 0), "starts with"),
        (changed(2, 9), "version 9"),
        (changed(3, 3), "is of kind 3, expected grid (2)"),
        (changed(4, 99), "has the type 99"),
        (changed(5, 40), "40 axes"),
        (changed(13, 1), "impossible shape"),
        (changed(6, 5), "stands for float32 of shape (5, 300), expected float32 of shape (4, 300)"),
        (changed(4, 3), "stands for float64"),
    ],
)
def test_a_head_that_is_not_as_expected_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read_blob(pack(data), Kind.GRID, Form(torch.float32, (4, 300)))
    assert words in str(caught.value)


def test_a_form_of_no_numbers_does_not_excuse_its_other_axes() -> None:
    wire = write_blob(Kind.GRID, Form(torch.float32, (0, 2**20, 2**20)), [])
    with pytest.raises(BadMessage, match="impossible shape"):
        read_blob(wire, Kind.GRID, None)


def test_a_body_gives_no_more_than_it_has() -> None:
    body = Body(memoryview(b"\x05\x00abc"))
    assert body.integer(2) == 5
    with pytest.raises(BadMessage, match="3 bytes are left, 4 are needed"):
        body.array("<f4", 1)
    with pytest.raises(BadMessage, match="are needed"):
        body.take(-1)
    with pytest.raises(BadMessage, match="3 bytes too many"):
        body.end()


def test_a_tensor_takes_as_many_bytes_as_its_form() -> None:
    with pytest.raises(BadMessage, match="has 3 bytes for float32"):
        tensor_from(b"abc", Form(torch.float32, (1,)))
    with pytest.raises(BadMessage, match="stands where one of 10 bytes or fewer belongs"):
        read_since(write_since(bytes(TAG_BYTES), torch.zeros(3)), 10)
    huge = write_blob(Kind.SINCE, Form(torch.float32, (2**30,)), [bytes(TAG_BYTES)])
    with pytest.raises(BadMessage, match="or fewer belongs"):
        read_since(huge, 1000)


@quick
@given(st.binary(max_size=200), st.sampled_from(list(Kind)))
def test_any_bytes_are_read_or_refused(data: bytes, kind: Kind) -> None:
    for wire in (data, b"Ib\x01" + bytes([kind]) + data):
        for read in (lambda w: read_blob(w, kind, None), lambda w: read_since(w, 64)):
            with contextlib.suppress(BadMessage):
                read(pack(wire))
