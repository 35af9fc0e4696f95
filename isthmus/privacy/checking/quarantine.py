"""Clients whose replies were suspicious too often are asked no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from isthmus.core.errors import refuse
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.outside import named
from isthmus.core.protocol import Failure
from isthmus.core.record import State

SUSPICIOUS = "suspicious"


@dataclass(frozen=True)
class Quarantine(Guard):
    """A client whose replies were suspicious so many times is asked no more, from the next round on.

    It counts what the course's other guards say, for each client, over all rounds. Who is barred answers nothing, and
    has no part in scores any more; each time, a note says who it is and why.

    Fields:
        after:  how many suspicious replies it takes
        rounds: for how many rounds; then its count begins anew. Null for the rest of the course
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"after": "less"}

    after: int = 3
    rounds: int | None = None

    def __post_init__(self) -> None:
        refuse(self.after < 1, self, "after", "it must be at least 1")
        refuse(self.rounds is not None and self.rounds < 1, self, "rounds", "it must be at least 1, or null")

    def problem(self, course: Any) -> str:
        """Return why it would never bar anybody."""
        if any(type(guard).review is not Guard.review or suspects(guard) for guard in course.guards):
            return ""
        return "no other guard of the course says that a reply is suspicious: add one that does, such as norm_bound"

    def told_of(self, failure: Failure, at: AtServer) -> None:
        """Count a suspicious reply."""
        if failure.kind != SUSPICIOUS:
            return
        counts, since = dict(at.memory.get("counts", {})), dict(at.memory.get("since", {}))
        counts[failure.client] = number = counts.get(failure.client, 0) + 1
        if number >= self.after and failure.client not in since:
            since[failure.client] = at.position.round
            first = at.position.round + 1
            until = "on" if self.rounds is None else f"to {at.position.round + self.rounds}"
            at.note(
                f"{named(failure.client)} is asked nothing from round {first} {until}: {number} of its replies were "
                f"suspicious, the last one because {failure.reason}"
            )
        at.remember({"counts": counts, "since": since})

    def barred(self, memory: State, round: int) -> Collection[str]:
        """Return who is in quarantine in a round."""
        return tuple(client for client, start in memory.get("since", {}).items() if start < round)

    def round_done(self, round: int, memory: State) -> State:
        """Let those go whose time is over."""
        since = memory.get("since", {})
        over = {client for client, start in since.items() if self.rounds is not None and start + self.rounds <= round}
        if not over:
            return memory
        counts = {client: number for client, number in memory["counts"].items() if client not in over}
        return {"counts": counts, "since": {client: start for client, start in since.items() if client not in over}}


def suspects(guard: Guard) -> bool:
    """Whether a guard may find a reply suspicious when it arrives."""
    return type(guard).accept is not Guard.accept
