"""The sparse features of many clients, and parameters that are held by what these features touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus.core.record import Params, largest
from isthmus.core.replies import Combination, Stacked, StackedTensor, SummedOnce, combined, common_stack
from isthmus.models.encoders import EmbeddingSum
from isthmus.models.gnn.gat import GATLayer
from isthmus.models.gnn.gcn import GCNLayer
from isthmus.models.gnn.gin import GINELayer, GINLayer
from isthmus.models.gnn.sage import SAGELayer
from isthmus.models.model import Model
from isthmus.models.parts import BiasFreeLinear, Linear
from isthmus.models.products.affine import AlikeFeatures, SpanFeatures, block_gram
from isthmus.models.products.sparse import Pattern, SparseMatrix

Array: TypeAlias = NDArray[Any]

# ---- what many clients start from


class Rows(Sequence[Tensor]):
    """A tensor for each client, not to be changed; those of a stack become rows of one when somebody looks."""

    def __init__(self, held: Tensor | Stacked) -> None:
        self.stacked = StackedTensor(held) if isinstance(held, Tensor) else held

    @cached_property
    def values(self) -> Tensor:
        """The rows, (clients, ...)."""
        return self.stacked.whole()

    @cached_property
    def compact(self) -> CompactStack | None:
        """Rows of the features that occur at each client and those of the others, where that is how they are held."""
        features = features_of(self.stacked)
        return None if features is None else compact_sum([(1.0, self.stacked)], features)

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


# ---- features, and what is held by what they touch


class StackedFeatures:
    """The sparse features of many clients, in the forms that the layouts need; each is built when it is asked for.

    Fields:
        matrix:      (clients * rows, features), the clients' rows one below the other
        num_clients: how many clients there are
    """

    def __init__(self, matrix: SparseMatrix, num_clients: int) -> None:
        self.matrix, self.num_clients = matrix, num_clients
        self.num_features = matrix.shape[1]
        self._shares: tuple[Tensor, tuple[Tensor, SparseMatrix, Tensor]] | None = None
        self._of_sets: tuple[SparseMatrix, SparseMatrix] | None = None
        # Of the same tensors the same stack is made as long as there is one: sums know by that what occurs twice.
        self._made: WeakValueDictionary[tuple[int, ...], CompactStack] = WeakValueDictionary()

    @cached_property
    def _column(self) -> Tensor:
        """For each entry, its column when every client has columns of its own."""
        pattern = self.matrix.pattern
        owner = pattern.row.long().div(max(pattern.shape[0] // self.num_clients, 1), rounding_mode="floor")
        return pattern.col.long() + owner * self.num_features

    @cached_property
    def _used(self) -> tuple[Tensor, Tensor]:
        """The columns that occur, ascending, (used,), and which of them each entry is in, (entries,)."""
        used, inverse = torch.unique(self._column, return_inverse=True)
        return used, inverse

    @property
    def used(self) -> Tensor:
        """The number client * features + feature for each feature that occurs at a client, ascending."""
        return self._used[0]

    @cached_property
    def feature(self) -> Tensor:
        """Which feature each used column is, (used,)."""
        return self.used % self.num_features

    @cached_property
    def owner(self) -> Tensor:
        """Which client each used column belongs to, (used,)."""
        return self.used.div(self.num_features, rounding_mode="floor")

    @cached_property
    def full(self) -> SparseMatrix:
        """(clients * rows, clients * features), block-diagonal."""
        return self._with_columns(self._column, self.num_clients * self.num_features)

    @cached_property
    def compact(self) -> SparseMatrix:
        """(clients * rows, used + features): the used columns, and empty ones for rows that no data touches."""
        return self._with_columns(self._used[1], len(self.used) + self.num_features)

    @cached_property
    def touched(self) -> SparseMatrix:
        """(clients * rows, used): the used columns alone."""
        return self._with_columns(self._used[1], len(self.used))

    @cached_property
    def span(self) -> SpanFeatures:
        """The features with their Gram matrix."""
        return SpanFeatures(self.matrix, block_gram(self.matrix, self.num_clients))

    @cached_property
    def _sets(self) -> tuple[Tensor, Tensor]:
        """Which set of features that are alike each used column is in, (used,), and the first one of each, (sets,)."""
        turned = self.touched.t()
        parts = (turned.pattern.crow, turned.pattern.col, turned.values)
        crow, row, values = (part.cpu().numpy() for part in parts)
        first = first_alike(crow, row, values)
        firsts, number = np.unique(first, return_inverse=True)
        return torch.from_numpy(number).to(self.used.device), torch.from_numpy(firsts).to(self.used.device)

    @cached_property
    def alike(self) -> AlikeFeatures:
        """The features with their sums over those that are alike, which occur at one client."""
        from scipy.sparse import csr_matrix  # imported here: models must load quickly

        number, firsts = self._sets
        rows, sets = self.matrix.shape[0], len(firsts)
        pattern = self.touched.pattern
        columns = number.index_select(0, pattern.col).cpu().numpy()
        entries = (self.matrix.values.cpu().numpy(), columns, pattern.crow.cpu().numpy().copy())
        sums = csr_matrix(entries, (rows, sets), copy=True)
        sums.sum_duplicates()
        turned = self.touched.t()
        parts = (turned.values, turned.pattern.col, turned.pattern.crow)
        each = csr_matrix(tuple(part.cpu().numpy() for part in parts), turned.shape, copy=False)[firsts.cpu().numpy()]
        return AlikeFeatures(self.matrix, self._of_scipy(sums), self._of_scipy(each))

    @cached_property
    def beyond(self) -> AlikeFeatures:
        """The features for rows of `compact` that are told from what all have in common."""
        return AlikeFeatures(self.matrix, self.compact, self.compact.t())

    def _of_scipy(self, matrix: Any) -> SparseMatrix:
        device = self.matrix.values.device
        parts = (torch.from_numpy(part).to(device) for part in (matrix.indptr, matrix.indices, matrix.data))
        crow, col, values = parts
        return SparseMatrix(Pattern(crow, col, matrix.shape), values)

    @cached_property
    def alike_number(self) -> Tensor:
        """Which set each used column is in, (used,)."""
        return self._sets[0]

    @cached_property
    def alike_owner(self) -> Tensor:
        """Which client each set of features that are alike belongs to, (sets,)."""
        return self.owner.index_select(0, self._sets[1])

    @cached_property
    def collected(self) -> SparseMatrix:
        """(features, used): adds up the clients' rows of each feature."""
        number = torch.arange(len(self.used), device=self.used.device)
        pattern, _ = Pattern.from_pairs(self.feature, number, (self.num_features, len(self.used)))
        return SparseMatrix(pattern, torch.ones(len(self.used), device=self.used.device))

    def shares(self, weights: Tensor) -> tuple[Tensor, SparseMatrix, Tensor]:
        """Return what a weighted sum over clients takes of each used row, (used,), and how it is collected.

        Last, how much of the rows that no data touches is in it, (features,). The last weights' answer is kept: they
        are the same from round to round.
        """
        if self._shares is None or not torch.equal(self._shares[0], weights):
            each, collected = weights.index_select(0, self.owner), self.collected
            covered = each.new_zeros(self.num_features).index_add_(0, self.feature, each)
            # Of a feature that occurs everywhere, the others say nothing.
            left = (weights.sum() - covered).clamp_(min=0.0).masked_fill_(self.everywhere, 0.0)
            matrix = collected.with_values(each.float().index_select(0, collected.pattern.col))
            self._shares = (weights.clone(), (each, matrix, left))
        return self._shares[1]

    def of_sets(self, collected: SparseMatrix) -> SparseMatrix:
        """Return what collects used rows, (features, used), for rows of features that are alike, (features, sets)."""
        if self._of_sets is None or self._of_sets[0] is not collected:
            pattern = collected.pattern
            columns = self.alike_number.index_select(0, pattern.col)
            size = (self.num_features, len(self.alike_owner))
            self._of_sets = (collected, SparseMatrix(Pattern(pattern.crow, columns, size), collected.values))
        return self._of_sets[1]

    @cached_property
    def span_pays(self) -> bool:
        """Whether steps in the span of the features cost less than steps on rows."""
        counts = torch.bincount(self._used[1], minlength=1)
        products = int((counts * counts).sum())  # a bound on the entries of the Gram matrix
        rows = self.matrix.shape[0]
        bound = min(products, rows * (rows // self.num_clients))
        # Measured on Cora: moving a row of weights costs as much as 50 entries of the Gram matrix; both layouts take
        # the same time at about 10 clients, and at 50 the span takes half.
        return bound <= 50 * len(self.used) + 2 * self.matrix.pattern.nnz

    @cached_property
    def idle(self) -> tuple[Tensor, Tensor]:
        """For each feature, the first and the last client at which it does not occur, (features,); else the first."""
        absent = torch.ones(self.num_clients * self.num_features, dtype=torch.int8, device=self.used.device)
        absent[self.used] = 0
        absent = absent.view(self.num_clients, self.num_features)
        last = self.num_clients - 1 - absent.flip(0).argmax(dim=0)
        return absent.argmax(dim=0), torch.where(self.everywhere, 0, last)

    @cached_property
    def everywhere(self) -> Tensor:
        """Whether a feature occurs at every client, (features,)."""
        return torch.bincount(self.feature, minlength=self.num_features) == self.num_clients

    @cached_property
    def magnitude(self) -> float:
        """The largest magnitude of a feature."""
        return largest(self.matrix.values)

    @cached_property
    def _spreading(self) -> SparseMatrix:
        """(used, clients * rows + features): X^T for the used rows, and a one for the feature that each is."""
        own = self.touched.t()
        size = (len(self.used), own.shape[1] + self.num_features)
        return SparseMatrix(Pattern(own.pattern.crow, own.pattern.col, size), own.values).plus(
            self._below(own.shape[1])
        )

    @cached_property
    def _parting(self) -> SparseMatrix:
        """(used, sets + features): a one for the set that each used row is in, and one for the feature that it is."""
        sets = len(self.alike_owner)
        number = torch.arange(len(self.used) + 1, device=self.used.device)
        pattern = Pattern(number, self.alike_number, (len(self.used), sets + self.num_features))
        return SparseMatrix(pattern, torch.ones(len(self.used), device=number.device)).plus(self._below(sets))

    def _below(self, rows: int) -> SparseMatrix:
        """Return (used, rows + features): a one for the feature that each used row is."""
        used = len(self.used)
        number = torch.arange(used + 1, device=self.used.device)
        pattern = Pattern(number, rows + self.feature, (used, rows + self.num_features))
        return SparseMatrix(pattern, torch.ones(used, device=number.device))

    def parted(self, of_sets: Tensor, common: Tensor | None = None) -> Tensor:
        """Return the used rows, (used, out), of those of sets that are alike, plus those of what all have in common."""
        if common is None:
            return of_sets.index_select(0, self.alike_number)
        return self._parting.matmul(torch.cat([of_sets, common]))

    def spread(self, coordinates: Tensor, common: Tensor | None = None) -> Tensor:
        """Return the used rows of X^T A of each client, (used, out), plus those of what all have in common."""
        if common is None:
            return self.touched.t().matmul(coordinates)
        return self._spreading.matmul(torch.cat([coordinates, common]))

    def seen(self, origin: Tensor | Stacked) -> Tensor:
        """Return X times the weights of all clients, or of each, (clients * rows, out)."""
        if isinstance(origin, Tensor):
            return self.matrix.matmul(origin)
        if isinstance(origin, SpanStack):
            return self.span.gram.matmul(origin.coordinates)
        if isinstance(origin, AlikeStack):
            return self.alike.sums.matmul(origin.values)
        if isinstance(origin, Combination):
            return combined([(factor, self.seen(each)) for factor, each in origin.terms])
        assert isinstance(origin, CompactStack)
        return self.touched.matmul(origin.values)

    def compacted(self, start: Start) -> Start:
        """Return clients' weights as a `CompactStack` where rows that no data touches are the same for all of them.

        That depends on the numbers alone, not on how they came to be held: after a resume it is found again. Sums that
        are known to be such are left as they are.
        """
        if isinstance(start, Tensor):
            return start
        if isinstance(start, Rows) and features_of(start.stacked) is self:
            return start
        known = None if isinstance(start, Rows) else self._made.get(tuple(map(id, start)))
        if known is not None:
            return Rows(known)
        values = rows_of(start)
        number = torch.arange(self.num_features, device=values.device)
        rest, other = (values[client, number] for client in self.idle)  # (features, out)
        if not torch.equal(rest, other):
            return Rows(values)
        found = CompactStack(values.flatten(0, 1).index_select(0, self.used), rest, self)
        if not torch.equal(found.whole(), values):
            return Rows(values)
        if not isinstance(start, Rows):
            found.made_of, self._made[tuple(map(id, start))] = start, found
        return Rows(found)

    def gathered(self, start: Sequence[Tensor]) -> Tensor:
        """Return the used rows of each client's weights, (used, out)."""
        if isinstance(start, Rows):
            known = start.compact if features_of(start.stacked) is self else None
            return start.values.flatten(0, 1).index_select(0, self.used) if known is None else known.values
        parts = torch.split(self.feature, torch.bincount(self.owner, minlength=self.num_clients).tolist())
        return torch.cat([weight.index_select(0, part) for weight, part in zip(start, parts, strict=True)])

    def _with_columns(self, column: Tensor, num_columns: int) -> SparseMatrix:
        pattern = self.matrix.pattern
        return SparseMatrix(Pattern(pattern.crow, column, (pattern.shape[0], num_columns)), self.matrix.values)


class CompactStack(SummedOnce):
    """Tensors that agree with `rest` but for the rows of features that occur at a client."""

    def __init__(self, values: Tensor, rest: Tensor, features: StackedFeatures) -> None:
        super().__init__(rest.shape, rest.dtype, features.num_clients)
        self.values, self.rest, self.features = values, rest, features
        self.made_of: Sequence[Tensor] = ()  # one for each client, where it was made of these
        self._bound: Tensor | None = None

    def added(self, terms: Sequence[tuple[float, Stacked | Tensor]]) -> Stacked | None:
        """Return a sum with such rows."""
        return compact_sum(terms, self.features)

    def member(self, position: int) -> Tensor:
        """Return one client's rows among those of all."""
        owner = self.features.owner
        bounds = torch.searchsorted(owner, owner.new_tensor([position, position + 1])).tolist()
        mine = slice(*bounds)
        return self.rest.index_copy(0, self.features.feature[mine], self.values[mine])

    def whole(self) -> Tensor:
        """Return a copy for each client."""
        values = self.rest.repeat(len(self), 1).index_copy_(0, self.features.used, self.values)
        return values.view(len(self), *self.shape)

    def bound(self) -> Tensor:
        """Return the largest magnitude of all, or of each client where that is no number to go by."""
        if self._bound is None:
            top = float(torch.linalg.vector_norm(self.rest))
            self._bound = top + bound_of_rows(self.values, self.features.owner, len(self))
        return self._bound

    def _added(self, weights: Tensor) -> Tensor:
        each, collected, left = self.features.shares(weights.to(self.values.device))
        values = self.values
        if not bool(weights.all()):  # who has no weight may hold anything, NaN too
            values = torch.where((each != 0.0).unsqueeze(1), values, 0.0)
        return torch.addcmul(collected.matmul(values).double(), self.rest.double(), left.unsqueeze(1)).cpu()


class SpanStack(SummedOnce):
    """X_k^T A_k for each client k."""

    def __init__(self, coordinates: Tensor, features: StackedFeatures) -> None:
        super().__init__((features.num_features, coordinates.shape[1]), coordinates.dtype, features.num_clients)
        self.coordinates, self.features = coordinates, features

    def added(self, terms: Sequence[tuple[float, Stacked | Tensor]]) -> Stacked | None:
        """Return a sum with a row for each feature that occurs at a client."""
        return compact_sum(terms, self.features)

    def member(self, position: int) -> Tensor:
        """Return one client's product."""
        pattern = self.features.matrix.pattern
        rows = pattern.shape[0] // len(self)
        first, last = pattern.crow[[position * rows, (position + 1) * rows]].tolist()
        entries = self.features.matrix.values[first:last].unsqueeze(1)
        added = entries * self.coordinates.index_select(0, pattern.row[first:last])  # (entries, out)
        return added.new_zeros(self.shape).index_add_(0, pattern.col[first:last], added)

    def whole(self) -> Tensor:
        """Return each client's product."""
        added = self.features.spread(self.coordinates)
        values = added.new_zeros(len(self) * self.shape[0], self.shape[1]).index_copy_(0, self.features.used, added)
        return values.view(len(self), *self.shape)

    def bound(self) -> Tensor:
        """Return what no entry of X^T A exceeds; where it is too much, the weights themselves are looked at."""
        return self._bound

    @cached_property
    def _bound(self) -> Tensor:
        by_client = self.coordinates.view(len(self), -1)
        # They are rounded on the way, so close to the largest number there is they may overflow below it.
        sums: Tensor = torch.linalg.vector_norm(by_client, 1, dim=1)
        return 2.0 * sums.cpu().double() * self.features.magnitude

    def _added(self, weights: Tensor) -> Tensor:
        by_client = self.coordinates.view(len(self), -1, self.coordinates.shape[1])
        weights = weights.to(by_client.device)
        each = weights.float().view(-1, 1, 1)
        matrix = self.features.matrix
        if not bool(weights.all()):  # who has no weight may hold anything, NaN too
            by_client = torch.where(each != 0.0, by_client, 0.0)
            owner = matrix.pattern.row.long().div(by_client.shape[1], rounding_mode="floor")
            matrix = matrix.with_values(torch.where(weights[owner] != 0.0, matrix.values, 0.0))
        return matrix.t().matmul((by_client * each).flatten(0, 1)).double().cpu()


class AlikeStack(SummedOnce):
    """Rows that features of a client have in common where they are alike; zero where no data touches them."""

    def __init__(self, values: Tensor, features: StackedFeatures) -> None:
        super().__init__((features.num_features, values.shape[1]), values.dtype, features.num_clients)
        self.values, self.features = values, features  # values: (sets, out)
        self._bound: Tensor | None = None

    def added(self, terms: Sequence[tuple[float, Stacked | Tensor]]) -> Stacked | None:
        """Return a sum with a row for each feature that occurs at a client."""
        return compact_sum(terms, self.features)

    def member(self, position: int) -> Tensor:
        """Return one client's rows among zeros."""
        feature, rows = self._rows(position)
        return rows.new_zeros(self.shape).index_copy_(0, feature, rows)

    def member_onto(self, position: int, other: Tensor) -> Tensor:
        """Return one client's rows, added to those of another tensor."""
        feature, rows = self._rows(position)
        return other.index_copy(0, feature, rows.add_(other.index_select(0, feature)))

    def _rows(self, position: int) -> tuple[Tensor, Tensor]:
        """Return which features occur at a client, and their rows."""
        features = self.features
        bounds = torch.searchsorted(features.owner, features.owner.new_tensor([position, position + 1])).tolist()
        mine = slice(*bounds)
        return features.feature[mine], self.values.index_select(0, features.alike_number[mine])

    def whole(self) -> Tensor:
        """Return a copy for each client."""
        found = self.added([(1.0, self)])
        assert found is not None
        return found.whole()

    def bound(self) -> Tensor:
        """Return the largest magnitude of all, or of each client where that is no number to go by."""
        if self._bound is None:
            self._bound = bound_of_rows(self.values, self.features.alike_owner, len(self))
        return self._bound

    def _added(self, weights: Tensor) -> Tensor:
        values, features = self.values, self.features
        _, collected, _ = features.shares(weights.to(values.device))
        if not bool(weights.all()):  # who has no weight may hold anything, NaN too
            counted = weights.to(values.device).index_select(0, features.alike_owner) != 0.0
            values = torch.where(counted.unsqueeze(1), values, 0.0)
        return features.of_sets(collected).matmul(values).double().cpu()


def bound_of_rows(values: Tensor, owner: Tensor, num_clients: int) -> Tensor:
    """Return what no number of a client exceeds in magnitude, (clients,), of rows that each belong to one."""
    # Their length is no less than the largest of them, and found in half the time; NaN or infinity if any is.
    bound = torch.full((num_clients,), float(torch.linalg.vector_norm(values)), dtype=torch.float64)
    if not bool(bound.isfinite().all()):
        rows = torch.linalg.vector_norm(values, 1, dim=1)
        bound = rows.new_zeros(num_clients).index_add_(0, owner, rows).cpu().double()
    return bound


def first_alike(crow: Array, col: Array, values: Array) -> Array:
    """Return for each row of a CSR matrix the first row that has the same entries, (rows,); no row is empty."""
    bits = values.view(f"u{values.itemsize}")
    # Numbers that are multiplied and shifted so that sums of others are hardly ever the same.
    mixed: Array = (col.astype(np.uint64) + 1) * 0x9E3779B97F4A7C15 ^ bits.astype(np.uint64) * 0xC2B2AE3D27D4EB4F
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9
    keys = np.add.reduceat(mixed ^ (mixed >> 32), crow[:-1]) if len(crow) > 1 else mixed
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    found = first[number]
    # Keys tell whose entries are to be compared; equal keys of different rows are no more than a lost chance.
    counts = np.diff(crow)
    same = counts == counts[found]
    offset = np.where(same, crow[found] - crow[:-1], 0)
    other = np.arange(len(col)) + np.repeat(offset, counts)
    differs = (col != col[other]) | (bits != bits[other])
    same &= np.bincount(np.repeat(np.arange(len(counts)), counts), weights=differs, minlength=len(counts)) == 0
    return np.where(same, found, np.arange(len(found)))


def compact_sum(terms: Sequence[tuple[float, Stacked | Tensor]], features: StackedFeatures) -> CompactStack | None:
    """Return a sum as rows of the features that occur at each client; None where a term is not known to be such."""
    if len(terms) == 1 and terms[0][0] == 1.0 and isinstance(terms[0][1], CompactStack):
        return terms[0][1] if terms[0][1].features is features else None
    total = Combination(terms)
    if features_of(total) is not features:
        return None
    common: list[tuple[float, Tensor]] = []
    spans: list[tuple[float, Tensor]] = []
    alike: list[tuple[float, Tensor]] = []
    held: list[tuple[float, CompactStack]] = []
    for factor, each in total.terms:
        if isinstance(each, Tensor):
            common.append((factor, each))
        elif isinstance(each, SpanStack):
            spans.append((factor, each.coordinates))
        elif isinstance(each, AlikeStack):
            alike.append((factor, each.values))
        elif isinstance(each, CompactStack):
            held.append((factor, each))
    shared = combined(common) if common else None  # (features, out)
    # Last and as it is: of equal numbers, each times the same factor, nothing must be left.
    last = [] if shared is None else [(1.0, shared)]
    rests = [*((factor, each.rest) for factor, each in held), *last]
    rest = combined(rests) if rests else (spans or alike)[0][1].new_zeros(total.shape)
    if not spans and not alike:
        if shared is None:
            return CompactStack(combined([(factor, each.values) for factor, each in held]), rest, features)
        values = shared.index_select(0, features.feature)
        if held:
            alone = len(held) == 1 and held[0][0] == 1.0  # which needs no copy
            values.add_(held[0][1].values if alone else combined([(factor, each.values) for factor, each in held]))
        return CompactStack(values, rest, features)
    # What is small is added up before.
    if spans:
        values = features.spread(combined(spans), shared)
        if alike:
            values.add_(features.parted(combined(alike)))
    else:
        values = features.parted(combined(alike), shared)
    for factor, own in held:
        values.add_(own.values, alpha=factor)
    return CompactStack(values, rest, features)


def features_of(stacked: Stacked) -> StackedFeatures | None:
    """Return the features of whose occurrence a stack, or every part of a sum, has rows; None for any other."""
    if isinstance(stacked, CompactStack | SpanStack | AlikeStack):
        return stacked.features
    if not isinstance(stacked, Combination):
        return None
    found = {id(of): of for of in (features_of(each) for _, each in stacked.terms if isinstance(each, Stacked))}
    return next(iter(found.values())) if len(found) == 1 else None


def drops_features(model: nn.Module) -> bool:
    """Whether the model drops entries of the features in training."""
    return any(getattr(part, "input_dropout", 0.0) for part in model.modules())


# Layers, with the parameters that multiply what goes in.
LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    Linear: ("weight",),
    BiasFreeLinear: ("weight",),
    GCNLayer: ("weight",),
    SAGELayer: ("neighbor_weight", "own_weight"),
    GATLayer: ("weight",),
    GINLayer: ("weight",),
    EmbeddingSum: ("weight",),
    GINELayer: (),  # which reads features as they are, and multiplies sums of them
}


def feature_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that multiply the features."""
    assert isinstance(model, Model)
    place = "gnn.layers.0" if model.encoder is None else "encoder.layers.0"
    if isinstance(model.encoder, EmbeddingSum):
        place = "encoder"
    return tuple(f"{place}.{name}" for name in LAYERS[type(model.get_submodule(place))])
