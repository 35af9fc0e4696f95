"""Text that another party wrote: cut, on one line, without characters that a terminal would obey.

Whatever comes over the wire and is shown, stored or put into an error passes `foreign` once, where it is taken in.
What it returns is still plain text and never markup: print it with `markup=False`, escape it in a page.
"""

from __future__ import annotations

from collections.abc import Sequence

# A sentence or two; what is longer was not written to be read.
MAX_TEXT = 500
# Names of parameters, sites, classes, splits and metrics, as they stand within a sentence.
MAX_NAME = 80
CUT = "..."


def foreign(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text from elsewhere on one line, of printable characters, and no longer than `limit`.

    A character that is not printable, a line break among them, becomes "?".
    """
    shown = "".join(character if character.isprintable() else "?" for character in text[: limit + 1])
    if len(text) > limit:
        return shown[: max(limit - len(CUT), 0)] + CUT
    return shown


def named(name: object) -> str:
    """Return the repr of a name from elsewhere, cut where it is longer than a name should be."""
    if isinstance(name, str) and len(name) > MAX_NAME:
        return f"{name[:MAX_NAME]!r}{CUT}"
    return foreign(repr(name), 2 * MAX_NAME) if not isinstance(name, str) else repr(name)


def some(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
