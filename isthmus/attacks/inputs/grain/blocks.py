"""What nodes can be by the spans of gradients: their features first, then their neighbours.

The gradient of a GCN's layer l is (S H)^T C with H its input, and row i of C what reaches node i from the loss. Where S
is regular and C has independent rows, each row of H lies in the span of that gradient's columns; a row that is
nobody's hardly ever does, as long as there are fewer nodes than columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement, islice
from math import comb

import numpy as np
import torch
from torch import Tensor

from isthmus.attacks.inputs.grain.gluing import Piece, Stock
from isthmus.core.random import torch_generator

CHUNK = 20_000  # blocks that are tried at once
PAIRED = 500  # kinds that are held against all others at once
# Of rows, so many columns and two for each dimension are looked at first. Their share of a row's length may be small.
FEW_COLUMNS = 32
FEW_FACTOR = 4.0


@dataclass(frozen=True)
class Limits:
    """How far a search goes, in numbers of things, so that it does not depend on the machine.

    Fields:
        nodes:   of a graph
        present: kinds of nodes all of whose features occur; with more nothing is tried
        kinds:   of nodes that are left by the first span
        tries:   neighbourhoods of a kind; those of a kind with more are left out
        all:     neighbourhoods of all kinds
        wide:    pieces of two hops
        steps:   of depth-first search
        sizes:   numbers of nodes that are tried
        checks:  graphs whose gradient is compared, of each number of nodes
    """

    nodes: int = 80
    present: int = 20_000
    kinds: int = 120
    tries: int = 400_000
    all: int = 6_000_000
    wide: int = 20_000
    steps: int = 50_000
    sizes: int = 4
    checks: int = 100


@dataclass(frozen=True, eq=False)
class Kinds:
    """What single nodes can be.

    Fields:
        x:       (kinds, features)
        degrees: (kinds,); number of neighbours
        columns: that so many columns are still to come after those of `x`, one-hot, which say the number of neighbours
    """

    x: Tensor
    degrees: Tensor
    columns: int = 0

    def __len__(self) -> int:
        return len(self.x)

    def some(self, chosen: Tensor) -> Kinds:
        """Return those that are chosen."""
        return Kinds(self.x[chosen], self.degrees[chosen], self.columns)

    def with_degrees(self) -> Kinds:
        """Return each with each number of neighbours, where columns say it."""
        if not self.columns:
            return self
        degrees = torch.arange(self.columns).repeat(len(self))
        told = torch.eye(self.columns, dtype=self.x.dtype).repeat(len(self), 1)
        return Kinds(torch.cat([self.x.repeat_interleave(self.columns, dim=0), told], dim=1), degrees)


@dataclass(frozen=True, eq=False)
class Span:
    """The space that a matrix' columns span, but for rounding: (dim, rank), orthonormal."""

    basis: Tensor

    @staticmethod
    def of(matrix: Tensor, rank: float) -> Span:
        """Return it without directions that are shorter than `rank` times the longest."""
        directions, lengths, _ = torch.linalg.svd(matrix, full_matrices=False)
        return Span(directions[:, lengths > rank * lengths[0].clamp_min(1e-30)])

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return self.basis.shape[1]

    @property
    def dim(self) -> int:
        """Of how many numbers rows are."""
        return len(self.basis)

    def of_columns(self, number: int) -> Span:
        """Return the space of the first numbers of its rows alone."""
        return Span.of(self.basis[:number], 1e-9)

    def left(self, rows: Tensor) -> Tensor:
        """Return which share of each row's length is outside, (rows,)."""
        outside = rows - (rows @ self.basis) @ self.basis.t()
        found: Tensor = outside.norm(dim=1) / rows.norm(dim=1).clamp_min(1e-30)
        return found


def present(kinds: Kinds, gradient: Tensor, rank: float, most: int) -> Kinds:
    """Return the kinds whose features all have a gradient: those of a feature that no node has are zeros.

    None where they are more than `most`.
    """
    moved = gradient.norm(dim=1)
    absent = moved <= rank * moved.max().clamp_min(1e-30)
    left = kinds.some(~(kinds.x[:, absent[: kinds.x.shape[1]]] != 0).any(dim=1))
    if len(left) * max(1, left.columns) > most:
        return left.some(torch.zeros(len(left), dtype=torch.bool))
    left = left.with_degrees()
    return left.some(~(left.x[:, absent] != 0).any(dim=1))


def in_span(kinds: Kinds, span: Span, tolerance: float) -> Kinds:
    """Return the kinds whose features lie in a span."""
    return kinds.some(span.left(kinds.x) <= tolerance)


