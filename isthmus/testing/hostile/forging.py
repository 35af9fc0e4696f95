"""Messages that claim much: bytes as a party writes them that keeps to no limit of ours.

Our own encoder refuses what our decoder would. `forged` writes the same format and refuses nothing: keys of any length,
values nested to any depth, and shapes that no byte of the message stands behind (`Claimed`). `claims_about` yields
replies that claim much, `spoilt` requests of other shapes, types and numbers in every field and every part of it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from isthmus.core.codec import ALIGN, MAGIC, MAX_EMPTY, PREFIX, VERSION
from isthmus.core.protocol import Failure
from isthmus.core.record import DTYPE_NAMES, Record, leaves, with_leaves

RecordT = TypeVar("RecordT", bound=Record)

# As many nodes as made a server build matrices of n x n once, and as many as a client may host today.
MANY_NODES = (20_000, 4_000)
# Rows of a tensor that holds nothing: the most that may be written, and far more.
EMPTY_ROWS = (MAX_EMPTY - 1, 2**39)
MANY_ENTRIES = 300
LONG_KEY = "k" * 100_000
MANY_ROWS = 4_000
# An axis before all others: what is added to or multiplied with such a tensor becomes so many times as large.
MANY_COPIES = 20_000
# Indices that no list has; the first fits into 32 bits.
HUGE = (2**31 - 1, 2**62)
MANY_TIMES = 500
DEEP = (60, 20_000)

Change = tuple[str, Any]  # where and what, and the value instead


@dataclass(frozen=True)
class Claimed:
    """A tensor as a message states it, with no bytes behind it."""

    dtype: str
    shape: tuple[int, ...]


def forged(value: Any) -> bytes:
    """Return a message that holds a value; no limit is kept, and nothing is checked."""
    tensors: list[Tensor | Claimed] = []
    tree = _plain(value, tensors)
    table = [
        [t.dtype, list(t.shape)] if isinstance(t, Claimed) else [DTYPE_NAMES[t.dtype], list(t.shape)] for t in tensors
    ]
    skeleton = f'{{"value":{tree},"tensors":{json.dumps(table)}}}'.encode()
    parts = [PREFIX.pack(MAGIC, VERSION, 0, len(skeleton)), skeleton]
    for tensor in tensors:
        raw = b"" if isinstance(tensor, Claimed) else _bytes(tensor)
        parts += [raw, b"\0" * (-len(raw) % ALIGN)]
    return b"".join(parts)


def altered(record: RecordT, **changes: Any) -> RecordT:
    """Return a record with other values in some fields, whatever the record itself would say to them."""
    made = object.__new__(type(record))
    for each in fields(record):
        object.__setattr__(made, each.name, changes.get(each.name, getattr(record, each.name)))
    return made


def num_tensors(value: Any) -> int:
    """Return how many tensors a message of this value has."""
    tensors: list[Tensor | Claimed] = []
    _plain(value, tensors)
    return len(tensors)


def _plain(value: Any, tensors: list[Tensor | Claimed]) -> str:
    """Return a value as JSON, written out here: deep ones are beyond what the library nests."""
    if isinstance(value, Nested):
        return '{"d":[["k",' * value.depth + _plain(value.inner, tensors) + "]]}" * value.depth
    if isinstance(value, Tensor | Claimed):
        tensors.append(value)
        return f'{{"t":{len(tensors) - 1}}}'
    if isinstance(value, Record):
        inner = ",".join(f'"{f.name}":{_plain(getattr(value, f.name), tensors)}' for f in fields(value))
        return f'{{"r":"{type(value).__name__}","f":{{{inner}}}}}'
    if isinstance(value, dict):
        pairs = ",".join(f"[{json.dumps(key)},{_plain(item, tensors)}]" for key, item in value.items())
        return f'{{"d":[{pairs}]}}'
    if isinstance(value, tuple | list):
        return f"[{','.join(_plain(item, tensors) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'{{"n":"{value!r}"}}'
    return json.dumps(value)


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


@dataclass(frozen=True)
class Nested:
    """A value at the bottom of so many dicts, one in the other."""

    inner: Any
    depth: int


Claim = tuple[str, str, Any]  # place, what is claimed there, the value instead


def claims_about(reply: Record) -> Iterator[tuple[str, str, Record]]:
    """Yield replies that claim much: place, what is claimed, and the reply, of which only `forged` can make bytes."""
    for number in MANY_NODES:
        for place, length in rows_of(reply).items():
            yield place, f"{number} nodes", grown(reply, length, number)
    for each in fields(reply):
        found = getattr(reply, each.name)
        for place, what, value in (*_something_else(found, each.name), *_about(found, each.name)):
            yield place, what, altered(reply, **{each.name: value})
    yield "reply", "a failure of a megabyte", Failure("x" * 10**6, "x" * 10**6, "\x1b[2J" + "x" * 10**6)


def _something_else(value: Any, place: str) -> Iterator[Claim]:
    """Yield what has nothing to do with a field."""
    for depth in DEEP:
        yield place, f"nested {depth} deep", Nested(value, depth)
    yield place, "a dict of many entries", {f"{i}": 0.5 for i in range(MANY_ENTRIES)}
    yield place, "a tuple of many entries", (0.5,) * MANY_ENTRIES
    yield place, "a dict of many tensors of nothing", {f"{i}": torch.empty(0) for i in range(MANY_ENTRIES)}


def _about(value: Any, place: str) -> Iterator[Claim]:
    """Yield what could be there, but for its size."""
    if isinstance(value, Record):
        for each in fields(value):
            for where, what, other in _about(getattr(value, each.name), f"{place}.{each.name}"):
                yield where, what, altered(value, **{each.name: other})
    elif isinstance(value, dict):
        yield from _about_dict(value, place)
    elif isinstance(value, Tensor):
        yield from _about_tensor(value, place)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        for power in (62, 1000, 4000, 14_000):
            yield place, f"an integer of {power} bits", 2**power - 1
    elif isinstance(value, str):
        yield place, "a megabyte", "x" * 10**6


def _about_tensor(value: Tensor, place: str) -> Iterator[Claim]:
    dtype, empty = DTYPE_NAMES[value.dtype], [0] * (value.ndim - 1)
    for rows in EMPTY_ROWS:
        yield place, f"{rows} rows of nothing", Claimed(dtype, (rows, *empty, 0))
        if value.ndim > 1:
            yield place, f"{rows} columns of nothing", Claimed(dtype, (*empty, rows))
    yield place, "2**50 numbers", Claimed(dtype, (2**50,))


def _about_dict(value: dict[Any, Any], place: str) -> Iterator[Claim]:
    inner = next(iter(value.values()), torch.empty(0))
    yield place, "a long key", {**value, LONG_KEY: inner}
    yield place, "many keys", {**value, **{f"{'k' * 190}{i}": 0.5 for i in range(MANY_ENTRIES)}}
    like = {**value, **{f"{'k' * 190}{i}": _nothing_like(inner) for i in range(MANY_ENTRIES)}}
    yield place, "many keys of the right kind", like
    for key in list(value)[:1]:
        for where, what, other in _about(value[key], f"{place}[{key!r}]"):
            yield where, what, {**value, key: other}


def _nothing_like(value: Any) -> Any:
    """Return the smallest value of the same kind."""
    if isinstance(value, Tensor):
        return value[:0] if value.ndim else value
    return {} if isinstance(value, dict) else () if isinstance(value, tuple) else value


# ---- as many rows as somebody likes, wherever there are as many


def rows_of(value: Any) -> dict[str, int]:
    """Return the different numbers of rows that tensors in a value have, each by the first place where it is found."""
    places: dict[int, str] = {}
    for place, leaf in leaves(value).items():
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf):
            places.setdefault(len(leaf), place.lstrip("."))
    return {place: length for length, place in places.items()}


def grown(value: Any, length: int, number: int) -> Any:
    """Return a value in which every tensor of `length` rows has `number`, so that all its parts agree with each other.

    The first rows stay; of whole numbers that are all different, so are the new ones.
    """
    if isinstance(value, Tensor):
        return _more_rows(value, number) if value.ndim and len(value) == length else value
    if isinstance(value, Record):
        return altered(value, **{f.name: grown(getattr(value, f.name), length, number) for f in fields(value)})
    if isinstance(value, dict):
        return {key: grown(item, length, number) for key, item in value.items()}
    return tuple(grown(item, length, number) for item in value) if isinstance(value, tuple) else value


def _more_rows(tensor: Tensor, number: int) -> Tensor:
    distinct = tensor.dtype == torch.int64 and tensor.ndim == 1 and len(torch.unique(tensor)) == len(tensor)
    if distinct:
        return torch.cat([tensor, int(tensor.max()) + 1 + torch.arange(number - len(tensor))])
    return tensor[torch.arange(number) % len(tensor)]


def spoilt(request: Any, draw: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield requests that are wrong in one place each, with what is wrong."""
    for place, length in rows_of(request).items():
        yield f"{place}: {MANY_ROWS} rows", grown(request, length, MANY_ROWS)
    yield from _wrong_in(request, "", draw)


