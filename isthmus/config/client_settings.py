"""Hyper-parameters of single clients: the course's algorithm with other values in some fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from isthmus.config.build import Builder, describe
from isthmus.config.course import Course
from isthmus.config.load import merge
from isthmus.core.errors import BadInput, nearest
from isthmus.core.protocol import Algorithm


def check_client_settings(course: Course, clients: Iterable[str]) -> None:
    """Raise BadInput when the course has settings for a client that there is not, or settings that cannot be."""
    known = tuple(clients)
    for client in course.client_settings:
        if client not in known:
            raise BadInput(
                f"client_settings has {client!r}, which is no client of the course; {nearest(client, known)}"
            )
        own_algorithm(course, client)


def own_algorithm(course: Course, client: str) -> Algorithm[Any] | None:
    """Return the algorithm with a client's own settings; None for a client that has none."""
    settings = course.client_settings.get(client)
    if not settings:
        return None
    changes = [(key.split("."), value) for key, value in settings.items()]
    plain = merge(describe(course.algorithm), changes, f"client_settings.{client}")
    built = Builder(f"client_settings.{client}").build(Algorithm, plain, "algorithm", course.algorithm)
    if type(built) is not type(course.algorithm):
        raise BadInput(
            f"client_settings.{client} makes the algorithm another one, {type(built).__name__}; a client may have "
            f"other values in the fields of {type(course.algorithm).__name__} only"
        )
    assert isinstance(built, Algorithm)
    return built
