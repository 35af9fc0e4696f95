"""Checkpoints: server state, clients' memories and position in one file, written whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import MAX_FILE_VALUES, decode, encode, opened, pack, unpack
from isthmus.core.errors import BadInput, BadMessage, NotResumable, OtherCourse
from isthmus.core.outside import Damaged, is_sealed, replace_file, sealed, unsealed
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Record
from isthmus.core.training import Callback, Standing
from isthmus.runs.journal import Journal

FILE_NAME = "checkpoint.isth"


@dataclass(frozen=True)
class Checkpoint(Record):
    """All that a resume needs; states are encoded messages of their own, kept as bytes."""

    course: str
    """Digest of the resolved course: a checkpoint belongs to one course."""
    round: int
    """The last whole round."""
    state: Tensor
    """The server's state."""
    best_state: Tensor
    """The server's state at the best round."""
    best_round: int
    """The best round so far."""
    best_score: float | None
    """Its validation score."""
    memories: dict[str, Tensor]
    """Every client's memory."""


@dataclass(frozen=True)
class ScoredCheckpoint(Checkpoint):
    """The same, with who scored the best round; checkpoints of before do not say."""

    best_scorers: tuple[str, ...] | None
    """The clients whose validation scores are in the best round's."""


class Checkpoints(Callback):
    """Keeps the latest checkpoint of a run in a file, and writes into the journal how long that took."""

    def __init__(self, path: Path, course: str, journal: Journal) -> None:
        self.path, self.course, self.journal = path, course, journal

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        """Write a checkpoint in place of the one before."""
        started = time.perf_counter()
        save_checkpoint(self.path, self.course, standing, memories)
        self.journal.write("checkpoint", round=standing.round, seconds=round(time.perf_counter() - started, 6))


def save_checkpoint(path: Path, course: str, standing: Standing, memories: Mapping[str, bytes]) -> None:
    """Write a checkpoint in place of the one before."""
    checkpoint = ScoredCheckpoint(
        course=course,
        round=standing.round,
        state=pack(encode(standing.state)),
        best_state=pack(encode(standing.best_state)),
        best_round=standing.best_round,
        best_score=standing.best_score,
        memories={client: pack(memory) for client, memory in memories.items()},
        best_scorers=standing.best_scorers,
    )
    replace_file(path, sealed(encode(checkpoint)))


def load_checkpoint(path: Path, course: str, algorithm: Algorithm[Any]) -> tuple[Standing, dict[str, bytes]]:
    """Read a checkpoint of this very course."""
    if not path.is_file():
        raise NotResumable(f"{path.parent} has no checkpoint to resume from ({path.name} is missing)")
    try:
        data = path.read_bytes()
        if is_sealed(data):  # those of before there were checksums still load
            data = unsealed(data)
        # The limit on messages protects against strangers; what we saved ourselves must be readable at any size.
        found: Checkpoint = decode(
            data, ScoredCheckpoint | Checkpoint, max_bytes=len(data), max_values=MAX_FILE_VALUES, share=True
        )
        if found.course != course:
            raise OtherCourse(
                f"{path} belongs to another course (digest {found.course}, this course has {course}); "
                "resume with the settings the run was started with"
            )
        kind = type(algorithm).state_type()
        standing = Standing(
            round=found.round,
            state=decode(opened(found.state), kind, max_bytes=len(data), max_values=MAX_FILE_VALUES),
            best_state=decode(opened(found.best_state), kind, max_bytes=len(data), max_values=MAX_FILE_VALUES),
            best_round=found.best_round,
            best_score=found.best_score,
            best_scorers=found.best_scorers if isinstance(found, ScoredCheckpoint) else None,
        )
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except Damaged as error:
        remedy = "put it back from a backup, or start the course anew"
        raise NotResumable(f"{path} is not a usable checkpoint, it is damaged: {error}; {remedy}") from None
    except BadMessage as error:
        raise NotResumable(f"{path} is not a usable checkpoint: {error}") from None
    return standing, {client: unpack(memory) for client, memory in found.memories.items()}
