"""What every section is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The words of the command line.

    Fields:
        quick:     tiny sizes, to see that it works
        seeds:     how many seeds where something is trained
        repeats:   how often a time is taken
        data_root: a folder with datasets; None where there is none
        out:       a folder where what is finished is kept, so that a stopped section goes on; None keeps nothing
    """

    quick: bool = False
    seeds: int = 5
    repeats: int = 5
    data_root: Path | None = None
    out: Path | None = None

    @property
    def data(self) -> Path:
        """The folder with datasets."""
        if self.data_root is None:
            raise SystemExit("this section trains on datasets that do not ship with the package: give --data-root DATA")
        return self.data_root
