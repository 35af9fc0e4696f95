"""The folder of a dataset's raw files, below the data root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isthmus.data.zoo.digests import verified
from isthmus.data.zoo.raw import require


@dataclass(frozen=True)
class RawFolder:
    """Files of one dataset, all in one folder.

    Fields:
        dataset:   name of the dataset
        folder:    their folder below the data root
        names:     their names
        published: where they are to be had
    """

    dataset: str
    folder: str
    names: tuple[str, ...]
    published: str

    def present(self, root: Path) -> bool:
        """Return whether all files are there."""
        return all((root / name).is_file() for name in self._paths)

    def verified(self, root: Path) -> Path:
        """Return the folder, its files all there and compared with the digests that are known."""
        require(self.dataset, root, self._paths, self.published)
        for name in self._paths:
            verified(root, name)
        return root / self.folder

    @property
    def _paths(self) -> list[str]:
        return [f"{self.folder}/{name}" for name in self.names]
