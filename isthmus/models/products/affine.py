"""The one product of every layer, S H W + b, as one step for autograd; W whole, or in the span of the features.

A client's step takes well under a millisecond, so that each recorded operation counts: what makes a hidden layer of
the rows (`Activate`) is a part of the step. Products are written as they stand: multiplying the transposes instead
takes a quarter of the time on some processors where there are few columns (classes), and twenty times as long on
others. torch gives products in single precision to MKL, which leaves the wide registers (AVX-512) of processors that
Intel has not made alone. oneDNN, which torch brings along, takes half the time there (256 against 111 billion
operations a second), but has no batches: from some size on, a product for each client is faster than one for all.

The span: gradient descent moves the weights W that multiply a client's features X only along the rows of X: each
gradient is X^T D with D the gradient by X W. So after any number of steps of a linear optimiser (SGD, with momentum,
weight decay and a pull to the start W_0)

    W = c W_0 + X^T A        X W = c X W_0 + (X X^T) A

with a number c and a row of A for each node, and a step on W is the same step on (A, c), where D takes the place of
the gradient by A, and 0 that of the gradient by c. What is added to every gradient, such as a control variate V, is one
more origin like W_0: W = c W_0 + d V + X^T A, where 1 takes the place of the gradient by d. When a client has few nodes
and many features, A is much smaller than W, and the Gram matrix X X^T much smaller than X.

Features that are alike: those that occur at the same nodes of a client, with the same values, have the same
gradients. Under any optimiser that looks at nothing but gradients, number by number, their rows of W - W_0 are then
equal, whatever those of W_0 are, and are held once:

    W = W_0 + G D            X W = X W_0 + (X G) D

with a row of D for each set of features that are alike, and G a one for each feature in the column of its set. A step
on W is the same step on D where (X C)^T takes the place of X^T, with C a one for the first feature of each set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.models.products.chain import Step, stepped
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix

# Makes hidden rows of what a layer gives, in place: each entry becomes 0, or is multiplied by the number that comes
# back, which is then its slope.
Activate: TypeAlias = Callable[[Tensor], float]

# MKL takes several times as long for fewer columns than for so many (2,710 rows of 64, on an EPYC: 7 columns 162 us,
# 16 columns 61 us), so that columns of zeros are added to few.
ENOUGH_COLUMNS = 16

# Multiplications of one client from which a call of oneDNN by itself pays, and the least width of weights (measured: at
# 488 rows of 64 by 64 a call takes three quarters of its share of the batch, at 224 a quarter more than it).
LEAST_WORK, LEAST_WIDTH = 2**21, 16
# The same of gradients by weights, H^T D, whose rows it has to turn (measured: of 64 by 64 columns it takes as long at
# 900 rows and four fifths of the time at 2,500, of 128 by 128 two thirds from 500 on; of 32 by 32 a third more).
MUCH_WORK, WIDE = 2**22, 64


def _found() -> Callable[..., Tensor] | None:
    """Return oneDNN's product of rows by a transposed matrix, where torch has it and it is the faster one."""
    backends: Any = torch.backends
    if backends.cpu.get_cpu_capability() != "AVX512" or not backends.mkldnn.is_available():
        return None
    found: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return found


_linear = _found()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right: (rows, in) by (in, out), or (clients, rows, in) by (clients, in, out)."""
    if _linear is None or not _pays(left, right):
        return left.bmm(right) if right.ndim == 3 else left.mm(right)
    if right.ndim == 2:
        return _linear(left, right.t(), None, "none", [], "")
    if len(left) == 1:
        return _linear(left[0], right[0].t(), None, "none", [], "").unsqueeze(0)
    out = left.new_empty(*left.shape[:2], right.shape[2])
    for rows, weight, place in zip(left, right.mT, out, strict=True):
        place.copy_(_linear(rows, weight, None, "none", [], ""))
    return out


def _pays(left: Tensor, right: Tensor) -> bool:
    inner, outer = right.shape[-2:]
    if left.shape[-2] * inner * outer < LEAST_WORK or min(inner, outer) < LEAST_WIDTH:
        return False
    return _is_plain(left, right)


def _is_plain(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN can multiply these: it has no gradient of its own; where one is wanted it is not for us."""
    return left.dtype == right.dtype == torch.float32 and left.device.type == "cpu" and not torch.is_grad_enabled()


