"""All randomness of a course: a stream for each (seed, purpose, round, exchange, client), never a global generator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """Return 63 bits that depend on every part; the same on every machine and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_generator(*parts: int | str) -> torch.Generator:
    """Return a torch generator for the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator for the stream named by `parts`."""
    return np.random.default_rng(derive_seed(*parts))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Run library code that only knows torch's global generator with a seed of ours, then restore it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield
