"""Records, strategies and comparisons that the tests of this folder share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.record import DTYPES, Params, Record, fields_of
from isthmus.core.replies import Each, Stack, StackedTensor

# No deadline: the machine may be busy with other tests.
quick = settings(deadline=None, max_examples=25)


@dataclass(frozen=True)
class Update(Record):
    params: Params
    weight: float


@dataclass(frozen=True)
class Word(Record):
    text: str


def update(values: Any, weight: float = 1.0, dtype: torch.dtype = torch.float32) -> Update:
    """Return a reply with one tensor of parameters."""
    return Update({"w": torch.tensor(values, dtype=dtype)}, weight)


@dataclass(frozen=True)
class Inner(Record):
    values: Tensor
    label: str | None


@dataclass(frozen=True)
class Outer(Record):
    params: Params
    weight: float
    count: int
    sure: bool
    name: str
    inner: Inner
    several: tuple[Inner, ...]
    pair: tuple[int, float]
    by_number: dict[int, Inner]
    anything: Any
    maybe: float | None = None


def outer(**changes: Any) -> Outer:
    """Return an Outer with every kind of field, some of them changed."""
    fields: dict[str, Any] = {
        "params": {"w": torch.arange(6.0).reshape(2, 3), "flags": torch.tensor([True, False, True])},
        "weight": 0.5,
        "count": 3,
        "sure": True,
        "name": "rhône",
        "inner": Inner(torch.zeros(0, 4), None),
        "several": (Inner(torch.tensor(7), "a"),),
        "pair": (1, 2.5),
        "by_number": {4: Inner(torch.ones(2, dtype=torch.int16), "b")},
        "anything": {"x": (1, None, torch.tensor([1.0]))},
    }
    return Outer(**{**fields, **changes})


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the bit, in type, order of keys, and NaN for NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, Record):
        return same(fields_of(a), fields_of(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


def raw(tensor: Tensor) -> bytes:
    """Return a tensor's bytes in order."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of every storable type: empty, without axes, not contiguous, with NaN and infinities."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensor = (torch.randn(shape, generator=generator) * 5).to(DTYPES[dtype])
    if tensor.is_floating_point() and tensor.numel() and draw(st.booleans()):
        tensor.view(-1)[0] = draw(st.sampled_from([math.nan, math.inf, -math.inf, -0.0]))
    change = draw(st.sampled_from(["none", "transposed", "strided", "expanded", "gradient"]))
    if change == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if change == "strided" and tensor.dim() >= 1:
        return tensor[::2]
    if change == "expanded":
        return tensor.unsqueeze(0).expand(2, *tensor.shape)
    if change == "gradient" and tensor.is_floating_point():
        return tensor.clone().requires_grad_()
    return tensor


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(),
)

# What a client may remember: no records, whose types the receiver would have to name.
memories = st.recursive(
    st.one_of(scalars, tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)

inners = st.builds(Inner, tensors(), st.one_of(st.none(), st.text()))

outers = st.builds(
    Outer,
    params=st.dictionaries(st.text(max_size=5), tensors(), max_size=3),
    weight=st.one_of(st.floats(), st.integers()),
    count=st.integers(),
    sure=st.booleans(),
    name=st.text(),
    inner=inners,
    several=st.lists(inners, max_size=2).map(tuple),
    pair=st.tuples(st.integers(), st.floats()),
    by_number=st.dictionaries(st.integers(), inners, max_size=2),
    anything=memories,
    maybe=st.one_of(st.none(), st.floats()),
)


def together(values: Sequence[Any]) -> Any:
    """Return values of one shape as one: a `StackedTensor` or an `Each` in the place of every leaf."""
    first = values[0]
    if isinstance(first, Tensor):
        return StackedTensor(torch.stack([*values]))
    if isinstance(first, Record):
        names = [field.name for field in fields(first)]
        return type(first)(**{name: together([getattr(value, name) for value in values]) for name in names})
    if isinstance(first, dict):
        return {key: together([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(together([value[i] for value in values]) for i in range(len(first)))
    return Each(tuple(values))


def stack_of(members: Mapping[str, Record]) -> Stack:
    """Return the stack of some clients' replies."""
    return Stack(tuple(members), together([*members.values()]))
