"""Records to bytes and back: JSON for the skeleton, raw little-endian buffers for the tensors, never pickle.

Layout of a message:

    magic "ISTH" (4 bytes) | version (u16) | flags, zero (u16) | length of the skeleton (u64) | skeleton | tensors

The skeleton is UTF-8 JSON `{"value": ..., "tensors": [[dtype, [shape ...]], ...]}`. In `value`, a plain JSON scalar
stands for itself and a list for a tuple; an object is one of `{"t": i}` (tensor i), `{"r": name, "f": {...}}` (record),
`{"d": [[key, value], ...]}` (dict), `{"n": "nan"}` (a float JSON does not know). Tensors follow in order, each padded
to 8 bytes.

Decoding is told what to expect, so a message can only ever become a record type that the receiver named. How large a
thing may become is known before it is built: the bytes, the skeleton, the number of values in it, the tensors, their
axes, the depth, the length of a key and of an integer all have a limit.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import reprlib
import struct
import typing
import warnings
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.core.outside import CUT, foreign, named
from isthmus.core.record import (
    DTYPE_NAMES,
    DTYPES,
    LazyParams,
    Place,
    Record,
    Value,
    check_value,
    dict_value_type,
    entry_type,
    field_types,
    fields_of,
    nested_records,
    told_place,
)

MAGIC = b"ISTH"
VERSION = 1
PREFIX = struct.Struct("<4sHHQ")
ALIGN = 8
DEFAULT_MAX_BYTES = 2**31
MAX_SKELETON_BYTES = 2**24
# Values in a skeleton: each becomes an object of about a hundred bytes. Files of our own hold every client's memory.
MAX_VALUES = 2**18
MAX_FILE_VALUES = 2**22
VALUES_PER_TENSOR = 4  # a tensor is as large an object as a few values
MAX_DEPTH = 64
MAX_DIMS = 16
MAX_KEY = 200
MAX_INTEGER_BITS = 4096
# Places in a tensor that holds nothing, such as (nodes, 0): no byte of the message stands behind them.
MAX_EMPTY = 2**24
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

# torch warns, once in a process, that it cannot protect read-only memory; `pack` only ever reads it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"0", dtype=torch.uint8)

T = TypeVar("T")
Data: TypeAlias = bytes | memoryview


def encode(value: Value) -> bytes:
    """Return the message that holds `value`: a record, or a dict or tuple of storable values; one copy is made."""
    skeleton, tensors = _skeleton(value)
    parts: list[bytes | memoryview] = [PREFIX.pack(MAGIC, VERSION, 0, len(skeleton)), skeleton]
    for tensor in tensors:
        raw = _raw(tensor)
        parts += [raw, b"\0" * (-len(raw) % ALIGN)]
    return b"".join(parts)


def encoded_size(value: Value) -> int:
    """Return `len(encode(value))` without copying a tensor, or making one that nobody has looked at."""
    skeleton, tensors = _skeleton(outlined(value))
    sizes = (t.numel() * t.element_size() for t in tensors)
    return PREFIX.size + len(skeleton) + sum(size + (-size % ALIGN) for size in sizes)


def scalar_size(value: Value) -> int:
    """Return how many bytes a number, a text or None takes up in a message."""
    return len(json.dumps(_scalar(value, "message"), separators=(",", ":"), allow_nan=False))


def outlined(value: Value) -> Value:
    """Return a value in which parameters that are yet to be made have no numbers."""
    if isinstance(value, LazyParams):
        return value.outline()
    if isinstance(value, Record):
        fields = fields_of(value)
        changed = {name: new for name, item in fields.items() if (new := outlined(item)) is not item}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def decode(
    data: Data,
    expected: type[T] | Any,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_values: int = MAX_VALUES,
    share: bool = False,
) -> T:
    """Return the value in a message, which must fit the annotation `expected`; raise BadMessage with the reason.

    Tensors are copies, but with `share` bytes lie in the message itself and may only be read.
    """
    if len(data) > max_bytes:
        raise BadMessage(f"message of {len(data)} bytes is above the limit of {max_bytes} bytes")
    skeleton, offset = _open(data, max_values)
    tensors = _read_tensors(data, skeleton["tensors"], offset, max_values, share)
    value = _rebuild(skeleton["value"], expected, tensors, "message", 0)
    check_value(value, expected, "message")
    if tensors:
        raise BadMessage(f"message has {len(tensors)} tensors that its value does not hold")
    return typing.cast(T, value)


def decode_own(data: Data, expected: type[T] | Any, *, share: bool = False) -> T:
    """Return the value in a message of our own, of any size: limits protect against strangers."""
    found: T = decode(data, expected, max_bytes=len(data), max_values=MAX_FILE_VALUES, share=share)
    return found


def pack(data: bytes) -> Tensor:
    """Return bytes as a tensor, which is how a record holds them; it lies in the bytes themselves."""
    return torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


def unpack(tensor: Tensor) -> bytes:
    """Return a copy of the bytes that `pack` put into a tensor."""
    return bytes(opened(tensor))


def opened(tensor: Tensor) -> memoryview:
    """Return the bytes that `pack` put into a tensor, where they lie; a tensor of anything else is a bad message."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise BadMessage(f"found a tensor of {tensor.dtype} and shape {tuple(tensor.shape)}, expected bytes")
    return tensor.contiguous().numpy().data if tensor.numel() else memoryview(b"")


