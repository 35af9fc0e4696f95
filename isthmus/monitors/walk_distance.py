"""How far the clients' graphs are apart: anonymous walks. Ivanov and Burnaev, 2018; FGSSL (2023), Fig. 1 (b)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from isthmus.core.random import numpy_generator
from isthmus.data.survey.statistics import simple_edges, walk_distance
from isthmus.data.survey.walks import embed
from isthmus.monitors.monitor import Measured, Monitor, View

LENGTH = 5  # steps of a walk


class WalkDistance(Monitor):
    """Jensen-Shannon distance of the anonymous-walk embeddings of each two clients' graphs, from 0 (alike) to 1.

    Walks have 5 steps; these are the numbers that `isthmus data show` gives as `walk_distance_5`, for the same seed. A
    client without nodes has no distance to anybody.
    """

    changes: ClassVar[bool] = False

    def measure(self, view: View) -> Measured:
        """Embed every graph and compare each two."""
        shares = [
            embed(*simple_edges(part), LENGTH, numpy_generator(view.seed, "walks", name))[LENGTH].shares
            for name, part in view.parts.items()
        ]
        # Only distances between clients are wanted; what these are measured against besides does not matter to them.
        return Measured(tuple(view.parts), walk_distance(shares, np.sum(shares, axis=0)).between)
