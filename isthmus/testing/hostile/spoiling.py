"""Requests that are not what they should be: other shapes, types and numbers, in every field and every part of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from isthmus.core.record import DTYPE_NAMES, Record
from isthmus.testing.hostile.forging import EMPTY_ROWS, Claimed, Nested, altered, grown, rows_of

LONG_KEY = "k" * 10_000
MANY_ROWS = 4_000
# An axis before all others: what is added to or multiplied with such a tensor becomes so many times as large.
MANY_COPIES = 20_000
# Indices that no list has; the first fits into 32 bits.
HUGE = (2**31 - 1, 2**62)
MANY_ENTRIES = 500

Change = tuple[str, Any]  # where and what, and the value instead


def tensors_of(request: Record) -> Iterator[tuple[str, str | None, Tensor]]:
    """Yield the tensors right in a request's fields: field, key in it, tensor."""
    for each in fields(request):
        value = getattr(request, each.name)
        if isinstance(value, Tensor):
            yield each.name, None, value
        elif isinstance(value, dict):
            yield from ((each.name, key, inner) for key, inner in value.items() if isinstance(inner, Tensor))


def changed(request: Any, name: str, key: str | None, tensor: Tensor) -> Any:
    """Return a request with another tensor in one place."""
    value = tensor if key is None else {**getattr(request, name), key: tensor}
    return altered(request, **{name: value})


def spoilt(request: Any, draw: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield requests that are wrong in one place each, with what is wrong."""
    for place, length in rows_of(request).items():
        yield f"{place}: {MANY_ROWS} rows", grown(request, length, MANY_ROWS)
    for each in fields(request):
        for what, value in _about(getattr(request, each.name), each.name, draw):
            yield what, altered(request, **{each.name: value})


def _about(value: Any, place: str, draw: random.Random) -> Iterator[Change]:
    if isinstance(value, Record):
        for each in fields(value):
            for what, other in _about(getattr(value, each.name), f"{place}.{each.name}", draw):
                yield what, altered(value, **{each.name: other})
    elif isinstance(value, dict):
        yield f"{place}: nothing", {}
        yield f"{place}: a long key", {**value, LONG_KEY: next(iter(value.values()), torch.ones(1))}
        yield f"{place}: deep", Nested(value, 60)
        for key in draw.sample(list(value), min(1, len(value))):
            for what, other in _about(value[key], f"{place}[{key!r}]", draw):
                yield what, {**value, key: other}
    elif isinstance(value, Tensor):
        yield from _about_tensor(value, place)
    elif isinstance(value, tuple):
        yield f"{place}: repeated", (value * MANY_ENTRIES)[:MANY_ENTRIES]
        yield f"{place}: nothing", ()
    elif isinstance(value, bool):
        yield f"{place}: the other", not value
    elif isinstance(value, int):
        yield f"{place}: a large number", 2**40
        yield f"{place}: below zero", -1
    elif isinstance(value, str):
        yield f"{place}: a long text", "x" * 100_000


def _about_tensor(tensor: Tensor, place: str) -> Iterator[Change]:
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
        for number in HUGE:
            if number <= torch.iinfo(tensor.dtype).max and tensor.numel():
                yield f"{place}: {number}", torch.full_like(tensor, number)
                last = tensor.clone()
                last.view(-1)[-1] = number
                yield f"{place}: {number} at the end", last
        yield f"{place}: backwards", tensor.flip(0) if tensor.ndim else tensor


def nudged(request: Any) -> Iterator[Any]:
    """Yield the same request with a number that is another one in its last bits."""
    for name, key, tensor in tensors_of(request):
        if tensor.dtype.is_floating_point and tensor.numel():
            moved = tensor.clone()
            moved.view(-1)[0] = torch.nextafter(moved.view(-1)[0], torch.tensor(torch.inf))
            yield changed(request, name, key, moved)
            return
