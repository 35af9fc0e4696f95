"""Where data that does not ship with the package is looked for, and kept."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "ISTHMUS_DATA"


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder given, else the one that ISTHMUS_DATA names, else the user's cache folder."""
    chosen = given or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isthmus"
