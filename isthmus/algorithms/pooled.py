"""Global: centralised training on the whole graph, the upper bound that no federation of silos may run for real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.algorithms.local import Local


@dataclass(frozen=True)
class Pooled(Local):
    """One client holds the whole graph and trains alone on it, with its own validation nodes.

        setup:  server -> client  StartFrom(params)
                client -> server  Kept()
        round:  server -> client  TrainAlone()
                client -> server  Kept()

    Fields: as in Local.
    """

    pooled: ClassVar[bool] = True
