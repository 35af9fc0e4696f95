"""What a client does to an update before it leaves: clipping, noise, and rows of a table that it did not train.

FedGNN (Wu et al., 2021): local differential privacy by Laplace noise, and pseudo-interacted items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params


@dataclass(frozen=True, eq=False)
class TableRows:
    """Which rows of a table of embeddings go up; all others stay as they came.

    Fields:
        name:   the table's name among the parameters
        used:   (rows,), ascending; rows that the client trained
        pseudo: (rows,), ascending; rows that it did not, which are to look as if
    """

    name: str
    used: Tensor
    pseudo: Tensor


def privacy_bound(clip: float | None, noise: float) -> float:
    """Return 2 clip / noise: epsilon of one number in [-clip, clip] with Laplace(0, noise) added; inf without one."""
    return math.inf if clip is None or not noise else 2.0 * clip / noise


def free_rows(used: Tensor, num_rows: int, number: int, stream: ProtectingStream) -> Tensor:
    """Return `number` rows that are not in `used`, each as likely as any other, ascending; fewer if there are fewer."""
    free = torch.ones(num_rows, dtype=torch.bool, device=used.device)
    free[used] = False
    rows = free.nonzero().flatten()
    chosen: Tensor = rows[stream.permutation(len(rows))[:number].to(rows.device)].sort().values
    return chosen


def lookalikes(updates: Tensor, number: int, stream: ProtectingStream) -> Tensor:
    """Return draws from the Gaussian with the mean and the covariance of some rows, (number, width).

    With rows u_1 to u_n of mean m, a draw is m + sum_i z_i (u_i - m) / sqrt(n - 1) with z_i ~ N(0, 1), whose covariance
    is that of the sample; of one row it is the row, and of none it is zero.
    """
    if not len(updates):
        return torch.zeros(number, updates.shape[1], device=updates.device)
    mean = updates.mean(dim=0)
    z = stream.normal((number, len(updates))).to(updates.device)
    return mean + z @ (updates - mean) / math.sqrt(max(len(updates) - 1, 1))


def perturbed(
    before: Params,
    after: Params,
    *,
    clip: float | None,
    noise: float,
    stream: ProtectingStream,
    table: TableRows | None = None,
) -> Params:
    """Return before + clip(after - before, clip) + Laplace(0, noise), number by number.

    `clip` None clips nothing, and `noise` 0 adds none. Of a table only the chosen rows change. Its pseudo rows get
    updates that look like those of the used ones, drawn before clipping and noise.
    """
    found: Params = {}
    for name, start in before.items():
        if table is not None and name == table.name:
            trained = after[name][table.used] - start[table.used]
            update = torch.cat([trained, lookalikes(trained, len(table.pseudo), stream)])
            rows = torch.cat([table.used, table.pseudo])
            found[name] = start.clone()
            found[name][rows] += _protected(update, clip, noise, stream)
        elif clip is None and not noise:
            found[name] = after[name]
        else:
            found[name] = start + _protected(after[name] - start, clip, noise, stream)
    return found


def _protected(update: Tensor, clip: float | None, noise: float, stream: ProtectingStream) -> Tensor:
    if clip is not None:
        update = update.clamp(-clip, clip)
    return update + stream.laplace(update.shape, noise).to(update.device) if noise else update
