"""isthmus tune: search over keys of a course."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tune(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What to search.")],
    fractions: Annotated[str, typer.Option(help="shares")] = "",
    out: Annotated[Path | None, typer.Option()] = None,
    data_root: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Fill."""
    from isthmus.tune.filling import Filling, fill
    from isthmus.tune.reading import load_study

    made = Filling.of(load_study(study), [float(word) for word in fractions.split(",") if word])
    fill(made, out or Path("x"), data_root=data_root, on_done=lambda told, done, total: print(f"{done}/{total} {told}"))


if __name__ == "__main__":
    typer.run(tune)
