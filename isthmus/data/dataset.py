"""The contract of a dataset: a few fields, and one method that brings the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from isthmus.data.dividing import Holding


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A graph, a graph of links or a set of graphs that can be loaded by name.

    Fields:
        normalize_features: whether each node's features are divided by their sum
    """

    task: ClassVar[str] = "node"
    licence: ClassVar[str] = ""

    normalize_features: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Files below the data root that `load` needs."""
        return ()

    @abstractmethod
    def load(self, root: Path) -> Holding:
        """Return the data; `root` is the folder for data that does not ship with the package."""

    def present(self, root: Path) -> bool:
        """Return whether `load` will find its files without a download; here, those that it names in `needs`."""
        return all((root / name).is_file() for name in self.needs)
