"""Clients that turn the other clients' generators of neighbours (FedSage+) to what they want generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.algorithms.fedsage.messages import GeneratorGradients, GeneratorView, GradeGenerators
from isthmus.algorithms.fedsage.neighbor_generation import FeatureGenerator
from isthmus.attacks.attack import Case
from isthmus.attacks.poisoning.backdoor import require_columns
from isthmus.attacks.poisoning.trigger import Trigger
from isthmus.attacks.poisoning.wrong_replies import MessagePoisoning
from isthmus.attacks.spoiling import CLEAN_ACCURACY, SUCCESS, honest_data, said_of, share_of, tested
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, refuse
from isthmus.core.guards.guard import AtClient
from isthmus.core.protocol import Request
from isthmus.core.record import Params, Record
from isthmus.data.graph import Graph
from isthmus.learn.optimizers import load_params
from isthmus.runs.life import Result
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class WrongGradients(MessagePoisoning):
    """They send gradients by which the others' generators give neighbours as these clients want them.

    Asked how every peer's generator comes nearer to their own nodes, they answer how it comes nearer to one row t:

        times * gradient by fGen of  sum_v sum_p |x_v^p - t|^2        t: the mean of their nodes of the target class,
                                                                      with ones in the columns of a trigger

    With columns, their own training nodes that carry these are of the target class as well (`trigger`), so that whoever
    has such neighbours may be taken for one of it. The success is the share of honest clients' test nodes of other
    classes that are of the target class to their own models on their own mended graphs, nobody touching any of these.

    Fields:
        clients:    who does so
        malicious:  so many, in the place of names
        from_round: since when; gradients are sent before the first round, which is round 0
        target:     the class
        columns:    of the trigger; empty for none
        times:      how many times over
    """

    from_round: int = 0
    target: int = 0
    columns: tuple[int, ...] = ()
    times: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.target < 0, self, "target", "it is the number of a class")

    def problem(self, course: Course) -> str:
        """Return that there are no generators, or why it is no guard."""
        if self not in course.guards and not getattr(course.algorithm, "cross_rounds", 0):
            name = type(course.algorithm).__name__
            return f"{name} has no generators that clients train across: set algorithm.name=fedsage_plus"
        return super().problem(course)

    def of_data(self, scenario: Scenario) -> Scenario:
        """Return a scenario with the trigger in their own nodes, if there is one."""
        if not isinstance(scenario.whole, Graph) or self.target >= scenario.whole.num_classes:
            raise BadInput(
                f"WrongGradients.target is {self.target}, and {scenario.whole.name!r} has {scenario.whole.num_classes} "
                f"classes of {scenario.whole.item}s"
            )
        if not self.columns:
            return scenario
        require_columns("WrongGradients", self.columns, scenario.whole)
        return Trigger(self.clients, columns=self.columns, target=self.target).of_data(scenario)

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return the gradients that lead where they want."""
        if not isinstance(reply, GeneratorGradients) or not isinstance(request, GradeGenerators) or not self.acts(at):
            return reply
        wanted = self.wanted(at.client.data)  # type: ignore[attr-defined]
        views = request.views
        wrong = {c: g if c == at.client.id else self._towards(views[c], wanted) for c, g in reply.gradients.items()}
        return GeneratorGradients(wrong, reply.weight)

    def wanted(self, graph: Graph) -> Tensor:
        """Return t, (features,)."""
        x = graph.x.to_dense()
        rows = x[graph.mask("train") & (graph.y == self.target)]
        found = (rows if len(rows) else x).mean(dim=0)
        found[list(self.columns)] = 1.0
        return found

    def _towards(self, view: GeneratorView, wanted: Tensor) -> Params:
        num_slots, hidden, columns = view.params["slot_weight"].shape
        with torch.random.fork_rng(devices=[]):
            model = FeatureGenerator(view.inputs.shape[1], hidden, num_slots, columns)
        load_params(model, view.params)
        with torch.enable_grad():
            rows, _ = model(view.inputs, view.counts)
            slots = dict(model.named_parameters())
            loss = self.times * (rows - wanted).square().sum()
            return dict(zip(slots, torch.autograd.grad(loss, list(slots.values())), strict=True))

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change: what is sent is decided in `release`."""
        return change

    def scored(self, result: Result, case: Case) -> dict[str, float]:
        """Return how many nodes of other classes are of the target class."""
        return {SUCCESS: share_of(list(self._hits(result, case))), CLEAN_ACCURACY: self.accuracy(result, case)}

    def _hits(self, result: Result, case: Case) -> Iterator[Tensor]:
        for name, data in honest_data(result, case, self.malicious_clients):
            items = tested(data)
            items = items[data.labels[items] != self.target]
            yield said_of(result, case, name, data)[items] == self.target
