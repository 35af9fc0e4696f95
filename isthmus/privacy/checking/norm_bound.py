"""A bound on how far a reply may change what was sent. Sun et al., 2019."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from isthmus.core.errors import refuse
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.protocol import Requests
from isthmus.core.record import Record
from isthmus.privacy.checking.compared import FEWEST, compared, too_few, unknown_kind
from isthmus.privacy.checking.looking import looks_at


@dataclass(frozen=True)
class NormBound(Guard):
    """A reply whose change of what was sent is too long is not counted: longer than a number, or than most others'.

    |w_k - w| <= largest  and  |w_k - w| <= times_median * median_j |w_j - w|

    Numbers of a reply that have no counterpart in the request count as they are. With both bounds null nothing is
    looked at. The fold `norm_bound` shortens such changes in place of leaving them out.

    Fields:
        largest:      the largest norm; null for none
        times_median: how many times the median of all that answer, at most; null for none
        requests:     names of the requests whose replies are looked at; empty for all that are answered by tensors
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"largest": "less", "times_median": "less"}

    largest: float | None = None
    times_median: float | None = None
    requests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("largest", 0.0), ("times_median", 1.0)):
            value = getattr(self, name)
            refuse(value is not None and not value > least, self, name, f"it must be above {least:g}, or null for none")

    @property
    def compares(self) -> bool:
        """Whether one reply is looked at beside others."""
        return self.times_median is not None

    def problem(self, course: Any) -> str:
        """Return why the course's cohorts are too small, or what is no request of its method."""
        few = too_few(course, FEWEST, "a median") if self.times_median is not None else ""
        return few or unknown_kind(self.requests, course.algorithm)

    shown = looks_at

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        """Return whose changes are too long."""
        if self.largest is None and self.times_median is None:
            return {}
        lengths = {
            client: float(change.norm()) for client, change in compared(replies, requests, self.requests).items()
        }
        found = {}
        middle = statistics.median(lengths.values()) if len(lengths) >= FEWEST else 0.0
        for client, length in lengths.items():
            if self.largest is not None and length > self.largest:
                found[client] = f"what it changes has the norm {length:.3g}, the bound is {self.largest:g}"
            elif self.times_median is not None and 0.0 < self.times_median * middle < length:
                found[client] = (
                    f"what it changes has the norm {length:.3g}, {length / middle:.3g} times the median of "
                    f"{len(lengths)} replies; at most {self.times_median:g} times it"
                )
        return found
