"""An operator's line without a network: a desk in this process, behind a line that loses, mixes and damages."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from isthmus.sites.courses.desk import Desk
from isthmus.sites.courses.ledger import Ledger
from isthmus.sites.submit import Line, Operator

SITES = ("client-0", "client-1", "client-2")


class LossyLine:
    """Brings questions to a desk and answers back; each share of them is dropped, repeated, held back or damaged."""

    def __init__(
        self,
        desk: Desk,
        *,
        seed: int = 0,
        dropped: float = 0.0,
        repeated: float = 0.0,
        held: float = 0.0,
        flipped: float = 0.0,
        name: str = "operator",
        retry_seconds: float = 0.002,
    ) -> None:
        self.desk, self.name = desk, name
        self.random = random.Random(seed)
        self.dropped, self.repeated, self.held_share, self.flipped = dropped, repeated, held, flipped
        self.asked: list[str] = []
        self.change: Callable[[str, bytes], bytes] = lambda kind, answer: answer
        self._held: list[tuple[str, bytes]] = []
        self.line = Line(self.send, retry_seconds)
        self.operator = Operator(self.line)

    def send(self, kind: str, ident: str, data: bytes) -> str:
        """Bring a question to the desk and its answers back."""
        self.asked.append(kind)
        for _ in range(self._times()):
            answer = self.change(kind, self.desk.answer(self.name, kind, data))
            for _ in range(self._times()):
                self._deliver(ident, answer)
        return ""

    def _times(self) -> int:
        drawn = self.random.random()
        return 0 if drawn < self.dropped else 2 if drawn < self.dropped + self.repeated else 1

    def _deliver(self, ident: str, answer: bytes) -> None:
        if self.random.random() < self.flipped:
            place = self.random.randrange(len(answer))
            answer = answer[:place] + bytes([answer[place] ^ (1 << self.random.randrange(8))]) + answer[place + 1 :]
        if self.random.random() < self.held_share:
            self._held.append((ident, answer))
            return
        self.line.heard("answer", ident, answer)
        while self._held and self.random.random() < 0.5:  # what was held back comes after what was sent later
            self.line.heard("answer", *self._held.pop())


def ledger_at(folder: Path) -> Ledger:
    return Ledger(folder / "runs")


def desk_at(folder: Path) -> Desk:
    """A desk over the courses in a folder, as a server has it after its start."""
    return Desk(ledger_at(folder), SITES)
