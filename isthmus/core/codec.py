"""Records to bytes and back: JSON for the skeleton, raw little-endian buffers for the tensors, never pickle.

Layout of a message:

    magic "ISTH" (4 bytes) | version (u16) | flags, zero (u16) | length of the skeleton (u64) | skeleton | tensors

The skeleton is UTF-8 JSON `{"value": ..., "tensors": [[dtype, [shape ...]], ...]}`. In `value`, a plain JSON scalar
stands for itself and a list for a tuple; an object is one of `{"t": i}` (tensor i), `{"r": name, "f": {...}}` (record),
`{"d": [[key, value], ...]}` (dict), `{"n": "nan"}` (a float JSON does not know). Tensors follow in order, each padded
to 8 bytes.

Decoding is told what to expect, so a message can only ever become a record type that the receiver named.
"""

from __future__ import annotations

import json
import math
import struct
import typing
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.core.record import (
    DTYPE_NAMES,
    DTYPES,
    Record,
    Value,
    check_value,
    dict_value_type,
    entry_type,
    field_types,
    fields_of,
    nested_records,
)

MAGIC = b"ISTH"
VERSION = 1
PREFIX = struct.Struct("<4sHHQ")
ALIGN = 8
DEFAULT_MAX_BYTES = 2**31
MAX_SKELETON_BYTES = 2**24
MAX_DEPTH = 64
MAX_DIMS = 16

T = TypeVar("T")


def encode(value: Value) -> bytes:
    """Return the message that holds `value`: a record, or a dict or tuple of storable values."""
    skeleton, tensors = _skeleton(value)
    parts = [PREFIX.pack(MAGIC, VERSION, 0, len(skeleton)), skeleton]
    for tensor in tensors:
        raw = _raw(tensor)
        parts += [raw, b"\0" * (-len(raw) % ALIGN)]
    return b"".join(parts)


def encoded_size(value: Value) -> int:
    """Return `len(encode(value))` without copying a tensor."""
    skeleton, tensors = _skeleton(value)
    sizes = (t.numel() * t.element_size() for t in tensors)
    return PREFIX.size + len(skeleton) + sum(size + (-size % ALIGN) for size in sizes)


def decode(data: bytes, expected: type[T] | Any, *, max_bytes: int = DEFAULT_MAX_BYTES) -> T:
    """Return the value in a message, which must fit the annotation `expected`; raise BadMessage with the reason."""
    if len(data) > max_bytes:
        raise BadMessage(f"message of {len(data)} bytes is above the limit of {max_bytes} bytes")
    skeleton, offset = _open(data)
    tensors = _read_tensors(data, skeleton["tensors"], offset)
    value = _rebuild(skeleton["value"], expected, tensors, "message", 0)
    check_value(value, expected, "message")
    if tensors:
        raise BadMessage(f"message has {len(tensors)} tensors that its value does not hold")
    return typing.cast(T, value)


