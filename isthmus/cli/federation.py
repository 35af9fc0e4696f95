"""isthmus federation, serve, join, submit, up: the same course across machines."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import isthmus
from isthmus.cli.output import DataRoot, Out, Resume, Words, comma_list, examples, lasting_output, print_table
from isthmus.cli.run import course_title, new_run, split_words
from isthmus.core.errors import BadInput, quoted
from isthmus.core.outside import printable
from isthmus.report.summary import headline, run_table
from isthmus.sites.parties import kit as kits
from isthmus.sites.parties.certificates import has_authority

app = typer.Typer(help="Make a federation: a kit for each party.", no_args_is_help=True, rich_markup_mode=None)

INIT_EXAMPLES = examples(
    "isthmus federation init --sites bank-a,bank-b,bank-c --server fl.example.org:8443",
    "isthmus federation init --sites bank-a,bank-b --operators alice,bob --server fl.example.org:8443",
    after="Hand each folder to its party on a safe way; keep the folder authority to yourself.",
)
ADD_EXAMPLES = examples(
    "isthmus federation add bank-d",
    "isthmus federation add --operators carol --folder federation",
    after="The new parties get their folders; the server gets its new kit.json, which lists them.",
)
RENEW_EXAMPLES = examples(
    "isthmus federation renew",
    "isthmus federation renew bank-a server",
    "isthmus federation renew bank-a --revoke-old",
    "isthmus federation renew --root",
    after="Files in a kit are replaced; its folder state stays. A server takes its new certificate without a "
    "restart, a silo when it next connects.",
)
EXPEL_EXAMPLES = examples(
    "isthmus federation expel bank-b",
    after="To take it back later, with another certificate: isthmus federation add bank-b",
)
SERVE_EXAMPLES = examples(
    "isthmus serve federation/server",
    "isthmus serve federation/server course.yaml rounds=50",
    "isthmus serve federation/server --resume runs/20260131-235959-fedavg",
)
JOIN_EXAMPLES = examples(
    "isthmus join federation/bank-a --data my_graph/",
    "isthmus join federation/bank-a --data my_graph/ --policy policy.yaml",
    "isthmus join federation/bank-a --data my_graph/ --device cuda",
    "isthmus join federation/bank-a --data my_graph/ --id-secret-file id-secret",
    after="""
