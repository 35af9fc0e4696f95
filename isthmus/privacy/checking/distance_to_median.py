"""A bound on how far a reply may be from the middle of all."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isthmus.core.errors import refuse
from isthmus.core.folds import middle
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.protocol import Requests
from isthmus.core.record import Record
from isthmus.privacy.checking.compared import FEWEST, compared, too_few, unknown_kind
from isthmus.privacy.checking.looking import looks_at


@dataclass(frozen=True)
class DistanceToMedian(Guard):
    """A reply that is much farther from the coordinate-wise median than most are is not counted.

    |x_k - m| <= times * median_j |x_j - m|,   m the coordinate-wise median of what the replies change, x_k

    Those who are wrong must be fewer than half. With an infinite `times` nothing is looked at.

    Fields:
        times:    how many times the median distance, at most
        requests: names of the requests whose replies are looked at; empty for all that are answered by tensors
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"times": "less"}

    times: float = 3.0
    requests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(not self.times > 1.0, self, "times", "it must be above 1; .inf for no bound")

    @property
    def compares(self) -> bool:
        """Whether one reply is looked at beside others."""
        return self.times < float("inf")

    def problem(self, course: Any) -> str:
        """Return why the course's cohorts are too small, or what is no request of its method."""
        return too_few(course, FEWEST, "a median") or unknown_kind(self.requests, course.algorithm)

    shown = looks_at

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        """Return whose replies are too far from the median."""
        if self.times == float("inf"):
            return {}
        changes = compared(replies, requests, self.requests)
        usual = Counter(len(change) for change in changes.values())
        size = max(usual, key=lambda length: usual[length], default=0)
        whole = {client: change for client, change in changes.items() if len(change) == size}
        if len(whole) < FEWEST:
            return {}
        rows = torch.stack(list(whole.values()))  # (replies, numbers)
        apart = dict(zip(whole, (rows - middle(rows)).norm(dim=1).tolist(), strict=True))
        most = statistics.median(apart.values())
        return {
            client: (
                f"it is {distance:.3g} from the median of {len(whole)} replies, {distance / most:.3g} times as far as "
                f"half of them are; at most {self.times:g} times"
            )
            for client, distance in apart.items()
            if 0.0 < self.times * most < distance
        }
