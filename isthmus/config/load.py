"""Courses from YAML files and `key=value` words, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from isthmus.config.build import Builder, describe
from isthmus.config.course import Course
from isthmus.config.merging import leaf_paths, merge
from isthmus.core.errors import BadInput
from isthmus.core.outside import parse_yaml, read_yaml

# A run may go on longer, be watched differently or saved more often and still be the same course.
NOT_IN_DIGEST = ("rounds", "checkpoint_every", "sinks", "monitors", "monitor_every")


def load_course(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    *,
    allow_import: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Course:
    """Return the course in a YAML file (or mapping, or the default one), changed by `key=value` words.

    `say` hears of each part that the words switch: which of its fields are kept, which are dropped, and which have
    another value because the new part's default is another.
    """
    name = str(source) if isinstance(source, str | Path) else ""
    raw = read_yaml(Path(name)) if name else dict(source or {})  # type: ignore[arg-type]
    words = list(overrides)
    changes = [parse_override(word) for word in words]
    merged = merge(raw, changes, name)
    builder = Builder(name or ("command line" if words else ""), allow_import, _changed(changes))
    course = builder.fields(Course, merged, "")
    for renaming in builder.renamings:
        say(str(renaming))
    assert isinstance(course, Course)
    if merged.get("num_clients", course.num_clients) != course.num_clients:  # it follows the folders
        raise BadInput(
            f"{builder.place('num_clients')} is {merged['num_clients']}, but dataset.paths has {course.num_clients} "
            "folders, each of them a client; leave num_clients out"
        )
    return course


def _changed(changes: Iterable[tuple[list[str], Any]]) -> frozenset[str]:
    """Return the paths of all leaves that changes set."""
    return frozenset(".".join((*path, leaf)).rstrip(".") for path, value in changes for leaf in leaf_paths(value))


def parse_override(word: str) -> tuple[list[str], Any]:
    """Return the key path and the value of a word like `algorithm.optimizer.lr=0.1`."""
    key, equals, text = word.partition("=")
    if not equals or not key or not all(part for part in key.split(".")):
        raise BadInput(f"command line: {word!r} is not of the form key=value, for example rounds=50")
    try:
        value = parse_yaml(text, "the value")
    except BadInput as error:
        raise BadInput(f"command line: the value of {word[:80]!r} is not YAML: {error}") from None
    return key.split("."), value


def course_to_dict(course: Course) -> dict[str, Any]:
    """Return the resolved course as plain values; `load_course` of them gives the same course."""
    plain = describe(course)
    assert isinstance(plain, dict)
    return plain


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def course_to_yaml(course: Course) -> str:
    """Return the resolved course as YAML."""
    # A value that stands in two places is written twice: what we write, we read, and aliases we do not.
    return yaml.dump(course_to_dict(course), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


def course_digest(course: Course) -> str:
    """Return a short digest of everything that decides a course's rounds."""
    plain = {key: value for key, value in as_before(course_to_dict(course)).items() if key not in NOT_IN_DIGEST}
    return hashlib.sha256(json.dumps(_canonical(plain), sort_keys=True).encode()).hexdigest()[:16]


def as_before(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a course as plain values without what courses of before could not say, where it is what they did.

    So names and digests of runs stay what they were.
    """
    algorithm = dict(plain["algorithm"])
    if algorithm.get("fold") == {"name": "weighted_mean"}:
        del algorithm["fold"]
    return {**plain, "algorithm": algorithm}


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that two courses, as plain values, differ in, with both values; None for one that lacks it."""
    if isinstance(before, dict) and isinstance(now, dict) and before.get("name") == now.get("name"):
        for key in {**before, **now}:
            yield from differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif _canonical(before) != _canonical(now):
        yield (f"{path}.name", before.get("name"), now.get("name")) if _parts(before, now) else (path, before, now)


def _parts(before: Any, now: Any) -> bool:
    return isinstance(before, dict) and isinstance(now, dict) and "name" in before and "name" in now


def _canonical(value: Any) -> Any:
    # 1 and 1.0 are the same setting: Python code may write the one, and a YAML file gives back the other.
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
