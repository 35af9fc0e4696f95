"""What nodes can be by the spans of gradients: their features first, then their neighbours.

The gradient of a GCN's layer l is (S H)^T C with H its input, and row i of C what reaches node i from the loss. Where S
is regular and C has independent rows, each row of H lies in the span of that gradient's columns; a row that is
nobody's hardly ever does, as long as there are fewer nodes than columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice

import torch
from torch import Tensor

from isthmus.attacks.inputs.grain.gluing import Piece

CHUNK = 20_000  # blocks that are tried at once


@dataclass(frozen=True, eq=False)
class Kinds:
    """What single nodes can be.

    Fields:
        x:       (kinds, features)
        degrees: (kinds,); number of neighbours
    """

    x: Tensor
    degrees: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def some(self, chosen: Tensor) -> Kinds:
        """Return those that are chosen."""
        return Kinds(self.x[chosen], self.degrees[chosen])


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

    def left(self, rows: Tensor) -> Tensor:
        """Return which share of each row's length is outside, (rows,)."""
        outside = rows - (rows @ self.basis) @ self.basis.t()
        return outside.norm(dim=1) / rows.norm(dim=1).clamp_min(1e-30)


def present(kinds: Kinds, gradient: Tensor, rank: float) -> Kinds:
    """Return the kinds whose features all have a gradient: those of a feature that no node has are zeros."""
    moved = gradient.norm(dim=1)
    absent = moved <= rank * moved.max().clamp_min(1e-30)
    return kinds.some(~(kinds.x[:, absent] != 0).any(dim=1))


def in_span(kinds: Kinds, span: Span, tolerance: float) -> Kinds:
    """Return the kinds whose features lie in a span."""
    return kinds.some(span.left(kinds.x) <= tolerance)


def blocks(kinds: Kinds, weight: Tensor, bias: Tensor, span: Span, tolerance: float, most: int) -> list[Piece]:
    """Return the nodes with neighbours whose hidden rows relu((S X)_i W + b) lie in a span.

    No more than `most` are tried for each kind; those of a kind with more are left out.
    """
    scale = (kinds.degrees.double() + 1.0).rsqrt()
    mapped = scale.unsqueeze(1) * (kinds.x @ weight)  # (kinds, width); what a neighbour adds, but for the own scale
    linked = (kinds.degrees > 0).nonzero().flatten().tolist()
    found = []
    for kind, degree in enumerate(kinds.degrees.tolist()):
        tries = list(islice(combinations_with_replacement(linked, degree), most + 1))
        if len(tries) > most:
            continue
        for start in range(0, len(tries), CHUNK):
            some = tries[start : start + CHUNK]
            near = torch.tensor(some, dtype=torch.long).view(len(some), degree)
            summed = mapped[kind] + mapped[near].sum(dim=1)
            inside = span.left((scale[kind] * summed + bias).relu()) <= tolerance
            found += [Piece(kind, tuple(each)) for each in near[inside].tolist()]
    return consistent(found)


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


def shares_of(rows: Tensor, pooled: Tensor) -> Tensor:
    """Return how much of each row is in a sum of them, (rows,): least squares without negative ones."""
    from scipy.optimize import nnls

    # Rows of one length, so that none is left out for being short.
    length = rows.norm(dim=1).clamp_min(1e-30)
    found, _ = nnls((rows / length.unsqueeze(1)).t().numpy(), pooled.numpy(), maxiter=20 * len(rows))
    return torch.from_numpy(found) / length


def counted(shares: Tensor, rows: Tensor, pooled: Tensor, most: int, mean: bool) -> list[int]:
    """Return how often each row is in a sum, or in a mean of up to so many nodes: the fewest that fit as well as any."""
    if not mean:
        return [round(each) for each in shares.tolist()]
    best: tuple[float, list[int]] = (float("inf"), [])
    for number in range(1, most + 1):
        counts = (shares * number).round()
        if int(counts.sum()) != number:
            continue
        error = float(((counts / number) @ rows - pooled).norm())
        if error < 0.5 * best[0]:
            best = (error, [int(each) for each in counts.tolist()])
    return best[1]
