"""Whether a silo's data are still those it answered a course with; what that is told by stays in its state folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.core.outside import replace_file
from isthmus.data.dividing import fingerprint
from isthmus.data.folders.own_folder import OwnData

DATA_FILE = "data"  # beside the memories of a course, and there as long as they are
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


class DataSeen:
    """The fingerprints of what a silo held in its courses, each computed once at most while its process runs.

    The file of a course has two: of the data that it was first answered with, and of those of its last answer. A server
    that goes on from a checkpoint goes back to before the last answer, and its journal with it.
    """

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self._now: dict[Path, str] = {}  # course -> the fingerprint of the data that this process read for it
        self._kept: set[Path] = set()

    def changed(self, course: Path, held: OwnData[Any]) -> bool:
        """Whether a silo holds something else than it answered a course with; no, if it never did or cannot tell."""
        seen = _read(course)
        other = bool(seen) and set(seen) != {self._of(course, held)}
        if other:
            self.say("its data are other than in this course before; the server is told so, and nothing else of them")
        return other

    def keep(self, course: Path, held: OwnData[Any] | None = None) -> None:
        """Take note of the data that a course is answered with, said once, and that it is a course in use."""
        if held is not None:
            self._of(course, held)
        if course in self._kept and (course / DATA_FILE).is_file():
            os.utime(course)
            return
        now = self._now.get(course)
        if now is None:
            return
        first, *_ = *_read(course), now
        try:
            course.mkdir(parents=True, exist_ok=True)
            replace_file(course / DATA_FILE, f"{__version__} {first} {now}\n".encode())
        except OSError as error:  # no answer needs it, and the next one tries again
            if course not in self._kept:
                why = error.strerror or error
                self.say(f"{course / DATA_FILE} cannot be written: {why}; if its data change, the server is not told")
        self._kept.add(course)

    def _of(self, course: Path, held: OwnData[Any]) -> str:
        if course not in self._now:
            self._now = {
                path: found for path, found in self._now.items() if path.is_dir()
            }  # not those that were pruned
            self._kept &= self._now.keys()
            self._now[course] = fingerprint_of(held)
        return self._now[course]


def fingerprint_of(held: OwnData[Any]) -> str:
    """Return the fingerprint of what a silo read: data, what its nodes are called, and edges to nodes of others."""
    # Names as one text: one by one they would take as long as all the numbers.
    return fingerprint(held.data, repr(held.node_ids), getattr(held, "foreign", None))


def _read(course: Path) -> list[str]:
    """Return the fingerprints of a course, first and last; none from a file that is damaged or of another version.

    Another version may read the same folder otherwise, so that its fingerprints cannot be compared.
    """
    try:
        version, *found = (course / DATA_FILE).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
    usable = version == __version__ and len(found) == 2 and all(map(_FINGERPRINT.fullmatch, found))
    return found if usable else []
