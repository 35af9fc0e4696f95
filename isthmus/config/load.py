"""Courses from YAML files, and changes to them, by `key=value` words or for single clients; and back to YAML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from isthmus.config.build import Builder, Renamed, describe, stated
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, nearest
from isthmus.core.guards.guard import Guard
from isthmus.core.outside import parse_yaml, quoted, read_yaml
from isthmus.core.protocol import Algorithm
from isthmus.learn.batching import Batching
from isthmus.models import ModelSpec
from isthmus.models.model import ModelFactory

Change = tuple[list[str], Any]
# A run may go on longer, be watched differently or saved more often and still be the same course.
NOT_IN_DIGEST = ("rounds", "checkpoint_every", "device", "sinks", "monitors", "monitor_every")


def load_course(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    *,
    allow_import: bool = True,
    named: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Course:
    """Return the course in a YAML file (or mapping, or the default one), changed by `key=value` words.

    Errors of a mapping call it `named`, the file that it stands in.
    `say` hears of each part that the words switch: which of its fields are kept, which are dropped, and which have
    another value because the new part's default is another.
    """
    name = str(source) if isinstance(source, str | Path) else named
    raw = read_yaml(Path(name)) if isinstance(source, str | Path) else dict(source or {})
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


def _changed(changes: Iterable[Change]) -> frozenset[str]:
    """Return the paths of all leaves that changes set."""
    return frozenset(".".join(leaf) for path, value in changes for leaf, _ in leaf_values(value, *path))


def parse_override(word: str) -> Change:
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
    found = {**plain, "algorithm": algorithm}
    if not found.get("guards", True):
        del found["guards"]
    if not found.get("server_share", True):
        del found["server_share"]
    if plain.get("dataset", {}).get("match_ids") == "secret":
        found["dataset"] = {key: value for key, value in plain["dataset"].items() if key != "match_ids"}
    if plain.get("sampling", {}).get("name") == "uniform":
        found["sampling"] = {key: value for key, value in plain["sampling"].items() if key != "name"}
    return found


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that two courses, as plain values, differ in, with both values; None for one that lacks it."""
    both = isinstance(before, dict) and isinstance(now, dict)
    if both and before.get("name") == now.get("name"):
        for key in {**before, **now}:
            yield from differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif _canonical(before) != _canonical(now):
        parts = both and "name" in before and "name" in now
        yield (f"{path}.name", before["name"], now["name"]) if parts else (path, before, now)


def _canonical(value: Any) -> Any:
    # 1 and 1.0 are the same setting: Python code may write the one, and a YAML file gives back the other.
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# ---- changes: what is said of a key, whether in one level or in several, joins what was said before

# Keys whose entries have names of the user's own: given whole, they are whole.
WHOLE = (("client_settings",),)


def merge(raw: Mapping[str, Any], changes: Iterable[Change], source: str = "") -> dict[str, Any]:
    """Return `raw` with each change applied at its path.

    A mapping joins the one that is there, key by key; a name given in short (`algorithm: fedavg`) is the part's name.
    Where a part gets another name, the keys that it had are `carried`: `Builder` keeps those that the new part has too.
    """
    result: dict[str, Any] = copied(raw)
    for path, value in sorted(changes, key=_rank):
        _set(result, path, value, (), source)
    return result


def nested(raw: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Return a mapping whose keys may be paths (`algorithm.local_steps`) with a level for each part of them."""
    return merge({}, [(str(key).split("."), value) for key, value in raw.items()], source)


def leaf_paths(raw: Any) -> Iterator[str]:
    """Yield the path of every value that is no mapping."""
    return (".".join(path) for path, _ in leaf_values(raw))


def leaf_values(raw: Any, *path: str) -> Iterator[tuple[list[str], Any]]:
    """Yield every value that is no mapping, with its path, which begins with `path`."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from leaf_values(value, *path, str(key))
    else:
        yield list(path), raw


def copied(value: Any) -> Any:
    """Return plain values that can be changed without changing the given ones."""
    if isinstance(value, Renamed):
        return Renamed({key: copied(item) for key, item in value.items()}, value.former, value.carried)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list | tuple) else value


def _rank(change: Change) -> tuple[int, bool]:
    # Wholes and names before fields, so that the order of the words on the command line does not matter.
    path, _ = change
    is_name = path[-1] == "name"
    return len(path) - is_name, is_name


def _set(place: dict[str, Any], path: list[str], value: Any, above: tuple[str, ...], source: str) -> dict[str, Any]:
    """Change one key in a place and return the place, which is another object if its part gets another name."""
    key, rest = path[0], path[1:]
    if key == "name" and not rest and above:
        return _with_name(place, value)
    where = (*above, key)
    before = place.get(key)
    if rest:
        place[key] = _set(_opened(before, where, rest, source), rest, value, where, source)
    else:
        place[key] = _joined(before, value, where, source)
    if isinstance(place, Renamed):
        place.carried.discard(key)
    return place


def _with_name(place: dict[str, Any], name: Any) -> dict[str, Any]:
    # Of a part that was renamed before, what it was first still counts.
    if isinstance(place, Renamed) or place.get("name") == name or not place:
        place["name"] = name
        return place
    return Renamed({**place, "name": name}, place, (key for key in place if key != "name"))


def _opened(before: Any, where: tuple[str, ...], rest: list[str], source: str) -> dict[str, Any]:
    if before is None:
        return {}
    if isinstance(before, str):
        return {"name": before}
    if not isinstance(before, dict):
        path = ".".join((*where, *rest))
        raise BadInput(f"{source or 'command line'}: {'.'.join(where)} is {quoted(before)}; {path} cannot be set in it")
    return before


