"""Commands (`python -m isthmus`, or another module) in processes of their own, without a start of torch for each.

One process imports everything, has no threads and waits; each command is done in a copy of it (`os.fork`), with its
own folder, environment, files, session and signals, and ends as any program of Python does. The processes in which
tests run side by side share the one that waits; it ends with the last of them. Workers that a command starts are copies
of it. What is about the start itself needs a real one.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[1]
# Processor seconds of all copies that have ended, of their own processes too (tools/test_times.py adds them up).
spent = [0.0]
# What commands import only when they need it, besides the package itself.
ALSO = ("pandas", "safetensors.torch")
WHERE_INSTALLED = ("distributed.cli.dask_worker",)


class Process:
    """A command in a process of its own; what it has of `subprocess.Popen` is used alike.

    Output for a pipe is kept in a file until `communicate` returns it, so no reader is needed meanwhile.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        assert list(args[:2]) == [sys.executable, "-m"], args
        self.args, self.text, self.returncode = args, text, None
        self.stdin: io.FileIO | None = None
        self._kept = [_scratch() if given == subprocess.PIPE else None for given in (stdout, stderr)]
        request = {
            "words": list(args[2:]),
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        ours: list[int] = []
        if stdin == subprocess.PIPE:
            stdin, writing = os.pipe()
            ours.append(stdin)
            self.stdin = io.FileIO(writing, "w")
        self._ends, theirs = socket.socketpair()
        with theirs:
            given = (stdin, self._kept[0] or stdout, self._kept[1] or stderr)
            files = [_descriptor(file, number, ours) for number, file in enumerate(given)]
            _send(_copied(), request, [theirs.fileno(), *files])
        for descriptor in ours:
            os.close(descriptor)
        self.pid = int(self._ends.recv(16))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._ends.settimeout(timeout)
            try:
                status, seconds = self._ends.recv(64).split()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._ends.close()
            self.returncode = os.waitstatus_to_exitcode(int(status))
            spent[0] += float(seconds)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        if self.stdin is not None:
            self.stdin.close()
        self.wait(timeout)
        return self._read(0), self._read(1)

    def _read(self, number: int) -> Any:
        file = self._kept[number]
        if file is None:
            return None
        with file:
            file.seek(0)
            found = file.read()
        return found.decode() if self.text else found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stdin is not None:
            self.stdin.close()
        self.wait()


# What stands for `subprocess` where processes are started.
COPIES = SimpleNamespace(
    Popen=Process, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
)


def isthmus(
    *words: str,
    cwd: Path,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Do a command to its end, as `subprocess.run` would."""
    command = [sys.executable, "-m", "isthmus", *words]
    process = Process(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True)
    try:
        output, errors = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode or 0, output, errors)


def copy_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the silos of a rehearsal be copies."""
    monkeypatch.setattr("isthmus.sites.up.subprocess", COPIES)


def copy_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of a course be copies."""
    monkeypatch.setattr("isthmus.runtime.cluster.subprocess", COPIES)


def _scratch() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _descriptor(file: Any, inherited: int, ours: list[int]) -> int:
    if file is None:
        return inherited
    if file == subprocess.DEVNULL:
        ours.append(os.open(os.devnull, os.O_RDWR))
        return ours[-1]
    return file if isinstance(file, int) else int(file.fileno())


def _send(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(descriptors))
    connection.sendall(data[sent:])


@cache
def _copied() -> socket.socket:
    """Return a connection to the process that waits, which is started when there is none."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}-{time.monotonic_ns()}")
    folder = Path(tempfile.gettempdir()) / f"isthmus-tests-{os.getuid()}-{run[:40]}"
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):  # the one that waited before has just ended and tidied up
            return _connected(folder)
    return _connected(folder)


def _connected(folder: Path) -> socket.socket:
    folder.mkdir(mode=0o700, exist_ok=True)
    connection, place = socket.socket(socket.AF_UNIX), folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(os.fspath(place))
        except OSError:
            place.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(os.fspath(place))
                listening.listen()
                command = [sys.executable, "-m", "tests.processes", str(listening.fileno())]
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listening.fileno()],
                    start_new_session=True,
                )
            connection.connect(os.fspath(place))
    return connection


def _import_everything() -> None:
    import isthmus

    for module in pkgutil.walk_packages(isthmus.__path__, "isthmus."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ALSO:
        importlib.import_module(name)
    for name in WHERE_INSTALLED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a copy goes through all of it when it ends, and so copies the memory too
    assert threading.active_count() == 1, "a copy of a process with threads has locks that nobody opens"


def _serve(listening: socket.socket) -> list[str]:
    """Wait for commands; return in a copy, with the module and the words of its command."""
    _import_everything()
    clients: list[socket.socket] = []
    while True:
        ready, _, _ = select.select([listening, *clients], [], [])
        for each in ready:
            if each is listening:
                clients.append(listening.accept()[0])
                continue
            data, descriptors, _, _ = socket.recv_fds(each, 1 << 20, 4)
            while data and not data.endswith(b"\n"):
                data += each.recv(1 << 20)
            if not data:
                each.close()
                clients.remove(each)
                if not clients:
                    shutil.rmtree(Path(listening.getsockname()).parent, ignore_errors=True)
                    _reap()
                    os._exit(0)
                continue
            if not os.fork():
                if not _keep(json.loads(data), descriptors, [listening, *clients]):
                    os._exit(0)
                return list(json.loads(data)["words"])
            for descriptor in descriptors:
                os.close(descriptor)
            _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(request: Mapping[str, Any], descriptors: Sequence[int], others: Sequence[socket.socket]) -> bool:
    """Start a copy and tell how it ended; return whether this is the copy."""
    for each in others:
        each.close()
    keeper, *files = descriptors
    ended = socket.socket(fileno=keeper)
    pid = os.fork()
    if pid:
        for descriptor in files:
            os.close(descriptor)
        ended.send(str(pid).encode())
        _, status, usage = os.wait4(pid, 0)
        with contextlib.suppress(OSError):  # who asked may be gone by now
            ended.send(f"{status} {usage.ru_utime + usage.ru_stime}".encode())
        return False
    ended.close()
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # As `python -m` would: the folder of the command, then what the environment names.
    named = [place for place in request["env"].get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:0] = [request["cwd"], *(place for place in named if place not in sys.path)]
    contexts = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: contexts("fork" if method == "spawn" else method)  # type: ignore
    return True


if __name__ == "__main__":
    module, *sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
