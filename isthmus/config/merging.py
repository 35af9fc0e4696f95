"""Changes to a course: what is said of a key, whether in one level or in several, joins what was said before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isthmus.core.errors import BadInput

Change = tuple[list[str], Any]
# Keys whose entries have names of the user's own: given whole, they are whole.
WHOLE = (("client_settings",),)


class Renamed(dict[str, Any]):
    """The keys of a part whose name was changed.

    Fields:
        former:  its keys as they were before
        carried: those among its keys that were said of the former part; the new one has them if it can
    """

    def __init__(self, place: Mapping[str, Any], former: Mapping[str, Any], carried: Iterable[str]) -> None:
        super().__init__(place)
        self.former, self.carried = dict(former), set(carried)


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


def leaf_paths(raw: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the path of every value that is no mapping."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from leaf_paths(value, (*path, str(key)))
    else:
        yield ".".join(path)


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
    others = {key for key in place if key != "name"}
    if isinstance(place, Renamed):
        place["name"] = name  # it was renamed before: what it was first still counts
        return place
    if place.get("name") == name or not place:
        place["name"] = name
        return place
    return Renamed({**place, "name": name}, place, others)


def _opened(before: Any, where: tuple[str, ...], rest: list[str], source: str) -> dict[str, Any]:
    if before is None:
        return {}
    if isinstance(before, str):
        return {"name": before}
    if not isinstance(before, dict):
        path = ".".join((*where, *rest))
        raise BadInput(f"{source or 'command line'}: {'.'.join(where)} is {before!r}; {path} cannot be set in it")
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