def _wrong_in(value: Any, place: str, draw: random.Random) -> Iterator[Change]:
    if isinstance(value, Record):
        for each in fields(value):
            for what, other in _wrong_in(getattr(value, each.name), f"{place}.{each.name}".lstrip("."), draw):
                yield what, altered(value, **{each.name: other})
    elif isinstance(value, dict):
        yield from _wrong_dict(value, place, draw)
    elif isinstance(value, Tensor):
        yield from _wrong_tensor(value, place)
    elif isinstance(value, tuple):
        yield f"{place}: repeated", (value * MANY_TIMES)[:MANY_TIMES]
        yield f"{place}: nothing", ()
    elif isinstance(value, bool):
        yield f"{place}: the other", not value
    elif isinstance(value, int):
        yield f"{place}: a large number", 2**40
        yield f"{place}: below zero", -1
    elif isinstance(value, str):
        yield f"{place}: a long text", "x" * 100_000


def _wrong_dict(value: dict[Any, Any], place: str, draw: random.Random) -> Iterator[Change]:
    yield f"{place}: nothing", {}
    yield f"{place}: a long key", {**value, LONG_KEY[:10_000]: next(iter(value.values()), torch.ones(1))}
    yield f"{place}: deep", Nested(value, 60)
    for key in draw.sample(list(value), min(1, len(value))):
        for what, other in _wrong_in(value[key], f"{place}[{key!r}]", draw):
            yield what, {**value, key: other}


