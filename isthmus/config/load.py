"""Courses from YAML files and `key=value` words, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from isthmus.config.build import Builder, describe
from isthmus.config.course import Course
from isthmus.core.errors import BadInput

# A run may go on longer, be watched differently or saved more often and still be the same course.
NOT_IN_DIGEST = ("rounds", "checkpoint_every", "sinks", "monitors", "monitor_every")


def load_course(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Iterable[str] = (), *, allow_import: bool = True
) -> Course:
    """Return the course in a YAML file (or mapping, or the default one), changed by `key=value` words."""
    name = str(source) if isinstance(source, str | Path) else ""
    raw = read_yaml(Path(name)) if name else dict(source or {})  # type: ignore[arg-type]
    words = list(overrides)
    merged = merge(raw, [parse_override(word) for word in words], name)
    builder = Builder(name or ("command line" if words else ""), allow_import)
    course = builder.fields(Course, merged, "")
    assert isinstance(course, Course)
    return course


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no text, or a date like 2026-13-45
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{line}: is not YAML: {getattr(error, 'problem', error)}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: holds {type(raw).__name__} {str(raw)[:40]!r}, expected keys and values")
    return raw


def parse_override(word: str) -> tuple[list[str], Any]:
    """Return the key path and the value of a word like `algorithm.optimizer.lr=0.1`."""
    key, equals, text = word.partition("=")
    if not equals or not key or not all(part for part in key.split(".")):
        raise BadInput(f"command line: {word!r} is not of the form key=value, for example rounds=50")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise BadInput(f"command line: the value of {word!r} is not YAML") from None
    return key.split("."), value


def merge(raw: Mapping[str, Any], changes: Iterable[tuple[list[str], Any]], source: str = "") -> dict[str, Any]:
    """Return `raw` with each change applied at its path; a name given in short (`algorithm: fedavg`) stays the name."""
    result: dict[str, Any] = _copied(raw)
    # Wholes and names before fields, so that the order of the words on the command line does not matter.
    for path, value in sorted(changes, key=lambda change: len(change[0]) - (change[0][-1] == "name")):
        place = result
        for depth, key in enumerate(path[:-1]):
            inner = place.get(key)
            if isinstance(inner, str):
                inner = {"name": inner}
            elif inner is None:
                inner = {}
            elif not isinstance(inner, dict):
                where = ".".join(path[: depth + 1])
                raise BadInput(
                    f"{source or 'command line'}: {where} is {inner!r}; {'.'.join(path)} cannot be set in it"
                )
            place[key] = inner
            place = inner
        if path[-1] == "name" and place.get("name") not in (None, value):
            # Another part has other fields: those of the old one do not carry over.
            place.clear()
        place[path[-1]] = _copied(value)
    return result


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def course_to_dict(course: Course) -> dict[str, Any]:
    """Return the resolved course as plain values; `load_course` of them gives the same course."""
    plain = describe(course)
    assert isinstance(plain, dict)
    return plain


def course_to_yaml(course: Course) -> str:
    """Return the resolved course as YAML."""
    return yaml.safe_dump(course_to_dict(course), sort_keys=False, allow_unicode=True)


def course_digest(course: Course) -> str:
    """Return a short digest of everything that decides a course's rounds."""
    plain = {key: value for key, value in course_to_dict(course).items() if key not in NOT_IN_DIGEST}
    return hashlib.sha256(json.dumps(_canonical(plain), sort_keys=True).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    # 1 and 1.0 are the same setting: Python code may write the one, and a YAML file gives back the other.
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
