"""How fast one tensor is put into fewer bytes and comes back, without messages, memories and courses around it.

A matrix of 10 MB with rows of 64 numbers, changed by a hundredth of its size. MB of the tensor for each second of the
processor, the best of several times: of the guard, and of `entropy` on what the guard makes of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from timing import heading, row

from guarding.settings import Settings
from isthmus.core.protocol import Position
from isthmus.privacy.compression.coding import Coder
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.draws import Draws
from isthmus.privacy.compression.entropy import packed, unpacked
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK

CODERS: dict[str, Coder] = {
    "delta": Delta(),
    "quantise 8": Quantise(bits=8),
    "quantise 4": Quantise(bits=4),
    "quantise 1 with feedback": Quantise(bits=1, error_feedback=True),
    "top_k 0.05": TopK(fraction=0.05),
    "random_k 0.05": RandomK(fraction=0.05),
    "low_rank 4": LowRank(rank=4),
}


def best(repeats: int, do: Callable[[], Any]) -> tuple[float, Any]:
    """Return the fewest seconds of the processor that something took, and what came of it."""
    took, found = [], None
    for _ in range(repeats):
        started = time.process_time()
        found = do()
        took.append(time.process_time() - started)
    return max(min(took), 1e-9), found


def show(settings: Settings) -> None:
    """Print the table."""
    numbers = 25_600 if settings.quick else 2_560_000
    stream = torch.Generator().manual_seed(0)
    base = torch.randn(numbers // 64, 64, generator=stream)
    value = base + 0.01 * torch.randn(base.shape, generator=stream)
    heading("guard", "MB/s there", "MB/s back", "times fewer", "MB/s packing", "MB/s unpacking", "times fewer, packed")
    for name, guard in CODERS.items():
        draws = Draws(Position(1, 1, 1), "w", lambda: torch.Generator().manual_seed(3), guard.error_feedback)
        there, wire = best(settings.repeats, lambda g=guard, d=draws: g.coded(value, base, d, {}))
        back, _ = best(settings.repeats, lambda g=guard, d=draws, w=wire: g.applied(w, base, d))
        packing, small = best(settings.repeats, lambda w=wire: packed(w, "zlib", 1, always=True))
        unpacking, _ = best(settings.repeats, lambda s=small: unpacked(s))
        size = 4 * numbers
        speeds = [f"{size / 1e6 / seconds:,.0f}" for seconds in (there, back, packing, unpacking)]
        fewer = [f"{size / (t.numel() * t.element_size()):.1f}" for t in (wire, small)]
        row(name, *speeds[:2], fewer[0], *speeds[2:], fewer[1])
