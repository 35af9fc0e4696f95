"""Files and texts: written whole or not at all, bounded and checked when they are read.

Files of ours are sealed with a checksum, and an error always names its file.

Text that another party wrote, whatever comes over the wire and is shown, stored or put into an error, passes `foreign`
once, where it is taken in. What it returns is still plain text and never markup: print it with `markup=False`, escape
it in a page.

Of YAML, courses, policies, schemas and suites need numbers, words, lists and keys. Anchors and aliases (a few hundred
bytes that become gigabytes), tags, merge keys, several documents, what is nested too deep or has too many values, and a
key that stands twice are refused. A date is taken as text.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml

from isthmus.core.errors import BadInput, IsthmusError

# Where data that does not ship with the package is looked for, and kept.
DATA_VARIABLE = "ISTHMUS_DATA"


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder given, else the one that ISTHMUS_DATA names, else the user's cache folder."""
    chosen = given or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isthmus"


# Before the content stands this mark, then the SHA-256 of the content.
SEAL = b"ISTHSEAL"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


class Damaged(IsthmusError):
    """A file holds something else than what was written to it."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of the operating system the file that they are about; a full disk says nothing of it by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place to write to; what was written there takes the place of the file in the end, or nothing does."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file whole or not at all; `mode`, of which the umask takes away, says who may read it from the start."""
    with replacing(path) as temporary:
        temporary.unlink(missing_ok=True)  # of an earlier process with our number, it would keep its mode
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def new_folder(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Give an empty folder to write to, beside the place that it takes in the end; or nothing is left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    temporary.mkdir(mode)
    try:
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_types(found: Any) -> None:
    """Raise ValueError where a field of a dataclass that was read from a file is not of its type."""
    for name, wanted in get_type_hints(type(found)).items():
        value, kind = getattr(found, name), get_origin(wanted) or wanted
        if not isinstance(value, (int, float) if kind is float else kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r}")


def sealed(content: bytes) -> bytes:
    """Return content with its checksum before it."""
    return SEAL + hashlib.sha256(content).digest() + content


def is_sealed(data: bytes) -> bool:
    """Whether data has a checksum; what was written before there were checksums has none."""
    return data.startswith(SEAL)


def unsealed(data: bytes) -> bytes:
    """Return sealed content; raise Damaged if it is not what was sealed."""
    if not is_sealed(data):
        raise Damaged(f"its first bytes are {data[: len(SEAL)]!r}, expected {SEAL!r}")
    if len(data) < SEAL_BYTES:
        raise Damaged(f"it ends after {len(data)} bytes, within its checksum")
    content = data[SEAL_BYTES:]
    if hashlib.sha256(content).digest() != data[len(SEAL) : SEAL_BYTES]:
        raise Damaged("its checksum is not that of its content: bytes were changed or are missing")
    return content


# ---- texts of others

# A sentence or two; what is longer was not written to be read.
MAX_TEXT = 500
# Names of parameters, sites, classes, splits and metrics, as they stand within a sentence.
MAX_NAME = 80
CUT = "..."


def printable(text: str) -> str:
    """Return a text with "?" in place of control characters, which a terminal might obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def foreign(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text from elsewhere as `printable` has it, on one line, and no longer than `limit`."""
    shown = printable(text[: limit + 1])
    return shown[: max(limit - len(CUT), 0)] + CUT if len(text) > limit else shown


def named(name: object) -> str:
    """Return the repr of a name from elsewhere, cut where it is longer than a name should be."""
    if not isinstance(name, str):
        return foreign(repr(name), 2 * MAX_NAME)
    return f"{name[:MAX_NAME]!r}{CUT}" if len(name) > MAX_NAME else repr(name)


def quoted(value: object) -> str:
    """Return the repr of a value that somebody wrote, cut where it is longer than a sentence or two."""
    return foreign(repr(value))


def some(names: Iterable[str], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"


# ---- YAML

MAX_CHARACTERS = 2**24
MAX_DEPTH = 32
MAX_VALUES = 10**6
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
# The C parser gives the same events, ten times as fast.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Scalars(yaml.SafeLoader):
    """Says what a plain scalar means, by the rules that `yaml.safe_load` has."""

    def __init__(self) -> None:
        super().__init__("")

    def value(self, event: yaml.ScalarEvent) -> Any:
        if not event.implicit[0]:
            return event.value  # quoted
        resolve: Any = self.resolve
        tag = resolve(yaml.ScalarNode, event.value, (True, False))
        if tag == _MERGE:
            raise _problem("merge keys (<<) are not allowed here", event)
        if tag not in _NUMBERS:
            return event.value
        try:
            return self.yaml_constructors[tag](self, yaml.ScalarNode(tag, event.value))
        except (ValueError, IndexError, OverflowError):
            raise _problem(f"{event.value[:40]!r} is no number", event) from None


def parse_yaml(text: str, what: str, *, max_characters: int = MAX_CHARACTERS) -> Any:
    """Return what a YAML text holds; raise BadInput, which names it as `what`, for all that is not plain."""
    if len(text) > max_characters:
        raise BadInput(f"{what} has {len(text)} characters, the limit is {max_characters}")
    try:
        return _Reader(text).whole()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise BadInput(f"{what}{line}: is not YAML: {str(problem)[:200]}") from None
    except ValueError as error:  # a character that no text can hold
        raise BadInput(f"{what}: is not YAML: {str(error)[:200]}") from None


def read_yaml(path: Path, *, max_characters: int = MAX_CHARACTERS) -> dict[str, Any]:
    """Return the keys and values in a YAML file; an empty one has none."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(max_characters + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInput(f"{path}: is not YAML: {error}") from None
    raw = parse_yaml(text, str(path), max_characters=max_characters)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: holds {type(raw).__name__} {str(raw)[:40]!r}, expected keys and values")
    return raw


def _problem(text: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


class _Reader:
    """Builds values from the parser's events, one by one: what is too deep or too much is never built."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_PARSER))
        self._scalars = _Scalars()
        self._left = MAX_VALUES

    def whole(self) -> Any:
        """Return the one document of the text; nothing when there is none."""
        value, number = None, 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                number += 1
                if number > 1:
                    raise _problem("there is more than one document", event)
                value = self._value(next(self._events), 0)
        return value

    def _value(self, event: yaml.Event, depth: int) -> Any:
        self._check(event, depth)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalars.value(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(depth))
        return self._mapping(depth)

    def _check(self, event: yaml.Event, depth: int) -> None:
        self._left -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _problem("anchors and aliases are not allowed here: they can grow without bound", event)
        if getattr(event, "tag", None) is not None:
            raise _problem(f"tags such as {str(event.tag)[:40]!r} are not allowed here", event)  # type: ignore[attr-defined]
        if depth > MAX_DEPTH:
            raise _problem(f"it is nested deeper than {MAX_DEPTH} levels", event)
        if self._left < 0:
            raise _problem(f"it has more than {MAX_VALUES} values", event)

    def _items(self, depth: int) -> Iterator[Any]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._value(event, depth + 1)

    def _mapping(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(event, yaml.ScalarEvent):
                raise _problem("a key is a list or has keys of its own; keys are plain words", event)
            if key in found:
                raise _problem(f"the key {str(key)[:60]!r} stands twice", event)
            found[key] = self._value(next(self._events), depth + 1)
        return found
