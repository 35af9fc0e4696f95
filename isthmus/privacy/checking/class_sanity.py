"""Whether class probabilities that clients send can be true, class by class; FedGL's views of nodes have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.protocol import Requests
from isthmus.core.record import Record, leaves
from isthmus.privacy.checking.compared import answered_kinds, field_names
from isthmus.privacy.checking.looking import looks_at

PREDICTIONS, IDS = "predictions", "ids"
# How far the probabilities of a node may be from adding up to one: clients may send numbers of few bits.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class ClassSanity(Guard):
    """A reply is not counted whose class probabilities cannot be true, or are not what others say of the same nodes.

    Looked at are replies with `predictions`, (nodes, classes). Those of a node add up to one; no class has nearly all
    nodes; and where clients have said which nodes they hold (`ids`), with the others' predictions added up:

        |nodes of class c to it and to the others| / |nodes of class c to it or to the others| >= least_agreement

    for each class of which there are `least_common` such nodes. Who is wrong must be the lesser part of those who hold
    a client's nodes: of two clients with common nodes, nobody can say which one lies.

    Fields:
        largest_share:   the largest share of a client's nodes that one class may have; 1 for no bound
        least_agreement: with the others, for each class; 0 for no bound
        least_common:    of fewer nodes, nothing is said
    """

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"largest_share": "less", "least_agreement": "more"}

    largest_share: float = 1.0
    least_agreement: float = 0.0
    least_common: int = 20

    def __post_init__(self) -> None:
        for name in ("largest_share", "least_agreement"):
            refuse(not 0.0 <= getattr(self, name) <= 1.0, self, name, "a share is from 0 to 1")
        refuse(self.least_common < 1, self, "least_common", "it must be at least 1")

    @property
    def compares(self) -> bool:
        """Whether one reply is looked at beside others."""
        return self.least_agreement > 0.0

    def problem(self, course: Any) -> str:
        """Return why there is nothing to look at."""
        names = {name for _, reply in answered_kinds(course.algorithm) for name in field_names(reply)}
        if PREDICTIONS not in names:
            return f"clients of {type(course.algorithm).__name__} send no predictions: leave it out"
        return ""

    shown = looks_at

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        """Return whose predictions cannot be true."""
        told = {client: ids for client, reply in replies.items() if (ids := _named(reply, IDS)) is not None}
        held: dict[str, Tensor] = at.memory.get("ids", {})
        if told and self.least_agreement > 0.0:
            held = {**held, **{client: ids for client, ids in told.items() if ids.ndim == 1}}
            at.remember({"ids": held})
        views = {client: view for client, reply in replies.items() if (view := _named(reply, PREDICTIONS)) is not None}
        found = {client: why for client, view in views.items() if (why := self._impossible(view))}
        sane = {client: view for client, view in views.items() if client not in found}
        return {**found, **self._alone(sane, held)}

    def _impossible(self, view: Tensor) -> str:
        if view.ndim != 2 or not view.numel():
            return ""
        sums = view.double().sum(dim=1)
        worst = int((sums - 1.0).abs().argmax())
        if abs(float(sums[worst]) - 1.0) > TOLERANCE:
            return f"the class probabilities of its node {worst} add up to {float(sums[worst]):.4g}"
        shares = torch.bincount(view.argmax(dim=1), minlength=view.shape[1]) / len(view)
        largest = int(shares.argmax())
        if self.largest_share < 1.0 and len(view) >= self.least_common and float(shares[largest]) > self.largest_share:
            share = float(shares[largest])
            return f"to it {share:.3g} of its nodes are of class {largest}; at most {self.largest_share:g}"
        return ""

    def _alone(self, views: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> dict[str, str]:
        """Return who is alone with what it says of a class."""
        known = [c for c, view in views.items() if c in held and view.ndim == 2 and len(view) == len(held[c])]
        if not self.least_agreement or len(known) < 2 or len({views[client].shape[1] for client in known}) > 1:
            return {}
        nodes, inverse = torch.unique(torch.cat([held[client] for client in known]), return_inverse=True)
        places = dict(zip(known, inverse.split([len(held[client]) for client in known]), strict=True))
        sums = torch.zeros(len(nodes), views[known[0]].shape[1], dtype=torch.float64)
        holders = torch.zeros(len(nodes))
        for client, place in places.items():
            sums.index_add_(0, place, views[client].double())
            holders.index_add_(0, place, torch.ones(len(place)))
        found = {}
        for client, place in places.items():
            common = holders[place] > 1
            others = (sums[place] - views[client].double())[common]
            why = self._odd_class(views[client][common].argmax(dim=1), others.argmax(dim=1))
            if why:
                found[client] = why
        return found

    def _odd_class(self, mine: Tensor, others: Tensor) -> str:
        for label in torch.unique(torch.cat([mine, others])).tolist():
            either = int(((mine == label) | (others == label)).sum())
            both = int(((mine == label) & (others == label)).sum())
            if either >= self.least_common and both < self.least_agreement * either:
                return (
                    f"of {either} nodes that are of class {label} to it or to others, {both} are to both; at least "
                    f"{self.least_agreement:g} of them should be"
                )
        return ""


def _named(reply: Record, name: str) -> Tensor | None:
    """Return the tensor of a reply whose field has a name, at any depth."""
    leaf = next((leaf for path, leaf in leaves(reply).items() if path.rpartition(".")[2] == name), None)
    return leaf if isinstance(leaf, Tensor) else None
