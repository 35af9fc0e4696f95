"""What a piece of work costs, counted and never timed: operations given to torch, bytes of their results, Python's own.

    with Meter() as meter:
        decode(message, Answer)
    require_within(meter.cost, BOUND.of(len(message)), "reading it")

A clock would tell of the machine; counts are the same everywhere. What is counted of tensors are all results with
memory of their own, also those that are gone again at once, so that the sum is above the peak, and grows with the work
too. What a kernel takes for itself and gives back is not seen; tensors without memory (device "meta") count as
operations alone. Python's bytes are the highest that they stood above the start, numpy's arrays among them. What is
done for the first time imports and builds much: do it once before.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Cost:
    """What was counted.

    Fields:
        operations:   operations that torch was given
        tensor_bytes: bytes of all their results that have memory of their own
        largest:      bytes of the largest of them
        python_bytes: the highest that Python's own bytes stood above where they began
    """

    operations: int = 0
    tensor_bytes: int = 0
    largest: int = 0
    python_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both, one after the other."""
        return Cost(
            self.operations + other.operations,
            self.tensor_bytes + other.tensor_bytes,
            max(self.largest, other.largest),
            max(self.python_bytes, other.python_bytes),
        )

    def allowing(self, more: Cost, times: int = 1) -> Cost:
        """Return a bound that is higher by so many times as much, in each count."""
        return Cost(*(own + times * added for own, added in zip(astuple(self), astuple(more), strict=True)))


@dataclass(frozen=True)
class Bound:
    """What something may cost: a fixed part, and so much for every byte of the message that it is about.

    Fields:
        tensor_bytes, python_bytes, operations: the fixed parts
        tensors_per_byte, python_per_byte:      for each byte of the message
        operations_per_tensor:                  for each tensor in it
    """

    tensor_bytes: int
    tensors_per_byte: float
    python_bytes: int
    python_per_byte: float
    operations: int
    operations_per_tensor: float = 0.0

    def of(self, num_bytes: int, num_tensors: int = 0) -> Cost:
        """Return what a message of so many bytes and tensors may cost."""
        tensors = int(self.tensor_bytes + self.tensors_per_byte * num_bytes)
        return Cost(
            operations=int(self.operations + self.operations_per_tensor * num_tensors),
            tensor_bytes=tensors,
            largest=tensors,
            python_bytes=int(self.python_bytes + self.python_per_byte * num_bytes),
        )


def require_within(cost: Cost, most: Cost, what: str) -> None:
    """Raise AssertionError that names the first count above its bound."""
    for name, words in _WORDS.items():
        found, bound = getattr(cost, name), getattr(most, name)
        if found > bound:
            raise AssertionError(f"{what} took {found:,} {words}; the bound is {bound:,}")


_WORDS = {
    "operations": "operations",
    "tensor_bytes": "bytes of tensors",
    "largest": "bytes for one tensor",
    "python_bytes": "bytes of Python objects",
}


class Meter:
    """Counts what is done within it, but for where it is paused.

    `split` returns the cost since the last split, so that the parts of one course can be told apart.
    """

    def __init__(self) -> None:
        self._mode = _Counting()
        self._paused = 0
        self._spent = self._total = Cost()

    def __enter__(self) -> Self:
        if tracemalloc.is_tracing():
            raise RuntimeError("Python's memory is traced already; a meter starts and stops that itself")
        self._resume()
        return self

    def __exit__(self, *error: Any) -> None:
        if not self._paused:
            self._stop()

    @property
    def cost(self) -> Cost:
        """What was counted up to now, in all."""
        return self._total + self._spent + (Cost() if self._paused else self._current())

    @property
    def is_paused(self) -> bool:
        """Whether nothing is counted now."""
        return self._paused > 0

    def split(self) -> Cost:
        """Return what was counted since the last split."""
        if not self._paused:
            self._stop()
            self._resume()
        spent, self._spent = self._spent, Cost()
        self._total += spent
        return spent

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is done here: it is somebody else's work."""
        if not self._paused:
            self._stop()
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused:
                self._resume()

    def _resume(self) -> None:
        tracemalloc.start(1)
        self._mode.start()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        # Nothing is traced in a pause, so that what is not counted takes no longer than it would anyway.
        self._spent += self._current()
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        tracemalloc.stop()

    def _current(self) -> Cost:
        if not tracemalloc.is_tracing():
            return Cost()
        python = tracemalloc.get_traced_memory()[1]
        return Cost(self._mode.operations, self._mode.tensor_bytes, self._mode.largest, python)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.start()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no: nothing is compiled here, and torch would import its compiler, which takes seconds."""
        return False

    def start(self) -> None:
        self.operations = self.tensor_bytes = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        fresh = {address: size for address, size in _memories(out) if size}
        if fresh:
            # A result that lies in an argument's memory is a view, or was written in place; but for this operation,
            # which is all that is seen of a tensor made of a list.
            for address, _ in _memories((args, kwargs)) if func is not torch.ops.aten.lift_fresh.default else ():
                fresh.pop(address, None)
            self.tensor_bytes += sum(fresh.values())
            self.largest = max([self.largest, *fresh.values()])
        return out


def _memories(tree: Any) -> Iterator[tuple[int, int]]:
    """Yield address and size of the memory behind each tensor; a sparse one consists of several."""
    if isinstance(tree, Tensor):
        if not tree.is_meta:
            for part in _parts(tree):
                memory = part.untyped_storage()
                yield int(memory._cdata), memory.nbytes()
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _memories(item)
    elif isinstance(tree, dict):
        yield from _memories(list(tree.values()))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return (tensor,) if tensor.layout == torch.strided else ()
