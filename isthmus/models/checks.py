"""Checks that specs make of their own fields; each raises ValueError with the field, the value and what would do."""

from __future__ import annotations


def require_count(field: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of at least {least}")


def require_dropout(field: str, value: float) -> None:
    """Raise unless `value` is a probability below one (dropping everything leaves nothing to rescale)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ValueError(f"{field} is {value!r}; it must be at least 0 and below 1")


def require_fraction(field: str, value: float) -> None:
    """Raise unless `value` lies in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{field} is {value!r}; it must be between 0 and 1")
