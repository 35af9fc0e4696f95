"""isthmus run: one course with a progress bar, a table at the end, and a run folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import isthmus
from isthmus.cli.output import DataRoot, Json, Out, Resume, Words, examples, human_bytes, print_json, print_table
from isthmus.core.errors import BadInput, IsthmusError, quoted
from isthmus.core.outside import printable
from isthmus.report.summary import headline, last_measured, monitor_line

EXAMPLES = examples(
    "isthmus run",
    "isthmus run --baselines rounds=50 seed=1",
    "isthmus run course.yaml algorithm.name=fedprox algorithm.mu=0.01",
    "isthmus run --profile num_clients=50 rounds=20",
    'isthmus run "monitors=[cka,walk_distance]" monitor_every=10',
    "isthmus run --workers 2 num_clients=20",
    "isthmus run --resume runs/20260131-235959-fedavg-cora",
)


def run(
    words: Words = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also run Local and Global (centralised).")] = False,
    resume: Resume = None,
    out: Out = None,
    data_root: DataRoot = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also tell where the time went.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Simulate the clients in so many processes.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Simulate the clients on this Dask cluster.")
    ] = None,
) -> None:
    """Run one course. Without arguments: Cora, 5 clients by community, a 2-layer GCN, FedAvg, in this process."""
    source, overrides = split_words(words or [])
    if resume is not None and (source or baselines or out):
        raise BadInput("--resume goes on with a run as it is: give no course file, --out or --baselines with it")
    place: dict[str, Any] = {"data_root": data_root, "workers": workers, "cluster": cluster}
    if resume is not None:
        resumed = _resumed(resume, overrides, json or quiet, place)
        results = {course_title(resumed.course): resumed}
    else:
        results = _started(source, overrides, baselines, out, json or quiet, place)
    main = next(iter(results.values()))
    if json:
        print_json(as_json(main, results, profile))
        return
    _show(main, results)
    if profile:
        from isthmus.report.profile import profile_table

        print_table(profile_table(main.events), "where the time went")
        for what, reason in _done_alone(main).items():
            typer.echo(f"one by one: {what}: {reason}")


def _done_alone(result: isthmus.Result) -> dict[str, str]:
    """Return what was done client by client, and why."""
    return {event["what"]: event["reason"] for event in result.events if event["event"] == "alone"}


def split_words(words: list[str]) -> tuple[Path | None, list[str]]:
    """Tell a course file from `key=value` words; the file comes first if at all."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1 or (files and words[0] != files[0]):
        raise BadInput(
            f"command line: {files[-1]!r} is not of the form key=value, and only the first word can be a file"
        )
    return (Path(files[0]) if files else None), [word for word in words if "=" in word]


def new_run(out: Path | None, label: str) -> Path:
    """Return the run folder to make, which must be new: the one given, or one in runs by the time and a label."""
    from isthmus.runs.folder import RunFolder, new_run_path

    path = out or new_run_path(Path("runs"), label.replace(":", "_"))
    RunFolder.check_new(path)
    return path


def _started(
    source: Path | None, overrides: list[str], baselines: bool, out: Path | None, silent: bool, place: dict[str, Any]
) -> dict[str, isthmus.Result]:
    from isthmus.config.build import name_of
    from isthmus.config.load import load_course
    from isthmus.runs import simulated

    notes: list[str] = []
    course = load_course(source, overrides, say=notes.append)
    for note in notes:
        typer.echo(f"note: {printable(note)}", err=True)
    path = new_run(out, f"{course_title(course)}-{name_of(type(course.dataset))}")
    if baselines:
        watch = partial(_watched, silent)
        return simulated.run_with_baselines(course, run_dir=path, notes=notes, watch=watch, **place)
    with _watched(silent, course_title(course), course, path) as bars:
        return {course_title(course): simulated.run(course, run_dir=path, callbacks=bars, notes=notes, **place)}


def _resumed(path: Path, overrides: list[str], silent: bool, place: dict[str, Any]) -> isthmus.Result:
    from isthmus.runs.folder import RunFolder

    course = isthmus.load_course(RunFolder.open(path).course, overrides)
    with _watched(silent, course_title(course), course, path) as bars:
        return isthmus.resume(path, course=course, callbacks=bars, **place)


@contextmanager
def _watched(silent: bool, title: str, course: isthmus.Course, path: Path) -> Iterator[list[Any]]:
    """Show a progress bar, and tell how to go on when the run is cut short."""
    from isthmus.cli import ended_like_interrupted
    from isthmus.cli.progress import ProgressBar

    bar = None if silent else ProgressBar(title, course.rounds, course.stopping.metric)
    try:
        with ended_like_interrupted(signal.SIGTERM), bar or nullcontext():
            yield [bar] if bar else []
    except KeyboardInterrupt:
        if (path / "checkpoint.isth").exists():
            typer.echo(f"interrupted; go on with: isthmus run --resume {quoted(path)}", err=True)
        raise
    except BadInput:
        raise
    except IsthmusError as error:
        if not (path / "checkpoint.isth").exists():
            raise
        raise type(error)(f"{error}\na checkpoint is left; go on with: isthmus run --resume {quoted(path)}") from None


def course_title(course: isthmus.Course) -> str:
    """Return the name a course's algorithm goes by."""
    from isthmus.config.build import name_of

    return name_of(type(course.algorithm))


def as_json(main: isthmus.Result, results: dict[str, isthmus.Result], profile: bool) -> dict[str, Any]:
    """Return a run's outcome for scripts; where the time went too, if that is asked for."""
    from isthmus.report.profile import time_by_part
    from isthmus.runs.simulated import BASELINES

    facts: dict[str, Any] = {
        "run": str(main.run_dir),
        "rounds": main.num_rounds,
        "best_round": main.best_round,
        "seconds": round(main.seconds, 3),
        "bytes_up": main.bytes_up,
        "bytes_down": main.bytes_down,
        "metrics": main.metrics,
        "clients": main.client_scores,
        "missing": main.missing,
        "notes": main.notes,
        "monitors": measured(main),
        "baselines": {name: results[title].metrics for title, name in BASELINES.items() if title in results},
    }
    if profile:
        facts["profile"] = {part: round(seconds, 6) for part, seconds in time_by_part(main.events).items()}
        facts["done_alone"] = _done_alone(main)
    return facts


def measured(result: isthmus.Result) -> dict[str, dict[str, Any]]:
    """Return what the monitors of a run measured last, by name."""
    found = last_measured(result.events, result.course.monitors)
    bookkeeping = ("event", "name", "time", "seconds")
    return {name: {k: v for k, v in event.items() if k not in bookkeeping} for name, event in found.items()}


def _show(main: isthmus.Result, results: dict[str, isthmus.Result]) -> None:
    from isthmus.runs.simulated import table_of

    print_table(table_of(results), headline(main.course.task.metrics[0], main.events, main.course.stopping.metric))
    for event in last_measured(main.events, main.course.monitors).values():
        typer.echo(monitor_line(event))
    for note in main.notes:
        typer.echo(f"note: {printable(note)}")
    traffic = f"{human_bytes(main.bytes_up)} up, {human_bytes(main.bytes_down)} down"
    typer.echo(f"{main.seconds:.1f} s, {traffic}")
    typer.echo(f"run folder: {main.run_dir}")
