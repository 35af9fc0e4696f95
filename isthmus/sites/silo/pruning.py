"""What a silo keeps of courses in its state folder, and for how long.

    memories/COURSE-...   of a course that is over: until another course is agreed to; of one that is not: while it is
                          among the last `keep_courses` and was used within `keep_days`
    models/, runs/        the last `keep_models` of each

A course under way is never touched. The last finished course keeps its memories until the next one, so that a server
that was stopped on the last metres, or goes on for more rounds, finds them.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from isthmus.sites.silo.policy import Policy

FINISHED = (
    "finished"  # a file in the memories of a course that is over; the next answer removes it, as all but memories
)
MEMORIES, MODELS, RUNS, SECRETS_USED = "memories", "models", "runs", "secret-used"
MAX_SECRETS_USED = 1000  # of a few bytes each: which secret a course began with


def mark_finished(memories: Path) -> None:
    """Take note that a course is over, if anything is remembered of it."""
    if memories.is_dir():
        (memories / FINISHED).touch()


def prune(state: Path, policy: Policy, current: Path | None = None, now: float | None = None) -> int:
    """Remove what is not kept any more; `current` are the memories of the course under way. Return how many went."""
    now = time.time() if now is None else now
    old = [folder for folder in _latest_first(state / MEMORIES) if folder != current]
    gone = _outlived(old, policy, now, under_way=current is not None)
    for room, kept in ((MODELS, policy.keep_models), (RUNS, policy.keep_models), (SECRETS_USED, MAX_SECRETS_USED)):
        gone += _latest_first(state / room)[kept:]
    for path in gone:
        _remove(path)
    return len(gone)


def _outlived(old: list[Path], policy: Policy, now: float, under_way: bool) -> list[Path]:
    """Return the memories, of those that no course uses now, that are not kept."""
    finished = [folder for folder in old if (folder / FINISHED).exists()]
    unfinished = [folder for folder in old if folder not in finished]
    recent = [folder for folder in unfinished if now - _used(folder) <= policy.keep_days * 86400]
    kept = recent[: policy.keep_courses] + ([] if under_way else finished[:1])
    return [folder for folder in old if folder not in kept]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _latest_first(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: (_used(path), path.name), reverse=True) if folder.is_dir() else []


def _used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
