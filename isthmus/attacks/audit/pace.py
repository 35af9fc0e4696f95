"""How much of an audit is left, how long that takes by what was measured of it so far, and where it stands."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What is to be run.

    Fields:
        courses:   the course, once for each seed and list of guards
        tampered:  the course again, with somebody malicious
        shadows:   by attack, the courses of its own
        processes: in which shadows run
    """

    courses: int
    tampered: int
    shadows: dict[str, int]
    processes: int

    @property
    def num_shadows(self) -> int:
        """All of them."""
        return sum(self.shadows.values())

    @property
    def number(self) -> int:
        """All courses of any kind."""
        return self.courses + self.tampered + self.num_shadows

    def in_words(self) -> str:
        """Return what is to be run."""
        parts = [_counted(self.courses, "course")]
        if self.tampered:
            parts.append(f"{self.tampered} more with somebody malicious")
        if self.num_shadows:
            each = ", ".join(f"{number} of {name}" for name, number in self.shadows.items())
            parts.append(f"{_counted(self.num_shadows, 'shadow')} ({each}) in {_counted(self.processes, 'process')}")
        return f"to be run: {', '.join(parts)}"


@dataclass(frozen=True)
class Standing:
    """How far an audit is: runs that are done, of how many, what it does now, and seconds that are left, if known."""

    done: int
    number: int
    doing: str
    left: float | None


class Pace:
    """Measures an audit as it goes, and says how much is left.

    The first course says what a course takes, and shadows are taken for courses until some of them were measured. What
    attacks compute beside that is known when all of them have been made on one course.
    """

    def __init__(
        self,
        work: Work,
        say: Callable[[str], None],
        watch: Callable[[Standing], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.work, self.say, self.watch, self.clock = work, say, watch, clock
        self._done = self._shadows_done = self._cells = 0
        self._in_course = self._in_shadows = self._in_cells = 0.0
        if work.number:
            say(work.in_words())

    def doing(self, what: str) -> None:
        """Say what comes now."""
        self.watch(Standing(self._done, self.work.number, what, self.left()))

    def ran_course(self, seconds: float) -> None:
        """Take note of a course that has run, whichever guards it has, or whoever tampered with it."""
        self._done += 1
        if not self._in_course:
            self._in_course = seconds
            self._tell("a course took", seconds, "without what attacks compute")

    def ran_shadows(self, number: int, seconds: float) -> None:
        """Take note of shadows that have run side by side."""
        self._done += number
        self._shadows_done += number
        self._in_shadows += seconds

    def finished(self, seconds: float) -> None:
        """Take note that all attacks on a course were made; the seconds are without shadows."""
        self._cells += 1
        self._in_cells += seconds
        if self._cells == 1:
            self._tell("the first course with all attacks on it took", seconds + self._in_shadows, "")

    def left(self) -> float | None:
        """Return the seconds that are left by what was measured; None before anything was."""
        if not self._in_course:
            return None
        # Of a course with all that is done to it but shadows, and of a shadow.
        each = self._in_course * (1.0 + self.work.tampered / self.work.courses)
        if self._cells:
            each = self._in_cells / self._cells
        shadow = self._in_course / self.work.processes
        if self._shadows_done:
            shadow = self._in_shadows / self._shadows_done
        return each * (self.work.courses - self._cells) + shadow * (self.work.num_shadows - self._shadows_done)

    def _tell(self, what: str, seconds: float, but: str) -> None:
        left = self.left()
        if left:
            self.say(f"{what} {in_time(seconds)}: about {in_time(left)} are left{f', {but}' if but else ''}")


def _counted(number: int, what: str) -> str:
    plural = what if number == 1 else f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {plural}"


def in_time(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 1.0:
        return f"{1000.0 * seconds:.0f} ms"
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = math.ceil(seconds / 60.0)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
