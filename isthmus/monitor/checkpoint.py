"""Checkpoints: server state, clients' memories and position in one file, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import decode, encode, pack, unpack
from isthmus.core.course import Standing
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Record
from isthmus.monitor.journal import replace_file

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


def save_checkpoint(path: Path, course: str, standing: Standing, memories: Mapping[str, bytes]) -> None:
    """Write a checkpoint in place of the one before."""
    checkpoint = Checkpoint(
        course=course,
        round=standing.round,
        state=pack(encode(standing.state)),
        best_state=pack(encode(standing.best_state)),
        best_round=standing.best_round,
        best_score=standing.best_score,
        memories={client: pack(memory) for client, memory in memories.items()},
    )
    replace_file(path, encode(checkpoint))


def load_checkpoint(path: Path, course: str, algorithm: Algorithm[Any]) -> tuple[Standing, dict[str, bytes]]:
    """Read a checkpoint of this very course."""
    if not path.is_file():
        raise BadInput(f"{path.parent} has no checkpoint to resume from ({path.name} is missing)")
    try:
        data = path.read_bytes()
        # The limit on messages protects against strangers; what we saved ourselves must be readable at any size.
        found: Checkpoint = decode(data, Checkpoint, max_bytes=len(data))
        if found.course != course:
            raise BadInput(
                f"{path} belongs to another course (digest {found.course}, this course has {course}); "
                "resume with the settings the run was started with"
            )
        kind = type(algorithm).state_type()
        standing = Standing(
            round=found.round,
            state=decode(unpack(found.state), kind, max_bytes=len(data)),
            best_state=decode(unpack(found.best_state), kind, max_bytes=len(data)),
            best_round=found.best_round,
            best_score=found.best_score,
        )
    except BadMessage as error:
        raise BadInput(f"{path} is not a usable checkpoint: {error}") from None
    return standing, {client: unpack(memory) for client, memory in found.memories.items()}