The last is for algorithms that match nodes which silos have in common, by ids that nobody sees. All silos need the same
secret; make it at one of them, hand it to the others on a safe way, and never to the server:

  python -c "import secrets; print(secrets.token_hex(32))" > id-secret

  chmod 600 id-secret""",
)
UP_EXAMPLES = examples("isthmus up --sites 3", "isthmus up course.yaml --sites 5 rounds=20")

Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="The federation's folder.")]
SchemaFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The schema that all silos must follow: its digest and classes.")
]


@app.command("init", epilog=INIT_EXAMPLES)
def init(
    sites: Annotated[str, typer.Option(metavar="A,B,C", help="The sites' names.")],
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the sites find the server.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the kits go.")] = Path("federation"),
    name: Annotated[str | None, typer.Option(help="The federation's name.  [default: federation]")] = None,
    operators: Annotated[str, typer.Option(metavar="A,B", help="Who submits courses.  [default: operator]")] = "",
) -> None:
    """Provision a federation: certificates and a kit for the server, the operators and every site.

    Run again with more sites on the same folder, it adds them under the same root certificate; nobody is dropped.
    """
    tell_enrolment(out, kits.enrol(out, server, comma_list(sites), comma_list(operators), name))


@app.command("add", epilog=ADD_EXAMPLES)
def add(
    sites: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...", help="The new sites' names.")] = None,
    operators: Annotated[str, typer.Option(metavar="A,B", help="New operators' names.")] = "",
    folder: Folder = Path("federation"),
) -> None:
    """Add sites or operators to a federation; everybody else keeps what they have."""
    if not has_authority(folder):
        raise BadInput(f"{folder} is no federation; make one with: isthmus federation init")
    if not sites and not operators:
        raise BadInput("nobody to add: name sites, or operators with --operators")
    tell_enrolment(folder, kits.enrol(folder, None, sites or [], comma_list(operators)))


@app.command("renew", epilog=RENEW_EXAMPLES)
def renew(
    parties: Annotated[list[str] | None, typer.Argument(metavar="[PARTY]...", help="Whose; without, all.")] = None,
    root: Annotated[bool, typer.Option("--root", help="The root certificate too, under the same key.")] = False,
    revoke_old: Annotated[
        bool, typer.Option("--revoke-old", help="What they had before counts no more, at once: for a stolen key.")
    ] = False,
    folder: Folder = Path("federation"),
) -> None:
    """Make new certificates and keys, before or after the old ones end; the federation stays the same."""
    done = kits.renew(folder, parties or [], root=root, revoke_old=revoke_old)
    for party, path in done.kits.items():
        until = done.passports[party].last_day
        typer.echo(f"{party}: {path} (valid until {until}: hand party.crt, party.key and rootCA.pem to {party})")
    if done.kits and not revoke_old:
        typer.echo("until then the old certificates count as before")
    if revoke_old:
        tell_revocation(folder)
    if root:
        typer.echo(f"root: valid until {done.root.last_day}: hand rootCA.pem to everybody before the old one ends")
        typer.echo("what the old root has signed stays valid under the new one; now renew the parties' certificates")
    elif any(passport.valid_until >= done.root.valid_until for passport in done.passports.values()):
        typer.echo(f"no longer, because the root ends on {done.root.last_day}; first: isthmus federation renew --root")


@app.command("expel", epilog=EXPEL_EXAMPLES)
def expel(
    parties: Annotated[list[str], typer.Argument(metavar="PARTY...", help="Which sites or operators.")],
    folder: Folder = Path("federation"),
) -> None:
    """Expel sites or operators: their certificates count no more, at the server and at every silo.

    A running server cuts them off within a second of getting the new list, and hands it on to the silos.
    """
    number, num_certificates = kits.expel(folder, parties)
    typer.echo(f"expelled: {', '.join(parties)} ({num_certificates} certificates on list {number})")
    tell_revocation(folder)


def tell_revocation(folder: Path) -> None:
    """Say where the new list of revoked certificates must go."""
    server = quoted(folder / "server")
    typer.echo(f"a server that runs elsewhere needs kit.json and revoked.crl of {server}; it notices them by itself")
    typer.echo("and hands the list on to every silo; revoked.crl can be put into a silo's kit by hand as well")


def tell_enrolment(out: Path, done: kits.Enrolment) -> None:
    """Print whose kits are where, and what to do with them."""
    for party in done.facts.parties:
        if party in done.added:
            typer.echo(f"{party}: {done.kits[party]} (new: hand it to {party})")
        elif party in done.kits:
            typer.echo(f"{party}: {done.kits[party]}")
        else:
            typer.echo(f"{party}: handed out before; for a new one: isthmus federation renew {party}")
    typer.echo(f"keep to yourself: {out / 'authority'}")
    if done.added and "server" not in done.added:
        kit = quoted(out / "server" / "kit.json")
        typer.echo(f"a server that runs elsewhere needs the new {kit}; `isthmus serve` notices it by itself")


def serve(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The server's kit.")],
    words: Words = None,
    resume: Resume = None,
    out: Out = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for all sites at the start.")] = 60.0,
    pause: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait when too few are left.")] = 600.0,
    once: Annotated[bool, typer.Option("--once", help="End after the first course of an operator's.")] = False,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Leave alone what an earlier server has not finished.")
    ] = False,
    schema: SchemaFile = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A graph of the server's own, for courses with a server_share."),
    ] = None,
) -> None:
    """Run the server of a federation: a course given here, or those that operators submit, one after the other.

    Courses of operators go to the folder given by --out, or to runs. What was queued, running or paused there when the
    server ended is taken up again by itself.
    """
    from isthmus.sites.courses.site_course import Patience, course_of, keep_schema, load_site_course
    from isthmus.sites.join import check_own
    from isthmus.sites.serve import Server

    source, overrides = split_words(words or [])
    _check_goes_together(words, resume, out, once or no_resume, schema)
    opened, patience = kits.open_kit(kit, "server"), Patience(wait, pause)
    course = course_of(resume) if resume else None
    if words:
        course = load_site_course(source, overrides, len(opened.sites), say, schema)
    if graph is not None:
        check_own(graph, None)
    with interruptible():
        server = Server(opened, say=say, graph=graph)
        try:
            if course is None:
                server.serve(out or Path("runs"), patience=patience, once=once, take_up=not no_resume)
                return
            with _bar(course) as bar:
                if resume is not None:
                    result = server.resume(resume, patience=patience, callbacks=[bar])
                else:
                    path = new_run(out, course_title(course))
                    result = server.run(course, path, patience=patience, callbacks=[bar])
        finally:
            server.stop()
    keep_schema(result.run_dir or Path(), schema)
    show_folder(result.run_dir or Path())


def _check_goes_together(
    words: list[str] | None, resume: Path | None, out: Path | None, of_operators: bool, schema: Path | None
) -> None:
    """Refuse what is given for another way to serve: a course, one to go on with, or those of operators."""
    if resume is not None and (words or out):
        raise BadInput("--resume goes on with a run as it is: give no course or --out with it")
    if (words or resume is not None) and of_operators:
        raise BadInput(
            "--once and --no-resume are about courses of operators: give no course and no --resume with them"
        )
    if schema is not None and not words:
        raise BadInput("--schema goes with a course given here; operators give theirs to isthmus submit")


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="This site's kit.")],
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="This site's folder of tables.")],
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="What this site allows.")] = None,
    id_secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A secret of all silos, to match nodes in common.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where this site computes: cpu, cuda, cuda:1, mps, auto.")
    ] = "cpu",
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Run a silo on its own graph: it takes part in the federation's courses until it is stopped."""
    from isthmus.core.record import device_of
    from isthmus.sites.join import check_own
    from isthmus.sites.join import join as join_federation
    from isthmus.sites.silo.identities import fingerprint, read_secret
    from isthmus.sites.silo.policy import load_policy

    place = device_of(device, "--device")
    opened, allowed = kits.open_kit(kit, "site"), load_policy(policy)
    id_secret = None if id_secret_file is None else read_secret(id_secret_file)
    check_own(data, id_secret)
    if id_secret is not None:
        say(f"nodes in common are matched by a secret with the fingerprint {fingerprint(id_secret)}; all silos need it")
    for line in allowed.lines():
        say(line)
    if until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    with interruptible():
        join_federation(opened, data, allowed, id_secret=id_secret, device=place, say=say)


