"""Work in other processes of this machine: results as they come, and no process outlives the one that started it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from isthmus.core.errors import CourseFailed

R = TypeVar("R")


def in_processes(
    work: Callable[..., R], arguments: Sequence[tuple[Any, ...]], number: int
) -> Generator[tuple[int, R], None, None]:
    """Yield what a function returns for each set of arguments, with its place, as they are done in so many processes.

    Raises CourseFailed where a process is killed. Who stops listening ends them: at once when idle, and after what
    KeyboardInterrupt makes of the work when at it.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context, initializer=quiet_worker) as pool:
        calls = {pool.submit(_at_it, work, each): place for place, each in enumerate(arguments)}
        try:
            for call in as_completed(calls):
                yield calls[call], call.result()
        except BrokenProcessPool:
            raise CourseFailed(
                "a worker process was killed, perhaps for want of memory (fewer --workers need less); what is finished "
                "stays: start the same again"
            ) from None
        except BaseException:
            processes = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise


# Of a worker.
_at_work = False


def quiet_worker() -> None:
    """Set a worker up to end without a word: at once when idle, after its checkpoint when at work.

    Ctrl-C goes to the whole group of processes and the parent terminates its workers besides, so only the first counts.
    """
    told = False

    def end(number: int, frame: Any) -> None:
        nonlocal told
        if not _at_work:
            os._exit(130)
        if not told:
            told = True
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    warnings.simplefilter("ignore")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone, however that came about."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _at_it(work: Callable[..., R], arguments: tuple[Any, ...]) -> R:
    with working():
        return work(*arguments)


@contextmanager
def working() -> Iterator[None]:
    """Say that this worker is at work: it is given the time to keep a checkpoint before it ends."""
    global _at_work
    _at_work = True
    try:
        yield
    except KeyboardInterrupt:
        os._exit(130)
    finally:
        _at_work = False
