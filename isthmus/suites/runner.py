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
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, CourseFailed, IsthmusError, NotResumable
from isthmus.core.outside import replace_file
from isthmus.runs.journal import JOURNAL_FILE, read_journal
from isthmus.suites.same_data import LastScenario, side_by_side
from isthmus.suites.spec import MODELS, Point, Suite

if TYPE_CHECKING:
    from isthmus.suites.moving import Rows


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
    cluster: str | None = None,
) -> list[Run]:
    """Run what is not finished yet and return every run, in the order of the suite's points.

    Finished is what has a run folder with an end, or a row in runs.csv with the digest of the course. With `cluster`
    the courses run on the workers of the Dask cluster at that address, each on one.
    """
    from isthmus.suites.moving import Rows  # it stands on this file

    if cluster is not None and workers is not None:
        raise BadInput(f"workers is {workers} and cluster {cluster!r}; give one of them")
    points = suite.points()
    rows = Rows(suite, folder)
    found: dict[str, Run] = {}
    todo: dict[str, Point] = {}
    refused: dict[str, str] = {}
    for point in points:
        if point.key in found or point.key in todo:
            continue  # the same course, of which another metric is read
        finished = read_run(suite, point, folder / "runs" / point.key)
        if finished is None:
            by_row = rows.of([other for other in points if other.key == point.key])
            finished = by_row[0] if by_row else None
            refused[point.key] = rows.why_not(point)
        if finished is not None:
            found[point.key] = finished
            on_done(finished)
        else:
            todo[point.key] = point
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _carry_out(suite, list(todo.values()), folder, data_root, workers, cluster, found, on_done)
    finally:
        runs = [_of(suite, point, found[point.key], folder, rows) for point in points if point.key in found]
        if len(runs) < len(points):
            _keep_rows(suite, runs, folder)
    return [replace(run, note=run.note or refused.get(run.point.key, "")) for run in runs]


def _keep_rows(suite: Suite, runs: Sequence[Run], folder: Path) -> None:
    """Write what is finished of a suite that is cut short, so that it can go on elsewhere without the run folders."""
    from isthmus.suites.moving import RUNS_FILE, with_others

    if runs:
        replace_file(folder / RUNS_FILE, with_others(suite, runs, folder).encode())


def _carry_out(
    suite: Suite,
    points: Sequence[Point],
    folder: Path,
    data_root: Path | None,
    workers: int | None,
    cluster: str | None,
    found: dict[str, Run],
    on_done: Callable[[Run], None],
) -> None:
    """Run some courses, here or elsewhere, and put what comes of them where it is found."""
    todo = side_by_side(points)
    if not todo:
        return
    if cluster is not None:
        from isthmus.suites.elsewhere import on_cluster

        for point, error, note in on_cluster(todo, folder, data_root, cluster, finish_course):
            found[point.key] = _tell(on_done, _outcome(suite, point, folder, error, note))
        return
    number = min(workers or os.cpu_count() or 1, len(todo))
    if number == 1:
        data = LastScenario()
        for point in todo:
            found[point.key] = _tell(on_done, _finish(suite, point, folder, data_root, data))
    else:
        _in_parallel(suite, todo, folder, data_root, number, found, on_done)


def _of(suite: Suite, point: Point, run: Run, folder: Path, rows: Rows) -> Run:
    """Return a run as the given point of the suite reads it."""
    if point == run.point or run.error:
        return replace(run, point=point)
    read = read_run(suite, point, folder / "runs" / point.key) or next(iter(rows.of([point]) or ()), None)
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
        except BrokenProcessPool:
            raise CourseFailed(
                "a worker process was killed, perhaps for want of memory (fewer --workers need less); what is finished "
                "stays: start the same comparison again"
            ) from None
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
    """Run one course of a suite to its end."""
    error, note = finish_course(point.course, folder / "runs" / point.key, data_root, data)
    return _outcome(suite, point, folder, error, note)


def finish_course(course: Course, path: Path, data_root: Path | None, data: LastScenario) -> tuple[str, str]:
    """Run one course to its end, from its checkpoint if it has one; return why it failed, and a note, if any."""
    from isthmus.runs.simulated import resume, run, run_anew

    course = replace(course, threads=1)
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
        return str(error), note
    return "", note


def _outcome(suite: Suite, point: Point, folder: Path, error: str, note: str) -> Run:
    """Return what became of a course; a failure is the run's, not the suite's."""
    if error:
        return Run(point, None, None, 0, 0.0, error, note=note)
    finished = read_run(suite, point, folder / "runs" / point.key)
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
