"""The run folder: the resolved course, the journal, the checkpoint, the models, each written whole or not at all."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import decode_own, encode, opened, pack, unpack
from isthmus.core.errors import BadInput, BadMessage, NotResumable, OtherCourse
from isthmus.core.outside import Damaged, is_sealed, replace_file, sealed, unsealed
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Params, Record
from isthmus.core.training import Callback, Standing
from isthmus.runs.journal import JOURNAL_FILE, Journal

COURSE_FILE = "course.yaml"
CHECKPOINT_FILE = "checkpoint.isth"
MODEL_FILE = "model.safetensors"
CLIENTS_DIR = "clients"
PARTS_DIR = "parts"
REASON_FILE = "set-aside.txt"  # why what a folder holds was not gone on with
ID_FILE = "course_id"  # in the run of a course between sites: its course may name installed parts only


class RunFolder:
    """Names and writes the files of one run.

    Fields:
        course:     the resolved course
        journal:    the journal
        checkpoint: the last checkpoint
        model:      the global model
        report:     the table of results
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.course, self.journal, self.checkpoint = path / COURSE_FILE, path / JOURNAL_FILE, path / CHECKPOINT_FILE
        self.model, self.report = path / MODEL_FILE, path / "report.md"

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a path that holds anything already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadInput(f"{path} exists already; choose another folder, or {RunFolder(path).how_to_go_on}")

    @staticmethod
    def create(path: Path, course_yaml: str) -> RunFolder:
        """Make a new run folder."""
        RunFolder.check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / COURSE_FILE, course_yaml.encode())
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> RunFolder:
        """Open an existing run folder."""
        if not (path / COURSE_FILE).is_file():
            raise NotResumable(f"{path} is not a run folder: it has no {COURSE_FILE}")
        return RunFolder(path)

    @property
    def is_of_sites(self) -> bool:
        """Whether this is the run of a course between sites."""
        return (self.path / ID_FILE).is_file()

    @property
    def how_to_go_on(self) -> str:
        """How a run that was cut short goes on."""
        command = "isthmus serve KIT --resume" if self.is_of_sites else "isthmus run --resume"
        return f"go on with it: {command} {shlex.quote(str(self.path))}"

    def monitor(self, name: str) -> Path:
        """Return the file of a monitor's figure."""
        return self.path / f"monitor-{name}.svg"

    def client_model(self, client: str) -> Path:
        """Return the file of a client's personal model."""
        return self.path / CLIENTS_DIR / f"{client}.safetensors"

    def client_parts(self, client: str) -> Path:
        """Return the file of what a client needs beside its model to predict."""
        return self.path / PARTS_DIR / f"{client}.safetensors"

    def save_parts(self, parts: Mapping[str, Params]) -> None:
        """Write what clients need beside their models, for those that need something."""
        for client, own in parts.items():
            if own:
                (self.path / PARTS_DIR).mkdir(exist_ok=True)
                save_model_file(self.client_parts(client), own, {"client": client})

    def save_models(
        self, params: Params, personal: Mapping[str, Params], facts: Callable[[str | None], Mapping[str, str]]
    ) -> None:
        """Write the global model and the clients' own; `facts` of a client, or None, go into each file's metadata."""
        if params:
            save_model_file(self.model, params, facts(None))
        if personal:
            (self.path / CLIENTS_DIR).mkdir(exist_ok=True)
        for client, own in personal.items():
            save_model_file(self.client_model(client), own, {**facts(client), "client": client})


def new_run_path(parent: Path, label: str) -> Path:
    """Return a path for a new run folder that does not exist yet: parent/20260131-235959-label."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = parent / f"{stamp}-{label}"
    number = 2
    while path.exists():
        path = parent / f"{stamp}-{label}-{number}"
        number += 1
    return path


def set_aside(path: Path, reason: str) -> Path:
    """Give what is at a path another name, with the reason in a file, and return where it is now."""
    number = 1
    while (aside := path.with_name(f"{path.name}.set-aside-{number}")).exists():
        number += 1
    path.rename(aside)
    if aside.is_dir():
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {path.name} was started anew, and this set aside: {reason}\n"
        replace_file(aside / REASON_FILE, text.encode())
    return aside


def load_model_file(path: Path) -> tuple[Params, dict[str, str]]:
    """Return the parameters and the facts in a model file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise BadInput(f"{path} is not a model file: {error}") from None


def save_model_file(path: Path, params: Params, facts: Mapping[str, str]) -> None:
    """Write parameters and facts as a safetensors file, whole or not at all."""
    from safetensors.torch import save

    replace_file(path, save({name: tensor.contiguous() for name, tensor in params.items()}, dict(facts)))


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
        found: Checkpoint = decode_own(data, ScoredCheckpoint | Checkpoint, share=True)
        if found.course != course:
            raise OtherCourse(
                f"{path} belongs to another course (digest {found.course}, this course has {course}); "
                "resume with the settings the run was started with"
            )
        kind = type(algorithm).state_type()
        standing = Standing(
            round=found.round,
            state=decode_own(opened(found.state), kind),
            best_state=decode_own(opened(found.best_state), kind),
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
