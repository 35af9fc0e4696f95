"""Worker processes of a Dask cluster: our own for the time of a course, or those of a cluster that runs already.

The only place that imports distributed. Whoever can speak to a Dask scheduler can run code as its owner, on loopback
everybody on the machine: so our own scheduler and workers know each other by a certificate that is made for the course
and lies in a folder of its owner's. A cluster that is given is protected as its owner has set it up.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from isthmus.core.errors import BadInput, CourseFailed, IsthmusError, MissingExtra
from isthmus.runtime.block import Block

CONNECT_SECONDS = 10.0
# Starting a process and importing torch takes seconds, on a busy machine many.
START_SECONDS = 120.0
# How often is looked whether a worker that takes its time is still there.
LOOK_SECONDS = 1.0
# How long a worker that does not answer may still be on the scheduler's list.
GONE_SECONDS = 2.0


class WorkerLost(IsthmusError):
    """A worker is gone, with the blocks that it held."""


class Seat:
    """A block at a worker, which has an address."""

    def __init__(self, client: Any, address: str, future: Any, actor: Any) -> None:
        self.address, self._client, self._future, self._actor = address, client, future, actor

    def call(self, name: str, *arguments: Any) -> Any:
        """Start a call of the block; what comes back is for `Crew.result`."""
        try:
            with self._client.as_current():  # an actor finds its client so, whichever others there are
                return getattr(self._actor, name)(*arguments)
        except RuntimeError as error:  # what an actor says whose worker is known to be gone
            raise WorkerLost(f"{self.address}: {error}") from None

    def leave(self) -> None:
        """Let the block go."""
        self._future.release()


class Crew(ABC):
    """The workers that a course, or the courses of a suite, can count on; `where` says whose they are."""

    grows: ClassVar[bool]  # whether workers may join by themselves

    def __init__(self, client: Any, where: str) -> None:
        self.client, self.where = client, where

    def workers(self) -> list[str]:
        """Return the addresses of the workers that are there now, in the order in which they came."""
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    @abstractmethod
    def mend(self) -> None:
        """Take the place of workers that are gone, where that is ours to do."""

    def some_workers(self) -> list[str]:
        """Return the workers, as soon as there is one."""
        self.mend()
        until = time.monotonic() + START_SECONDS
        while not (found := self.workers()):
            if time.monotonic() > until:
                raise CourseFailed(f"{self.where} has no worker left, and none came within {START_SECONDS:.0f} s")
            time.sleep(0.1)
        return found

    def seat(self, address: str) -> Seat:
        """Make an empty block at a worker."""
        future = self.client.submit(
            Block, actor=True, workers=[address], allow_other_workers=False, pure=False, retries=0
        )
        try:
            return Seat(self.client, address, future, self.result(future, address))
        except WorkerLost:
            future.release()
            raise

    def start(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a function of the installed package at a free worker, at another if that is lost; return a future."""
        return self.client.submit(function, *arguments, pure=False)

    def first(self, futures: Sequence[Any]) -> Any:
        """Return one of some futures that is done, as soon as there is one."""
        from distributed import wait

        with self.client.as_current():
            return next(iter(wait(futures, return_when="FIRST_COMPLETED").done))

    def result(self, call: Any, address: str) -> Any:
        """Wait for a call at a worker; raise WorkerLost when the worker is gone, CourseFailed for what it cannot do."""
        from distributed import CancelledError, KilledWorker

        while True:
            try:
                return call.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                if address not in self.workers():
                    raise WorkerLost(f"the worker {address} is gone") from None
            except (OSError, KilledWorker, CancelledError, KeyError) as error:  # KeyError: another process by its name
                raise WorkerLost(f"the worker {address} is gone: {error}") from None
            except Exception as error:  # of another version, without our package, or out of memory
                if "Actor was lost" in str(error):
                    raise WorkerLost(f"the worker {address} is gone: {error}") from None
                why = f"{type(error).__name__}: {error}"
                raise CourseFailed(f"the worker {address} cannot do what it is asked: {why}") from None

    def gone(self, address: str) -> None:
        """Wait a little until a worker that was lost is on nobody's list any more."""
        until = time.monotonic() + GONE_SECONDS
        while address in self.workers() and time.monotonic() < until:
            time.sleep(0.02)


