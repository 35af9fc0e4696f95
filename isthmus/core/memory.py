"""Memory that was freed is kept for the next step.

Each step of clients that train together makes and drops tensors of some megabytes. By default the C library hands
memory of this size back to the system and asks for it again, and the system clears every page anew: with Adam and 50
clients on Cora that was two fifths of a round. The pieces of a wide table that is read come and go in the same way.
"""

from __future__ import annotations

import ctypes
from functools import cache

# Bytes from which a piece of memory comes from the system by itself and goes back at once.
LARGE = 64 * 2**20
# Free bytes at the end of the heap above which it is made shorter.
KEPT = 256 * 2**20
# Their numbers in malloc.h of the GNU library.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


@cache
def keep_freed_memory() -> bool:
    """Tell the C library of this process to keep up to `KEPT` free bytes; return whether it can be told so."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is None:  # no GNU library: what it does instead is its own affair
        return False
    return bool(adjust(_MMAP_THRESHOLD, LARGE)) and bool(adjust(_TRIM_THRESHOLD, KEPT))
