"""Batches of many clients side by side: what a task tells of its batches so that a step is taken for all at once.

Every client draws its own batches, from its own random stream, in the order in which it would alone (`draws`); what was
drawn for a step is put side by side (`batch`). Clients take different numbers of steps: those that have no further
batch are not among the `owners` of the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus.learn.batching import Batching
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput

Evaluated = tuple[dict[str, dict[str, float]], dict[str, int]]

# Rows of the smallest tile, and what a tile costs by itself, in rows: its copy of the weights and their gradient.
LEAST_TILE, TILE_ROWS = 32, 16
# Tiles cost no more than this share of what padding to the largest client does: products of few rows are slower.
LEAST_GAIN = 0.8
# Tiles have as many rows as a multiple of this, so that random bits of a client's tiles are whole words.
STEP = 8
# So much is kept of what is the same in every step of some clients.
KEPT = 8


@dataclass(frozen=True, eq=False)
class Placed:
    """How rows of clients lie one below the other, in tiles of equally many rows, the last of a client's padded.

    A model sees every tile as a client, with a copy of its client's weights. So clients of different sizes are one
    batched product, without padding each to as many rows as the largest has.

    Fields:
        sizes: number of rows of each client
        rows:  rows of each tile
        order: gives which row each row's random bits are drawn for, where a client alone has its rows in another order
        tiles: number of tiles of each client; None for one each
    """

    sizes: tuple[int, ...]
    rows: int
    order: Callable[[], Tensor] | None = None
    tiles: tuple[int, ...] | None = None

    @classmethod
    def in_tiles(cls, sizes: Sequence[int]) -> Placed:
        """Return rows in tiles of the size that costs least; one for each client, where that costs no more."""
        most, number = max(max(sizes), 1), np.array(sizes).reshape(-1, 1)
        tried = np.unique(np.ceil(np.geomspace(min(LEAST_TILE, most), most, 24) / STEP).astype(np.int64) * STEP)
        tiles = -(-number // tried).clip(max=-1)  # (clients, tried): a client without rows has a tile too
        costs = tiles.sum(axis=0) * (tried + TILE_ROWS)
        best = int(costs.argmin())
        if costs[best] >= LEAST_GAIN * len(sizes) * (most + TILE_ROWS) or not (tiles[:, best] > 1).any():
            return cls(tuple(sizes), most)
        return cls(tuple(sizes), int(tried[best]), tiles=tuple(tiles[:, best].tolist()))

    def beside(self, sizes: Sequence[int], spare: int = 0) -> Placed:
        """Return how other rows of the same clients lie over the same tiles, with some padding for every client."""
        rows = max(-(-(size + spare) // tiles) for size, tiles in zip(sizes, self.counts, strict=True))
        rows = rows if self.tiles is None else -(-rows // STEP) * STEP
        return Placed(tuple(sizes), max(rows, 1), tiles=self.tiles)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles of each client."""
        return (1,) * len(self.sizes) if self.tiles is None else self.tiles

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """The first row of each client, and the number of all rows, (clients + 1,)."""
        return np.cumsum([0, *self.counts]) * self.rows

    @cached_property
    def owner(self) -> Tensor | None:
        """Whose each tile is, (tiles,); None where everybody has one."""
        return None if self.tiles is None else torch.repeat_interleave(torch.tensor(self.tiles))

    def sums(self, each: Tensor) -> Tensor:
        """Return the sums of a number of each row, (clients,)."""
        by_tile = each.view(sum(self.counts), -1).sum(dim=1)
        if self.owner is None:
            return by_tile
        return by_tile.new_zeros(len(self.sizes)).index_add(0, self.owner, by_tile)


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """One step's batches of some clients side by side.

    Fields:
        graph:   all graphs as one
        nodes:   how the nodes lie
        entries: number of stored entries of each client's features; empty when they are dense
        items:   how the examples lie, where they are no nodes: graphs, pairs
        target:  what the task compares scores with, as it knows them
    """

    graph: GraphInput
    nodes: Placed
    entries: tuple[int, ...]
    items: Placed | None
    target: Any

    def streams(self, generators: Sequence[torch.Generator]) -> Streams:
        """Return the clients' random streams for this step."""
        nodes, items = self.nodes, self.items
        found = Streams(lambda: generators, nodes.sizes, nodes.rows, self.entries, nodes.order, nodes.tiles)
        if items is not None:
            found.items = Streams(lambda: generators, items.sizes, items.rows, (), items.order, items.tiles)
        return found


class BatchStack(ABC):
    """The data of some clients, from which the batches of a step are cut side by side; kept from round to round.

    Attributes:
        task, prepared, batching: what is learned, what the task has made of each client's data, how batches are cut
        model: what learns from the batches, where that is known: how they lie may be what is best for it
    """

    model: nn.Module | None = None

    def __init__(self, task: Any, prepared: Sequence[Any], batching: Batching) -> None:
        self.task, self.prepared, self.batching = task, prepared, batching
        self._kept: dict[object, Any] = {}

    def kept(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what is the same in every step of some clients, made once; that which was used last is kept."""
        found = self._kept[key] = self._kept.pop(key, None) or make()  # the last one used comes last
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    @property
    @abstractmethod
    def is_sparse(self) -> bool:
        """Whether features are sparse; in a batch every client then has columns of its own."""

    def per_epoch(self, owner: int) -> int:
        """Return how many batches show a client every training example once."""
        found: int = self.task.batches_per_epoch(self.prepared[owner], self.batching)
        return found

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Any]:
        """Yield what each batch of a client is made of, without end; draws what `Task.batches` would draw."""
        found: Iterator[Any] = self.task.batches(self.prepared[owner], self.batching, generator)
        return found

    @abstractmethod
    def batch(self, owners: Sequence[int], drawn: Sequence[Any]) -> StackedBatch:
        """Return what some clients have drawn, side by side in this order."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> Tensor:
        """Return the mean loss of each client's batch, (clients,)."""

    def is_chain(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> bool:
        """Whether the losses are a chain of steps (`models/products/chain.py`), each of which is recorded as one."""
        return False

    @abstractmethod
    def evaluate(self, model: nn.Module, splits: tuple[str, ...], stacked: bool) -> list[Evaluated]:
        """Return for each client what `Task.evaluate` would; `stacked` says that each has weights of its own.

        Raises NotTogether where they are better evaluated one by one.
        """
