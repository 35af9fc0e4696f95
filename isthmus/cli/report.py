"""isthmus report: the page of a run, or of several, one laid over the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.output import examples
from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file

EXAMPLES = examples(
    "isthmus report runs/20260131-235959-fedavg-cora",
    "isthmus report runs/20260131-235959-fedavg-cora runs/20260131-235959-fedprox-cora --out both.html",
)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes; for one run, report.html in it.")
    ] = None,
) -> None:
    """Write the page of a run, or one in which several lie over each other: one file that needs nothing else."""
    from isthmus.report.run_page import comparison_page
    from isthmus.report.story import story_of
    from isthmus.runs.folder import RunFolder
    from isthmus.runs.journal import read_whole_journal
    from isthmus.runs.pages import page_of

    folders = [RunFolder.open(path) for path in runs]
    if len({path.resolve() for path in runs}) < len(runs):
        raise BadInput("a run is named twice; name each once")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise BadInput(f"--out is {str(out)!r}: give a file in a folder that exists")
    if len(folders) > 1 and out is None:
        raise BadInput("several runs have no folder in common: say where their page goes with --out FILE")
    place = out or folders[0].page
    if len(folders) == 1:
        made = page_of(folders[0])
    else:
        journals = [list(read_whole_journal(folder.journal)) for folder in folders]
        made = comparison_page([story_of(*each) for each in zip(titles(runs), journals, strict=True)])
    replace_file(place, made.encode())
    typer.echo(f"page: {place}")


def titles(runs: Sequence[Path]) -> list[str]:
    """Return what runs are called: their folders' names, with what lies above where these are the same."""
    names = [path.resolve().name for path in runs]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(runs, names, strict=True)]
