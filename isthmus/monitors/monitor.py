"""What a monitor is: something to measure of the clients' models or data, from where everything can be seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from isthmus.core.protocol import Algorithm
from isthmus.core.record import Params
from isthmus.learn.tasks.task import Task

Values = npt.NDArray[np.float64]

DIGITS = 6  # of what goes into the journal


@dataclass(frozen=True)
class View:
    """All that a monitor may look at; nobody sees as much between sites.

    Fields:
        round:    the round whose models these are; 0 before the first
        seed:     the course's; a monitor that draws something names a stream of its own with it
        module:   the model, for parameters to be loaded into before each use
        whole:    the global graph, as data; `prepared` as the task works on it; `parts` are the clients'
        clients:  the clients of the course; one that holds everything, where learning is centralised
        models:   each client's own model of the round; a client that gave none is missing
        starts:   what each of these was trained from: the model that had been sent to the client last; a client whose
                  model comes from its memory is missing. Parameters that are not shared are those of `models`.
        weights:  the share in the mean that each client asked for; clients whose replies have no weight are missing
    """

    round: int
    seed: int
    task: Task
    algorithm: Algorithm[Any]
    module: nn.Module
    whole: Any
    prepared: Any
    parts: Mapping[str, Any]
    clients: tuple[str, ...]
    models: Mapping[str, Params] = field(default_factory=dict)
    starts: Mapping[str, Params] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Measured:
    """A number for each two clients, from the row's to the column's, or for each client; NaN where there is none."""

    clients: tuple[str, ...]
    values: Values  # (clients, clients) or (clients,)
    absent: tuple[str, ...] = ()  # clients that could not be measured

    def __post_init__(self) -> None:
        if self.values.shape not in ((len(self.clients),), (len(self.clients),) * 2):
            raise ValueError(f"values has shape {self.values.shape} for {len(self.clients)} clients")

    def facts(self) -> dict[str, Any]:
        """Return what goes into the journal: the numbers, and their mean, least and largest over different clients."""
        pairs = self.values.ndim == 2
        counted = self.values[~np.eye(len(self.values), dtype=bool)] if pairs else self.values
        counted = counted[~np.isnan(counted)]
        return {
            "clients": list(self.clients),
            "matrix" if pairs else "values": _plain(self.values),
            "mean": _plain(counted.mean()) if len(counted) else None,
            "least": _plain(counted.min()) if len(counted) else None,
            "largest": _plain(counted.max()) if len(counted) else None,
            "absent": list(self.absent),
        }


def _plain(values: Any) -> Any:
    """Return numbers as JSON knows them: rounded, None for NaN."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return None if np.isnan(values) else round(float(values), DIGITS)


class Monitor(ABC):
    """Measures something that no score tells; it changes nothing, and draws from no stream that a course draws from.

    The first line of the class's docstring says what is measured.
    """

    # Whether there is something new to measure after a round. What is of the data alone is measured once, at the start.
    changes: ClassVar[bool] = True

    def problem(self, view: View) -> str:
        """Return why this cannot be measured in a course, before it starts; nothing when it can."""
        return ""

    @abstractmethod
    def measure(self, view: View) -> Measured:
        """Return the numbers."""
