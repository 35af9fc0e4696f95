"""isthmus federation, serve, join, submit, up: the same course across machines."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from isthmus.config.course import Course

app = typer.Typer(help="Make a federation: a kit for each party.", no_args_is_help=True, rich_markup_mode=None)

INIT_EXAMPLES = """Examples:

  isthmus federation init --sites bank-a,bank-b,bank-c --server fl.example.org:8443

Hand each folder to its party on a safe way; keep the folder authority to yourself.
"""
SERVE_EXAMPLES = """Examples:

  isthmus serve federation/server

  isthmus serve federation/server course.yaml rounds=50

  isthmus serve federation/server --resume runs/20260131-235959-fedavg
"""
JOIN_EXAMPLES = """Examples:

  isthmus join federation/bank-a --data my_graph/

  isthmus join federation/bank-a --data my_graph/ --policy policy.yaml

  isthmus join federation/bank-a --data my_graph/ --id-secret-file id-secret

The last is for algorithms that match nodes which silos have in common, by ids that nobody sees. All silos need the same
secret; make it at one of them, hand it to the others on a safe way, and never to the server:

  python -c "import secrets; print(secrets.token_hex(32))" > id-secret

  chmod 600 id-secret
"""
SUBMIT_EXAMPLES = """Examples:

  isthmus submit federation/operator course.yaml rounds=50 --out runs/first
"""
UP_EXAMPLES = """Examples:

  isthmus up --sites 3

  isthmus up course.yaml --sites 5 rounds=20
"""

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[COURSE.yaml] [KEY=VALUE]...", help="A course file, then changes to it.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="The run folder to make.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for all sites at the start.")]
Pause = Annotated[float, typer.Option("--pause", metavar="SECONDS", help="How long to wait when too few are left.")]


@app.callback()
def federation() -> None:
    """Make a federation: a kit for each party."""


@app.command("init", epilog=INIT_EXAMPLES)
def init(
    sites: Annotated[str, typer.Option("--sites", metavar="A,B,C", help="The sites' names.")],
    server: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the sites find the server.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the kits go.")] = Path("federation"),
    name: Annotated[str, typer.Option("--name", help="The federation's name.")] = "federation",
) -> None:
    """Provision a federation: certificates and a kit for the server, the operator and every site.

    Run again with more sites on the same folder, it adds them under the same root certificate.
    """
    from isthmus.federation.kit import make_federation

    made = make_federation(out, server, [site.strip() for site in sites.split(",") if site.strip()], name)
    for party, path in made.items():
        typer.echo(f"{party}: {path}")
    typer.echo(f"keep to yourself: {out / 'authority'}")


def serve(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The server's kit.")],
    words: Words = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Go on with a run folder.")] = None,
    out: Out = None,
    wait: Wait = 60.0,
    pause: Pause = 600.0,
    once: Annotated[bool, typer.Option("--once", help="End after the first course of the operator's.")] = False,
) -> None:
    """Run the server of a federation: a course given here, or those that the operator submits."""
    from isthmus.cli.run import course_title, split_words
    from isthmus.config.load import load_course
    from isthmus.core.errors import BadInput
    from isthmus.federation.course import Patience, course_of
    from isthmus.federation.kit import open_kit
    from isthmus.federation.server import Server
    from isthmus.monitor.folder import new_run_path

    source, overrides = split_words(words or [])
    if resume is not None and (words or out):
        raise BadInput("--resume goes on with a run as it is: give no course or --out with it")
    opened, patience = open_kit(kit, "server"), Patience(wait, pause)
    sites = f"num_clients={len(opened.sites)}"
    course = course_of(resume) if resume else load_course(source, [sites, *overrides]) if words else None
    with interruptible():
        server = Server(opened, say=say)
        try:
            if course is None:
                server.serve(out or Path("runs"), patience=patience, once=once)
                return
            with _bar(course) as bar:
                if resume is not None:
                    result = server.resume(resume, patience=patience, watchers=[bar])
                else:
                    path = out or new_run_path(Path("runs"), course_title(course))
                    result = server.run(course, path, patience=patience, watchers=[bar])
        finally:
            server.stop()
    show_folder(result.run_dir or Path())


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="This site's kit.")],
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="This site's folder of tables.")],
    policy: Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="What this site allows.")] = None,
    id_secret_file: Annotated[
        Path | None,
        typer.Option("--id-secret-file", metavar="FILE", help="A secret of all silos, to match nodes in common."),
    ] = None,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Run a silo on its own graph: it takes part in the federation's courses until it is stopped."""
    from isthmus.federation.identities import fingerprint, read_secret
    from isthmus.federation.kit import open_kit
    from isthmus.federation.policy import load_policy
    from isthmus.federation.silo import join as join_federation

    opened, allowed = open_kit(kit, "site"), load_policy(policy)
    id_secret = None if id_secret_file is None else read_secret(id_secret_file)
    check_folder(data, id_secret)
    if id_secret is not None:
        say(f"nodes in common are matched by a secret with the fingerprint {fingerprint(id_secret)}; all silos need it")
    stop = threading.Event()
    if until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    with interruptible():
        join_federation(opened, data, allowed, id_secret=id_secret, say=say, stop=stop)


