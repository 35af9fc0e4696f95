"""What every section is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CLIENTS = (3, 10, 50)
SIZES = {"10 KB": 10_000, "1 MB": 1_000_000, "50 MB": 50_000_000}
HERE, BETWEEN = PLACES = ("here", "processes")
TABLES = ("clients", "rows", "edges", "nodes", "examples")


@dataclass(frozen=True)
class Settings:
    """The words of the command line.

    Fields:
        quick:     tiny sizes, to see that it works
        seeds:     how many seeds where something is trained
        repeats:   how often a time is taken
        clients:   of how many clients exchanges are; empty for 3, 10 and 50
        sizes:     of what size their models are; empty for all
        lines:     which rows of cost, beside that without guards; empty for all
        where:     where a secure sum is measured; None for both
        tables:    which of dp's tables; empty for all
        datasets:  on which datasets these are, where they are on several; empty for all
        data_root: a folder with datasets; None where there is none
        out:       a folder where what is finished is kept, so that a stopped section goes on; None keeps nothing
    """

    quick: bool = False
    seeds: int = 5
    repeats: int = 5
    clients: tuple[int, ...] = ()
    sizes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    where: str | None = None
    tables: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    data_root: Path | None = None
    out: Path | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of how many clients exchanges are measured."""
        return self.clients or (CLIENTS[:1] if self.quick else CLIENTS)

    @property
    def models(self) -> dict[str, int]:
        """The bytes of a model by the name of its size."""
        names = self.sizes or (tuple(SIZES)[:1] if self.quick else tuple(SIZES))
        return {name: SIZES[name] for name in names}

    @property
    def data(self) -> Path:
        """The folder with datasets."""
        if self.data_root is None:
            raise SystemExit("this section trains on datasets that do not ship with the package: give --data-root DATA")
        return self.data_root
