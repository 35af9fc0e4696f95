"""Notices that files of a kit were replaced while a process runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

WATCH_SECONDS = 0.5

log = logging.getLogger("isthmus.watch")


class Watch:
    """Calls back, from a thread of its own, after one of some files was changed, made or removed."""

    def __init__(self, paths: Sequence[Path], changed: Callable[[], None], seconds: float = WATCH_SECONDS) -> None:
        self._paths, self._changed, self._seconds = tuple(paths), changed, seconds
        self._seen = self._look()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="isthmus-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            now = self._look()
            if now != self._seen:
                self._seen = now
                try:
                    self._changed()
                except Exception as error:  # the next change must be noticed all the same
                    log.warning("what changed in %s could not be taken: %s", self._paths[0].parent, error)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_mark(path) for path in self._paths]


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what tells two versions of a file apart without reading it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
