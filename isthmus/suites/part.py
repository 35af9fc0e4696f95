"""A part of a suite, or the suite with something changed in every course."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from isthmus.config.build import Builder
from isthmus.config.load import parse_override
from isthmus.core.errors import BadInput, nearest
from isthmus.suites.figure_spec import read_choices
from isthmus.suites.spec import Choice, Suite, load_suite


def part_of(path: Path, only: Sequence[str], changes: Sequence[str], seeds: int | None = None) -> Suite:
    """Read a suite and return the part that is asked for: some choices, changed keys, the first so many seeds."""
    suite = changed(narrowed(load_suite(path), only), changes)
    if seeds is None:
        return suite
    if seeds > len(suite.seeds):
        raise BadInput(f"--seeds is {seeds}, but {path} has {len(suite.seeds)}; give it more with seeds: {seeds}")
    return replace(suite, seeds=suite.seeds[:seeds])


def narrowed(suite: Suite, words: Sequence[str]) -> Suite:
    """Return a suite with only some choices of some axes, or only some values of a searched key.

    Each word is `axis=choice` or `axis=choice,choice`, or the same with a key that the suite searches, whole or only
    its last part: `local_steps=4` keeps the points of every grid at which algorithm.local_steps is 4.
    """
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadInput(f"--only is {word!r}, expected AXIS=CHOICE or AXIS=CHOICE,CHOICE")
        searched = list(dict.fromkeys(chain.from_iterable(choice.search for choice in suite.choices)))
        keys = [key for key in searched if name in (key, key.rsplit(".", 1)[-1])]
        if name in suite.axes:
            suite = _with_choices(suite, name, text)
        elif keys:
            for key in keys:
                suite = _with_values(suite, key, text)
        else:
            known = nearest(name, [*suite.axes, *searched])
            raise BadInput(f"{suite.title}: --only names {name!r}, no axis and no searched key; {known}")
    if not suite.cells():
        raise BadInput(f"--only {' '.join(words)}: the suite has no such cell")
    return suite


def changed(suite: Suite, words: Sequence[str]) -> Suite:
    """Return a suite whose courses all have these keys, given as `key=value`, whatever the suite says of them."""
    if not words:
        return suite
    changes = {".".join(path): value for path, value in map(parse_override, words)}
    suite = replace(suite, changes={**suite.changes, **changes}, title=f"{suite.title} (with {', '.join(words)})")
    suite.points()  # builds every course, so that a mistake shows before anything runs
    return suite


def _with_choices(suite: Suite, axis: str, text: str) -> Suite:
    whole = text in suite.axes[axis]  # a choice may have a comma in its name
    choices: Any = text if whole else [choice.strip() for choice in text.split(",")]
    with Builder(suite.title).placed(""):
        kept = read_choices({axis: choices}, suite.axes, "--only")[axis]
    left = tuple(choice for choice in suite.axes[axis] if choice not in kept)
    return replace(suite, skip=(*suite.skip, {axis: left})) if left else suite


def _with_values(suite: Suite, key: str, text: str) -> Suite:
    """Return a suite whose grids have only these values of a key; every grid must have one of them."""
    asked = [word.strip() for word in text.split(",")]

    def kept(name: str, choice: Choice) -> Choice:
        if key not in choice.search:
            return choice
        values = [value for value in choice.search[key] if str(value) in asked]
        if not values:
            tried = ", ".join(map(str, choice.search[key]))
            raise BadInput(f"{suite.title}: --only {key}={text}: {name} tries {tried}")
        return replace(choice, search={**choice.search, key: values})

    axes = {axis: {name: kept(name, choice) for name, choice in own.items()} for axis, own in suite.axes.items()}
    return replace(suite, axes=axes)
