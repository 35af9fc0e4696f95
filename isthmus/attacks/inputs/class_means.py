"""What the nodes of a class are like: what attacks have in common that make a representative of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.attacks.attack import CURIOUS_CLIENT, Attack, Case
from isthmus.attacks.measures import auc, mean_of
from isthmus.config.course import Course
from isthmus.core.record import Params
from isthmus.learn.optimizers import load_params
from isthmus.learn.tasks import NodeClassification
from isthmus.models.inputs import GraphInput
from isthmus.runs.simulation import build_model

# So many features tell a class from others, the ones whose mean is farthest above that of all classes.
TELLING = 50
# Differences between classes that are smaller than this share of the largest number are none.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of features.

    Fields:
        mean:      mean features of all nodes, (features,)
        low, high: between which all features are
        classes:   how many classes there are
    """

    mean: Tensor
    low: float
    high: float
    classes: int

    @property
    def width(self) -> float:
        """How far features can be apart."""
        return max(self.high - self.low, 1e-12)


@dataclass(frozen=True)
class ClassRepresentative(Attack):
    """Makes features that stand for each class, (classes, features)."""

    position: ClassVar[str] = CURIOUS_CLIENT
    learns: ClassVar[str] = "what the nodes of each class are like in the mean"
    knows: ClassVar[str] = "the mean and range of features of all nodes"
    measures: ClassVar[tuple[str, ...]] = ("words auc", "cosine")

    def problem(self, course: Course) -> str:
        """Return why there are no classes of nodes."""
        if type(course.task) is not NodeClassification:
            return f"it makes nodes of classes, and the task is {type(course.task).__name__}"
        return ""

    def known(self, case: Case) -> Features:
        """Return the mean and the range."""
        x = case.scenario.whole.x.to_dense().double()
        return Features(x.mean(dim=0), float(x.min()), float(x.max()), case.scenario.whole.num_classes)

    def prior(self, known: Features, clients: Sequence[str]) -> Tensor:
        """Return the mean of all for each class."""
        return known.mean.expand(known.classes, -1)

    def truth(self, case: Case, known: Features) -> Tensor:
        """Return the mean features of each class; NaN for one without a node."""
        x, y = case.scenario.whole.x.to_dense().double(), case.scenario.whole.y
        return torch.stack([x[y == each].mean(dim=0) for each in range(known.classes)])

    def scores(self, guess: Tensor, truth: Tensor) -> dict[str, float]:
        """Return how well the features that tell each class are ranked first, and the cosine to the class' mean.

        Both guess and truth are less their means over the classes where features are ranked.
        """
        own = [each for each in range(len(truth)) if not bool(truth[each].isnan().any())]
        guess, truth = guess[own], truth[own]
        number = min(TELLING, max(1, truth.shape[1] // 4))
        far, found = (each - each.mean(dim=0) for each in (truth, guess))
        found[found.abs() <= ROUNDING * guess.abs().max()] = 0.0
        aucs = []
        for each in range(len(own)):
            telling = torch.zeros(truth.shape[1], dtype=torch.bool)
            telling[far[each].topk(number).indices] = True
            aucs.append(auc(found[each], telling))
        return {"words auc": mean_of(aucs), "cosine": float(F.cosine_similarity(guess, truth).mean())}


def asked(course: Course, known: Features, params: Params) -> nn.Module:
    """Return the course's model with some parameters."""
    model = build_model(course, len(known.mean), known.classes)
    load_params(model, {**model.state_dict(), **params})
    return model


def log_odds(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logarithm of each class' probability for nodes without edges, (nodes, classes)."""
    found: Tensor = model(GraphInput(x.float(), torch.zeros(2, 0, dtype=torch.long)), None)
    return found.log_softmax(dim=1)