def _wrong_tensor(tensor: Tensor, place: str) -> Iterator[Change]:
    floats = tensor.dtype.is_floating_point
    yield f"{place}: nothing", torch.zeros(0)
    yield f"{place}: other numbers", torch.full_like(tensor, torch.nan if floats else -1)
    yield f"{place}: another type", tensor.to(torch.int64) if floats else tensor.float()
    yield f"{place}: a list", tensor.flatten()[:1].expand(1000).clone() if tensor.numel() else torch.ones(1000)
    copies = (tensor.flatten()[:1] if tensor.numel() else tensor.new_ones(1)).reshape((1,) * (tensor.ndim + 1))
    yield f"{place}: as if {MANY_COPIES} times", copies.expand(MANY_COPIES, *copies.shape[1:]).clone()
    for rows in EMPTY_ROWS:
        for shape in ((rows, *[0] * max(tensor.ndim - 1, 1)), (*[0] * max(tensor.ndim - 1, 1), rows)):
            yield f"{place}: {shape} of nothing", Claimed(DTYPE_NAMES[tensor.dtype], shape)
    if not floats and tensor.dtype != torch.bool:
        yield from _wrong_numbers(tensor, place)


def _wrong_numbers(whole: Tensor, place: str) -> Iterator[Change]:
    for number in HUGE:
        if number <= torch.iinfo(whole.dtype).max and whole.numel():
            yield f"{place}: {number}", torch.full_like(whole, number)
            last = whole.clone()
            last.view(-1)[-1] = number
            yield f"{place}: {number} at the end", last
    yield f"{place}: backwards", whole.flip(0) if whole.ndim else whole


def nudged(request: Any) -> Any:
    """Return the same request with a number that is another one in its last bits; None if it has no such number."""
    found = leaves(request)
    for place, leaf in found.items():
        if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and leaf.numel():
            moved = leaf.clone()
            moved.view(-1)[0] = torch.nextafter(moved.view(-1)[0], torch.tensor(torch.inf))
            return with_leaves(request, {**found, place: moved})
    return None
