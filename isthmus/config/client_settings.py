"""Settings of single clients: the course's algorithm, model or batching with other values in some fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isthmus.config.build import Builder, describe, stated
from isthmus.config.course import Course
from isthmus.config.merging import merge
from isthmus.core.errors import BadInput, nearest
from isthmus.core.protocol import Algorithm
from isthmus.learn.batching import Batching
from isthmus.models import ModelSpec
from isthmus.models.model import ModelFactory

# Keys of a client's settings that begin with one of these are about that part of the course, all others about the
# algorithm.
PARTS = ("model", "batching")
Change = tuple[list[str], Any]


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


def weaker(algorithm: Algorithm[Any], field: str, value: Any, least: Any) -> bool:
    """Whether a value of a field that protects protects less than another one; none at all is the weakest."""
    if value is None or least is None:
        return value is None and least is not None
    return bool(value < least) if type(algorithm).protects[field] == "more" else bool(value > least)


def own_algorithm(course: Course, client: str, allow_import: bool = True) -> Algorithm[Any] | None:
    """Return the algorithm with a client's own settings; None for a client that has none.

    Raises BadInput where these would protect the client less than the course does.
    """
    changes = [change for change in _changes(course, client) if change[0][0] not in PARTS]
    if not changes:
        return None
    where = f"client_settings.{client}"
    plain = merge({"algorithm": stated(course.algorithm)}, [(["algorithm", *path], value) for path, value in changes])
    built = Builder(where, allow_import).build(Algorithm, plain["algorithm"], "algorithm", course.algorithm)
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
                f"{where}.{field} is {own!r}, which protects this client less than the course's {common!r}; settings "
                "of single clients may only protect more"
            )
    return built


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
    plain = merge({"model": stated(course.model, ModelSpec())}, changes, where)
    built = Builder(where, allow_import).build(ModelSpec, plain["model"], "model", course.model)
    assert isinstance(built, ModelSpec)
    return built


def own_batching(course: Course, client: str, allow_import: bool = True) -> Batching:
    """Return how a client makes batches; raises BadInput where the task cannot make them so."""
    changes = _about(course, client, "batching")
    where = f"client_settings.{client}"
    built: Any = course.batching
    if changes:
        plain = merge({"batching": stated(course.batching)}, changes, where)
        built = Builder(where, allow_import).build(Batching, plain["batching"], "batching", course.batching)
    assert isinstance(built, Batching)
    problem = course.task.batching_problem(built)
    if problem:
        raise BadInput(f"{where}: {problem}" if changes else problem)
    return built


def _about(course: Course, client: str | None, part: str) -> list[Change]:
    return [] if client is None else [change for change in _changes(course, client) if change[0][0] == part]


def _changes(course: Course, client: str) -> list[Change]:
    """Return a client's settings as paths and values; what is said of a part, in however many levels, one by one."""
    found: list[Change] = []
    for key, value in course.client_settings.get(client, {}).items():
        path = key.split(".")
        found += _leaves(path, value) if path[0] in PARTS else [(path, value)]
    return found


def _leaves(path: list[str], value: Any) -> Iterator[Change]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves([*path, str(key)], inner)
    else:
        yield path, describe(value) if dataclasses.is_dataclass(value) and len(path) > 1 else value
