"""Dropout from a generator that is given, of one client's rows or of many clients'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from isthmus.models.products.affine import Activate
from isthmus.models.products.pooled import ActivateSome
from isthmus.models.products.sparse import SparseMatrix

# ---- the random streams of many clients

# Bytes of what was drawn ahead that are kept for streams which begin in the same way.
KEPT_BYTES = 4 * 2**20


class Ahead:
    """What streams drew ahead, for others that begin at the same place of a course as they did; its room is used again.

    Fields:
        at: the place, and all that decides how many words are drawn but their width and bits
    """

    def __init__(self) -> None:
        self.at: object = None
        self._rooms: dict[tuple[int, int], tuple[tuple[int, ...], Tensor, tuple[Tensor, ...]]] = {}
        self._drawn: set[tuple[int, int]] = set()

    def begin(self, at: object) -> Ahead:
        """Forget what was drawn at another place."""
        if at != self.at:
            self.at = at
            self._drawn.clear()
        return self

    def words(self, kind: tuple[int, int]) -> Tensor | None:
        """Return what was drawn for a width and bits, not to be changed."""
        return self._rooms[kind][1] if kind in self._drawn else None

    def room(self, kind: tuple[int, int], rows: Sequence[int], words: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return room for so many rows of words of each client, in one piece and one by one, to be filled."""
        known = self._rooms.get(kind)
        if known is None or known[0] != tuple(rows):
            drawn = torch.empty(sum(rows), words, dtype=torch.int64)
            known = (tuple(rows), drawn, torch.split(drawn, list(rows)))
            if drawn.nbytes > KEPT_BYTES:
                return known[1:]
            self._rooms[kind] = known
        self._drawn.add(kind)
        return known[1:]


# Rows of a client, on average, from which nothing is gained by drawing for several steps at once.
FEW_ROWS = 256


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
        repeats: how often a draw comes again before there is another: so many are drawn at once
        ahead:   what streams that begin as these do drew ahead; these put theirs there too
    """

    def __init__(
        self,
        start: Callable[[], Sequence[torch.Generator]],
        sizes: Sequence[int],
        rows: int,
        entries: Sequence[int],
        order: Callable[[], Tensor] | None = None,
        tiles: Sequence[int] | None = None,
        repeats: int = 1,
        ahead: Ahead | None = None,
    ) -> None:
        self._start = start
        self._slots: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self._drawn: tuple[tuple[int, int], Iterator[Tensor]] | None = None
        self.repeats, self.ahead = repeats, Ahead() if ahead is None else ahead
        self.sizes, self.rows, self.entries, self.order = sizes, rows, entries, order
        self.tiles = tiles
        self._unread: list[int] = []  # words of each client's stream that were taken from `kept`
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
        if self._draws_ahead(width, bits):
            return self._next_words(width, bits)
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

    def _draws_ahead(self, width: int, bits: int) -> bool:
        """Whether draws are made at once: of many rows the drawing takes longer than the calls, which are saved."""
        whole = width * bits % 64 == 0 and self.tiles is None  # rows begin with a word
        return whole and self.repeats > 1 and 0 < sum(self.sizes) < FEW_ROWS * len(self)

    def _next_words(self, width: int, bits: int) -> Tensor:
        """Return the next of words that are drawn for all repetitions at once."""
        if self._drawn is None or self._drawn[0] != (width, bits):
            self._drawn = ((width, bits), self._repeated(width, bits))
        return next(self._drawn[1])

    def _repeated(self, width: int, bits: int) -> Iterator[Tensor]:
        sizes = torch.tensor(self.sizes)
        ends = self.repeats * sizes.cumsum(0)
        number = torch.arange(self.rows).expand(len(self), -1)
        inside = number < sizes.unsqueeze(1)  # (clients, rows)
        begins = torch.where(inside, number + (ends - self.repeats * sizes).unsqueeze(1), 0).flatten()
        further = torch.where(inside, sizes.unsqueeze(1), 0).flatten()
        while True:
            drawn = self._drawn_ahead(width, bits)
            place = begins.clone()
            for _ in range(self.repeats):
                yield drawn.index_select(0, place).view(len(self), -1)
                place += further

    def _drawn_ahead(self, width: int, bits: int) -> Tensor:
        """Return words for all rows of all repetitions, client after client, not to be changed."""
        number, words = [self.repeats * size for size in self.sizes], width * bits // 64
        begins = "generators" not in self.__dict__ and not self._unread  # nothing was drawn yet
        known = self.ahead.words((width, bits)) if begins else None
        if known is not None:
            self._unread = [size * words for size in number]
            return known
        # What comes later is no other's, and must not lie where they still read.
        drawn, parts = (self.ahead if begins else Ahead()).room((width, bits), number, words)
        self._fill(parts)
        return drawn

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
        if self._unread:
            unread, self._unread = self._unread, []
            self._fill([torch.empty(number, dtype=torch.int64) for number in unread])
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


F = TypeVar("F", Tensor, SparseMatrix, Tensor | SparseMatrix)

_TOLERANCE = 1e-6
# Scales that integers of 8 bits can be.
MOST_WHOLE = 127


# ---- dropout


def dropout(x: F, p: float, generator: torch.Generator | Streams | None) -> F:
    """Return `x` with entries zeroed with probability `p` and the others scaled by 1 / (1 - p).

    Srivastava et al. (2014), in the inverted form, and drawn from a generator that is given, never from torch's own.
    Without a generator (evaluation), and for p = 0, it returns `x` itself. Of a sparse matrix it drops stored entries.
    """
    if generator is None or p == 0.0:
        return x
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * _scaled_mask(x.values, p, generator))
    return x * _scaled_mask(x, p, generator)


def activation(p: float, generator: torch.Generator | Streams | None) -> Activate:
    """Return what makes relu(dropout(.)) of rows in place, where they are nobody else's."""
    dropping = generator is not None and p > 0.0

    def activate(rows: Tensor) -> float:
        if dropping:
            rows.mul_(_scaled_mask(rows, p, generator))  # type: ignore[arg-type]
        rows.relu_()
        return 1.0 / (1.0 - p) if dropping else 1.0

    return activate


