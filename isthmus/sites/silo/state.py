"""What a silo keeps in its state folder, and for how long.

    secret                its own: made at its first start, never sent; noise is drawn from it
    settled               over whom replies were added up, in secure sums, and what sums of neighbours were made by,
                          which have noise; never pruned, but of bounded length
    memories/COURSE-...   of a course that is over: until another course is agreed to; of one that is not: while it is
                          among the last `keep_courses` and was used within `keep_days`. Beside the memories of a course
                          lies what tells whether the silo's data changed in it (`seen.py`)
    models/, runs/        the last `keep_models` of each
    studies/              which courses of a study it took part in (`studies.py`); of the last 100 studies

A course under way is never touched. The last finished course keeps its memories until the next one, so that a server
that was stopped on the last metres, or goes on for more rounds, finds them.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file
from isthmus.core.random import SECRET_BYTES, Secret
from isthmus.sites.silo.policy import Policy

FINISHED = (
    "finished"  # a file in the memories of a course that is over; the next answer removes it, as all but memories
)
MEMORIES, MODELS, RUNS = "memories", "models", "runs"
MAX_SECRETS_USED = 1000  # of a few bytes each: which secret a course began with
SECRET_FILE = "secret"
USED_FOLDER = "secret-used"
BOOK_FILE = "settled"
_HEAD, _SIMULATED = "isthmus silo secret 1", "isthmus simulated secret 1"


class OwnSecret:
    """The secret in a silo's folder, and which courses were answered with it.

    A file that is lost or damaged is told, and a new secret is made. Courses that drew from the old one are not gone on
    with: what was answered could not be repeated, and the same reply with another noise would tell more than one did.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = print) -> None:
        self.folder = folder
        self.secret = self._load(say)

    def for_course(self, course_id: str, course: str) -> Secret:
        """Return the secret for a course of this id and text; raises BadInput if it began with one that is lost."""
        used = self._used(course_id)
        if used.is_file() and used.read_text().strip() != self.secret.fingerprint():
            raise BadInput(
                "the noise of this course was drawn from a secret that this silo no longer has, so it cannot go on "
                f"with it: put the old file {SECRET_FILE!r} back into the silo's state folder, or start a new course"
            )
        return self.secret if self.secret.simulated else self.secret.derive("course", course_id, course)

    def begun(self, course_id: str) -> None:
        """Take note that answers of a course are about to draw from this secret."""
        used = self._used(course_id)
        if not used.is_file():
            used.parent.mkdir(parents=True, exist_ok=True)
            replace_file(used, self.secret.fingerprint().encode())

    def ended(self, course_id: str) -> None:
        """Take note that a course is over."""
        self._used(course_id).unlink(missing_ok=True)

    def _used(self, course_id: str) -> Path:
        return self.folder / USED_FOLDER / course_id

    def _load(self, say: Callable[[str], None]) -> Secret:
        path = self.folder / SECRET_FILE
        began = sorted(used.name for used in (self.folder / USED_FOLDER).glob("*"))
        if path.is_file():
            found = _read(path)
            if found is not None:
                if found.simulated:
                    say(f"{path} holds the secret of a simulation: the noise of this silo protects from nobody")
                return found
            aside = path.with_name(f"{SECRET_FILE}.damaged")
            path.replace(aside)
            say(f"{path} is damaged and was renamed to {aside.name}; this silo draws its noise from a new secret")
        elif began:
            say(f"{path} is lost; this silo draws its noise from a new secret")
        if began:
            say(
                f"{len(began)} courses that drew from the old secret cannot go on here unless it is put back: "
                f"{', '.join(began[:3])}"
            )
        _write(path, _HEAD, key := secrets.token_bytes(SECRET_BYTES).hex())
        return Secret(bytes.fromhex(key))


def server_secret(path: Path, begun: bool) -> Secret:
    """Return the secret that a server draws the noise of one course from; made at the course's start.

    Raises BadInput where the course has begun with one that is lost: the same sums with another noise would tell more
    than those with one did.
    """
    if not path.is_file() and not begun:
        _write(path, _HEAD, secrets.token_bytes(SECRET_BYTES).hex())
    found = _read(path) if path.is_file() else None
    if found is None:
        what = "damaged" if path.is_file() else "lost"
        raise BadInput(
            f"{path} is {what}: the server's noise in this course was drawn from it, so it cannot go on without "
            "it; put it back, or start a new course"
        )
    return found


def simulate(folder: Path, seed: int, client: str) -> None:
    """Give a silo the secret of a simulated client, so that its course can be compared with the simulation."""
    _write(folder / SECRET_FILE, _SIMULATED, f"{seed} {client}")


def _check(head: str, content: str) -> str:
    return hashlib.blake2b(f"{head}\n{content}".encode(), digest_size=8).hexdigest()


def _read(path: Path) -> Secret | None:
    """Return the secret in a file; None if it is damaged."""
    try:
        head, content, check = path.read_text(encoding="utf-8").split("\n")[:3]
        if check != _check(head, content):
            return None
        if head == _SIMULATED:
            seed, client = content.split(" ", 1)
            return Secret.of_simulation(int(seed), client)
        return Secret(bytes.fromhex(content)) if head == _HEAD else None
    except ValueError:
        return None


def _write(path: Path, head: str, content: str) -> None:
    """Write a secret whole or not at all, for its owner's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f"{head}\n{content}\n{_check(head, content)}\n".encode(), 0o600)


def mark_finished(memories: Path) -> None:
    """Take note that a course is over, if anything is remembered of it."""
    if memories.is_dir():
        (memories / FINISHED).touch()


def prune(state: Path, policy: Policy, current: Path | None = None) -> int:
    """Remove what is not kept any more; `current` are the memories of the course under way. Return how many went."""
    old = [folder for folder in _latest_first(state / MEMORIES) if folder != current]
    gone = _outlived(old, policy, under_way=current is not None)
    for room, kept in ((MODELS, policy.keep_models), (RUNS, policy.keep_models), (USED_FOLDER, MAX_SECRETS_USED)):
        gone += _latest_first(state / room)[kept:]
    for path in gone:
        _remove(path)
    return len(gone)


def _outlived(old: list[Path], policy: Policy, under_way: bool) -> list[Path]:
    """Return the memories, of those that no course uses now, that are not kept."""
    finished = [folder for folder in old if (folder / FINISHED).exists()]
    recent = [folder for folder in old if time.time() - _used(folder) <= policy.keep_days * 86400]
    kept = [folder for folder in recent if folder not in finished][: policy.keep_courses]
    kept += [] if under_way else finished[:1]
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
