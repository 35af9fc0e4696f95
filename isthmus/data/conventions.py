"""What tables and tensors of graphs agree on; without torch, for tables are imported without it."""

from __future__ import annotations

from collections.abc import Sequence

# What the splits of a dataset are called.
SPLITS = ("train", "val", "test")
# Below this share of set entries a CSR matrix is smaller, and its product with a weight matrix faster: at 13 % (Wiki)
# and 10 % (PubMed) a product with its gradient took a fifth of the time of the dense one with 16 columns, a quarter
# with 128.
SPARSE_DENSITY = 0.25


def misplaced(own: Sequence[str], wanted: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """Return which names are missing, by their places among those wanted, which are not wanted, and which are moved.

    Where some are missing or not wanted, none counts as moved.
    """
    place = dict(zip(own, range(len(own)), strict=True))
    there = dict(zip(wanted, range(len(wanted)), strict=True))
    missing = [number for name, number in there.items() if name not in place]
    extra = [number for name, number in place.items() if name not in there]
    moved = [] if missing or extra else [number for name, number in there.items() if place[name] != number]
    return missing, extra, moved
