from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.core.outside import data_root


def test_what_is_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DATA", "elsewhere")
    assert data_root("here") == Path("here")
    assert data_root("~/here") == Path.home() / "here"


def test_then_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DATA", "elsewhere")
    assert data_root(None) == Path("elsewhere")


def test_then_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    assert data_root(None) == empty_cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root(None) == Path.home() / ".cache" / "isthmus"