def _joined(before: Any, value: Any, where: tuple[str, ...], source: str) -> Any:
    if isinstance(before, dict) and isinstance(value, str):
        return _with_name(before, value)
    if isinstance(before, str) and isinstance(value, Mapping):
        before = {"name": before}
    if not isinstance(before, dict) or not isinstance(value, Mapping) or where in WHOLE:
        return copied(value)
    result: dict[str, Any] = before
    for key in sorted(value, key=lambda key: key != "name"):
        result = _set(result, [str(key)], value[key], where, source)
    return result


# ---- settings of single clients: the course's algorithm, model or batching with other values in some fields

# Keys of a client's settings that begin with one of these are about that part of the course, all others about the
# algorithm.
PARTS = ("model", "batching")


def check_client_settings(course: Course, clients: Iterable[str]) -> None:
    """Raise BadInput when the course has settings for a client that there is not, or settings that cannot be."""
    known = tuple(clients)
    for client in course.client_settings:
        if client not in known:
            raise BadInput(
                f"client_settings has {client!r}, which is no client of the course; {nearest(client, known)}"
            )
        own_algorithm(course, client)
        own_model(course, client)
        own_batching(course, client)


def weaker(part: Algorithm[Any] | Guard, field: str, value: Any, least: Any) -> bool:
    """Whether a value of a field that protects protects less than another one; none at all, or no, is the weakest."""
    absent, none_asked = (each is None or each is False for each in (value, least))
    if absent or none_asked:
        return absent and not none_asked
    # Said so that what cannot be compared, as NaN, is weaker.
    return not (value >= least if type(part).protects[field] == "more" else value <= least)


def own_algorithm(course: Course, client: str, allow_import: bool = True) -> Algorithm[Any] | None:
    """Return the algorithm with a client's own settings; None for a client that has none.

    Raises BadInput where these would protect the client less than the course does.
    """
    if not _about(course, client, "algorithm"):
        return None
    where = f"client_settings.{client}"
    built = _with_settings(course, client, "algorithm", Algorithm, allow_import)
    if type(built) is not type(course.algorithm):
        raise BadInput(
            f"{where} makes the algorithm another one, {type(built).__name__}; a client may have "
            f"other values in the fields of {type(course.algorithm).__name__} only"
        )
    assert isinstance(built, Algorithm)
    for field in type(built).protects:
        own, common = getattr(built, field), getattr(course.algorithm, field)
        if weaker(built, field, own, common):
            raise BadInput(
                f"{where}.{field} is {quoted(own)}, which protects this client less than the course's {common!r}; "
                "settings of single clients may only protect more"
            )
    _check_beside_guards(course, built, where)
    return built


def _check_beside_guards(course: Course, own: Algorithm[Any], where: str) -> None:
    """Raise BadInput where a guard cannot stand beside the algorithm as a client has it."""
    if not course.guards:
        return
    try:
        dataclasses.replace(course, algorithm=own, client_settings={})
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from None


def clients_with_own_models(course: Course) -> tuple[str, ...]:
    """Return the clients whose settings change the model."""
    return tuple(client for client in course.client_settings if _about(course, client, "model"))


def own_model(course: Course, client: str | None, allow_import: bool = True) -> ModelFactory:
    """Return what a client's model is built from: the course's model, with the client's own settings."""
    changes = _about(course, client, "model")
    if not changes:
        return course.model
    whole = changes[-1][1] if changes[-1][0] == ["model"] else None
    if whole is not None and not isinstance(whole, str | int | float | list | tuple):
        model: ModelFactory = whole  # given as a Python object
        return model
    where = f"client_settings.{client}"
    if not isinstance(course.model, ModelSpec):
        raise BadInput(
            f"{where} changes parts of the model, but the course's is {type(course.model).__name__}, an object without "
            "named parts; give the client's whole model as an object too"
        )
    built = _with_settings(course, client, "model", ModelSpec, allow_import)
    assert isinstance(built, ModelSpec)
    return built


def own_batching(course: Course, client: str, allow_import: bool = True) -> Batching:
    """Return how a client makes batches; raises BadInput where the task cannot make them so."""
    own = bool(_about(course, client, "batching"))
    built = _with_settings(course, client, "batching", Batching, allow_import) if own else course.batching
    assert isinstance(built, Batching)
    problem = course.task.batching_problem(built)
    if problem:
        raise BadInput(f"client_settings.{client}: {problem}" if own else problem)
    return built


def _with_settings(course: Course, client: str | None, part: str, kind: type[Any], allow_import: bool) -> Any:
    """Return a part of the course with a client's own settings."""
    builder, common = Builder(f"client_settings.{client}", allow_import), getattr(course, part)
    changed = merge({part: stated(common)}, _about(course, client, part), builder.source)
    return builder.build(kind, changed[part], part, common)


def _about(course: Course, client: str | None, part: str) -> list[Change]:
    """Return a client's settings of a part as paths and values; what is said in several levels, one by one."""
    found: list[Change] = []
    settings = {} if client is None else course.client_settings.get(client, {})
    for key, value in settings.items():
        path = key.split(".")
        found += leaf_values(value, *path) if path[0] in PARTS else [(["algorithm", *path], value)]
    # A whole part may be an object, one within a part is described.
    return [
        (path, describe(value) if part in PARTS and len(path) > 1 and dataclasses.is_dataclass(value) else value)
        for path, value in found
        if path[0] == part
    ]
