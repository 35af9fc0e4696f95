"""Records: the only things that cross between server and clients, go into checkpoints, or stay in a client's memory.

A record is a frozen dataclass whose fields hold tensors, scalars, strings, None, records, and dicts or tuples of them.
Its annotations are the agreement: `check_value` refuses a value that does not fit them, wherever it came from.

All that a client has in its hands lies on its device: its data, its model, its memory, what it is asked (`moved`). All
that crosses lies in the computer's own memory, and so does all that the server has. What is random is drawn there and
then moved, so that it is the same wherever it is used.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union

import torch
from torch import Tensor

from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.outside import MAX_TEXT, foreign, named

# A tensor, scalar, string, None, or a dict or tuple of them; mypy cannot say so without losing the fields' own types.
Value: TypeAlias = Any
Params: TypeAlias = dict[str, Tensor]
State: TypeAlias = dict[str, Value]

# The tensors that can be stored, by the names the codec gives their types.
DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
}
# Entries of a container that an error may show.
MANY = 8
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


# Where in a value something stands: a name, or a place within another. Told in words only when something is wrong
# there, because a long key would otherwise be written out again for every entry below it.
Place: TypeAlias = "str | tuple[Place, str, Any]"


def told_place(place: Place) -> str:
    """Return a place in words: Evaluation.metrics['val']."""
    parts: list[str] = []
    while not isinstance(place, str):
        place, kind, name = place
        parts.append(f".{name}" if kind == "field" else f"[{named(name)}]")
    return place + "".join(reversed(parts))


# Annotations are read again and again, for every reply of every client; looking into them is slow. They come from
# classes, of which there are few; nothing that a message says may become a key of these caches.
@cache
def _outermost(annotation: Any) -> Any:
    """Return what an annotation is before its brackets: dict for dict[str, int], and for dict."""
    return typing.get_origin(annotation) or annotation


@cache
def args_of(annotation: Any) -> tuple[Any, ...]:
    """Return `typing.get_args` of an annotation."""
    return typing.get_args(annotation)


@dataclass(frozen=True)
class Record:
    """Base of everything that may cross; subclass it as a frozen dataclass. A field's comment says what it reveals."""


RecordT = TypeVar("RecordT", bound=Record)


class LazyParams(dict[str, Tensor]):
    """Parameters that are made when somebody looks at them."""

    def outline(self) -> dict[str, Tensor]:
        """Return tensors with shapes and types, which need not have numbers."""
        return dict(self)

    def plain(self) -> dict[str, Tensor]:
        """Return the tensors, for one use: what had to be made for it is not kept."""
        return dict(self)

    def within(self, limit_of: Callable[[str], float]) -> bool:
        """Whether all numbers are known to be finite and no larger than what goes for their name, unlooked at."""
        return False

    def fits(self) -> set[Any]:
        """Return the annotations of keys and values that the outline is known to fit: those of many have one."""
        return set()


def field_types(kind: type[Record]) -> dict[str, Any]:
    """Return the resolved annotation of every field of a record type."""
    found: dict[str, Any] | None = vars(kind).get("_field_types")
    if found is None:
        hints = typing.get_type_hints(kind)
        found = {f.name: hints[f.name] for f in dataclasses.fields(kind)}
        kind._field_types = found  # type: ignore[attr-defined]
    return found


def nested_records(annotation: Any) -> Iterator[type[Record]]:
    """Yield the record types that an annotation admits, at any depth but not inside those records."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for part in args_of(annotation):
        yield from nested_records(part)


def fields_of(record: Record) -> dict[str, Value]:
    """Return a record's fields by name, without copying."""
    return {name: getattr(record, name) for name in field_types(type(record))}


def check_value(value: Value, annotation: Any, where: Place) -> None:
    """Raise BadMessage unless `value` fits `annotation`; `where` names the place in the message."""
    if annotation is Any:
        annotation = _storable(value, where)
    kind = _outermost(annotation)
    if kind in (Union, types.UnionType):
        _check_union(value, annotation, where)
    elif kind is dict:
        _check_dict(value, args_of(annotation) or (Any, Any), where)
    elif kind is tuple:
        _check_tuple(value, args_of(annotation) or (Any, ...), where)
    elif isinstance(annotation, type) and issubclass(annotation, Record):
        if type(value) is not annotation:
            raise BadMessage(f"{told_place(where)}: found {_kind(value)}, expected the record {annotation.__name__}")
        check_record(value, where)
    else:
        _check_leaf(value, annotation, where)


def check_record(record: Record, where: Place = "") -> None:
    """Raise BadMessage unless every field of `record` fits its annotation."""
    place = where or type(record).__name__
    for name, annotation in field_types(type(record)).items():
        check_value(getattr(record, name), annotation, (place, "field", name))


def _check_union(value: Value, annotation: Any, where: Place) -> None:
    reasons = []
    for option in args_of(annotation):
        try:
            return check_value(value, option, where)
        except BadMessage as reason:
            reasons.append(str(reason))
    raise BadMessage(reasons[-1])


