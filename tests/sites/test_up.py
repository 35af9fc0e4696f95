"""What a rehearsal prepares and how it starts its silos; test_engine.py has the rehearsals themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from isthmus.sites import up as module
from isthmus.sites.parties.kit import Kit
from isthmus.sites.silo.identities import read_secret
from isthmus.sites.up import Rehearsal
from isthmus.testing import toy_scenario
from tests.sites.in_process import site_course


class Started:
    """A process that is only a command."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command, self.options = command, options

    def terminate(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return 0


class Serving:
    """A server that only remembers what it was given."""

    given: tuple[Any, ...] = ()

    def __init__(self, *given: Any, **options: Any) -> None:
        Serving.given = (*given, *options.values())

    def stop(self) -> None: ...


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    monkeypatch.setattr(module, "load_scenario", lambda course, root: toy_scenario())
    monkeypatch.setattr(module, "Server", Serving)
    monkeypatch.setattr(module, "ignore_interrupts", lambda: None)
    made = Rehearsal(site_course())
    monkeypatch.setattr(subprocess, "Popen", Started)
    return made


def test_the_silos_get_a_secret_that_only_its_owner_can_read_and_the_server_does_not(rehearsal: Rehearsal) -> None:
    with rehearsal:
        path = rehearsal.id_secret_file
        secret = read_secret(path)
        assert path.stat().st_mode & 0o777 == 0o600 and len(secret) == 64
        commands = [silo.command for silo in rehearsal.silos.values() if isinstance(silo, Started)]
        assert len(commands) == 3
        assert all(command[command.index("--id-secret-file") + 1] == str(path) for command in commands)
        assert not any(secret.decode() in word for command in commands for word in command)
        server = rehearsal.kits["server"]
        assert isinstance(Serving.given[0], Kit) and path not in Serving.given
        assert not any(secret in file.read_bytes() for file in server.rglob("*") if file.is_file())
    assert not path.exists()


def test_a_silo_ends_with_the_rehearsal_also_when_that_is_killed(rehearsal: Rehearsal) -> None:
    with rehearsal:
        silos = [silo for silo in rehearsal.silos.values() if isinstance(silo, Started)]
        assert len(silos) == 3
        assert all("--until-eof" in silo.command for silo in silos)
        assert all(silo.options["stdin"] == subprocess.PIPE for silo in silos)


def test_each_rehearsal_has_its_own_secret(tmp_path: Path) -> None:
    for name in "ab":
        module.write_secret(tmp_path / name)
    assert read_secret(tmp_path / "a") != read_secret(tmp_path / "b")
    with pytest.raises(FileExistsError):
        module.write_secret(tmp_path / "a")
