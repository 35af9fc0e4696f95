"""From plain values to frozen dataclasses and back, with errors that say where and what would do."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Union

from isthmus.config.registry import FAMILIES, Family, find_part, known_names, name_in_none
from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import quoted

_MISSING = dataclasses.MISSING


class Renamed(dict[str, Any]):
    """The keys of a part whose name was changed.

    Fields:
        former:  its keys as they were before
        carried: those among its keys that were said of the former part; the new one has them if it can
    """

    def __init__(self, place: Mapping[str, Any], former: Mapping[str, Any], carried: Iterable[str]) -> None:
        super().__init__(place)
        self.former, self.carried = dict(former), set(carried)


@dataclasses.dataclass(frozen=True)
class Renaming:
    """A part that got another name, and what became of its fields.

    Fields:
        kept:     fields that were set before and are set now
        dropped:  fields that were set before and are not, each with the reason
        defaults: fields of both that nobody sets and that the new part has another value for: the value now, and before
    """

    where: str
    old: str
    new: str
    kept: tuple[str, ...]
    dropped: Mapping[str, str]
    defaults: Mapping[str, tuple[Any, Any]]

    def __str__(self) -> str:
        told = [f"kept {', '.join(self.kept)}"] if self.kept else []
        told += [f"dropped {field}: {why}" for field, why in self.dropped.items()]
        for field, (now, before) in self.defaults.items():
            told.append(f"{field} is {brief(now)} by default, with {self.old} it was {brief(before)}")
        return f"{self.where}.name is {self.new!r} in place of {self.old!r}: {'; '.join(told)}"

    def losses(self) -> list[str]:
        """Return a line for each field that was set and is not there any more."""
        return [f"{self.where}.{field} is dropped with {self.new}: {why}" for field, why in self.dropped.items()]


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds values from plain ones; `source` is the file or command line that errors name."""

    source: str = ""
    allow_import: bool = True
    changed: frozenset[str] = frozenset()  # paths of what overrides say, so that a part they switch is told
    renamings: list[Renaming] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def place(self, where: str) -> str:
        """Return how an error names a place."""
        return ": ".join(part for part in (self.source, where) if part)

    @contextmanager
    def placed(self, where: str) -> Iterator[None]:
        """Let what a constructor or a check says of wrong values name the place that they are from."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise BadInput(f"{self.place(where)}: {error}") from None

    def build(self, annotation: Any, raw: Any, where: str, default: Any = None, wanted: str = "") -> Any:
        """Return the value of type `annotation` that `raw` describes; a part not given keeps what `default` has.

        `wanted` says in words what is expected, where the annotation does not say it well.
        """
        annotation, optional = _without_none(annotation)
        default = None if default is _MISSING else default
        if raw is None and optional:
            return None
        if _is_instance(raw):
            return raw  # a part given as a Python object
        origin = typing.get_origin(annotation) or annotation
        if origin in FAMILIES:
            return self._member(origin, raw, where, default)
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            return self.fields(annotation, self._mapping(raw, where), where, default)
        if _holds_records(annotation):
            return self._entries(annotation, raw, where, wanted)
        return self._leaf(annotation, raw, where, optional, wanted)

    def _member(self, origin: Any, raw: Any, where: str, default: Any) -> Any:
        part = self._part(FAMILIES[origin], raw, where, default)
        if origin in _classes() and not isinstance(part, origin):
            raise BadInput(f"{self.place(where)}.name is {name_of(type(part))!r}, which is no {origin.__name__}")
        return part

    def _entries(self, annotation: Any, raw: Any, where: str, wanted: str) -> Any:
        """Return a list or a mapping of dataclasses."""
        inner, listed = typing.get_args(annotation), typing.get_origin(annotation) is tuple
        if listed and isinstance(raw, list | tuple):
            return tuple(self.build(inner[0], item, f"entry {i} of {where}") for i, item in enumerate(raw, start=1))
        if not listed and isinstance(raw, Mapping):
            return {str(key): self.build(inner[1], item, f"{where}.{key}") for key, item in raw.items()}
        raise BadInput(f"{self.place(where)} is {quoted(raw)}, expected {wanted or _readable(annotation)}")

    def fields(self, kind: type[Any], raw: Mapping[str, Any], where: str, default: Any = None) -> Any:
        """Return a dataclass with the fields in `raw`; the others come from a `default` of the class, else from it.

        A field's metadata may say in words what is `expected`, and that it takes the `rest`: keys that are no field's.
        """
        hints, known = _hints(kind), _settable(kind)
        prefix = f"{where}." if where else ""
        raw = self._with_rest(known, raw, prefix)
        values: dict[str, Any] = {}
        for name, field in known.items():
            before = getattr(default, name) if type(default) is kind else _default_of(field)
            if name in raw:
                expected = field.metadata.get("expected", "")
                values[name] = self.build(hints[name], raw[name], prefix + name, before, expected)
            elif before is not _MISSING:
                values[name] = before
            else:
                raise BadInput(f"{self.place(prefix + name)} is missing; give it a value")
        with self.placed(where):
            return kind(**values)

    def _with_rest(self, known: Mapping[str, Any], raw: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
        """Return keys that are all fields: the others are together under the field that takes the rest."""
        rest = next((name for name, field in known.items() if field.metadata.get("rest")), None)
        others = {key: value for key, value in raw.items() if key not in known or key == rest}
        if rest is not None:
            return {**{key: value for key, value in raw.items() if key not in others}, rest: others}
        for key in others:
            raise BadInput(f"{self.place(prefix + str(key))} is not a known key; {nearest(str(key), known)}")
        return raw

    def _part(self, family: Family, raw: Any, where: str, default: Any) -> Any:
        given = {"name": raw} if isinstance(raw, str) else dict(self._mapping(raw, where))
        name = given.pop("name", None)
        if name is None and default is None:
            raise BadInput(f"{self.place(where)}.name is missing; known: {', '.join(sorted(known_names(family)))}")
        name = name or name_of(type(default))
        if not isinstance(name, str):
            raise BadInput(f"{self.place(where)}.name is {quoted(name)}, expected a name")
        kind = find_part(family, name, f"{self.place(where)}.name", self.allow_import)
        if not dataclasses.is_dataclass(kind):
            raise BadInput(f"{self.place(where)}.name is {name!r}, which is not a dataclass with fields to set")
        if isinstance(raw, Renamed) or not self.changed.isdisjoint((where, f"{where}.name")):
            return self._switched(family, kind, given, raw, where, default)
        return self.fields(kind, given, where, default)

    # ---- a part in place of another

    def _switched(
        self, family: Family, kind: type[Any], given: Mapping[str, Any], raw: Any, where: str, default: Any
    ) -> Any:
        """Return a part that takes the place of another, and take down what became of the other's fields."""
        former, carried = (raw.former, raw.carried & given.keys()) if isinstance(raw, Renamed) else ({}, set())
        old_name, old, before = self._former(family, former, where, default)
        part, dropped = self._with_carried(kind, given, carried, old, where, default)
        kept = tuple(f.name for f in dataclasses.fields(part) if f.name in carried - dropped.keys())
        defaults = {} if before is None else dict(_by_default(describe(part), describe(before), given))
        name = name_of(kind)
        if name != old_name and (kept or dropped or defaults):
            self.renamings.append(Renaming(where, old_name, name, kept, dropped, defaults))
        return part

    def _former(
        self, family: Family, former: Mapping[str, Any], where: str, default: Any
    ) -> tuple[str, type[Any] | None, Any]:
        """Return name and class of the part that another takes the place of, and the part where it is comparable."""
        name = former.get("name")
        if name is None and default is None:
            return "", None, None
        try:
            old = type(default) if name is None else find_part(family, str(name), where, self.allow_import)
        except BadInput:
            return str(name), None, None
        name = name_of(old) if name is None else str(name)
        # A dataset's own numbers are no settings of a method, and nobody expects another dataset to have the same.
        if family.name == "datasets":
            return name, old, None
        try:
            return name, old, self._aside()._part(family, dict(former), where, default)
        except BadInput:
            return name, old, None

    def _with_carried(
        self, kind: type[Any], given: Mapping[str, Any], carried: set[str], old: Any, where: str, default: Any
    ) -> tuple[Any, dict[str, str]]:
        """Return the new part with as many of the carried fields as it can have, and why it has not the others."""
        # What was wrong for the old part already is a mistake, and told as one.
        wrong = {} if old is None else self._problems(old, carried, given, where)
        right = [key for key in sorted(carried) if key not in wrong]
        dropped = self._problems(kind, right, given, where)
        taken = {key: value for key, value in given.items() if key not in dropped}
        try:
            return self.fields(kind, taken, where, default), dropped
        except BadInput as error:
            # Each field is fine by itself, and they do not go together, or not with the new part.
            for key in filter(taken.__contains__, right):
                rest = {other: value for other, value in taken.items() if other != key}
                with suppress(BadInput):
                    why = str(error).removeprefix(f"{self.source}: ")
                    return self.fields(kind, rest, where, default), {**dropped, key: why}
            raise

    def _problems(self, kind: type[Any], keys: Iterable[str], given: Mapping[str, Any], where: str) -> dict[str, str]:
        """Return why a part of a kind cannot have the given values, of those that it cannot have."""
        known = _settable(kind) if dataclasses.is_dataclass(kind) else {}
        found: dict[str, str] = {}
        for key in keys:
            if key not in known:
                found[key] = f"{name_of(kind)} has no such field"
                continue
            try:
                self._aside().build(_hints(kind)[key], given[key], f"{where}.{key}", _default_of(known[key]))
            except BadInput as error:
                found[key] = str(error)
        return found

    def _aside(self) -> Builder:
        """Return a builder of the same kind that tells nothing."""
        return dataclasses.replace(self, source="", changed=frozenset(), renamings=[])

    def _mapping(self, raw: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            raise BadInput(f"{self.place(where)} is {quoted(raw)}, expected keys and values")
        return raw

    def _leaf(self, annotation: Any, raw: Any, where: str, optional: bool, told: str = "") -> Any:
        from pydantic import ValidationError

        try:
            return _adapter(annotation).validate_python(_loosened(annotation, raw), strict=True)
        except ValidationError as error:
            inner = error.errors()[0]["loc"]
            entry = bool(inner) and typing.get_origin(annotation) is tuple
            wanted = told or _readable(typing.get_args(annotation)[0] if entry else annotation)
            wanted += " or null" if optional and not entry else ""
            spot = where + _path_within(inner, keyed=typing.get_origin(annotation) in (dict, Mapping))
            found = error.errors()[0]["input"] if inner else raw
            raise BadInput(f"{self.place(spot)} is {quoted(found)}, expected {wanted}") from None


def _path_within(parts: Iterable[int | str], keyed: bool) -> str:
    """Return where in a value pydantic found something; its words are keys if the value is `keyed`, else types."""
    told = (part for part in parts if keyed or isinstance(part, int))
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in told)