def affine(
    h: Features | HeldFeatures,
    weight: Tensor | HeldWeight,
    bias: Tensor | None = None,
    operator: SparseMatrix | None = None,
    activate: Activate | None = None,
) -> Tensor:
    """Return S (H W) + b, (rows, out), with S the operator; without an operator or a bias, they are left out.

    Weights (clients, in, out) and biases (clients, out) are those of many clients whose rows of H lie one below the
    other, equally many for each. With `activate` the rows become those of a hidden layer.
    """
    if isinstance(h, HeldFeatures):
        assert isinstance(weight, HeldWeight)
        return stepped(_HeldAffine, weight.coordinates, bias, weight, h, operator, activate)
    if isinstance(h, Tensor):
        return stepped(_Affine, h, weight, bias, None, operator, activate)
    return stepped(_Affine, h.values, weight, bias, h, operator, activate)


def aggregated_affine(
    operator: SparseMatrix,
    h: Features,
    weight: Tensor,
    bias: Tensor | None = None,
    activate: Activate | None = None,
) -> Tensor:
    """Return S H W + b in the cheaper order: a dense H is aggregated first if W widens it."""
    if isinstance(h, Tensor) and weight.shape[-2] < weight.shape[-1]:
        return affine(operator.recorded(h), weight, bias, None, activate)
    return affine(h, weight, bias, operator, activate)


