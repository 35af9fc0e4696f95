"""A sink of JSON lines: a row for each round, for tools of one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from isthmus.core.outside import naming
from isthmus.sinks.sink import About, Sink


class JsonLines(Sink):
    """Appends to the run folder's `metrics.jsonl`; numbers that JSON does not know are null."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.path = about.folder / "metrics.jsonl"

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Write a row."""
        self._write({"round": round, **values})

    def close(self, values: Mapping[str, float]) -> None:
        """Write a row of the last scores."""
        self._write(dict(values))

    def leave(self) -> None:
        """Leave the file as it is: every row is written at once."""

    def _write(self, row: Mapping[str, Any]) -> None:
        known = {name: value if -1e308 < value < 1e308 else None for name, value in row.items()}
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(known) + "\n")
