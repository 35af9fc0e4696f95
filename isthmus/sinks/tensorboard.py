"""A sink for TensorBoard: the metrics of each round as scalars."""

from __future__ import annotations

from pathlib import Path

from isthmus.core.errors import MissingExtra
from isthmus.core.training import Callback, RoundReport


class TensorBoardSink(Callback):
    """Writes event files that `tensorboard --logdir RUN/tensorboard` shows."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "sinks", "the TensorBoard sink") from None
        self._writer = SummaryWriter(str(folder))

    def round_done(self, report: RoundReport) -> None:
        """Write the round's metrics, seconds and bytes."""
        traffic = {"bytes/up": report.bytes_up, "bytes/down": report.bytes_down, "seconds/round": report.seconds}
        for name, value in {**report.metrics, **traffic}.items():
            self._writer.add_scalar(name, value, report.round)
        self._writer.flush()
