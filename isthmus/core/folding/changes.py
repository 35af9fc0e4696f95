"""Replies as vectors: what each changes of what was sent, and the way back from a changed vector to a reply."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed
from isthmus.core.folds import Answer, RunningSum, by_coordinate, middle, weight_of
from isthmus.core.record import Record, Value, leaves, with_leaves


def change_of(reply: Record, sent: Record | None) -> Tensor:
    """Return all floating-point numbers of a reply in one vector, each less what was sent in its place, if any."""
    base = {} if sent is None else leaves(sent)
    changes = []
    for path, leaf in leaves(reply).items():
        if _is_float(leaf):
            start = _start(base, path, leaf)
            changes.append((leaf.double() if start is None else leaf.double() - start).reshape(-1))
    if not changes:
        raise CourseFailed(f"replies are compared by their tensors; {type(reply).__name__} has none of floats")
    return torch.cat(changes)


def changes_of(given: Sequence[Answer]) -> Tensor:
    """Return the changes of all replies, (replies, numbers)."""
    return torch.stack([change_of(answer.reply, answer.sent) for answer in given])


def unmatched(answer: Answer) -> Tensor:
    """Return which numbers of a change have no counterpart in what was sent, (numbers,): they stand as they came."""
    base = {} if answer.sent is None else leaves(answer.sent)
    found = [(leaf, _start(base, path, leaf)) for path, leaf in leaves(answer.reply).items() if _is_float(leaf)]
    return torch.cat([torch.full((leaf.numel(),), start is None) for leaf, start in found])


def has_changes(reply: Record) -> bool:
    """Whether a reply has floating-point tensors, which are what can be compared."""
    return any(_is_float(leaf) for leaf in leaves(reply).values())


def with_change(answer: Answer, change: Tensor) -> dict[str, Value]:
    """Return the leaves of a reply that changes what was sent by `change`; its tensors are of double precision."""
    base = {} if answer.sent is None else leaves(answer.sent)
    found, at = leaves(answer.reply), 0
    for path, leaf in found.items():
        if _is_float(leaf):
            part = change[at : at + leaf.numel()].view(leaf.shape)
            start = _start(base, path, leaf)
            found[path] = part if start is None else start.double() + part
            at += leaf.numel()
    return found


def mean_by(like: Record, rows: Sequence[dict[str, Value]], weights: Sequence[float]) -> Record:
    """Return the weighted mean of leaves, of the types that they have in `like`; who weighs nothing leaves no trace."""
    total = RunningSum(like=like)
    for row, weight in zip(rows, weights, strict=True):
        if weight > 0.0:
            total.weight += weight
            for path, leaf in row.items():
                total.add(path, leaf, weight)
    return with_leaves(like, total.means())


def with_middle_numbers(folded: Record, given: Sequence[Answer]) -> Record:
    """Return a folded record with the median of what is no floating-point tensor: numbers, and whole ones."""
    middles = leaves(by_coordinate([answer.reply for answer in given], middle))
    return with_leaves(
        folded, {path: leaf if _is_float(leaf) else middles[path] for path, leaf in leaves(folded).items()}
    )


def weights_of(given: Sequence[Answer], weighted: bool) -> list[float]:
    """Return what each reply counts: its own weight, or the same for all."""
    return [weight_of(answer.reply) if weighted else 1.0 for answer in given]


def shortening(changes: Tensor, radius: float) -> Tensor:
    """Return the factor that each change is multiplied by so that its norm is at most `radius`, (replies,)."""
    lengths = changes.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.full_like(lengths, radius).div(lengths).clamp_max(1.0)


def _is_float(leaf: Value) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _start(base: dict[str, Value], path: str, leaf: Tensor) -> Tensor | None:
    start = base.get(path)
    return start if isinstance(start, Tensor) and start.shape == leaf.shape else None
