"""The random streams of many clients that run one model at once.

A model that trains is given a generator. For many clients it is `Streams`, from which each gets the bits that it would
have drawn alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


class Streams:
    """Many clients' random streams in the place of one generator; their rows lie one below the other, padded to `rows`.

    A model that runs for many clients at once is called with this where it would get a generator. Every client's
    stream gives the bits that the client would have drawn alone.

    Fields:
        sizes:   number of nodes of each client
        rows:    rows that each client takes up, at least its number of nodes; with `tiles`, that each tile does
        entries: number of stored entries of each client's sparse features; empty when they are dense
        order:   gives which row each row's bits are drawn for, where a client alone would have its rows in another
                 order; None where it would not
        tiles:   how many runs of rows each client takes up, a multiple of eight rows each; None for one each. A model
                 sees each run as a client, with weights that are the same for all runs of a client
        items:   the same streams for what is made of nodes, graphs or pairs, whose rows are others; None for none
    """

    def __init__(
        self,
        start: Callable[[], Sequence[torch.Generator]],
        sizes: Sequence[int],
        rows: int,
        entries: Sequence[int],
        order: Callable[[], Tensor] | None = None,
        tiles: Sequence[int] | None = None,
    ) -> None:
        self._start = start
        self._slots: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self.sizes, self.rows, self.entries, self.order = sizes, rows, entries, order
        self.tiles = tiles
        self.items: Streams | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def generators(self) -> Sequence[torch.Generator]:
        """Each client's own stream."""
        return self._start()

    def words(self, width: int, bits: int) -> Tensor:
        """Return random bits for (rows, width) entries of `bits` bits for each client, (clients, words), int64.

        With tiles it is (tiles, words). What lies beyond a client's own nodes is arbitrary. The tensor is used again by
        the next call of its kind.
        """
        slots = self._slots.get((width, bits))
        if slots is None:
            tiles = [1] * len(self) if self.tiles is None else self.tiles
            buffer = torch.empty(sum(tiles), num_words(self.rows * width, bits), dtype=torch.int64)
            flat, first = buffer.view(-1), accumulate(tiles, initial=0)
            begins = (tile * buffer.shape[1] for tile in first)
            sizes = (num_words(size * width, bits) for size in self.sizes)
            mine = [flat[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
            slots = self._slots[width, bits] = (buffer, mine)
        self._fill(slots[1])
        return slots[0]

    @cached_property
    def _owner(self) -> Tensor | None:
        """Whose each tile is, (tiles,); None where everybody has one."""
        return None if self.tiles is None else torch.repeat_interleave(torch.tensor(self.tiles))

    def spread(self, by_client: Tensor) -> Tensor:
        """Return rows of clients, (clients, ...), as a model sees them: one for each tile."""
        return by_client if self._owner is None else by_client.index_select(0, self._owner)

    def collected(self, by_tile: Tensor) -> Tensor:
        """Return the sums over each client's tiles, (clients, ...), of rows of tiles."""
        if self._owner is None:
            return by_tile
        return by_tile.new_zeros(len(self), *by_tile.shape[1:]).index_add(0, self._owner, by_tile)

    @cached_property
    def filled(self) -> Tensor:
        """Number of rows of each tile that are no padding, (tiles,); without tiles, of each client."""
        if self._owner is None or self.tiles is None:
            return torch.tensor(self.sizes)
        number = torch.cat([torch.arange(tiles) for tiles in self.tiles])  # among the tiles of its client
        return (torch.tensor(self.sizes)[self._owner] - number * self.rows).clamp(0, self.rows)

    def entry_words(self, bits: int) -> list[Tensor]:
        """Return random bits for the stored entries of each client's sparse features, (words,) for each."""
        drawn = [torch.empty(num_words(count, bits), dtype=torch.int64) for count in self.entries]
        self._fill(drawn)
        return drawn

    def _fill(self, parts: Sequence[Tensor]) -> None:
        for part, generator in zip(parts, self.generators, strict=True):
            part.random_(-(2**63), None, generator=generator)


def of_items(generator: torch.Generator | Streams | None) -> torch.Generator | Streams | None:
    """Return what graphs or pairs draw from, where nodes draw from `generator`."""
    if not isinstance(generator, Streams):
        return generator
    if generator.items is None:
        raise ValueError("these streams are for nodes alone: nothing says how many graphs or pairs each client has")
    return generator.items


def num_words(count: int, bits: int) -> int:
    """Return how many words of 64 bits hold so many numbers of `bits` bits."""
    return -(-count * bits // 64)
