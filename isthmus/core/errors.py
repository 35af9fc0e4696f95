"""What can go wrong, in words a user can act on: what was found, where, and what would do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from difflib import get_close_matches


class IsthmusError(Exception):
    """Root of all errors that Isthmus raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class BadInput(IsthmusError):
    """The user gave something that cannot work: a key, a value, a file, a folder."""

    exit_code = 2


class MissingData(BadInput):
    """A dataset's files are absent and cannot be downloaded."""


class NotResumable(BadInput):
    """A run folder holds nothing to go on with: cut off before its first checkpoint, damaged, or of another course."""


class OtherCourse(NotResumable):
    """A checkpoint was saved by a course with other settings."""


class MissingExtra(BadInput):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}; install it with: pip install 'isthmus[{extra}]'")


class BadMessage(IsthmusError):
    """Bytes that are not a record, or a record that is not what was agreed."""


class RefusedRequest(IsthmusError):
    """A client does not do what it is asked, because of what the request holds."""


class TooFewReplies(IsthmusError):
    """An exchange brought fewer usable replies than the course asks for."""


class CourseFailed(IsthmusError):
    """The course cannot go on; the last checkpoint is kept."""


def quoted(word: object) -> str:
    """Return a word of a command as a shell needs it, so that a command that is printed can be copied."""
    return shlex.quote(str(word))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "known: a, b, c. Did you mean 'b'?" with the choices sorted, for an unknown `name`."""
    choices = sorted(known)
    if not choices:
        return "there are none"
    text = f"known: {', '.join(choices)}."
    name = str(name)  # of a field that should have been one, anything
    close = get_close_matches(name.lower(), choices, n=1, cutoff=0.5)
    # A name that starts with what was typed is what the user most likely means ('fedsage' -> 'fedsage_plus').
    starts = [choice for choice in choices if name and choice.startswith(name.lower())]
    best = (starts or close)[:1]
    return f"{text} Did you mean {best[0]!r}?" if best else text


def refuse(wrong: bool, spec: object, field: str, wanted: str) -> None:
    """Raise ValueError where a field of a spec has a value that is wrong; `wanted` says what would do."""
    if wrong:
        raise ValueError(f"{field} is {getattr(spec, field)!r}; {wanted}")


def refuse_unknown(spec: object, field: str, known: Iterable[str]) -> None:
    """Raise ValueError, with the nearest choice, where a field of a spec is none of the known names."""
    name = getattr(spec, field)
    if name not in known:
        refuse(True, spec, field, nearest(name, known))
