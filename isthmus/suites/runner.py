"""Runs the courses of a suite on the cores there are; what is finished stays finished."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput, IsthmusError, NotResumable
from isthmus.runs.journal import JOURNAL_FILE, read_journal
from isthmus.suites.same_data import LastScenario, side_by_side
from isthmus.suites.spec import MODELS, Point, Suite


@dataclass(frozen=True)
class Run:
    """A course of the suite with its outcome."""

    point: Point
    score: float | None  # on test
    validation: float | None  # what the search goes by
    num_rounds: int
    seconds: float
    error: str = ""
    missing: tuple[str, ...] = ()  # clients that did not score the round that is kept, or are in no test score
    note: str = ""  # what became of an earlier run of the same course that could not be resumed


def run_suite(
    suite: Suite,
    folder: Path,
    *,
    workers: int | None = None,
    data_root: Path | None = None,
    on_done: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Run what is not finished yet and return every run, in the order of the suite's points."""
    points = suite.points()
    found: dict[str, Run] = {}
    todo: dict[str, Point] = {}
    for point in points:
        if point.key in found or point.key in todo:
            continue  # the same course, of which another metric is read
        finished = read_run(suite, point, folder / "runs" / point.key)
        if finished is not None:
            found[point.key] = finished
            on_done(finished)
        else:
            todo[point.key] = point
    folder.mkdir(parents=True, exist_ok=True)
    number = min(workers or os.cpu_count() or 1, max(len(todo), 1))
    if number == 1:
        data = LastScenario()
        for point in side_by_side(list(todo.values())):
            found[point.key] = _tell(on_done, _finish(suite, point, folder, data_root, data))
    else:
        _in_parallel(suite, side_by_side(list(todo.values())), folder, data_root, number, found, on_done)
    return [_of(suite, point, found[point.key], folder) for point in points]


def _of(suite: Suite, point: Point, run: Run, folder: Path) -> Run:
    """Return a run as the given point of the suite reads it."""
    if point == run.point or run.error:
        return replace(run, point=point)
    read = read_run(suite, point, folder / "runs" / point.key)
    assert read is not None
    return replace(read, note=run.note)


def _in_parallel(
    suite: Suite,
    todo: Sequence[Point],
    folder: Path,
    data_root: Path | None,
    number: int,
    found: dict[str, Run],
    on_done: Callable[[Run], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context, initializer=_quiet_worker) as pool:
        # A few at a time, so that an interruption does not leave a long queue to cancel.
        waiting = list(reversed(todo))
        under_way: dict[Future[Run], Point] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < number:
                    point = waiting.pop()
                    under_way[pool.submit(_finish_in_worker, suite, point, folder, data_root)] = point
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    found[under_way.pop(future).key] = _tell(on_done, future.result())
        except BaseException:
            for process in list(pool._processes.values()):
                process.terminate()
            raise


# Of a worker, which lives as long as its suite is run.
_at_work = False
_data = LastScenario()


def _quiet_worker() -> None:
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


def _finish_in_worker(suite: Suite, point: Point, folder: Path, data_root: Path | None) -> Run:
    global _at_work
    _at_work = True
    try:
        return _finish(suite, point, folder, data_root, _data)
    except KeyboardInterrupt:
        os._exit(130)
    finally:
        _at_work = False


def _tell(on_done: Callable[[Run], None], run: Run) -> Run:
    on_done(run)
    return run


def _finish(suite: Suite, point: Point, folder: Path, data_root: Path | None, data: LastScenario) -> Run:
    """Run one course to its end, from its checkpoint if it has one; a failure is the run's, not the suite's."""
    from isthmus.runs.simulated import resume, run, run_anew

    path = folder / "runs" / point.key
    course = replace(point.course, threads=1)
    note = ""
    try:
        if not path.exists():
            run(course, run_dir=path, scenario=data.of(course, data_root))
        else:
            try:
                resume(path, course=course, scenario=data.of(course, data_root))
            except NotResumable as error:
                aside = run_anew(course, path, str(error), scenario=data.of(course, data_root))
                note = f"{path.name} was run anew; what was there is in {aside.name}, since {error}"
    except IsthmusError as error:
        return Run(point, None, None, 0, 0.0, str(error), note=note)
    finished = read_run(suite, point, path)
    assert finished is not None
    return replace(finished, note=note)


def read_run(suite: Suite, point: Point, path: Path) -> Run | None:
    """Return the outcome of a finished run from its journal, or None."""
    journal = path / JOURNAL_FILE
    if not journal.is_file():
        return None
    try:
        events = list(read_journal(journal))
    except BadInput:  # damaged: whoever goes on with the run says so
        return None
    end: dict[str, Any] = next((event for event in reversed(events) if event["event"] == "end"), {})
    if not {"metrics", "best_score", "num_rounds", "seconds"} <= end.keys():
        return None
    score = None
    # Methods without a global model are scored by the clients' own, and those without these by the global one.
    for model in (suite.model, *(model for model in MODELS if model != suite.model)):
        score = end["metrics"].get(f"{model}/{suite.graph}", {}).get(point.metric, score) if score is None else score
    kept = [e for e in events if e["event"] == "round" and e.get("round") == end.get("best_round")]
    away = [*(kept[-1].get("unscored", ()) if kept else ()), *end.get("missing", ())]
    missing = tuple(dict.fromkeys(away))
    return Run(point, score, end["best_score"], end["num_rounds"], end["seconds"], missing=missing)
