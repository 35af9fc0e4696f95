"""What tests of sites share."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

_keys: list[Any] = []


@pytest.fixture
def keys_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the parties of a test the keys that those of tests before had, for making them takes long.

    Within a test no two are the same; so it is for tests that make their federations themselves.
    """
    provision = pytest.importorskip("isthmus.runtime.flare.provision", reason="needs nvflare")
    make, numbers = provision.generate_keys, count()

    def generate_keys() -> Any:
        number = next(numbers)
        if number == len(_keys):
            _keys.append(make())
        return _keys[number]

    monkeypatch.setattr(provision, "generate_keys", generate_keys)
