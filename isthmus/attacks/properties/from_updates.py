"""Properties of a client's data that the task is not about, guessed from its updates by a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import (
    CURIOUS_SERVER,
    Case,
    Deciding,
    NothingSeen,
    Seen,
    Shadow,
    Shadowed,
    seed_of_shadow,
)
from isthmus.attacks.inputs.layers import UPDATES, updates
from isthmus.attacks.listening import heard
from isthmus.attacks.measures import auc
from isthmus.config.course import Course
from isthmus.core.errors import nearest, refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.random import derive_seed, numpy_generator
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.runs.life import Result
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True, eq=False)
class Divisions:
    """The whole data as it could have been divided, and where the middle of a property lies.

    Fields:
        shadows: who would hold what, division by division
        values:  the property of each client there, (shadows * clients,)
    """

    shadows: tuple[Scenario, ...]
    values: Tensor

    @property
    def middle(self) -> float:
        """The median."""
        return float(self.values.median())


@dataclass(frozen=True)
class PropertyInference(Shadowed, Deciding):
    """Guesses whether a client has more of something than half of all clients would have, from its first updates.

    Ganju et al., "Property Inference Attacks on Fully Connected Neural Networks using Permutation Invariant
    Representations" (2018); Melis et al., "Exploiting Unintended Feature Leakage in Collaborative Learning" (2019). The
    attacker divides data anew, as often as it has shadows, runs the course's first rounds on each, and has a classifier
    learn from what every shadow client sends. Of each parameter the classifier is told the lengths of the update's rows
    and columns, in the mean over rounds; of a vector its numbers. Shadows begin with the course's own model.

    Fields:
        which:      "homophily": the share of edges whose ends have one class; "degree": edges for each node; "words":
                    features that are not zero for each node; "minority": the share of the rarest class
        shadows:    how many divisions
        rounds:     how many rounds of updates
        classifier: "logistic" regression on standardised numbers, or a random "forest"
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "whether a client's data have more of a property than half of all clients' would"
    knows: ClassVar[str] = (
        "data like the clients' (here: the whole data, but not how it is divided); the course's settings and seed"
    )
    reads: ClassVar[tuple[str, ...]] = UPDATES
    measures: ClassVar[tuple[str, ...]] = ("accuracy", "auc")

    which: str = "homophily"
    shadows: int = 24
    rounds: int = 2
    classifier: str = "logistic"

    def __post_init__(self) -> None:
        for name, known in (("which", PROPERTIES), ("classifier", CLASSIFIERS)):
            refuse(getattr(self, name) not in known, self, name, nearest(str(getattr(self, name)), known))
        refuse(self.shadows < 2, self, "shadows", "it must be at least 2")
        refuse(self.rounds < 1, self, "rounds", "it must be at least 1")

    @property
    def num_shadows(self) -> int:
        """How many divisions it needs."""
        return self.shadows

    def problem(self, course: Course) -> str:
        """Return why the property is none of what clients hold."""
        kind = course.task.data_type
        if self.which in ("homophily", "minority") and not course.task.outputs_are_classes:
            return f"{self.which} is about classes, and the task {type(course.task).__name__} has none"
        if not issubclass(kind, Graph | GraphSet) or (self.which == "homophily" and not issubclass(kind, Graph)):
            return f"{self.which} is no property of {kind.item}s"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first rounds."""
        return at.round <= self.rounds

    def known(self, case: Case) -> Divisions:
        """Return divisions of the whole data by the course's own splitter and masks, from other draws."""
        made = tuple(_divided(case, number) for number in range(self.shadows))
        measure = PROPERTIES[self.which]
        return Divisions(
            made, torch.tensor([measure(part, each.whole) for each in made for part in each.parts.values()])
        )

    def shadow(self, case: Case, known: Divisions, number: int) -> Shadow:
        """Return the first rounds of the course on one division."""
        other = derive_seed(case.course.seed, "property", number) % 2**31
        course = replace(case.course, seed=seed_of_shadow(case.course, other), rounds=self.rounds)
        return Shadow(course, known.shadows[number], torch.empty(0))

    def gist(self, shadow: Shadow, known: Divisions, result: Result) -> dict[str, Tensor]:
        """Return what each client's updates say in short, and its property."""
        seen = heard(self, Case(shadow.course, shadow.scenario))
        measure, whole = PROPERTIES[self.which], shadow.scenario.whole
        rows, values = [], []
        for client, part in shadow.scenario.parts.items():
            row = summary(seen, client)
            if row is not None:
                rows.append(row)
                values.append(measure(part, whole))
        if not rows:
            raise NothingSeen("clients send no parameters in the rounds that it would read")
        return {"rows": torch.stack(rows), "values": torch.tensor(values)}

    def guess(self, seen: Seen, known: Divisions) -> Tensor:
        """Return how likely each client has more of it, (clients,)."""
        mine = [summary(seen, client) for client in seen.clients]
        if not seen.shadows or all(row is None for row in mine):
            raise NothingSeen("the replies that it would read are held back, or hold no parameters")
        rows = torch.cat([gist["rows"] for gist in seen.shadows]).numpy()
        yes = (torch.cat([gist["values"] for gist in seen.shadows]) > known.middle).numpy()
        if yes.all() or not yes.any():
            raise NothingSeen("all of the attacker's own clients are alike in this")
        model = CLASSIFIERS[self.classifier]().fit(rows, yes)
        found = [0.5 if row is None else float(model.predict_proba(row.numpy()[None])[0, 1]) for row in mine]
        return torch.tensor(found, dtype=torch.float64)

    def prior(self, known: Divisions, clients: Sequence[str]) -> Tensor:
        """Return the same for all: half of clients have more than the median."""
        return torch.full((len(clients),), 0.5, dtype=torch.float64)

    def truth(self, case: Case, known: Divisions) -> Tensor:
        """Return who has more of it, (clients,)."""
        measure, whole = PROPERTIES[self.which], case.scenario.whole
        return torch.tensor([measure(part, whole) > known.middle for part in case.scenario.parts.values()])

    def scores(self, guess: Tensor, truth: Tensor) -> dict[str, float]:
        """Return how often it is right, where a half is a coin, and the area under the curve."""
        right = torch.where(guess.double() == 0.5, 0.5, ((guess > 0.5) == truth).double())
        return {"accuracy": float(right.mean()), "auc": auc(guess, truth)}


