"""What a section has finished, in a file that only grows: a section that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Kept:
    """Entries by name, each a line of JSON; without a folder they are kept as long as the process runs."""

    def __init__(self, folder: Path | None, section: str) -> None:
        self.path = None if folder is None else folder / f"{section}.jsonl"
        self._entries: dict[str, dict[str, Any]] = {}
        text = self.path.read_text() if self.path is not None and self.path.exists() else ""
        if self.path is not None and text and not text.endswith("\n"):  # cut short when it was stopped
            self.path.write_text(text[: text.rfind("\n") + 1])
        for line in text[: text.rfind("\n") + 1].splitlines():
            entry = json.loads(line)
            self._entries[entry["name"]] = entry

    def has(self, name: str) -> bool:
        """Whether there is an entry."""
        return name in self._entries

    def of(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return an entry; one that there is not is made."""
        if name not in self._entries:
            entry = self._entries[name] = {"name": name, **make()}
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
        return self._entries[name]
