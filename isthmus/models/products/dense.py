"""Dense products of rows by weights, of one client or of many, by the faster of torch's two libraries.

torch gives products in single precision to MKL, which leaves the wide registers (AVX-512) of processors that Intel has
not made alone. oneDNN, which torch brings along, takes half the time there (256 against 111 billion operations a
second), but has no batches: from some size on, a product for each client is faster than one for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Multiplications of one client from which a call by itself pays, and the least width of weights (measured: at 488 rows
# of 64 by 64 a call takes three quarters of its share of the batch, at 224 a quarter more than it).
LEAST_WORK, LEAST_WIDTH = 2**21, 16


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
    # It has no gradient of its own: where one of it is wanted, it is not for us.
    return left.dtype == right.dtype == torch.float32 and left.device.type == "cpu" and not torch.is_grad_enabled()
