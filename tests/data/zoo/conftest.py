"""Real raw files, where a data folder is given; small ones otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.data.zoo.raw import digests
from tests.data.conftest import GIVEN_ROOT, REPOSITORY


@pytest.fixture(scope="session")
def real_root() -> Callable[..., Path]:
    """Return a function that gives the data folder with these files, or skips."""

    def root_with(*names: str) -> Path:
        roots = [Path(GIVEN_ROOT)] if GIVEN_ROOT else []
        for root in [*roots, REPOSITORY.parent / "shared" / "data"]:
            if all((root / name).is_file() for name in names):
                return root
        pytest.skip(f"no raw files {', '.join(names)}: put them below a folder DATA and set ISTHMUS_DATA=DATA")

    return root_with


@pytest.fixture
def no_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the table of digests: small files of a test stand where the real ones would."""
    for name in list(digests()):
        monkeypatch.delitem(digests(), name)
