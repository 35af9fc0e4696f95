"""A sink for Weights & Biases: into the run folder, to be sent by `wandb sync`, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from isthmus.core.errors import MissingExtra
from isthmus.sinks.sink import About, Sink

PROJECT = "isthmus"


class WandB(Sink):
    """Logs metrics with the course as configuration, in the project `isthmus` or that of WANDB_PROJECT.

    Nothing leaves the machine by default: `wandb sync RUN/wandb/offline-run-*` sends it, WANDB_MODE=online does so at
    once. A run that is gone on with has the same id.
    """

    def __init__(self, about: About) -> None:
        super().__init__(about)
        try:
            import wandb
        except ImportError:
            raise MissingExtra("wandb", "sinks", "the Weights & Biases sink") from None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=about.name,
            id=hashlib.blake2b(str(about.folder.resolve()).encode(), digest_size=6).hexdigest(),
            resume="allow",
            dir=str(about.folder),
            config=dict(about.course),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Log metrics at a step."""
        self._run.log(dict(values), step=round)

    def close(self, values: Mapping[str, float]) -> None:
        """Put the last scores into the summary, and end the run."""
        self._run.summary.update(dict(values))
        self._run.finish()

    def leave(self) -> None:
        """Say that the run was ended before its end."""
        self._run.finish(exit_code=1)
