"""A whole federation on one machine, on loopback: for a first try, and for tests of the real engine."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isthmus.config.course import Course
from isthmus.core.outside import data_root as locate_data
from isthmus.core.training import Callback
from isthmus.data.folders.own_kinds import Folders, write_divided
from isthmus.runs.life import Result
from isthmus.runs.server_graph import servers_data
from isthmus.runs.simulation import load_scenario, require_kind
from isthmus.sites.courses.site_course import Patience
from isthmus.sites.parties.certificates import SERVER
from isthmus.sites.parties.kit import make_federation, open_kit
from isthmus.sites.serve import Server


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ignore_interrupts() -> None:
    """Let nothing interrupt the clean-up that follows; outside the main thread, signals do not arrive anyway."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)


def write_secret(path: Path) -> None:
    """Write a new random secret to a new file that only its owner can read."""
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_hex(32) + "\n")


class Rehearsal:
    """Splits a course's data into folders, makes kits, starts a silo process for each, and serves the course here."""

    def __init__(self, course: Course, data_root: str | Path | None = None, say: Callable[[str], None] = print) -> None:
        scenario = load_scenario(course, locate_data(data_root))
        require_kind(course, scenario.whole)
        self.say = say
        self.graph: Path | None = None  # the server's own
        self._scratch = tempfile.TemporaryDirectory(prefix="isthmus-")
        self.folder = Path(self._scratch.name)
        if isinstance(course.dataset, Folders):  # each silo has its folder already
            self.course = replace(course, dataset=course.dataset.one)
            self.data = {site: path.resolve() for site, path in course.dataset.places.items()}
        else:
            self.data = {site: self.folder / "data" / site for site in scenario.parts}
            parts = {self.data[site]: part for site, part in scenario.parts.items()}
            if course.server_share:
                self.graph = self.folder / "data" / SERVER
                parts[self.graph] = servers_data(course, scenario)
            self.course = replace(course, dataset=write_divided(scenario.whole, parts).dataset)
        self.kits = make_federation(self.folder / "federation", f"localhost:{free_port()}", list(self.data))
        self.id_secret_file = self.folder / "id-secret"  # for the silos; the server in this process never reads it
        write_secret(self.id_secret_file)
        self.policy_file = self.folder / "policy.yaml"  # all is one person's here, so nothing need be kept from them
        self.policy_file.write_text("tell_reasons: true\n")
        self.silos: dict[str, subprocess.Popen[bytes]] = {}
        self.server: Server | None = None

    def __enter__(self) -> Rehearsal:
        kit = open_kit(self.kits[SERVER], "server")
        self.server = Server(kit, interface="localhost", say=self.say, graph=self.graph)
        for site in self.data:
            self.start(site)
        return self

    def command(self, site: str) -> list[str]:
        """Return what starts a silo's process."""
        command = [sys.executable, "-m", "isthmus", "join", str(self.kits[site]), "--data", str(self.data[site])]
        return [
            *command,
            "--id-secret-file",
            str(self.id_secret_file),
            "--policy",
            str(self.policy_file),
            "--until-eof",
        ]

    def start(self, site: str) -> None:
        """Start a silo's process."""
        command = self.command(site)
        with (self.folder / f"{site}.log").open("ab") as log:
            # A silo ends when its standard input does: also when this process is killed and cannot say goodbye.
            self.silos[site] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, run_dir: Path, callbacks: Sequence[Callback] = (), patience: Patience | None = None) -> Result:
        """Run the course on the silos."""
        assert self.server is not None
        return self.server.run(self.course, run_dir, callbacks=callbacks, patience=patience)

    def __exit__(self, *error: object) -> None:
        ignore_interrupts()  # a second Ctrl-C must not leave half of this undone
        for process in self.silos.values():
            process.terminate()
        for process in self.silos.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.server is not None:
            self.server.stop()
        self._scratch.cleanup()