def name_of(kind: type[Any]) -> str:
    """Return the name by which `find_part` finds a class."""
    listed = (pair for family in FAMILIES.values() for pair in family.table.items())
    return next((name for name, known in listed if known is kind), "") or name_in_none(kind)


def describe(value: Any) -> Any:
    """Return the plain value from which `Builder` builds `value` again: names for parts, keys for fields."""
    if _is_instance(value):
        plain = {name: describe(getattr(value, name)) for name in _settable(type(value))}
        return {"name": name_of(type(value)), **plain} if _is_part(value) else plain
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # A part given as a Python object that is no dataclass cannot be built again from a file; its repr tells it apart.
    return {"object": repr(value)}


def stated(value: Any, default: Any = None) -> Any:
    """Return what is described of a value beyond `default`, or beyond the defaults of its own class."""
    if not _is_instance(value):
        return describe(value)
    described = describe(value)
    plain = {"name": described["name"]} if "name" in described else {}
    for name, field in _settable(type(value)).items():
        before = getattr(default, name) if type(default) is type(value) else _default_of(field)
        if getattr(value, name) != before:
            plain[name] = stated(getattr(value, name), before)
    return plain


def brief(value: Any) -> str:
    """Return a described value in few words: a part by its name and its fields in brackets."""
    if isinstance(value, Mapping):
        fields = ", ".join(f"{key}={brief(item)}" for key, item in value.items() if key != "name")
        name = str(value.get("name", ""))
        return f"{name}({fields})" if fields or not name else name
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(brief, value))}]"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _by_default(
    now: Mapping[str, Any], before: Mapping[str, Any], given: Any, above: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what two described parts both have and differ in, of what nobody gave: the path, and both values."""
    given = given if isinstance(given, Mapping) else {}
    for key in _differing(now, before):
        path, pair = f"{above}{key}", (now[key], before[key])
        if not all(isinstance(value, Mapping) for value in pair):
            if key not in given:
                yield path, pair
        elif pair[0].get("name") == pair[1].get("name"):
            yield from _by_default(*pair, given.get(key), f"{path}.")
        elif not isinstance(given.get(key, {}), str) and "name" not in given.get(key, {}):
            yield path, pair


def _differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    return [key for key in now if key in before and key != "name" and now[key] != before[key]]


# A suite builds thousands of courses, whose fields have a few dozen types.
_hints: Any = functools.cache(typing.get_type_hints)


@functools.cache
def _adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _is_instance(value: Any) -> bool:
    """Whether a value is a dataclass, and not the class of one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _settable(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass that can be given; metadata with `in_file` False keeps one to Python."""
    fields = (field for field in dataclasses.fields(kind) if field.init and field.metadata.get("in_file", True))
    return {field.name: field for field in fields}


def _holds_records(annotation: Any) -> bool:
    """Whether a type is a list or a mapping of dataclasses, at however many levels."""
    inside = typing.get_args(annotation) if typing.get_origin(annotation) in (tuple, dict, Mapping) else ()
    return any(dataclasses.is_dataclass(inner) or _holds_records(inner) for inner in inside)


def _classes() -> tuple[type[Any], ...]:
    return tuple(family for family in FAMILIES if not getattr(family, "_is_protocol", False))


def _is_part(value: Any) -> bool:
    return isinstance(value, (*_classes(), *(kind for family in FAMILIES.values() for kind in family.table.values())))


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
        with suppress(ValueError):
            return float(raw)
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
    if typing.get_origin(annotation) in (dict, Mapping) or dataclasses.is_dataclass(annotation):
        return "keys and values"
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_readable(option) for option in typing.get_args(annotation))
    return str(annotation)