def activation_of_some(p: float, streams: Streams, shape: tuple[int, int]) -> ActivateSome:
    """Return what makes relu(dropout(.)) of some rows in place, of rows of this shape in all; they are drawn here."""
    kind, bits = _kind(p)
    entries = _stacked_entries(shape, kind, bits, streams)
    order = None if streams.order is None else streams.order()

    def activate(rows: Tensor, at: slice) -> float:
        mine = entries[at].clone() if order is None else entries.index_select(0, order[at])
        rows.mul_(_scaled(mine, p, bits, rows)).relu_()
        return 1.0 / (1.0 - p)

    return activate


def _scaled_mask(like: Tensor, p: float, generator: torch.Generator | Streams) -> Tensor:
    """Return 0 with probability `p` and 1 / (1 - p) otherwise, in the shape and type of `like`.

    Random integers are compared with a threshold, with as few bits for each entry as give p within 1e-6:
    the generator's time is most of the cost, and p = 0.5 needs one byte. The in-place comparison keeps the
    integer type, which torch vectorises; a boolean mask would be several times slower to make and to apply.
    """
    if not 0.0 < p < 1.0:
        raise ValueError(f"dropout probability is {p!r}; it must be at least 0 and below 1")
    kind, bits = _kind(p)
    # Uniform over [-2^(bits-1), 2^(bits-1)); drawn by the CPU, so that it is the same wherever `like` lies.
    return _scaled(_random_entries(like, kind, bits, generator).to(like.device), p, bits, like)


def _scaled(entries: Tensor, p: float, bits: int, like: Tensor) -> Tensor:
    """Return the mask that random integers of so many bits make, which are changed."""
    threshold = min(round(p * 2**bits), 2**bits - 1) - 2 ** (bits - 1)
    kept, scale = entries.ge_(threshold), 1.0 / (1.0 - p)
    if scale <= MOST_WHOLE and like.new_tensor(scale).frac() == 0:  # among small integers it takes less time
        return kept.mul_(round(scale)).to(like.dtype).view(like.shape)
    return kept.to(like.dtype).mul_(scale).view(like.shape)


def _random_entries(like: Tensor, kind: torch.dtype, bits: int, generator: torch.Generator | Streams) -> Tensor:
    """Return a random integer for each entry of `like`, in some shape with as many entries."""
    if not isinstance(generator, Streams):
        count = like.numel()
        words = torch.empty(num_words(count, bits), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        return words.view(kind)[:count]
    if like.ndim == 1:
        drawn = zip(generator.entry_words(bits), generator.entries, strict=True)
        return torch.cat([words.view(kind)[:count] for words, count in drawn])
    entries = _stacked_entries((like.shape[0], like.shape[1]), kind, bits, generator)
    return entries if generator.order is None else entries.index_select(0, generator.order())


def _stacked_entries(shape: tuple[int, int], kind: torch.dtype, bits: int, streams: Streams) -> Tensor:
    """Return a random integer for each entry of the rows of all clients, in the order in which each drew them."""
    entries = streams.words(shape[1], bits).view(kind)[:, : streams.rows * shape[1]]
    given = shape[0] * shape[1] // len(entries)  # of each client: its first rows, where others are not wanted
    return entries[:, :given].reshape(shape)


def _kind(p: float) -> tuple[torch.dtype, int]:
    for kind, bits in ((torch.int8, 8), (torch.int16, 16)):
        if abs(round(p * 2**bits) / 2**bits - p) < _TOLERANCE and 0 < round(p * 2**bits) < 2**bits:
            return kind, bits
    return torch.int32, 32
