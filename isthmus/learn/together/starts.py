"""What clients start from when they are trained together: one tensor for all, or one for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.core.record import Params
from isthmus.core.replies import Combination, Stacked, StackedTensor, combined, common_stack


class Rows(Sequence[Tensor]):
    """A tensor for each client, not to be changed; those of a stack become rows of one when somebody looks."""

    def __init__(self, held: Tensor | Stacked) -> None:
        self.stacked = StackedTensor(held) if isinstance(held, Tensor) else held

    @cached_property
    def values(self) -> Tensor:
        """The rows, (clients, ...)."""
        return self.stacked.whole()

    def __len__(self) -> int:
        return len(self.stacked)

    def __getitem__(self, position: Any) -> Any:
        return self.values[position]


def rows_of(start: Sequence[Tensor]) -> Tensor:
    """Return clients' tensors as rows of one, which is not to be changed."""
    return start.values if isinstance(start, Rows) else torch.stack(list(start))


# What clients start from: the same tensor for all, or one for each.
Start = Tensor | Sequence[Tensor]


def starts_of(params: Sequence[Params]) -> dict[str, Start]:
    """Return each parameter of clients as it is for all, as rows of a stack, or one by one."""
    first = params[0]
    if all(each is first for each in params):
        return dict(first)
    stack = common_stack(params)
    if stack is not None:
        return {name: Rows(each) for name, each in stack.each.items()}
    return {name: [each[name] for each in params] for name in first}


def term_of(start: Start) -> Tensor | Stacked:
    """Return a start as it can be a part of a sum."""
    if isinstance(start, Tensor):
        return start
    return start.stacked if isinstance(start, Rows) else StackedTensor(rows_of(start))


def start_sum(terms: Sequence[tuple[float, Stacked | Tensor]]) -> Start:
    """Return a sum of factor times tensor: one for all, where all its terms are; else one for each."""
    common = [(factor, each) for factor, each in terms if isinstance(each, Tensor)]
    return combined(common) if len(common) == len(terms) else Rows(Combination(terms))


def shapes_of(start: Start) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of clients' tensors; of those that have the same, once."""
    if isinstance(start, Rows):
        yield start.stacked.shape
    else:
        yield from (tuple(each.shape) for each in ([start] if isinstance(start, Tensor) else start))
