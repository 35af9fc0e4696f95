"""isthmus submit and courses: what an operator does with the courses at a federation's server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.federation import SchemaFile, interruptible, say, show_folder
from isthmus.cli.output import Json, Out, Words, examples, print_json, print_table
from isthmus.cli.run import course_title, new_run, split_words
from isthmus.core.errors import BadInput, CourseFailed, nearest, quoted
from isthmus.report.summary import Table
from isthmus.sites.parties.kit import open_kit

if TYPE_CHECKING:
    from isthmus.sites.courses.messages import CourseEvent, CourseStatus
    from isthmus.sites.submit import Operator

SUBMIT_EXAMPLES = examples(
    "isthmus submit federation/operator course.yaml rounds=50 --out runs/first",
    "isthmus submit federation/operator course.yaml --schema schema.yaml",
    after="The course belongs to the server from the moment it is submitted: Ctrl-C, or losing this machine, does "
    "not disturb it. isthmus courses lists, watches, cancels and fetches it, from any operator's machine.",
)
COURSES_EXAMPLES = examples(
    "isthmus courses federation/operator",
    "isthmus courses federation/operator attach 3f9a",
    "isthmus courses federation/operator cancel 3f9a",
    "isthmus courses federation/operator fetch 3f9a --out runs/first",
    "isthmus courses federation/operator resume 3f9a",
    after="An id may be cut short as long as it names one course.",
)
VERBS = ("list", "attach", "cancel", "fetch", "resume")

KitPath = Annotated[Path, typer.Argument(metavar="KIT", help="An operator's kit.")]


def submit(kit: KitPath, words: Words = None, out: Out = None, schema: SchemaFile = None) -> None:
    """Hand the server a course, watch it, and bring its run folder here when it is done.

    The server runs courses one after the other. Ctrl-C ends the watching only: the course goes on at the server until
    isthmus courses KIT cancel ID.
    """
    from isthmus.sites.courses.site_course import keep_schema, load_site_course
    from isthmus.sites.submit import connected, finished

    source, overrides = split_words(words or [])
    opened = open_kit(kit, "operator")
    course = load_site_course(source, overrides, len(opened.sites), say, schema)
    path = new_run(out, course_title(course))
    with interruptible(), connected(opened, say) as operator:
        num_sites = len(operator.sites())
        if num_sites != len(opened.sites):  # the federation has grown since this kit was made
            course = load_site_course(source, overrides, num_sites, say, schema)
        status = operator.submit(course)
        say(f"submitted as {status.course_id[:8]}{_place(status)}")
        with _going_on(kit, status.course_id):
            finished(_watch(operator, status))
            operator.fetch(status.course_id, path)
    keep_schema(path, schema)
    show_folder(path)


def courses(
    kit: KitPath,
    verb: Annotated[
        str, typer.Argument(metavar="[list|attach|cancel|fetch|resume]", help="What to do.", show_default=False)
    ] = "list",
    course_id: Annotated[str, typer.Argument(metavar="[ID]", help="Which course.", show_default=False)] = "",
    out: Out = None,
    json: Json = False,
) -> None:
    """List the courses at the server, and watch, cancel or fetch one.

    list: which there are (queued, running, paused, frozen, done, failed, cancelled), and where each is.

    attach: watch one until it is over; with --out, its run folder is brought here then.

    cancel: end one; its checkpoint stays at the server.

    fetch: bring the run folder of one that is over.

    resume: let one that failed or was cancelled go on from its checkpoint.
    """
    from isthmus.sites.submit import connected

    if verb not in VERBS:
        raise BadInput(f"{verb!r} is nothing that can be done with courses; {nearest(verb, VERBS)}")
    if verb == "list" and (course_id or out):
        raise BadInput("list takes neither an id nor --out")
    if verb in ("cancel", "fetch", "resume") and not course_id:
        raise BadInput(f"{verb} needs the id of a course; isthmus courses {quoted(kit)} lists them")
    opened = open_kit(kit, "operator")
    with interruptible(), connected(opened, say) as operator:
        if verb == "list":
            found = operator.courses()
            if json:
                print_json({"courses": [asdict(status) for status in found]})
            else:
                _show_list(found)
            return
        status = operator.find(course_id)
        path = _act(operator, verb, status, out, kit)
    if json:
        print_json({"course": status.course_id, "run": str(path) if path else None})
    elif path:
        show_folder(path) if verb == "attach" or status.state == "done" else typer.echo(f"run folder: {path}")


def _act(operator: Operator, verb: str, status: CourseStatus, out: Path | None, kit: Path) -> Path | None:
    """Do what was asked for with one course; return the run folder that was brought here, if one was."""
    from isthmus.sites.submit import finished

    short, command = status.course_id[:8], f"isthmus courses {quoted(kit)}"
    if verb == "cancel":
        operator.cancel(status.course_id)
        say(f"{short} is being cancelled; its checkpoint stays: {command} resume {short}")
        return None
    if verb == "resume":
        say(f"{short} goes on{_place(operator.resume(status.course_id))}")
        return None
    path = new_run(out, status.algorithm)
    if verb == "attach":
        with _going_on(kit, status.course_id):
            finished(_watch(operator, status))
        if out is None:
            say(f"{short} is done; bring its folder here with: {command} fetch {short} --out FOLDER")
            return None
    operator.fetch(status.course_id, path)
    return path


def _watch(operator: Operator, status: CourseStatus) -> CourseStatus:
    """Show a bar, and what happens above it, until the course is over."""
    from isthmus.cli.progress import ProgressBar

    with ProgressBar(status.algorithm, status.rounds, "score", status.round) as bar:

        def on_event(event: CourseEvent) -> None:
            if event.text:
                say(event.text)
            else:
                bar.show(event.round, event.loss, event.score, event.bytes_up, event.bytes_down)

        waits = status.place

        def on_status(now: CourseStatus) -> None:
            nonlocal waits
            if now.place != waits and now.state == "queued":
                say(f"queued{_place(now)}")
            waits = now.place

        return operator.follow(status.course_id, on_event, on_status)


def _place(status: CourseStatus) -> str:
    if not status.place:
        return ""
    return f"; {status.place} {'course runs' if status.place == 1 else 'courses run'} before it"


@contextmanager
def _going_on(kit: Path, course_id: str) -> Iterator[None]:
    """Say after Ctrl-C that the course goes on, after a failure that it stays at the server, and what can be done."""
    from isthmus.sites.submit import NoAnswer

    command, short = f"isthmus courses {quoted(kit)}", course_id[:8]
    try:
        yield
    except NoAnswer as error:
        raise CourseFailed(
            f"{error}; the course {short} may be running there still: {command} attach {short}"
        ) from None
    except CourseFailed as error:
        raise CourseFailed(
            f"{error}. What there is of it stays at the server; bring its folder here: {command} fetch {short} --out "
            f"FOLDER; let it go on from its checkpoint: {command} resume {short}"
        ) from None
    except KeyboardInterrupt:
        say(
            f"the course {short} goes on at the server. Watch it: {command} attach {short}; end it: {command} cancel "
            f"{short}; bring its folder here when it is done: {command} fetch {short} --out FOLDER"
        )
        raise


def _show_list(found: tuple[CourseStatus, ...]) -> None:
    if not found:
        typer.echo("the server has no courses")
        return
    rows = tuple(
        (
            status.course_id[:8],
            status.algorithm,
            f"{status.state} ({status.place} before it)" if status.place else status.state,
            f"{status.round} of {status.rounds}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.submitted)),
            status.operator,
            status.reason[:120],
        )
        for status in found
    )
    print_table(Table(("id", "algorithm", "state", "round", "submitted", "by", "why"), rows))
