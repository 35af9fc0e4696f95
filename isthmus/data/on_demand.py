"""Packages that take long to import, each imported when something of it is first used, in whatever function that is.

A course on a graph that needs no table and no scipy starts without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Package:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)  # the next time it is here
        return found


if TYPE_CHECKING:
    import torch as torch
else:
    torch = _Package("torch")
pa: Any = _Package("pyarrow")
compute: Any = _Package("pyarrow.compute")
csv: Any = _Package("pyarrow.csv")
parquet: Any = _Package("pyarrow.parquet")
sparse: Any = _Package("scipy.sparse")
csgraph: Any = _Package("scipy.sparse.csgraph")
