"""Who sees what: read off an algorithm's record types and off the asks in its server half."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, cast

from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import Algorithm, EvaluateModel, KeepBest, Request, reply_type
from isthmus.core.record import Params, Record, State, args_of, field_types, nested_records


@dataclass(frozen=True)
class Exchange:
    """One kind of exchange: what the server sends, what a client answers, and how much of that the server sees."""

    request: str
    sent: dict[str, str]  # field -> what it holds
    reply: str
    answered: dict[str, str]  # field -> what it reveals
    # By contract, what the algorithm looks at: "each client's", "only the fold", or "nothing but a receipt".
    server_sees: str
    # On the wire, what each side's process receives, whatever its program looks at.
    wire_down: str = "the request as it is"
    wire_up: str = "each client's reply as it is"
    params_down: bool = False  # whether a request has tensors by name
    params_up: bool = False  # whether a reply has
    describes: bool = False  # whether replies are the same whatever data a client has
    rows: tuple[str, ...] = ()  # fields that have a row for each node of a client
    joins: tuple[str, ...] = ()  # the two fields that say which of its nodes a client has edges between


def exposure(algorithm: type[Algorithm[Any]], guards: Sequence[Guard] = ()) -> list[Exchange]:
    """Return the exchanges of an algorithm in the order in which its class declares the handlers, evaluation last.

    Guards change what is seen; each says how.
    """
    folded = _folded_requests(algorithm)
    found = []
    for request in sorted(algorithm.handlers(), key=lambda kind: kind in (EvaluateModel, KeepBest)):
        reply = reply_type(request)
        sees = "only the fold" if request.__name__ in folded else "each client's"
        if not field_types(reply):
            sees = "nothing but a receipt"
        docs = field_docs(request), field_docs(reply)
        exchange = Exchange(
            request.__name__,
            docs[0],
            reply.__name__,
            docs[1],
            sees,
            params_down=_names_tensors(request),
            params_up=_names_tensors(reply),
            describes=request.describes,
            rows=fields_with_rows(reply),
            joins=getattr(reply, "joins", ()),
        )
        for guard in guards:
            exchange = guard.shown(exchange)
        found.append(exchange)
    return found


def fields_with_rows(kind: type[Record]) -> tuple[str, ...]:
    """Return the names of the fields of a record, and of those in it, that have a row for each of a client's nodes.

    A record says so by `row_fields`: by name, whether a row holds probabilities.
    """
    found = tuple(getattr(kind, "row_fields", {}))
    inner = (part for annotation in field_types(kind).values() for part in nested_records(annotation))
    return found + tuple(name for part in inner for name in fields_with_rows(part))


def _names_tensors(annotation: Any) -> bool:
    """Whether what has a record type, or any other annotation, may hold tensors in a dict."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return any(map(_names_tensors, field_types(annotation).values()))
    return annotation in (Params, State) or any(map(_names_tensors, args_of(annotation)))


def field_docs(kind: type[Record]) -> dict[str, str]:
    """Return the docstring of each field of a record: the string that stands below it; empty where there is none."""
    docs = dict.fromkeys(field_types(kind), "")
    for owner in reversed(kind.__mro__):
        if not (issubclass(owner, Record) and owner not in (Record, Request)):
            continue
        for statement, below in pairwise(_class_body(cast(Hashable, owner))):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _text(below)
                if text is not None and statement.target.id in docs:
                    docs[statement.target.id] = text
    return docs


def _folded_requests(algorithm: type[Algorithm[Any]]) -> set[str]:
    """Return what goes out by `ask_folded`, and by no plain `ask`, in the server half."""
    asked: dict[str, set[str]] = {"ask": set(), "ask_folded": set()}
    for owner in algorithm.__mro__:
        if owner is Algorithm or not issubclass(owner, Algorithm):
            continue
        for call in ast.walk(ast.Module(_class_body(cast(Hashable, owner)), [])):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in asked:
                asked[call.func.attr] |= {inner.id for inner in ast.walk(call) if isinstance(inner, ast.Name)}
    return asked["ask_folded"] - asked["ask"]


@cache
def _class_body(kind: Hashable) -> list[ast.stmt]:
    try:
        source = textwrap.dedent(inspect.getsource(cast(type, kind)))
    except (OSError, TypeError):  # a class typed into a console has no source
        return []
    definition = ast.parse(source).body[0]
    return definition.body if isinstance(definition, ast.ClassDef) else []


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else None
    return None
