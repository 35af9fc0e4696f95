"""Many clients' random streams in the place of one generator: each client's entries come from its own stream.

A model that runs for many clients at once is called with `Streams` where it would get a generator. Every client's
stream gives the bits that the client would have drawn alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Streams:
    """The streams of clients whose rows lie one below the other, each padded to `rows`.

    Fields:
        sizes:   number of nodes of each client
        rows:    rows that each client takes up, at least its number of nodes
        entries: number of stored entries of each client's sparse features; empty when they are dense
    """

    def __init__(
        self, start: Callable[[], Sequence[torch.Generator]], sizes: Sequence[int], rows: int, entries: Sequence[int]
    ) -> None:
        self._start = start
        self._generators: Sequence[torch.Generator] | None = None
        self._slots: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self.sizes, self.rows, self.entries = sizes, rows, entries

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """Each client's own stream."""
        if self._generators is None:
            self._generators = self._start()
        return self._generators

    def words(self, width: int, bits: int) -> Tensor:
        """Return random bits for (rows, width) entries of `bits` bits for each client, (clients, words), int64.

        What lies beyond a client's own nodes is arbitrary. The tensor is used again by the next call of its kind.
        """
        slots = self._slots.get((width, bits))
        if slots is None:
            buffer = torch.zeros(len(self), _num_words(self.rows * width, bits), dtype=torch.int64)
            mine = [buffer[k, : _num_words(size * width, bits)] for k, size in enumerate(self.sizes)]
            slots = self._slots[width, bits] = (buffer, mine)
        self._fill(slots[1])
        return slots[0]

    def entry_words(self, bits: int) -> list[Tensor]:
        """Return random bits for the stored entries of each client's sparse features, (words,) for each."""
        drawn = [torch.empty(_num_words(count, bits), dtype=torch.int64) for count in self.entries]
        self._fill(drawn)
        return drawn

    def _fill(self, parts: Sequence[Tensor]) -> None:
        for part, generator in zip(parts, self.generators, strict=True):
            part.random_(-(2**63), None, generator=generator)


def _num_words(count: int, bits: int) -> int:
    return -(-count * bits // 64)
