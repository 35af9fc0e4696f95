"""Every attack of the table with few shadows, where its own defaults take long."""

from __future__ import annotations

from typing import Any

from isthmus.attacks import ATTACKS
from isthmus.attacks.attack import Attack

FEW: dict[str, dict[str, Any]] = {"lira": {"shadows": 4}, "property_inference": {"which": "degree", "shadows": 3}}


def small(name: str) -> Attack:
    """Return an attack by its name."""
    return ATTACKS[name](**FEW.get(name, {}))
