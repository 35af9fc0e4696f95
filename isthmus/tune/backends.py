"""Where the stages of trials are computed: in this process, in a pool of them, or on the workers of a Dask cluster."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus import __version__
from isthmus.config.load import load_course
from isthmus.core.codec import decode_own, encode
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import parse_yaml
from isthmus.core.record import Record
from isthmus.runs.at_workers import portable
from isthmus.runs.in_processes import quiet_worker, working
from isthmus.runs.simulated import crew_for
from isthmus.suites.elsewhere import packed, unpacked
from isthmus.tune.objectives import Objective
from isthmus.tune.trials import Measured, Scenarios, Task, carry_out


class Backend(ABC):
    """Computes stages; what comes of one is the same wherever that is."""

    def facts(self) -> dict[str, Any]:
        """Return what of it decides what trials come to, as plain values: nothing, wherever data are divided here."""
        return {}

    @abstractmethod
    def start(self, task: Task) -> Any:
        """Take a stage on; return what to ask for its result by."""

    @abstractmethod
    def result(self, call: Any) -> Measured:
        """Return what came of a stage, as soon as it is there."""


class Here(Backend):
    """This process, which does a stage when its result is asked for."""

    def __init__(self, root: Path | None = None) -> None:
        self.scenarios = Scenarios(root)

    def start(self, task: Task) -> Any:
        """Keep it for later."""
        return task

    def result(self, call: Any) -> Measured:
        """Do it."""
        return carry_out(call, self.scenarios)


class Pool(Backend):
    """Processes of this machine."""

    def __init__(self, number: int, root: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.root = root
        self.executor = ProcessPoolExecutor(number, mp_context=context, initializer=quiet_worker)

    def start(self, task: Task) -> Future[Measured]:
        """Give it to a process that is free."""
        return self._submitted(task)

    def _submitted(self, task: Task) -> Future[Measured]:
        try:
            return self.executor.submit(_in_worker, task, self.root)
        except BrokenProcessPool:
            raise _killed() from None

    def result(self, call: Future[Measured]) -> Measured:
        """Wait for it."""
        try:
            return call.result()
        except BrokenProcessPool:
            raise _killed() from None

    def end(self, at_once: bool) -> None:
        """End the processes; those at work keep a checkpoint."""
        processes = list(self.executor._processes.values())
        self.executor.shutdown(wait=not at_once, cancel_futures=True)
        for process in processes if at_once else ():
            process.terminate()


def _killed() -> CourseFailed:
    return CourseFailed(
        "a worker process was killed, perhaps for want of memory (fewer --workers need less); what is finished stays: "
        "start the same again"
    )


# Of a worker, which lives as long as its study.
_scenarios: dict[Path | None, Scenarios] = {}
_one_at_a_time = threading.Lock()  # a worker of a cluster may have several threads; torch's settings are of all


def _in_worker(task: Task, root: Path | None) -> Measured:
    with working():
        return carry_out(task, _scenarios.setdefault(root, Scenarios(root)))


# ---- on a cluster, whose workers may have no disk in common with this machine


@dataclass(frozen=True)
class Errand(Record):
    """A stage to be done by a worker."""

    version: str
    """Of isthmus at the server."""
    course: str
    """The course, as a file has it."""
    data_root: str
    """Where the worker finds datasets; empty: where it looks by itself."""
    until: int
    """The last round of the stage."""
    objectives: tuple[str, ...]
    """What is read from the journal."""
    at: str
    """Of which round."""
    files: dict[str, Tensor]
    """What the run folder holds, by path."""
    source: dict[str, Tensor]
    """What the folder holds that it goes on from, if it does."""
    divides: bool
    """Whether the trial decides itself how data are divided."""


@dataclass(frozen=True)
class Done(Record):
    """What came of a stage."""

    scores: tuple[float, ...]
    """The objectives."""
    seconds: float
    """Of all rounds so far."""
    error: str
    """Why it failed."""
    blameless: bool
    """Whether that is no matter of its trial."""
    files: dict[str, Tensor]
    """What the run folder holds now, by path."""


class Cluster(Backend):
    """The workers of a Dask cluster."""

    def __init__(self, crew: Any, root: Path | None) -> None:
        self.crew, self.root = crew, root

    def start(self, task: Task) -> Any:
        """Send it to a worker."""
        source = {} if task.source is None or task.folder.exists() else packed(task.source)
        errand = Errand(
            version=__version__,
            course=portable(task.course),
            data_root=str(self.root or ""),
            until=task.until,
            objectives=tuple(each.name for each in task.objectives),
            at=task.objectives[0].at,
            files=packed(task.folder),
            source=source,
            divides=task.divides,
        )
        return task, self.crew.start(run_errand, encode(errand))

    def result(self, call: Any) -> Measured:
        """Wait for it, and take its run folder in."""
        task, future = call
        try:
            done: Done = decode_own(future.result(), Done, share=True)
        except (OSError, RuntimeError) as error:
            raise CourseFailed(f"{self.crew.where} lost a trial: {type(error).__name__}: {error}") from None
        unpacked(done.files, task.folder)
        return Measured(done.scores, done.seconds, done.error, done.blameless)


def run_errand(message: bytes) -> bytes:
    """Do a stage in a worker of a cluster."""
    errand: Errand = decode_own(message, Errand, share=True)
    if errand.version != __version__:
        problem = f"the worker runs isthmus {__version__}, the server {errand.version}; install the same version"
        return encode(Done((), 0.0, problem, True, {}))
    root = Path(errand.data_root) if errand.data_root else None
    objectives = tuple(Objective(name, errand.at) for name in errand.objectives)
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="isthmus-trial-") as place:
        path, source = Path(place) / "run", Path(place) / "source"
        unpacked(errand.files, path)
        unpacked(errand.source, source)
        course = load_course(parse_yaml(errand.course, "a course of a study"))
        before = source if errand.source else None
        task = Task(course, path, errand.until, before, objectives, errand.divides)
        found = carry_out(task, _scenarios.setdefault(root, Scenarios(root)))
        return encode(Done(found.scores, found.seconds, found.error, found.blameless, packed(path)))


@contextmanager
def backend_of(workers: int | None, cluster: str | None, root: Path | None) -> Iterator[Backend]:
    """Give what computes: this process, so many others, or the workers of the Dask cluster at an address."""
    if workers is not None and cluster is not None:
        raise BadInput(f"workers is {workers} and cluster {cluster!r}; give one of them")
    if cluster is not None:
        with crew_for(None, cluster) as crew:
            yield Cluster(crew, root)
    elif workers is None or workers == 1:
        yield Here(root)
    else:
        pool = Pool(workers, root)
        try:
            yield pool
        except BaseException:
            pool.end(at_once=True)
            raise
        pool.end(at_once=False)
