"""The server's part in matching ids privately: it carries what silos hand on to each other, round by round.

Of every silo's list it sees how long it is, and points that are as good as random.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage, CourseFailed
from isthmus.core.outside import foreign
from isthmus.core.protocol import Failure
from isthmus.sites.courses.hub import Hub
from isthmus.sites.courses.messages import NO_POINTS, Passed, PassOn, Points


class RingBroken(CourseFailed):
    """Somebody did not hand on; a ring is begun anew from its start or not at all."""


def go_round(hub: Hub, course_id: str, ring: Sequence[str], timeout_seconds: float) -> dict[str, int]:
    """Let the ids of all these silos go round; return how many each has."""
    attempt, handed = secrets.token_hex(16), dict.fromkeys(ring, NO_POINTS)
    numbers: dict[str, int] = {}
    for step in range(len(ring) + 1):
        messages = {
            site: encode(PassOn(course_id, attempt, tuple(ring), step, handed[ring[place - 1]]))
            for place, site in enumerate(ring)
        }
        handed = _answers(hub, messages, timeout_seconds)
        if step == 0:
            numbers = {site: len(points.points) for site, points in handed.items()}
    return numbers


def _answers(hub: Hub, messages: Mapping[str, bytes], timeout_seconds: float) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for site, answer in hub.ask("match", messages, timeout_seconds):
        if isinstance(answer, Failure):
            raise RingBroken(f"ids could not be matched: {site}: {foreign(answer.reason)}")
        try:
            passed: Passed = decode(answer, Passed)
        except BadMessage as error:
            raise RingBroken(f"ids could not be matched: {site} answered nonsense: {error}") from None
        if passed.problem:
            raise RingBroken(f"ids could not be matched: {site}: {foreign(passed.problem)}")
        found[site] = passed.handed
    missing = sorted(messages.keys() - found.keys())
    if missing:
        raise RingBroken(f"ids could not be matched: {missing[0]} gave no answer")
    return found