def pairs_in_span(kinds: Kinds, span: Span, tolerance: float) -> Kinds:
    """Return the kinds whose features lie in a span by themselves, or with those of one more of as many neighbours.

    Two nodes that are joined and have the same other neighbours make A + I singular: the span has their sum alone.
    """
    outside = kinds.x - (kinds.x @ span.basis) @ span.basis.t()
    most = tolerance * kinds.x.norm(dim=1)
    square = outside.square().sum(dim=1)
    chosen = square.sqrt() <= most
    for some in torch.split(torch.arange(len(kinds)), PAIRED):
        # |a + b|^2 = |a|^2 + |b|^2 + 2 a b
        sums = square[some].unsqueeze(1) + square + 2.0 * outside[some] @ outside.t()  # (some, kinds)
        alike = torch.eq(kinds.degrees[some].unsqueeze(1), kinds.degrees) & (kinds.degrees > 0)
        chosen[some] |= (alike & (sums.clamp_min(0.0).sqrt() <= most)).any(dim=1)
    return kinds.some(chosen)


def blocks(
    kinds: Kinds, weight: Tensor, bias: Tensor, span: Span, tolerance: float, limits: Limits, once: bool = False
) -> list[Piece]:
    """Return the nodes with neighbours whose hidden rows relu((S X)_i W + b) lie in a span.

    Kinds of few neighbours come first: who names another can be its neighbour, and with `once`, where each kind is
    there at most once, those that can have no other neighbours must be. None where there would be too many to try.
    """
    scale = (kinds.degrees.double() + 1.0).rsqrt()
    mapped = scale.unsqueeze(1) * (kinds.x @ weight)  # (kinds, width); what a neighbour adds, but for the own scale
    few = span.of_columns(FEW_COLUMNS + 2 * span.rank)
    near_of = _Near(kinds, once)
    tried = 0
    for kind in kinds.degrees.argsort(stable=True).tolist():
        number = near_of.number(kind)
        if number > limits.tries:
            continue
        tried += number
        if tried > limits.all:
            return []
        found = []
        for near in near_of.chunks(kind):
            summed = mapped[kind, : few.dim] + mapped[near, : few.dim].sum(dim=1)
            # What a few columns are off by is no more than all are.
            near = near[few.left((scale[kind] * summed + bias[: few.dim]).relu()) <= FEW_FACTOR * tolerance]
            rows = (scale[kind] * (mapped[kind] + mapped[near].sum(dim=1)) + bias).relu()
            found += [Piece(kind, tuple(sorted(each))) for each in near[span.left(rows) <= tolerance].tolist()]
        near_of.pieces[kind] = found
    return consistent([piece for found in near_of.pieces.values() for piece in found])


class _Near:
    """Which neighbours a kind can have, by what is known so far."""

    def __init__(self, kinds: Kinds, once: bool) -> None:
        self.degrees, self.once = kinds.degrees.tolist(), once
        self.pieces: dict[int, list[Piece]] = {}

    def _choices(self, kind: int) -> tuple[list[int], list[int]]:
        """Return those that it must have, and those that it can have beside them."""
        must: list[int] = []
        can: list[int] = []
        for other, degree in enumerate(self.degrees):
            if degree == 0 or (self.once and other == kind):
                continue
            known = self.pieces.get(other)
            if known is None or any(kind in piece.near for piece in known):
                all_do = self.once and known is not None and all(kind in piece.near for piece in known)
                (must if all_do else can).append(other)
        return must, can

    def number(self, kind: int) -> int:
        """Return how many neighbourhoods there are to try."""
        must, can = self._choices(kind)
        open_places = self.degrees[kind] - len(must)
        if open_places < 0:
            return 0
        return comb(len(can), open_places) if self.once else comb(len(can) + open_places - 1, open_places)

    def chunks(self, kind: int) -> Iterator[Tensor]:
        """Yield them, (some, neighbours) at a time."""
        must, can = self._choices(kind)
        places = self.degrees[kind] - len(must)
        left = self.number(kind)
        drawn = (combinations if self.once else combinations_with_replacement)(can, max(places, 0))
        tries = chain.from_iterable(drawn)
        while left:
            some = min(left, CHUNK)
            free = torch.from_numpy(np.fromiter(tries, dtype=np.int64, count=some * places)).view(some, places)
            yield torch.cat([torch.tensor(must, dtype=torch.long).expand(some, -1), free], dim=1)
            left -= some