class OwnWorkers(Crew):
    """Processes of this machine that end with the course; one that is killed is started again."""

    grows = False

    def __init__(self, client: Any, command: Sequence[str], number: int, log: Path) -> None:
        super().__init__(client, f"this machine ({number} worker processes)")
        self._command, self._log = list(command), log
        self.processes = [self._started() for _ in range(number)]

    def _started(self) -> subprocess.Popen[bytes]:
        # Of the same modules as this process; and no member of its group, for Ctrl-C is for the server alone.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def mend(self) -> None:
        """Start a process for each that has ended."""
        ended = [place for place, process in enumerate(self.processes) if process.poll() is not None]
        for place in ended:
            self.processes[place] = self._started()
        if ended:
            self.wait(len(self.processes))

    def wait(self, number: int) -> None:
        """Wait until so many workers are there."""
        until = time.monotonic() + START_SECONDS
        while len(self.workers()) < number:
            dead = [process for process in self.processes if process.poll() is not None]
            if dead or time.monotonic() > until:
                lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise CourseFailed(f"a worker process could not be started: {lines[-1][:300]}")
            time.sleep(0.02)

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class GivenCluster(Crew):
    """The workers of a cluster that runs already; who comes and goes there is its owner's affair."""

    grows = True

    def mend(self) -> None:
        """Do nothing: its owner, or what its owner has set up, starts workers."""


@contextmanager
def crew_of(workers: int | None, cluster: str | None) -> Iterator[Crew]:
    """Give so many worker processes of our own, or those of a cluster, for as long as they are needed."""
    if workers is not None and cluster is not None:
        raise BadInput(f"workers is {workers} and cluster {cluster!r}; give one of them")
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise MissingExtra("distributed", "cluster", "simulating clients in workers") from None
    with _given(cluster) if cluster is not None else _own(1 if workers is None else workers) as crew:
        yield crew


@contextmanager
def _own(number: int) -> Iterator[Crew]:
    import logging

    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    if number < 1:
        raise BadInput(f"workers is {number}; it must be at least 1")
    with ExitStack() as after:
        folder = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-workers-")))  # its owner's alone
        security = Security.temporary()
        after.enter_context(dask.config.set({"distributed.scheduler.http.routes": []}))  # no pages for the neighbours
        scheduler = after.enter_context(
            LocalCluster(
                n_workers=0,
                host="127.0.0.1",
                protocol="tls",
                security=security,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,  # a worker that is lost is told by the course
            )
        )
        files = {
            "--tls-ca-file": security.tls_ca_file,
            "--tls-cert": security.tls_worker_cert,
            "--tls-key": security.tls_worker_key,
        }
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        options += ["--death-timeout", "60", "--local-directory", str(folder)]
        for option, content in files.items():
            (folder / f"{option[2:]}.pem").write_text(content)
            options += [option, str(folder / f"{option[2:]}.pem")]
        client = after.enter_context(Client(scheduler, direct_to_workers=True, set_as_default=False))
        command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.scheduler_address, *options]
        crew = OwnWorkers(client, command, number, folder / "workers.log")
        after.callback(crew.end)
        crew.wait(number)
        yield crew


@contextmanager
def _given(address: str) -> Iterator[Crew]:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"cluster is {address!r}: no Dask scheduler answers there ({str(error).splitlines()[0][:120]}); give the "
            "address that `dask scheduler` prints, for example tcp://10.0.0.5:8786"
        ) from None
    with client:
        crew = GivenCluster(client, f"the cluster {address}")
        found = crew.workers()
        if not found:
            raise BadInput(f"cluster is {address!r}, which has no workers yet; start some: dask worker {address}")
        # Messages go to workers directly where they can, else by way of the scheduler.
        client.direct_to_workers = _reaches(found[0])
        yield crew


def _reaches(address: str) -> bool:
    host, _, port = address.split("://")[-1].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=3):
            return True
    except (OSError, ValueError):
        return False