# ---- writing


def _skeleton(value: Value) -> tuple[bytes, list[Tensor]]:
    tensors: list[Tensor] = []
    tree = _plain(value, tensors, "message", 0)
    table = [[DTYPE_NAMES[t.dtype], list(t.shape)] for t in tensors]
    try:
        text = json.dumps({"value": tree, "tensors": table}, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # an integer of thousands of digits
        raise BadMessage(f"message: cannot encode it: {error}") from None
    return text.encode(), tensors


def _plain(value: Value, tensors: list[Tensor], where: Place, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadMessage(f"{told_place(where)}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Tensor):
        _check_tensor(value, where)
        tensors.append(value.detach())
        return {"t": len(tensors) - 1}
    if isinstance(value, Record):
        items = fields_of(value).items()
        fields = {name: _plain(item, tensors, (where, "field", name), depth + 1) for name, item in items}
        return {"r": type(value).__name__, "f": fields}
    if isinstance(value, dict):
        value = value.plain() if isinstance(value, LazyParams) else value
        for key in value:
            _check_key(key, where)
        return {"d": [[key, _plain(item, tensors, (where, "entry", key), depth + 1)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return [_plain(item, tensors, (where, "entry", i), depth + 1) for i, item in enumerate(value)]
    return _scalar(value, where)


def _check_tensor(tensor: Tensor, where: Place) -> None:
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_NAMES or tensor.dim() > MAX_DIMS:
        raise BadMessage(
            f"{told_place(where)}: cannot encode a {tensor.layout} tensor of {tensor.dtype} with {tensor.dim()} "
            f"dimensions; send dense tensors of {', '.join(sorted(DTYPES))} with at most {MAX_DIMS}"
        )


def _scalar(value: Value, where: Place) -> Any:
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"n": repr(value)}
    if kind is int and value.bit_length() > MAX_INTEGER_BITS:
        raise BadMessage(f"{told_place(where)}: cannot encode it: an integer of {value.bit_length()} bits")
    if value is None or kind in (str, int, bool):
        return value
    raise BadMessage(
        f"{told_place(where)}: cannot encode a {kind.__name__}; a record holds tensors, scalars, strings, "
        "None, records, and dicts or tuples of them"
    )


def _check_key(key: Any, where: Place) -> None:
    if type(key) not in (str, int):
        raise BadMessage(f"{told_place(where)}: cannot encode the dict key {named(key)}; keys are strings or integers")
    if type(key) is str and len(key) > MAX_KEY:
        raise BadMessage(f"{told_place(where)}: the key {named(key)} has {len(key)} characters, the limit is {MAX_KEY}")


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor where they lie, if that is in one piece."""
    if not tensor.numel():
        return memoryview(b"")
    # An axis of length 1 may have any stride and still count as contiguous; viewing as bytes wants stride 1.
    flat = tensor.cpu().contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


# ---- reading


def _open(data: Data, max_values: int) -> tuple[dict[str, Any], int]:
    end = _end_of_skeleton(data)
    text = bytes(data[PREFIX.size : end])
    number = _num_values(text, max_values)
    if number > max_values:
        raise BadMessage(f"message holds about {number} values, the limit is {max_values}")
    try:
        skeleton = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"message skeleton is not JSON: {foreign(str(error), 80)}") from None
    if not isinstance(skeleton, dict) or set(skeleton) != {"value", "tensors"}:
        raise BadMessage("message skeleton is not {value, tensors}")
    return skeleton, end


def _end_of_skeleton(data: Data) -> int:
    if len(data) < PREFIX.size:
        raise BadMessage(f"message of {len(data)} bytes is shorter than its {PREFIX.size}-byte prefix")
    magic, version, flags, length = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise BadMessage(f"message starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise BadMessage(f"message has format version {version}, this package reads {VERSION}")
    if flags:
        raise BadMessage(f"message has the flags {flags:#x}, this package knows none")
    end: int = PREFIX.size + length
    if length > MAX_SKELETON_BYTES or end > len(data):
        raise BadMessage(f"message announces a skeleton of {length} bytes but has {len(data) - PREFIX.size}")
    return end


def _num_values(text: bytes, enough: int) -> int:
    """Return at most how many values a JSON text can become; texts within it count only if there seem to be many."""
    found = _separators(text)
    if found > enough:  # one match at a time: a list of all pieces would take many times the text
        found -= sum(_separators(match.group()) for match in _STRING.finditer(text))
    return found


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_tensors(data: Data, table: Any, offset: int, max_values: int, share: bool) -> dict[int, Tensor]:
    if not isinstance(table, list):
        raise BadMessage("message has no table of tensors")
    if len(table) > max_values // VALUES_PER_TENSOR:
        raise BadMessage(f"message has {len(table)} tensors, the limit is {max_values // VALUES_PER_TENSOR}")
    tensors: dict[int, Tensor] = {}
    for index, entry in enumerate(table):
        dtype, shape = _tensor_entry(entry, index)
        size = math.prod(shape) * dtype.itemsize
        if offset + size > len(data):
            raise BadMessage(f"message ends within tensor {index} of shape {shape}")
        tensors[index] = _tensor(data, dtype, shape, size, offset, share)
        if dtype is torch.bool and size and int(tensors[index].view(torch.uint8).max()) > 1:
            raise BadMessage(f"tensor {index} of truth values has bytes other than 0 and 1")
        offset += size + (-size % ALIGN)
    if offset > len(data):
        raise BadMessage("message ends within the padding of its last tensor")
    if offset < len(data):
        raise BadMessage(f"message has {len(data) - offset} bytes after its last tensor")
    return tensors


def _tensor(data: Data, dtype: torch.dtype, shape: list[int], size: int, offset: int, share: bool) -> Tensor:
    if share and size and dtype is torch.uint8:
        return torch.frombuffer(data, dtype=dtype, count=size, offset=offset).reshape(shape)
    # Copied into torch's own aligned memory: results of the kernels must not depend on where a message lay.
    tensor = torch.empty(shape, dtype=dtype)
    if size:
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8, size, offset)
    return tensor


def _tensor_entry(entry: Any, index: int) -> tuple[torch.dtype, list[int]]:
    known = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and entry[0] in DTYPES
    if not known or not isinstance(entry[1], list):
        raise BadMessage(f"entry {index} of the tensor table is {_short(entry)}, expected [dtype, shape]")
    if not _possible(entry[1]):
        raise BadMessage(f"tensor {index} has the impossible shape {_short(entry[1])}")
    return DTYPES[entry[0]], entry[1]


def _possible(shape: list[int]) -> bool:
    if len(shape) > MAX_DIMS or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        return False
    if 0 not in shape:
        return math.prod(shape) < 2**56
    # torch multiplies the lengths also of a tensor without entries, so zeros do not excuse the others.
    return math.prod(max(n, 1) for n in shape) < MAX_EMPTY


def _short(tree: Any) -> str:
    return foreign(_SHORT.repr(tree), 60)


def _rebuild(tree: Any, expected: Any, tensors: dict[int, Tensor], where: Place, depth: int) -> Value:
    if depth > MAX_DEPTH:
        raise BadMessage(f"{told_place(where)}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(tree, list):
        return tuple(
            _rebuild(item, entry_type(expected, i), tensors, (where, "entry", i), depth + 1)
            for i, item in enumerate(tree)
        )
    if isinstance(tree, dict):
        return _rebuild_object(tree, expected, tensors, where, depth)
    if type(tree) is int and tree.bit_length() > MAX_INTEGER_BITS:
        raise BadMessage(f"{told_place(where)}: found an integer of {tree.bit_length()} bits")
    return tree


def _rebuild_object(tree: dict[str, Any], expected: Any, tensors: dict[int, Tensor], where: Place, depth: int) -> Value:
    keys = tuple(tree)
    if keys == ("t",) and type(tree["t"]) is int and tree["t"] in tensors:
        return tensors.pop(tree["t"])  # each stands in one place: parts of a decoded value share no memory
    if keys == ("n",) and tree["n"] in ("nan", "inf", "-inf"):
        return float(tree["n"])
    if keys == ("d",) and isinstance(tree["d"], list):
        return _rebuild_dict(tree["d"], expected, tensors, where, depth)
    if set(keys) == {"r", "f"} and isinstance(tree["f"], dict):
        return _rebuild_record(tree, expected, tensors, where, depth)
    raise BadMessage(f"{told_place(where)}: {_short(tree)} is no tensor, dict, record or float")


def _rebuild_dict(pairs: list[Any], expected: Any, tensors: dict[int, Tensor], where: Place, depth: int) -> Value:
    result: dict[Any, Any] = {}
    inner = dict_value_type(expected)
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)) or pair[0] in result:
            raise BadMessage(f"{told_place(where)}: {_short(pair)} is no new [key, value]")
        key, item = pair
        _check_key(key, where)
        result[key] = _rebuild(item, inner, tensors, (where, "entry", key), depth + 1)
    return result


def _rebuild_record(tree: dict[str, Any], expected: Any, tensors: dict[int, Tensor], where: Place, depth: int) -> Value:
    options = {kind.__name__: kind for kind in nested_records(expected)}
    kind = options.get(tree["r"]) if isinstance(tree["r"], str) else None
    if kind is None:
        wanted = " or ".join(sorted(options)) or "no record"
        raise BadMessage(f"{told_place(where)}: found the record {_short(tree['r'])}, expected {wanted}")
    hints = field_types(kind)
    if set(tree["f"]) != set(hints):
        found = ", ".join(named(name) for name in sorted(tree["f"])[:20]) + (CUT if len(tree["f"]) > 20 else "")
        raise BadMessage(f"{told_place(where)}: {kind.__name__} has the fields {sorted(hints)}, found [{found}]")
    given = tree["f"]
    fields = {n: _rebuild(given[n], hint, tensors, (where, "field", n), depth + 1) for n, hint in hints.items()}
    try:
        return kind(**fields)
    except Exception as error:  # its own checks ran on fields that nobody has checked yet
        why = foreign(f"{type(error).__name__}: {error}")
        raise BadMessage(f"{told_place(where)}: {kind.__name__} refuses its fields: {why}") from None