def _check_dict(value: Value, args: tuple[Any, ...], where: Place) -> None:
    if not isinstance(value, dict):
        raise BadMessage(f"{told_place(where)}: found {_kind(value)}, expected a dict")
    if isinstance(value, LazyParams):
        if args in (fits := value.fits()):
            return
        _check_dict(dict(value.outline()), args, where)
        fits.add(args)
        return
    key_type, item_type = args
    for key, item in value.items():
        if type(key) not in (str, int) or (key_type is not Any and type(key) is not key_type):
            raise BadMessage(
                f"{told_place(where)}: found the key {named(key)}, expected keys of type {_name(key_type)}"
            )
        check_value(item, item_type, (where, "entry", key))


def _check_tuple(value: Value, args: tuple[Any, ...], where: Place) -> None:
    if not isinstance(value, tuple):
        raise BadMessage(f"{told_place(where)}: found {_kind(value)}, expected a tuple")
    if len(args) == 2 and args[1] is ...:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise BadMessage(f"{told_place(where)}: found {len(value)} entries, expected {len(args)}")
    for position, (item, item_type) in enumerate(zip(value, args, strict=True)):
        check_value(item, item_type, (where, "entry", position))


def _check_leaf(value: Value, annotation: Any, where: Place) -> None:
    if annotation is Tensor:
        _check_tensor(value, where)
        return
    if annotation is None:
        annotation = types.NoneType
    # bool is a subclass of int, and an int is a fine float, but a bool is neither.
    whole = annotation is float and type(value) is int
    if whole and abs(value) >= 2**1023:
        raise BadMessage(f"{told_place(where)}: found a whole number that is too large for a float")
    if not whole and type(value) is not annotation:
        raise BadMessage(f"{told_place(where)}: found {_kind(value)}, expected {_name(annotation)}")


def _check_tensor(value: Value, where: Place) -> None:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.dtype not in DTYPE_NAMES:
        wanted = f"a dense tensor of {', '.join(sorted(DTYPES))}"
        raise BadMessage(f"{told_place(where)}: found {_kind(value)}, expected {wanted}")


def _storable(value: Value, where: Place) -> Any:
    """Return the annotation of what may be anything that can be stored."""
    for kind in (Tensor, dict, tuple):
        if isinstance(value, kind):
            return kind
    if value is not None and type(value) not in (bool, int, float, str):
        raise BadMessage(
            f"{told_place(where)}: found {_kind(value)}; here only tensors, scalars, strings, None, and dicts or "
            "tuples of them can stand (a record needs an annotation that names its type)"
        )
    return type(value)


def largest(tensor: Tensor) -> float:
    """Return the largest magnitude in a tensor, in one pass: NaN if it holds one, 0 if it holds nothing."""
    if not tensor.numel() or tensor.dtype == torch.bool:
        return 0.0
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def non_finite_leaf(found: Mapping[str, Value]) -> str | None:
    """Return where a NaN or an infinity is among leaves by their place, or None when all numbers are finite."""
    for place, leaf in found.items():
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return f"{place} is {leaf}"
        # One pass over the data in the common case: a finite sum has finite terms (a sum may overflow, so count then).
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(torch.isfinite(leaf.sum())):
            bad = int((~torch.isfinite(leaf)).sum())
            if bad:
                return f"{place} has {bad} of {leaf.numel()} entries that are NaN or infinite"
    return None


def _kind(value: Value) -> str:
    if isinstance(value, Tensor):
        layout = str(value.layout).removeprefix("torch.")
        return f"a {layout} tensor of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    if isinstance(value, Record):
        return f"the record {type(value).__name__}"
    if value is None:
        return "None"
    if not isinstance(value, bool | int | float | str | tuple | list | dict):
        return f"a {type(value).__name__}"  # its text may hold an address, which would differ from run to run
    if isinstance(value, tuple | list | dict) and len(value) > MANY:
        return f"a {type(value).__name__} of {len(value)} entries"  # writing them all out would cost more than they do
    shown = value[:41] if isinstance(value, str) else str(value)
    return f"{type(value).__name__} {foreign(shown, 40)!r}"


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def leaves(value: Value, path: str = "") -> dict[str, Value]:
    """Return the tensors, scalars and strings in a value by their path, in order: {".params['w']": tensor}.

    A whole number in a field of type float comes as a float: 3 and 3.0 are the same reply.
    """
    found: dict[str, Value] = {}
    _collect(value, path, Any, found)
    return found


def _collect(value: Value, path: str, annotation: Any, found: dict[str, Value]) -> None:
    if isinstance(value, Record):
        for name, hint in field_types(type(value)).items():
            _collect(getattr(value, name), f"{path}.{name}", hint, found)
    elif isinstance(value, dict):
        inner_type = dict_value_type(annotation)
        for key, item in value.items():
            _collect(item, f"{path}[{key!r}]", inner_type, found)
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            _collect(item, f"{path}[{position}]", entry_type(annotation, position), found)
    elif type(value) is int and float in (kinds := options_of(annotation)) and int not in kinds:
        found[path] = float(value)
    else:
        found[path] = value


