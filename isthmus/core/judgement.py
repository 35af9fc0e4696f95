"""What a reply must be before anybody counts on it; what is not becomes a failure with the client's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.core.protocol import Failure, Request
from isthmus.core.record import Record, check_record, leaves, non_finite_leaf
from isthmus.core.stack import Each, Stack

# Numbers beyond these are no counts and no weights, and arithmetic on them would spoil the others' replies.
MAX_INTEGER = 2**63
MAX_WEIGHT = 1e15
# What is said of a model that came back with numbers that are none.
DIVERGED = ": diverged; a smaller algorithm.optimizer.lr, or dataset.normalize_features=true, may help"


def judged(client: str, reply: Record | Failure, request: Request[Any], expected: type[Record]) -> Record | Failure:
    """Turn a reply of another type, of wrong fields, with NaN or with impossible numbers into a named failure."""
    if isinstance(reply, Failure):
        return reply
    try:
        _check_type(reply, expected)
        check_record(reply)
        found = leaves(reply, type(reply).__name__)
        _check_numbers(reply, found)
        _check_params(reply, request)
        problem = request.problem(reply)
        if problem:
            raise BadMessage(f"{type(reply).__name__}: {problem}")
        place = non_finite_leaf(found)
    except (BadMessage, ArithmeticError, ValueError) as error:
        return Failure(client, "malformed", str(error))
    if not place:
        return reply
    of_model = place.startswith(f"{type(reply).__name__}.params[")
    return Failure(client, "not_finite", place + DIVERGED if of_model else place)


def judged_stack(
    stack: Stack, requests: Mapping[str, Request[Any]], expected: Mapping[str, type[Record]]
) -> tuple[Tensor, list[Failure]]:
    """Return which replies of a stack are sound, (clients,), and a named failure for each of the others.

    What is the same for all is looked at once; a reply in which something is odd is taken out and judged by itself.
    """
    try:
        _check_type(stack.record, expected[stack.clients[0]])
        outline = stack.outline()
        check_record(outline)
        for request in {id(requests[client]): requests[client] for client in stack.clients}.values():
            _check_params(outline, request)
            if type(request).problem is not Request.problem:
                raise BadMessage("each reply is to be looked at by itself")
        sound = stack.finite() & _scalars_fit(stack)
    except (BadMessage, ArithmeticError, TypeError, ValueError):
        sound = torch.zeros(len(stack), dtype=torch.bool)
    failures = []
    for position in (~sound).nonzero().flatten().tolist():
        client = stack.clients[position]
        verdict = judged(client, stack.member(position), requests[client], expected[client])
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            sound[position] = True
    return sound, failures


def _scalars_fit(stack: Stack) -> Tensor:
    fit = torch.ones(len(stack), dtype=torch.bool)
    for leaf in leaves(stack.record).values():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:  # the same for all
            return ~fit
        if isinstance(leaf, Each):
            kind = type(leaf.values[0])
            same = [type(v) is kind and (kind is not int or abs(v) < MAX_INTEGER) for v in leaf.values]
            fit &= torch.tensor(same)
    weights = stack.weights()
    return fit & (weights >= 0.0) & (weights <= MAX_WEIGHT)


def _check_type(reply: Record, expected: type[Record]) -> None:
    if type(reply) is not expected:
        raise BadMessage(f"found the record {type(reply).__name__}, expected {expected.__name__}")


def _check_numbers(reply: Record, found: Mapping[str, Any]) -> None:
    for place, leaf in found.items():
        if isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER:
            raise BadMessage(f"{place} is an integer of {leaf.bit_length()} bits")
    weight = getattr(reply, "weight", 0.0)
    if isinstance(weight, int | float) and (weight < 0 or weight > MAX_WEIGHT):
        raise BadMessage(f"{type(reply).__name__}.weight is {float(weight):g}; it must be in [0, {MAX_WEIGHT:g}]")


def _check_params(reply: Record, request: Request[Any]) -> None:
    """Refuse a model that is not of the kind that was sent out."""
    sent, back = getattr(request, "params", None), getattr(reply, "params", None)
    if not isinstance(sent, dict) or not isinstance(back, dict) or not sent:
        return
    odd = sorted(sent.keys() ^ back.keys())
    if odd:
        raise BadMessage(f"{type(reply).__name__}.params: {odd[0]!r} is in the request or in the reply only")
    for name, tensor in sent.items():
        if tensor.shape != back[name].shape or tensor.dtype != back[name].dtype:
            raise BadMessage(
                f"{type(reply).__name__}.params[{name!r}] has shape {tuple(back[name].shape)} of {back[name].dtype}, "
                f"sent was {tuple(tensor.shape)} of {tensor.dtype}"
            )
