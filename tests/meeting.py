"""Tests over many choices: in the default set every few values meet, in the slow one every combination is tried.

    @pytest.mark.meet(2)
    @pytest.mark.parametrize("runtime", ...)
    @pytest.mark.parametrize("optimizer", ...)
    @pytest.mark.parametrize("name", ...)

In the default set every two values of different arguments are in a test together: what two choices do to each other is
seen there, what three do in the slow set. With `meet(1)` every value is in some test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

Choice = tuple[int, ...]


def covering(choices: Sequence[Choice], number: int) -> set[Choice]:
    """Return choices in which all values meet, `number` at a time, that meet in any; what adds most is taken first."""
    meetings = {choice: set(combinations(enumerate(choice), number)) for choice in choices}
    missing = set().union(*meetings.values())
    cover: set[Choice] = set()
    while missing:
        best = max(choices, key=lambda choice: len(missing & meetings[choice]))
        cover.add(best)
        missing -= meetings[best]
    return cover


def mark_the_others_slow(items: Sequence[pytest.Item]) -> None:
    """Mark tests slow that are not needed for the meetings that their marks ask for.

    What is slow already is no part of it, or a value would be met there alone.
    """
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("meet") and not item.get_closest_marker("slow"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for group in groups.values():
        (number,) = group[0].get_closest_marker("meet").args
        # Combinations hold the very values that a parametrisation names.
        choices = {item: tuple(map(id, item.callspec.params.values())) for item in group}
        cover = covering(list(choices.values()), number)
        for item, choice in choices.items():
            if choice not in cover:
                item.add_marker("slow")
