"""What checks compare: the floating-point tensors that most replies of an exchange have in the same form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus.core.folds import weight_of
from isthmus.core.protocol import Algorithm, Request, Requests, reply_type
from isthmus.core.record import Record, field_types, leaves, nested_records

# With fewer replies, nothing can be said of what most of them are like.
FEWEST = 3


def compared(replies: Mapping[str, Record], requests: Requests, kinds: Collection[str]) -> dict[str, Tensor]:
    """Return by client what its reply changes of what was sent, in one vector of double precision.

    Of replies to requests of these `kinds`, or to all, and with a weight that is not zero. Only tensors count that more
    than half of them have in one shape; who has not all of these, has a shorter vector.
    """
    found = {}
    for client, reply in replies.items():
        kind = type(requests[client]).__name__
        changes = changed(reply, requests[client]) if not kinds or kind in kinds else {}
        if changes and weight_of(reply) > 0.0:
            found[client] = changes
    forms = Counter((path, change.shape) for changes in found.values() for path, change in changes.items())
    usual = {form for form, number in forms.items() if 2 * number > len(found)}
    kept = {
        client: [change.reshape(-1) for path, change in changes.items() if (path, change.shape) in usual]
        for client, changes in found.items()
    }
    return {client: torch.cat(parts) for client, parts in kept.items() if parts}


def changed(reply: Record, request: Record) -> dict[str, Tensor]:
    """Return the floating-point tensors of a reply by path, each less what was sent in its place, if anything was."""
    sent = leaves(request)
    found = {}
    for path, leaf in leaves(reply).items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            start = sent.get(path)
            found[path] = leaf.double()
            if isinstance(start, Tensor) and start.shape == leaf.shape:
                found[path] = found[path] - start
    return found


def answered_kinds(algorithm: Algorithm[Any]) -> Iterator[tuple[type[Request[Any]], type[Record]]]:
    """Yield every kind of request that clients of a method answer, with the type of the reply."""
    for request in type(algorithm).handlers():
        yield request, reply_type(request)


def field_names(kind: type[Record]) -> Iterator[str]:
    """Yield the names of all fields of a record, and of those within it."""
    for name, annotation in field_types(kind).items():
        yield name
        for inner in nested_records(annotation):
            yield from field_names(inner)


def unknown_kind(kinds: Collection[str], algorithm: Algorithm[Any]) -> str:
    """Return what is wrong with names of requests that a guard is to look at; empty if the method has them all."""
    known = {request.__name__ for request, _ in answered_kinds(algorithm)}
    odd = next((name for name in kinds if name not in known), None)
    if odd is None:
        return ""
    return f"requests names {odd!r}, which {type(algorithm).__name__} does not send; it has {', '.join(sorted(known))}"


def too_few(course: Any, needed: int, what: str) -> str:
    """Return why a course's cohorts are too small for something; empty if they are not."""
    size = 1 if course.algorithm.pooled else course.sampling.least(course.num_clients)
    if size >= needed:
        return ""
    return (
        f"{what} needs {needed} replies, and a round may have but {size} of the {course.num_clients} clients: take "
        "more clients, or a larger share of them in every round"
    )