def pooled_affine(pool: SparseMatrix, pooled: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return P (H W + b), (graphs, out), of the rows P H, (graphs, in): a product with few rows in place of many."""
    return affine(pooled, weight) if bias is None else stepped(_PooledAffine, pooled, weight, bias, pool.kept_sums())


def per_row(parameter: Tensor, dims: int, rows: int) -> Tensor:
    """Return a parameter of `dims` dimensions as it broadcasts over rows; one for each client is repeated over its."""
    if parameter.ndim == dims:
        return parameter
    clients = len(parameter)
    return parameter.unsqueeze(1).expand(clients, rows // clients, *parameter.shape[1:]).flatten(0, 1)


def dense_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right; weights of many clients each multiply their own rows."""
    if right.ndim == 3 and not are_alike(right):
        return product(left.view(len(right), -1, right.shape[1]), right).flatten(0, 1)
    return product(left, right[0] if right.ndim == 3 else right)


def are_alike(weights: Tensor) -> bool:
    """Whether weights of several clients are one and the same, as before the first step; then one product is enough."""
    return weights.ndim == 3 and weights.stride(0) == 0 and len(weights) > 1


def _gradient_by_weight(rows: Tensor, grad: Tensor) -> Tensor:
    """Return H^T D, (in, out), or that of each client, (clients, in, out)."""
    if _linear is not None and rows.ndim == 2 and _is_plain(rows, grad):
        inner, outer = rows.shape[1], grad.shape[1]
        if min(inner, outer) >= WIDE and len(rows) * inner * outer >= MUCH_WORK:
            return _linear(rows.t(), grad.t(), None, "none", [], "")
    return (rows.mT @ _widened(grad))[..., : grad.shape[-1]]


def _widened(right: Tensor) -> Tensor:
    """Return the same with columns of zeros, where it has few."""
    columns = right.shape[-1]
    return F.pad(right, (0, ENOUGH_COLUMNS - columns)) if 1 < columns < ENOUGH_COLUMNS else right


def _activated(ctx: Any, out: Tensor, activate: Activate | None, *saved: Tensor) -> Tensor:
    """Return `out`, made hidden rows where that is asked for; what the gradient needs of it is noted."""
    ctx.slope = None if activate is None else activate(out)
    ctx.save_for_backward(*saved, *(() if activate is None else (out,)))
    return out


def _before_activation(ctx: Any, grad: Tensor) -> Tensor:
    """Return the gradient by what the hidden rows were made of."""
    if ctx.slope is None:
        return grad
    rows = ctx.saved_tensors[-1]
    if isinstance(ctx, Step) and grad.is_contiguous():  # nobody else's
        torch.ops.aten.threshold_backward.grad_input(grad, rows, 0, grad_input=grad)
    else:
        grad = torch.ops.aten.threshold_backward(grad, rows, 0)
    return grad if ctx.slope == 1.0 else grad.mul_(ctx.slope)


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sparse: SparseMatrix | None,
        operator: SparseMatrix | None,
        activate: Activate | None,
    ) -> Tensor:
        """Return S (H W) + b, where H is `x` (dense), or `sparse` with the values `x`."""
        ctx.sparse, ctx.operator = sparse, operator
        ctx.bias_shape = None if bias is None else bias.shape
        out = dense_product(x, _widened(weight)) if sparse is None else sparse.matmul(weight)
        if operator is not None:
            out = operator.matmul(out)
        if out.shape[1] > weight.shape[-1]:
            out = out[:, : weight.shape[-1]]
        return _activated(ctx, out if bias is None else add_bias_(out, bias), activate, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Written with differentiable operations, so that a gradient of a gradient (an attack's) is right too.
        grad = _before_activation(ctx, grads[0])
        x, weight = ctx.saved_tensors[:2]
        sparse: SparseMatrix | None = ctx.sparse
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        by_x = by_weight = None
        by_bias = bias_gradient(grad, ctx.bias_shape) if wants_bias else None
        if ctx.operator is not None and (wants_x or wants_weight):
            grad = ctx.operator.t().matmul(grad)
        if sparse is None:
            return *dense_gradients(grad, x, weight, wants_x, wants_weight), by_bias, None, None, None
        if wants_weight:
            by_weight = sparse.t().matmul(grad)
        if wants_x:
            by_x = sparse.sample(grad, weight)
        return by_x, by_weight, by_bias, None, None, None


def dense_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, wants_x: bool, wants_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a dense product by the features and by the weights, where they are wanted."""
    by_x = by_weight = None
    if weight.ndim == 2:
        return product(grad, weight.t()) if wants_x else None, _gradient_by_weight(x, grad) if wants_weight else None
    by_client = grad.view(len(weight), -1, grad.shape[1])
    if wants_weight:
        by_weight = _gradient_by_weight(x.view(len(weight), -1, x.shape[1]), by_client)
    if wants_x:
        alike = are_alike(weight)
        by_x = product(grad, weight[0].t()) if alike else product(by_client, weight.mT).flatten(0, 1)
    return by_x, by_weight


class _PooledAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pooled: Tensor, weight: Tensor, bias: Tensor, sums: Tensor) -> Tensor:
        """Return H W + s b^T, (graphs, out), with s the sum of each row of what pooled."""
        ctx.save_for_backward(pooled, weight, sums)
        ctx.bias_shape = bias.shape
        out = dense_product(pooled, weight)
        if bias.ndim == 1:
            return out.addcmul_(sums.unsqueeze(1), bias)
        out.view(len(bias), -1, out.shape[1]).addcmul_(sums.view(len(bias), -1, 1), bias.unsqueeze(1))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Written with differentiable operations, as above.
        (grad,) = grads
        pooled, weight, sums = ctx.saved_tensors
        by_pooled, by_weight = dense_gradients(grad, pooled, weight, *ctx.needs_input_grad[:2])
        clients = ctx.bias_shape[0] if len(ctx.bias_shape) == 2 else 1
        by_bias = sums.view(clients, 1, -1).bmm(grad.reshape(clients, -1, grad.shape[1])).view(ctx.bias_shape)
        return by_pooled, by_weight, by_bias, None


class HeldFeatures(ABC):
    """The features of many clients, for weights that are held as something else than themselves."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows, features)."""

    @abstractmethod
    def product(self, weight: HeldWeight) -> Tensor:
        """Return X W, (rows, out), in memory of its own."""

    @abstractmethod
    def slope(self, weight: HeldWeight, grad: Tensor, operator: SparseMatrix | None) -> Tensor:
        """Return the gradient that a step on the coordinates takes, of that by S X W."""


class HeldWeight:
    """The weights of many clients as coordinates.

    Fields:
        coordinates: what is trained
        origins:     X W_0, X V, ..., each (rows, out)
    While `nothing_added` is set, the weights are W_0: products begin there without a look at the coordinates.
    """

    __slots__ = ("_back", "coordinates", "nothing_added", "origins")

    def __init__(self, coordinates: Tensor, *origins: Tensor) -> None:
        self.coordinates, self.origins, self.nothing_added = coordinates, origins, False
        self._back: tuple[SparseMatrix, SparseMatrix] | None = None

    def lengthened(self, operator: SparseMatrix) -> SparseMatrix:
        """Return S^T with a row of zeros for each origin."""
        if self._back is None or self._back[0] is not operator:
            self._back = (operator, operator.t().lengthened(len(self.origins)))
        return self._back[1]


@dataclass(frozen=True, eq=False)
class SpanFeatures(HeldFeatures):
    """Weights as (rows + origins, out): A, and c, d, ... in the last rows (once for each column).

    Fields:
        matrix: X, (rows, features), the clients' rows one below the other
        gram:   X X^T of each client by itself, (rows, rows), block-diagonal
    """

    matrix: SparseMatrix
    gram: SparseMatrix

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, features)."""
        return self.matrix.shape

    def product(self, weight: HeldWeight) -> Tensor:
        """Return X W, (rows, out), in memory of its own."""
        if weight.nothing_added:
            return weight.origins[0].clone()
        number = len(weight.origins)
        out = self.gram.matmul(weight.coordinates[:-number])
        for origin, factor in zip(weight.origins, weight.coordinates[-number:], strict=True):
            out.addcmul_(origin, factor)
        return out

    def slope(self, weight: HeldWeight, grad: Tensor, operator: SparseMatrix | None) -> Tensor:
        """Return the gradient that a step takes, (rows + origins, out), of that by S X W."""
        if operator is None:
            return torch.cat([grad, grad.new_zeros(len(weight.origins), grad.shape[1])])
        return weight.lengthened(operator).matmul(grad)


@dataclass(frozen=True, eq=False)
class AlikeFeatures(HeldFeatures):
    """Weights as (sets, out): what was added to the rows of the features of each set, which are alike.

    Fields:
        matrix: X, (rows, features), the clients' rows one below the other
        sums:   X G, (rows, sets): sums over the features of each set
        firsts: (X C)^T, (sets, rows), of the first feature of each set
    """

    matrix: SparseMatrix
    sums: SparseMatrix
    firsts: SparseMatrix

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, features)."""
        return self.matrix.shape

    def product(self, weight: HeldWeight) -> Tensor:
        """Return X W, (rows, out), in memory of its own."""
        (origin,) = weight.origins
        return origin.clone() if weight.nothing_added else self.sums.matmul(weight.coordinates).add_(origin)

    def slope(self, weight: HeldWeight, grad: Tensor, operator: SparseMatrix | None) -> Tensor:
        """Return the gradient that a step takes, (sets, out), of that by S X W."""
        return self.firsts.matmul(grad if operator is None else operator.t().matmul(grad))


class _HeldAffine(torch.autograd.Function):
    """Its gradient by the coordinates is the one that a step takes (see above)."""

    @staticmethod
    def forward(
        ctx: Any,
        coordinates: Tensor,
        bias: Tensor | None,
        weight: HeldWeight,
        features: HeldFeatures,
        operator: SparseMatrix | None,
        activate: Activate | None,
    ) -> Tensor:
        ctx.operator, ctx.weight, ctx.features = operator, weight, features
        ctx.bias_shape = None if bias is None else bias.shape
        out = features.product(weight)
        if operator is not None:
            out = operator.matmul(out)
        return _activated(ctx, out if bias is None else add_bias_(out, bias), activate)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = _before_activation(ctx, grads[0])
        by_bias = None if ctx.bias_shape is None else bias_gradient(grad, ctx.bias_shape)
        return ctx.features.slope(ctx.weight, grad, ctx.operator), by_bias, None, None, None, None


def add_bias_(h: Tensor, bias: Tensor) -> Tensor:
    """Add a bias, (width,), or (clients, width) with the clients' rows one below the other, to `h` in place."""
    if bias.ndim == 1:
        return h.add_(bias)
    h.view(len(bias), -1, h.shape[1]).add_(bias.unsqueeze(1))
    return h


def bias_gradient(grad: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient by a bias of what was added to all rows, or to each client's."""
    return grad.sum(dim=0) if len(shape) == 1 else grad.view(shape[0], -1, shape[1]).sum(dim=1)


def block_gram(matrix: SparseMatrix, num_blocks: int) -> SparseMatrix:
    """Return X X^T within each of `num_blocks` equal runs of rows, (rows, rows)."""
    from scipy import sparse

    rows, features = matrix.shape
    if matrix.pattern.nnz == 0:
        crow = matrix.pattern.crow.new_zeros(rows + 1)
        return SparseMatrix(Pattern(crow, crow[:0], (rows, rows)), matrix.values[:0])
    per_block = rows // num_blocks
    pattern = matrix.pattern
    # A block's features are columns of its own, so that no product crosses blocks.
    columns = pattern.col.long() + pattern.row.long().div(per_block, rounding_mode="floor") * features
    _, compact = torch.unique(columns, return_inverse=True)
    parts = (part.cpu().numpy() for part in (matrix.values, compact, pattern.crow))
    own = sparse.csr_matrix(tuple(parts), dtype="float32")
    own.resize(rows, max(own.shape[1], 1))
    gram = (own @ own.T).tocsr()
    gram.sort_indices()
    device = matrix.values.device
    crow, col, values = (torch.from_numpy(part).to(device) for part in (gram.indptr, gram.indices, gram.data))
    found = SparseMatrix(Pattern(crow, col, (rows, rows)), values)
    found.mark_symmetric()
    return found
