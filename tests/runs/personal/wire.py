"""A runtime that keeps what passes."""

from __future__ import annotations

from typing import Any

from isthmus.core.record import Record
from isthmus.runtime.loop import LoopRuntime


class Wire(LoopRuntime):
    """Keeps every record that passes; the list is put in place by the test."""

    seen: list[Record]

    def exchange(self, position: Any, requests: Any, timeout_seconds: Any) -> Any:
        self.seen.extend(requests.values())
        for outcome in super().exchange(position, requests, timeout_seconds):
            self.seen.append(outcome.reply)
            yield outcome