def consistent(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces each of whose neighbours some piece can be, that has the first one among its own."""
    left = list(dict.fromkeys(pieces))
    while True:
        pairs = {(piece.label, other) for piece in left for other in piece.near}
        kept = [piece for piece in left if all((other, piece.label) in pairs for other in piece.near)]
        if len(kept) == len(left):
            return kept
        left = kept


def wider(pieces: Sequence[Piece], most: int) -> list[Piece] | None:
    """Return pieces whose label is the place of one of these, each neighbour again one of them; None if too many.

    So each says what lies within two hops of a node, where the pieces say one.
    """
    by_pair: dict[tuple[int, int], list[int]] = {}
    for place, piece in enumerate(pieces):
        for other in dict.fromkeys(piece.near):
            by_pair.setdefault((piece.label, other), []).append(place)
    found: list[Piece] = []
    for place, piece in enumerate(pieces):
        for near in islice(_choices(piece, by_pair), most + 1 - len(found)):
            found.append(Piece(place, near))
        if len(found) > most:
            return None
    return found


def _choices(piece: Piece, by_pair: dict[tuple[int, int], list[int]]) -> Iterator[tuple[int, ...]]:
    """Yield what the neighbours of a piece can be, each sorted."""
    groups = [(label, piece.near.count(label)) for label in sorted(set(piece.near))]

    def chosen(place: int) -> Iterator[tuple[int, ...]]:
        if place == len(groups):
            yield ()
            return
        label, number = groups[place]
        for some in combinations_with_replacement(by_pair.get((label, piece.label), []), number):
            for rest in chosen(place + 1):
                yield some + rest

    for near in chosen(0):
        yield tuple(sorted(near))


def hidden_rows(kinds: Kinds, pieces: Sequence[Piece], weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu((S X)_i W + b) of nodes with neighbours, (pieces, width)."""
    return _rows(kinds.x @ weight, kinds.degrees, pieces, bias)


def second_rows(first: Tensor, pieces: Sequence[Piece], wide: Sequence[Piece], weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu((S H)_i W + b) of nodes whose neighbours' neighbours are known, (wide pieces, width)."""
    degrees = torch.tensor([len(piece.near) for piece in pieces])
    return _rows(first @ weight, degrees, wide, bias)


def _rows(mapped: Tensor, degrees: Tensor, pieces: Sequence[Piece], bias: Tensor) -> Tensor:
    scale = (degrees.double() + 1.0).rsqrt()
    scaled = scale.unsqueeze(1) * mapped
    own = torch.tensor([piece.label for piece in pieces])
    summed = scaled[own]
    place = torch.tensor([k for k, piece in enumerate(pieces) for _ in piece.near], dtype=torch.long)
    near = torch.tensor([each for piece in pieces for each in piece.near], dtype=torch.long)
    summed = summed.index_add(0, place, scaled[near])
    return (scale[own].unsqueeze(1) * summed + bias).relu()


# ---- how often each is there

PARALLEL = 1e-9  # rows are multiples of each other if the cosine between them is one but for so much
WHOLE = 0.02  # a number of nodes is whole if it is off by no more
NOTHING = WHOLE / 100  # of a row there is nothing if there are no more nodes than this, as least squares have it
# What least squares leave of a row that a graph is made of, as a share of what was pooled.
LEFT_OUT = 1e-3


def stocks(rows: Tensor, pooled: Tensor, most: int, mean: bool) -> Iterator[Stock]:
    """Yield how much there is of each group of parallel rows in their sum, or mean; one for each number of nodes.

    The shares are those of least squares without negative ones, and where they add up to whole numbers of nodes, as
    many nodes there may be. Rows of one group differ by a factor: which of them there are is left open.
    """
    from scipy.optimize import nnls

    length = rows.norm(dim=1)
    group, first = grouped(rows / length.clamp_min(1e-30).unsqueeze(1))
    unit = rows[first] / length[first].clamp_min(1e-30).unsqueeze(1)
    found, left = nnls(unit.t().numpy(), pooled.numpy(), maxiter=20 * len(unit))
    if left > LEFT_OUT * float(pooled.norm()):
        return
    shares = torch.from_numpy(found)
    fits = _factors(length, group, shares)
    for scale in range(1, most + 1) if mean else (1,):  # a mean of so many nodes is their sum by their number
        numbers = [[round(scale * each) for each in own if _is_whole(scale * each)] for own in fits.values()]
        if all(numbers):
            fewest, greatest = sum(map(min, numbers)), sum(map(max, numbers))
            there = tuple((scale * shares).tolist())
            for nodes in (scale,) if mean else range(fewest, greatest + 1):
                if fewest <= nodes <= greatest:
                    yield Stock(tuple(group.tolist()), tuple(length.tolist()), there, nodes)


def _factors(length: Tensor, group: Tensor, shares: Tensor) -> dict[int, list[float]]:
    """Return by group of which something is there how often each length of its rows would be."""
    found: dict[int, list[float]] = {}
    for place in range(len(length)):
        share, own = float(shares[group[place]]), float(length[place])
        if own > 1e-12 and share > NOTHING * own:
            found.setdefault(int(group[place]), []).append(share / own)
    return found


def _is_whole(number: float) -> bool:
    return round(number) >= 1 and abs(number - round(number)) <= WHOLE


def grouped(unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return which group each row of length 1 is in, and the first row of each group."""
    weights = torch.randn(unit.shape[1], dtype=torch.float64, generator=torch_generator(0, "parallel rows"))
    order = (unit @ weights).argsort()
    group = torch.full((len(unit),), -1)
    first: list[int] = []
    # Equal rows have equal sums, but for rounding, so they lie near each other in this order.
    sums = (unit @ weights)[order]
    for place, row in enumerate(order.tolist()):
        back = place - 1
        while back >= 0 and float(sums[place] - sums[back]) <= 1e-6:
            other = int(order[back])
            if float(unit[row] @ unit[other]) > 1.0 - PARALLEL:
                group[row] = group[other]
                break
            back -= 1
        if group[row] < 0:
            group[row] = len(first)
            first.append(row)
    return group, torch.tensor(first, dtype=torch.long)