def pack(data: bytes) -> Tensor:
    """Return bytes as a tensor, which is how a record holds them."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def unpack(tensor: Tensor) -> bytes:
    """Return the bytes that `pack` put into a tensor."""
    return bytes(tensor.numpy().data)


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


def _plain(value: Value, tensors: list[Tensor], where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadMessage(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.dtype not in DTYPE_NAMES or value.dim() > MAX_DIMS:
            raise BadMessage(
                f"{where}: cannot encode a {value.layout} tensor of {value.dtype} with {value.dim()} dimensions; send "
                f"dense tensors of {', '.join(sorted(DTYPES))} with at most {MAX_DIMS}"
            )
        tensors.append(value.detach())
        return {"t": len(tensors) - 1}
    if isinstance(value, Record):
        fields = {name: _plain(item, tensors, f"{where}.{name}", depth + 1) for name, item in fields_of(value).items()}
        return {"r": type(value).__name__, "f": fields}
    if isinstance(value, dict):
        items = [(_key(key, where), item) for key, item in value.items()]
        return {"d": [[key, _plain(item, tensors, f"{where}[{key!r}]", depth + 1)] for key, item in items]}
    if isinstance(value, tuple):
        return [_plain(item, tensors, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        return {"n": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise BadMessage(
        f"{where}: cannot encode a {type(value).__name__}; a record holds tensors, scalars, strings, None, "
        "records, and dicts or tuples of them"
    )


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise BadMessage(f"{where}: cannot encode the dict key {key!r}; keys are strings or integers")
    return typing.cast("str | int", key)


def _raw(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""
    # An axis of length 1 may have any stride and still count as contiguous; viewing as bytes wants stride 1.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy().data)


# ---- reading


def _open(data: bytes) -> tuple[dict[str, Any], int]:
    if len(data) < PREFIX.size:
        raise BadMessage(f"message of {len(data)} bytes is shorter than its {PREFIX.size}-byte prefix")
    magic, version, flags, length = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise BadMessage(f"message starts with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise BadMessage(f"message has format version {version}, this package reads {VERSION}")
    if flags:
        raise BadMessage(f"message has the flags {flags:#x}, this package knows none")
    end = PREFIX.size + length
    if length > MAX_SKELETON_BYTES or end > len(data):
        raise BadMessage(f"message announces a skeleton of {length} bytes but has {len(data) - PREFIX.size}")
    try:
        skeleton = json.loads(data[PREFIX.size : end], object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"message skeleton is not JSON: {str(error)[:80]}") from None
    if not isinstance(skeleton, dict) or set(skeleton) != {"value", "tensors"}:
        raise BadMessage("message skeleton is not {value, tensors}")
    return skeleton, end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read_tensors(data: bytes, table: Any, offset: int) -> dict[int, Tensor]:
    if not isinstance(table, list):
        raise BadMessage("message has no table of tensors")
    tensors: dict[int, Tensor] = {}
    for index, entry in enumerate(table):
        dtype, shape = _tensor_entry(entry, index)
        size = math.prod(shape) * dtype.itemsize
        if offset + size > len(data):
            raise BadMessage(f"message ends within tensor {index} of shape {shape}")
        # Copied into torch's own aligned memory: results of the kernels must not depend on where a message lay.
        tensor = torch.empty(shape, dtype=dtype)
        if size:
            flat = tensor.reshape(-1).view(torch.uint8).numpy()
            flat[:] = np.frombuffer(data, np.uint8, size, offset)
            if dtype is torch.bool and flat.max() > 1:
                raise BadMessage(f"tensor {index} of truth values has bytes other than 0 and 1")
        tensors[index] = tensor
        offset += size + (-size % ALIGN)
    if offset > len(data):
        raise BadMessage("message ends within the padding of its last tensor")
    if offset < len(data):
        raise BadMessage(f"message has {len(data) - offset} bytes after its last tensor")
    return tensors


def _tensor_entry(entry: Any, index: int) -> tuple[torch.dtype, list[int]]:
    known = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and entry[0] in DTYPES
    if not known or not isinstance(entry[1], list):
        raise BadMessage(f"entry {index} of the tensor table is {str(entry)[:60]!r}, expected [dtype, shape]")
    possible = len(entry[1]) <= MAX_DIMS and all(type(n) is int and 0 <= n < 2**40 for n in entry[1])
    # torch multiplies the lengths also of a tensor without entries, so zeros do not excuse the others.
    if not possible or math.prod(max(n, 1) for n in entry[1]) >= 2**56:
        raise BadMessage(f"tensor {index} has the impossible shape {str(entry[1])[:60]}")
    return DTYPES[entry[0]], entry[1]


def _rebuild(tree: Any, expected: Any, tensors: dict[int, Tensor], where: str, depth: int) -> Value:
    if depth > MAX_DEPTH:
        raise BadMessage(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(tree, list):
        return tuple(
            _rebuild(item, entry_type(expected, i), tensors, f"{where}[{i}]", depth + 1) for i, item in enumerate(tree)
        )
    if not isinstance(tree, dict):
        return tree
    keys = set(tree)
    if keys == {"t"} and type(tree["t"]) is int and tree["t"] in tensors:
        return tensors.pop(tree["t"])  # each stands in one place: parts of a decoded value share no memory
    if keys == {"n"} and tree["n"] in ("nan", "inf", "-inf"):
        return float(tree["n"])
    if keys == {"d"} and isinstance(tree["d"], list):
        return _rebuild_dict(tree["d"], expected, tensors, where, depth)
    if keys == {"r", "f"} and isinstance(tree["f"], dict):
        return _rebuild_record(tree, expected, tensors, where, depth)
    raise BadMessage(f"{where}: {str(tree)[:60]!r} is no tensor, dict, record or float")


def _rebuild_dict(
    pairs: list[Any], expected: Any, tensors: dict[int, Tensor], where: str, depth: int
) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)) or pair[0] in result:
            raise BadMessage(f"{where}: {str(pair)[:60]!r} is no new [key, value]")
        inner = dict_value_type(expected)
        result[pair[0]] = _rebuild(pair[1], inner, tensors, f"{where}[{pair[0]!r}]", depth + 1)
    return result


def _rebuild_record(tree: dict[str, Any], expected: Any, tensors: dict[int, Tensor], where: str, depth: int) -> Record:
    options = {kind.__name__: kind for kind in nested_records(expected)}
    kind = options.get(tree["r"]) if isinstance(tree["r"], str) else None
    if kind is None:
        wanted = " or ".join(sorted(options)) or "no record"
        raise BadMessage(f"{where}: found the record {str(tree['r'])[:60]!r}, expected {wanted}")
    hints = field_types(kind)
    if set(tree["f"]) != set(hints):
        raise BadMessage(f"{where}: {kind.__name__} has the fields {sorted(hints)}, found {sorted(tree['f'])[:20]}")
    fields = {
        name: _rebuild(tree["f"][name], hint, tensors, f"{where}.{name}", depth + 1) for name, hint in hints.items()
    }
    try:
        return kind(**fields)
    except Exception as error:  # its own checks ran on fields that nobody has checked yet
        raise BadMessage(f"{where}: {kind.__name__} refuses its fields: {type(error).__name__}: {error}") from None
