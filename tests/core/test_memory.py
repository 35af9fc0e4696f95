"""Memory between steps."""

from __future__ import annotations

import ctypes
import resource

import pytest
import torch

from isthmus.core.memory import KEPT, LARGE
from isthmus.learn.together.blocks import Blocks


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library cannot be told")
def test_who_puts_clients_together_gets_the_same_memory_again() -> None:
    size = 48 * 2**20  # by itself, the library gives pieces of more than 32 MB back whatever happened before
    assert size < LARGE and 2 * size < KEPT
    Blocks(2**20)

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size // 4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    # Aligned memory is asked for with some bytes to spare, so that a piece is used again once a neighbour is free too.
    found = [faults() for _ in range(12)]
    assert sum(found[6:]) < size // resource.getpagesize()  # of the six times as many pages
