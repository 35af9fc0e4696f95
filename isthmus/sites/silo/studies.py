"""In how many courses of a study a silo has taken part: a file for each study, with the ids of its courses.

    studies/STUDY         one id a line; of the last studies that it took part in

A study's name and that a course is of one are what the server says. One that says nothing of a study hands out courses
like any other, each of which the policy lets in or not; `max_trials` binds honest servers, and operators by them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from isthmus.core.outside import replace_file

STUDIES = "studies"
MAX_STUDIES = 100  # of which the courses are counted; of those before them it is forgotten
_STUDY = re.compile(r"[0-9a-f]{16,64}")


def names_study(text: str) -> bool:
    """Whether a text can be the name of a study."""
    return bool(_STUDY.fullmatch(text))


@dataclass(frozen=True)
class Studies:
    """The courses that a silo has taken part in, by study; `state` is the silo's folder."""

    state: Path

    def others(self, study: str, course_id: str) -> int:
        """Return in how many courses of a study it took part, without this one."""
        return len(set(self._courses(study)) - {course_id})

    def keep(self, study: str, course_id: str) -> None:
        """Take note that it takes part in a course of a study."""
        courses = self._courses(study)
        if course_id in courses:
            return
        folder = self.state / STUDIES
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / study, "".join(f"{each}\n" for each in (*courses, course_id)).encode())
        for old in sorted(folder.iterdir(), key=os.path.getmtime)[:-MAX_STUDIES]:
            old.unlink()

    def _courses(self, study: str) -> list[str]:
        path = self.state / STUDIES / study
        return path.read_text().split() if path.is_file() else []
