"""What every backdoor has: a trigger, the class that it stands for, and how well that works."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.attack import Case
from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.attacks.poisoning.scaling import Scaling
from isthmus.attacks.spoiling import CLEAN_ACCURACY, SUCCESS, honest_data, said_of, share_of, tested
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, refuse
from isthmus.runs.life import Result
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class Backdoor(Poisoning):
    """Some of their training items carry a trigger, and are of the target class then.

    The success is the share of test items of other classes that are of the target class to the model once they carry
    the trigger, all of them at once; that of the model without malicious clients is the prior. Central: each client
    plants the whole trigger. Distributed: each plants its own part, and the test items carry the whole.

    Fields:
        target:      the class
        fraction:    the share of the training items that carry it
        distributed: whether each client has a part of its own
        scale:       what they learned is sent so many times over; with as many times as there are clients, the mean
                     becomes their model (model replacement)
    """

    target: int = 0
    fraction: float = 0.5
    distributed: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.target < 0, self, "target", "it is the number of a class")
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")

    def of_course(self, course: Course) -> Course:
        """Return the course in which they send more of what they learned, if they do."""
        return course if self.scale == 1.0 else Scaling(self.clients, times=self.scale).of_course(course)

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return a scenario with the trigger in it."""
        self.require_fitting(scenario.whole)
        parts: dict[str, Any] = dict(scenario.parts)
        for place, client in enumerate(self.clients):
            data = parts[client]
            marked = self.marked(data, client)
            own = (place,) if self.distributed else tuple(range(len(self.clients)))
            labels = data.labels.clone()
            labels[marked] = self.target
            parts[client] = self.planted(replace(data, **{data.label_field: labels}), marked, own)
        return replace(scenario, parts=parts)

    def require_fitting(self, whole: Any) -> None:
        """Raise BadInput where the data have no such class, or can carry no such trigger."""
        if self.target >= whole.num_classes:
            raise BadInput(
                f"{type(self).__name__}.target is {self.target}, and {whole.name!r} has {whole.num_classes} classes; "
                f"choose from 0 to {whole.num_classes - 1}"
            )

    def marked(self, data: Any, client: str) -> Tensor:
        """Return which training items of a client carry it: here the first ones."""
        items: Tensor = data.mask("train").nonzero().flatten()
        return items[: max(1, round(self.fraction * len(items)))] if len(items) else items

    @abstractmethod
    def planted(self, data: Any, items: Tensor, places: Sequence[int]) -> Any:
        """Return data some items of which carry these clients' parts of the trigger; labels are as they were."""

    def able(self, data: Any, items: Tensor) -> Tensor:
        """Return which of some items can carry the whole trigger: here all."""
        return items

    def scored(self, result: Result, case: Case) -> dict[str, float]:
        """Return how often the trigger works, and how often what is without it is right."""
        hits = []
        for name, data in honest_data(result, case, self.malicious_clients):
            items = tested(data)
            items = self.able(data, items[data.labels[items] != self.target])
            if len(items):
                carried = self.planted(data, items, tuple(range(len(self.clients))))
                hits.append(said_of(result, case, name, carried)[items] == self.target)
        return {SUCCESS: share_of(hits), CLEAN_ACCURACY: self.accuracy(result, case)}


def with_ones(x: Tensor, rows: Tensor, columns: Sequence[int]) -> Tensor:
    """Return features, dense or sparse, with ones in some columns of some rows."""
    sparse = x.layout != torch.strided
    found = x.to_dense() if sparse else x.clone()
    found[rows.unsqueeze(1), torch.tensor(tuple(columns), dtype=torch.long)] = 1.0
    return found.to_sparse_csr() if sparse else found


def require_columns(name: str, columns: Sequence[int], whole: Any) -> None:
    """Raise BadInput where a column is none of the features."""
    odd = next((column for column in columns if not 0 <= column < whole.num_features), None)
    if odd is not None:
        raise BadInput(
            f"{name}.columns has {odd}, and {whole.name!r} has {whole.num_features} features; "
            f"choose from 0 to {whole.num_features - 1}"
        )