def up(
    words: Words = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="How many silos to start [3, or one for each own folder].")
    ] = None,
    out: Out = None,
    data_root: DataRoot = None,
) -> None:
    """Try a federation on this machine: split the course's graph, start a server and silos on loopback, train, stop."""
    from isthmus.data.folders.own_kinds import Folders
    from isthmus.sites.up import Rehearsal

    source, overrides = split_words(words or [])
    course = isthmus.load_course(source, overrides if sites is None else [*overrides, f"num_clients={sites}"], say=say)
    if sites is None and not isinstance(course.dataset, Folders):
        course = replace(course, num_clients=3)
    path = new_run(out, f"{course_title(course)}-sites")
    with interruptible(), Rehearsal(course, data_root, say=say) as rehearsal, _bar(course) as bar:
        rehearsal.run(path, callbacks=[bar])
    show_folder(path)


def say(text: str) -> None:
    """Print a line about what happens, apart from results."""
    # In one piece: several threads say something, and `print` would write the end of the line by itself.
    print(f"{printable(text)}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Take being told to end as Ctrl-C, so that everything is closed on the way out; a full log disk ends nothing."""
    from isthmus.cli import ended_like_interrupted

    with ended_like_interrupted(signal.SIGTERM, signal.SIGHUP), lasting_output():
        yield


def _end_with_input() -> None:
    # Not sys.stdin: Python aborts when it must end while a thread holds the lock of that.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _bar(course: isthmus.Course) -> Any:
    from isthmus.cli.progress import ProgressBar

    return ProgressBar(course_title(course), course.rounds, course.stopping.metric)


def show_folder(path: Path) -> None:
    """Print the table of a finished run from its journal."""
    from isthmus.runs.folder import RunFolder
    from isthmus.runs.journal import read_whole_journal
    from isthmus.sites.courses.site_course import course_of

    course = course_of(path)
    events, metric = list(read_whole_journal(RunFolder(path).journal)), course.task.metrics[0]
    print_table(run_table({course_title(course): events}, metric), headline(metric, events, course.stopping.metric))
    for note in [event["text"] for event in events if event["event"] == "note"]:
        typer.echo(f"note: {printable(note)}")
    _draw(path, events)
    typer.echo(f"run folder: {path}")


def _draw(path: Path, events: list[dict[str, Any]]) -> None:
    """Draw the page of a run whose journal somebody else wrote: what it says may be anything."""
    from isthmus.runs.folder import RunFolder
    from isthmus.runs.pages import write_page

    try:
        write_page(RunFolder(path), events)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        typer.echo(f"note: the run has no page, as its journal has what none can show: {printable(str(error))[:200]}")
