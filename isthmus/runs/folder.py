"""The run folder: the resolved course, the journal, the checkpoint, the models."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from isthmus.core.errors import BadInput, NotResumable
from isthmus.core.record import Params
from isthmus.runs import checkpoint, journal
from isthmus.runs.journal import replace_file

COURSE_FILE = "course.yaml"
MODEL_FILE = "model.safetensors"
CLIENTS_DIR = "clients"
PARTS_DIR = "parts"
REASON_FILE = "set-aside.txt"  # why what a folder holds was not gone on with
ID_FILE = "course_id"  # in the run of a course between sites: its course may name installed parts only


class RunFolder:
    """Names and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

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

    @property
    def course(self) -> Path:
        """The resolved course."""
        return self.path / COURSE_FILE

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.path / journal.FILE_NAME

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return self.path / checkpoint.FILE_NAME

    @property
    def model(self) -> Path:
        """The global model."""
        return self.path / MODEL_FILE

    @property
    def report(self) -> Path:
        """The table of results."""
        return self.path / "report.md"

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
