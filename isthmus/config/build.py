"""From plain values to frozen dataclasses and back, with errors that say where and what would do."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from isthmus.config.tables import FAMILIES, Family, find_part, known_names, name_of
from isthmus.core.errors import BadInput, nearest

_MISSING = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds values from plain ones; `source` is the file or command line that errors name."""

    source: str = ""
    allow_import: bool = True

    def place(self, where: str) -> str:
        """Return how an error names a place."""
        return ": ".join(part for part in (self.source, where) if part)

    def build(self, annotation: Any, raw: Any, where: str, default: Any = None) -> Any:
        """Return the value of type `annotation` that `raw` describes; a part not given keeps what `default` has."""
        annotation, optional = _without_none(annotation)
        if raw is None and optional:
            return None
        if dataclasses.is_dataclass(raw) and not isinstance(raw, type):
            return raw  # a part given as a Python object
        origin = typing.get_origin(annotation) or annotation
        if origin in FAMILIES:
            part = self._part(FAMILIES[origin], raw, where, default)
            if origin in _classes() and not isinstance(part, origin):
                raise BadInput(f"{self.place(where)}.name is {name_of(type(part))!r}, which is no {origin.__name__}")
            return part
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            same = default if type(default) is annotation else None
            return self.fields(annotation, self._mapping(raw, where), where, same)
        return self._leaf(annotation, raw, where, optional)

    def fields(self, kind: type[Any], raw: Mapping[str, Any], where: str, default: Any = None) -> Any:
        """Return a dataclass with the fields in `raw`; the others come from `default`, else from the class."""
        hints = _hints(kind)
        known = {f.name: f for f in dataclasses.fields(kind) if f.init}
        prefix = f"{where}." if where else ""
        for key in raw:
            if key not in known:
                raise BadInput(f"{self.place(prefix + str(key))} is not a known key; {nearest(str(key), known)}")
        values: dict[str, Any] = {}
        for name, field in known.items():
            before = getattr(default, name) if default is not None else _default_of(field)
            if name in raw:
                fallback = None if before is _MISSING else before
                values[name] = self.build(hints[name], raw[name], prefix + name, fallback)
            elif before is not _MISSING:
                values[name] = before
            else:
                raise BadInput(f"{self.place(prefix + name)} is missing; give it a value")
        try:
            return kind(**values)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{self.place(where)}: {error}") from None

    def _part(self, family: Family, raw: Any, where: str, default: Any) -> Any:
        given = {"name": raw} if isinstance(raw, str) else dict(self._mapping(raw, where))
        if given.get("name") is None and default is None:
            raise BadInput(f"{self.place(where)}.name is missing; known: {', '.join(sorted(known_names(family)))}")
        name = given.pop("name", None) or name_of(type(default))
        if not isinstance(name, str):
            raise BadInput(f"{self.place(where)}.name is {name!r}, expected a name")
        kind = find_part(family, name, f"{self.place(where)}.name", self.allow_import)
        if not dataclasses.is_dataclass(kind):
            raise BadInput(f"{self.place(where)}.name is {name!r}, which is not a dataclass with fields to set")
        return self.fields(kind, given, where, default if type(default) is kind else None)

    def _mapping(self, raw: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            raise BadInput(f"{self.place(where)} is {raw!r}, expected keys and values")
        return raw

    def _leaf(self, annotation: Any, raw: Any, where: str, optional: bool) -> Any:
        from pydantic import ValidationError

        try:
            return _adapter(annotation).validate_python(_loosened(annotation, raw), strict=True)
        except ValidationError as error:
            inner = error.errors()[0]["loc"]
            entry = bool(inner) and typing.get_origin(annotation) is tuple
            wanted = _readable(typing.get_args(annotation)[0] if entry else annotation)
            wanted += " or null" if optional and not entry else ""
            spot = where + "".join(f"[{part}]" for part in inner if isinstance(part, int))
            found = error.errors()[0]["input"] if inner else raw
            raise BadInput(f"{self.place(spot)} is {found!r}, expected {wanted}") from None


def describe(value: Any) -> Any:
    """Return the plain value from which `Builder` builds `value` again: names for parts, keys for fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        is_part = any(isinstance(value, family) for family in _classes()) or _listed(type(value))
        return {"name": name_of(type(value)), **plain} if is_part else plain
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # A part given as a Python object that is no dataclass cannot be built again from a file; its repr tells it apart.
    return {"object": repr(value)}


# A suite builds thousands of courses, whose fields have a few dozen types.
_hints: Any = functools.cache(typing.get_type_hints)


@functools.cache
def _adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _classes() -> list[type[Any]]:
    return [family for family in FAMILIES if not getattr(family, "_is_protocol", False)]


def _listed(kind: type[Any]) -> bool:
    return any(issubclass(kind, listed) for family in FAMILIES.values() for listed in family.table.values())


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not _MISSING else field.default


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return what a file can describe of a union, and whether None is in it."""
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    rest = [option for option in typing.get_args(annotation) if option is not types.NoneType]
    described = [option for option in rest if dataclasses.is_dataclass(option)] or rest
    found = described[0] if len(described) == 1 else Union[tuple(described)]  # noqa: UP007 (made at run time)
    return found, len(rest) < len(typing.get_args(annotation))


def _loosened(annotation: Any, raw: Any) -> Any:
    # YAML reads 1e-3 as a string and has no tuples.
    if annotation is float and isinstance(raw, str):
        try:
            return float(raw)
        except ValueError:
            return raw
    if typing.get_origin(annotation) is tuple and isinstance(raw, list | tuple):
        inner = typing.get_args(annotation)[0]
        return tuple(_loosened(inner, item) for item in raw)
    return raw


def _readable(annotation: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if annotation in names:
        return names[annotation]
    if typing.get_origin(annotation) is tuple:
        return f"a list of entries that are each {_readable(typing.get_args(annotation)[0])}"
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_readable(option) for option in typing.get_args(annotation))
    return str(annotation)