def summary(seen: Seen, client: str) -> Tensor | None:
    """Return what a client's updates say in short, in the mean over them, (numbers,); None if there is none."""
    found: dict[int, list[Tensor]] = {}
    for _, sent, back in updates(seen, client):
        row = _in_short({name: back[name] - sent[name] for name in sent if name in back})
        found.setdefault(len(row), []).append(row)
    # A method that sends several kinds of parameters (an encoder, then a head) is known by all of them.
    return torch.cat([torch.stack(rows).mean(dim=0) for _, rows in sorted(found.items())]) if found else None


def _in_short(update: Params) -> Tensor:
    """Return the lengths of an update's rows and columns, and its vectors."""
    parts = []
    for tensor in update.values():
        each = tensor.detach().double()
        if each.ndim == 2:
            parts += [each.norm(dim=1), each.norm(dim=0), each.sum(dim=1)]
        else:
            parts.append(each.flatten())
    return torch.cat(parts)


def _divided(case: Case, number: int) -> Scenario:
    """Return who would hold what if the data were divided by other draws."""
    course, whole = case.course, case.scenario.whole
    seed = derive_seed(course.seed, "division", number) % 2**31
    graph: Any = course.masks.apply(whole.with_masks({}), numpy_generator(seed, "masks"))
    parts = course.splitter.split(graph, len(case.clients), numpy_generator(seed, "split"))
    return Scenario(graph, dict(zip(case.clients, parts, strict=True)))


# ---- properties


def homophily(part: Any, whole: Any) -> float:
    """Return the share of edges whose ends have one class."""
    source, target = part.edge_index
    return float((part.y[source] == part.y[target]).double().mean()) if len(source) else 0.0


def degree(part: Any, whole: Any) -> float:
    """Return edges for each node."""
    return float(part.edge_index.shape[1]) / max(1, len(part.x))


def words(part: Any, whole: Any) -> float:
    """Return how many features of a node are not zero."""
    x = part.x.to_dense() if part.x.layout != torch.strided else part.x
    return float((x != 0).sum()) / max(1, len(x))


def minority(part: Any, whole: Any) -> float:
    """Return the share of the class that is rarest in the whole data."""
    labels = whole.labels[whole.labels >= 0]
    rarest = int(torch.bincount(labels, minlength=whole.num_classes).argmin())
    mine = part.labels[part.labels >= 0]
    return float((mine == rarest).double().mean()) if len(mine) else 0.0


PROPERTIES: Mapping[str, Callable[[Any, Any], float]] = {
    "homophily": homophily,
    "degree": degree,
    "words": words,
    "minority": minority,
}


# ---- classifiers


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=100, min_samples_leaf=3, random_state=0, n_jobs=1)


CLASSIFIERS: Mapping[str, Callable[[], Any]] = {"logistic": _logistic, "forest": _forest}
