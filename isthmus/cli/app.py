"""The verbs of the command line."""

from __future__ import annotations

import typer

from isthmus.cli import compare, courses, data, federation, inventory, predict, run

app = typer.Typer(
    name="isthmus",
    help="Federated graph learning: train graph neural networks across organisations that may not pool their graphs.",
    epilog="Exit codes: 0 done, 1 the course failed, 2 bad input, 130 interrupted (a checkpoint is left).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
app.command("run", epilog=run.EXAMPLES)(run.run)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
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
