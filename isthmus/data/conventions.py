"""What tables and tensors of graphs agree on; without torch, for tables are imported without it."""

from __future__ import annotations

# What the splits of a dataset are called.
SPLITS = ("train", "val", "test")
# Below this share of set entries a CSR matrix is smaller, and its product with a weight matrix faster: at 13 % (Wiki)
# and 10 % (PubMed) a product with its gradient took a fifth of the time of the dense one with 16 columns, a quarter
# with 128.
SPARSE_DENSITY = 0.25
