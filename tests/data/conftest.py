"""Files that tests of this folder need and the package does not hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Read at once: tests unset the variable.
GIVEN_ROOT = os.environ.get("ISTHMUS_DATA")


def find_raw(folder: str) -> Path | None:
    roots = [Path(GIVEN_ROOT)] if GIVEN_ROOT else []
    for root in [*roots, REPOSITORY.parent / "shared" / "data"]:
        raw = root / "planetoid" / folder / "raw"
        if (raw / f"ind.{folder.lower()}.graph").is_file():
            return raw
    return None


@pytest.fixture
def planetoid_root(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that gives a data root with a copy of one Planetoid dataset, or skips."""

    def root_with(folder: str) -> Path:
        raw = find_raw(folder)
        if raw is None:
            pytest.skip(
                f"no raw files of {folder}: put ind.{folder.lower()}.* of github.com/kimiyoung/planetoid into "
                f"DATA/planetoid/{folder}/raw and set ISTHMUS_DATA=DATA"
            )
        target = tmp_path / "root" / "planetoid" / folder / "raw"
        target.mkdir(parents=True)
        for file in raw.iterdir():
            shutil.copyfile(file, target / file.name)
        return tmp_path / "root"

    return root_with


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the user's cache at an empty folder, and unset ISTHMUS_DATA."""
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "isthmus"
