"""The command line: its verbs, each in a file of its own, and how a command ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from isthmus.cli import audit, compare, courses, data, federation, inventory, predict, report, run, runs, tune
from isthmus.cli.output import OUTPUT, explain, named_output
from isthmus.core.errors import BadInput, IsthmusError

app = typer.Typer(
    name="isthmus",
    epilog="Exit codes: 0 done, 1 the course failed, 2 bad input, 130 interrupted (a checkpoint is left).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("runs", epilog=runs.EXAMPLES)(runs.runs)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("list", epilog=inventory.LIST_EXAMPLES)(inventory.list_parts)
app.command("show", epilog=inventory.SHOW_EXAMPLES)(inventory.show_part)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.command("serve", epilog=federation.SERVE_EXAMPLES)(federation.serve)
app.command("join", epilog=federation.JOIN_EXAMPLES)(federation.join)
app.command("submit", epilog=courses.SUBMIT_EXAMPLES)(courses.submit)
app.command("courses", epilog=courses.COURSES_EXAMPLES)(courses.courses)
app.command("up", epilog=federation.UP_EXAMPLES)(federation.up)


def _version(wanted: bool) -> None:
    if wanted:
        from isthmus import __version__

        typer.echo(f"isthmus {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Federated graph learning: train graph neural networks across organisations that may not pool their graphs."""


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code, never a traceback."""
    try:
        with named_output():
            app()
    except IsthmusError as error:
        sys.exit(explain(error))
    except OSError as error:
        if error.filename == OUTPUT:
            print(f"error: {OUTPUT} cannot be written: {error.strerror}", file=sys.stderr)
            sys.exit(1)
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(explain(BadInput(f"{place}{error.strerror or error}")))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, which would wait for the engine's threads if a second Ctrl-C cut their end short.
        os._exit(130)


@contextmanager
def ended_like_interrupted(*numbers: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt for these signals within, as Ctrl-C does; afterwards they are handled as before.

    Who calls a command from a program of their own has signals of their own; only the main thread can set them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