def submit(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The operator's kit.")],
    words: Words = None,
    out: Out = None,
) -> None:
    """Hand the server a course, watch it, and bring its run folder here. Ctrl-C cancels the course."""
    from isthmus.cli.run import course_title, split_words
    from isthmus.config.load import load_course
    from isthmus.federation.kit import open_kit
    from isthmus.federation.operator import submit as submit_course
    from isthmus.monitor.folder import new_run_path

    source, overrides = split_words(words or [])
    opened = open_kit(kit, "operator")
    course = load_course(source, [f"num_clients={len(opened.sites)}", *overrides])
    path = out or new_run_path(Path("runs"), course_title(course))
    with interruptible(), _bar(course) as bar:

        def on_news(fact: dict[str, Any]) -> None:
            if "round" in fact:
                bar.show(fact["round"], fact["loss"], fact["score"], fact["bytes_up"], fact["bytes_down"])

        submit_course(opened, course, path, on_news=on_news, say=say)
    show_folder(path)


def up(
    words: Words = None,
    sites: Annotated[int, typer.Option("--sites", min=1, help="How many silos to start.")] = 3,
    out: Out = None,
    data_root: Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where datasets lie.")] = None,
) -> None:
    """Try a federation on this machine: split the course's graph, start a server and silos on loopback, train, stop."""
    from isthmus.cli.run import course_title, split_words
    from isthmus.config.load import load_course
    from isthmus.federation.rehearsal import Rehearsal
    from isthmus.monitor.folder import RunFolder, new_run_path

    source, overrides = split_words(words or [])
    course = load_course(source, [*overrides, f"num_clients={sites}"])
    path = out or new_run_path(Path("runs"), f"{course_title(course)}-sites")
    RunFolder.check_new(path)
    with interruptible(), Rehearsal(course, data_root, say=say) as rehearsal, _bar(course) as bar:
        rehearsal.run(path, watchers=[bar])
    show_folder(path)


def say(text: str) -> None:
    """Print a line about what happens, apart from results."""
    from isthmus.cli.output import plain

    typer.echo(plain(text), err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Take being told to end as Ctrl-C, so that everything is closed on the way out."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    yield


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _bar(course: Course) -> Any:
    from isthmus.cli.progress import ProgressBar
    from isthmus.cli.run import course_title

    return ProgressBar(course_title(course), course.rounds, course.stopping.metric)


def check_folder(data: Path, id_secret: bytes | None) -> None:
    """Refuse a folder with mistakes, or with ids that get the same key, before anything is connected."""
    from dataclasses import replace

    from isthmus.data.zoo.own_kinds import kind_at
    from isthmus.federation.identities import node_keys

    # Whether edges are directed is for the course to say; the two directions of one may differ until then.
    folder = replace(kind_at(data).at(data), undirected=False).read()
    if id_secret is not None and folder.node_ids is not None:
        node_keys(folder.node_ids, id_secret)


def show_folder(path: Path) -> None:
    """Print the table of a finished run from its journal."""
    from isthmus.cli.output import plain, print_table
    from isthmus.cli.run import course_title
    from isthmus.federation.course import course_of
    from isthmus.monitor.folder import RunFolder
    from isthmus.monitor.journal import read_journal, replace_file
    from isthmus.report.summary import column, end_of, results_table

    course, folder = course_of(path), RunFolder(path)
    events = list(read_journal(folder.journal))
    end, metric = end_of(events), course.task.metrics[0]
    facts = {event["client"]: event["text"] for event in events if event["event"] == "client"}
    table = results_table([column(course_title(course), events, metric)], list(facts), facts)
    print_table(table, f"test {metric}, best round {end['best_round']} of {end['num_rounds']}")
    for note in [event["text"] for event in events if event["event"] == "note"]:
        typer.echo(f"note: {plain(note)}")
    replace_file(folder.report, table.markdown().encode())
    typer.echo(f"run folder: {path}")
