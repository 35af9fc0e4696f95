"""A sink for TensorBoard: `tensorboard --logdir runs` shows all runs below a folder."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.core.errors import MissingExtra
from isthmus.sinks.sink import About, Sink


class TensorBoard(Sink):
    """Writes event files into the run folder's `tensorboard`."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "sinks", "the TensorBoard sink") from None
        self._writer = SummaryWriter(str(about.folder / "tensorboard"))
        self._last = 0

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Write scalars."""
        self._last = round
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, values: Mapping[str, float]) -> None:
        """Write the last scores, at the last round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.close()

    def leave(self) -> None:
        """Close the file; a run that goes on begins another."""
        self._writer.close()