@cache
def options_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    is_union = _outermost(annotation) in (Union, types.UnionType)
    return args_of(annotation) if is_union else (annotation,)


def entry_type(annotation: Any, position: int) -> Any:
    """Return what an annotation says of a tuple's entry; Any when it says nothing."""
    every, one_by_one = _entry_types(annotation)
    return one_by_one[position] if position < len(one_by_one) else every


@cache
def _entry_types(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what an annotation says of all entries of a tuple, and of the first ones by themselves."""
    for option in options_of(annotation):
        if _outermost(option) is tuple:
            args = args_of(option)
            return (args[0], ()) if len(args) == 2 and args[1] is ... else (Any, args)
    return Any, ()


@cache
def dict_value_type(annotation: Any) -> Any:
    """Return what an annotation says of a dict's values; Any when it says nothing."""
    for option in options_of(annotation):
        if _outermost(option) is dict:
            return (args_of(option) or (Any, Any))[1]
    return Any


def foreign_texts(value: RecordT, limit: int = MAX_TEXT) -> RecordT:
    """Return a record of another party's with each text in its fields as `foreign` has it."""
    found = {place: foreign(leaf, limit) if type(leaf) is str else leaf for place, leaf in leaves(value).items()}
    return with_leaves(value, found)


def with_leaves(value: RecordT, changed: Mapping[str, Value], path: str = "") -> RecordT:
    """Return a record of the same shape with its leaves taken from `changed`."""
    found = {name: _changed(item, changed, f"{path}.{name}") for name, item in fields_of(value).items()}
    return dataclasses.replace(value, **found)


def _changed(value: Value, changed: Mapping[str, Value], path: str) -> Value:
    if isinstance(value, Record):
        return with_leaves(value, changed, path)
    if isinstance(value, dict):
        return {key: _changed(item, changed, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_changed(item, changed, f"{path}[{i}]") for i, item in enumerate(value))
    return changed[path]


# ---- devices: where values lie, and how they get there and back

CPU = torch.device("cpu")
AUTO = "auto"


def device_problem(name: str) -> str:
    """Return what is wrong with the name of a device, whether this machine has it or not; empty where nothing is."""
    wanted = "choose from auto, cpu, cuda, cuda:0 (or :1, :2, ... for another GPU), mps"
    if name == AUTO:
        return ""
    try:
        known = torch.device(name)
    except (RuntimeError, TypeError):
        return wanted
    # Besides the devices that torch knows itself, one that somebody has added to it.
    if known.type not in ("cpu", "cuda", "mps", torch._C._get_privateuse1_backend_name()):
        return wanted
    return "" if known.type != "cpu" or known.index is None else "there is one CPU: write cpu"


def device_of(name: str, where: str = "device") -> torch.device:
    """Return the device of a name; one that this machine does not have raises BadInput, and "auto" takes the best."""
    problem = device_problem(name)
    if problem:
        raise BadInput(f"{where} is {name!r}; {problem}")
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    device = torch.device(name)
    lack = _lack(device)
    if lack:
        raise BadInput(f"{where} is {name!r}, but {lack}; use {where}=cpu, or {where}=auto, which takes what there is")
    return device


def _lack(device: torch.device) -> str:
    """Return why a device is not there; empty where it is."""
    if device.type == "cpu":
        return ""
    if device.type == "mps":
        return "" if _has_mps() else "this machine has no GPU that torch can use by Metal (mps)"
    module = torch.get_device_module(device.type)
    if not module.is_available():
        return f"torch finds no {device.type} device on this machine"
    number = module.device_count()
    if device.index is not None and device.index >= number:
        return f"this machine has {number} {device.type} device{'s' * (number != 1)}, counted from 0"
    return ""


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def has_doubles(device: torch.device) -> bool:
    """Whether a device has numbers of double precision, in which the sums of a stack run."""
    return device.type != "mps"


def moved(value: Value, device: torch.device, known: dict[int, Any] | None = None) -> Any:
    """Return a value with its tensors on a device: itself, where they lie there already.

    What is there several times, also in values moved with the same `known`, stays one. A part of a stack is made when
    it leaves for the CPU.
    """
    known = {} if known is None else known
    if isinstance(value, Tensor | Record | dict | tuple):
        if id(value) not in known:
            known[id(value)] = _moved(value, device, known)
        return known[id(value)]
    return value


def _moved(value: Value, device: torch.device, known: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, LazyParams):
        return {name: tensor.to(device) for name, tensor in value.items()} if device == CPU else value
    parts = _parts(value)
    changed = {name: new for name, item in parts.items() if (new := moved(item, device, known)) is not item}
    if not changed:
        return value
    if isinstance(value, Record):
        return dataclasses.replace(value, **changed)
    return {**parts, **changed} if isinstance(value, dict) else tuple({**parts, **changed}.values())


def _parts(value: Value) -> dict[Any, Value]:
    if isinstance(value, Record):
        return {**fields_of(value)}
    return value if isinstance(value, dict) else dict(enumerate(value))
