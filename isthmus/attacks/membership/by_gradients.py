"""Membership by updates: an update is made of the gradients of who was trained on, and of nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Message, NothingSeen, Seen
from isthmus.attacks.inputs.layers import UPDATES, made_of, updates
from isthmus.attacks.membership.candidates import Candidates, Membership
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.random import torch_generator
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.learn.optimizers import load_params
from isthmus.runs.simulation import build_model, dims_of


@dataclass(frozen=True)
class GradientMembership(Membership):
    """Takes the candidates whose gradients an update is made of for those that were trained on.

    With u = w - w_k, what client k made of the model w that it was sent, and g_i the gradient of candidate i's loss at
    w, plain training gives about

        u = (lr steps / n) sum_i m_i g_i,      m_i = 1 for those that were trained on, else 0

    so the update is regressed on the gradients of all candidates that the client holds (ridge), and the coefficients
    are added up over the first rounds, each in units of their mean. Numbers of a gradient are first added up with
    random signs in `columns` places (a count sketch), which keeps the equation and needs less memory. A passive
    observer of updates as in Nasr, Shokri and Houmansadr, "Comprehensive Privacy Analysis of Deep Learning" (2019),
    without their trained classifier. Of a sum of several clients all their candidates are taken together.

    Fields:
        rounds:  how many rounds of updates
        columns: places that a gradient's numbers are added up in
        ridge:   what is added to the diagonal, as a part of its mean
    """

    position: ClassVar[str] = CURIOUS_SERVER
    reads: ClassVar[tuple[str, ...]] = UPDATES

    rounds: int = 3
    columns: int = 8192
    ridge: float = 0.01

    def __post_init__(self) -> None:
        for name in ("rounds", "columns"):
            refuse(getattr(self, name) < 1, self, name, "it must be at least 1")
        refuse(not self.ridge > 0.0, self, "ridge", "it must be positive")

    def problem(self, course: Course) -> str:
        """Return why candidates have no gradients of their own."""
        kind = course.task.data_type
        if not issubclass(kind, Graph | GraphSet):
            return f"it is about nodes or graphs that have a class, and the task learns from {kind.item}s"
        return super().problem(course)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first rounds."""
        return at.round <= self.rounds

    def guess(self, seen: Seen, known: Candidates) -> Tensor:
        """Return how much of the updates each candidate's gradient accounts for."""
        total, count = torch.zeros(known.size, dtype=torch.float64), torch.zeros(known.size, dtype=torch.float64)
        for message in self._updates(seen):
            gradients = [self._gradients(known, client, message) for client in message.clients]
            rows, items = torch.cat([each for each, _ in gradients]), torch.cat([items for _, items in gradients])
            seed = seen.course.seed
            sent = self._sketched(_sent(message), seed).double()  # weight decay goes along it
            update = self._sketched(_change(message), seed).double()
            found = coefficients(torch.cat([rows, sent.unsqueeze(0)]), update, self.ridge)[:-1]
            total.index_add_(0, items, found / found.abs().mean().clamp_min(1e-30))
            count.index_add_(0, items, torch.ones_like(found))
        if not bool(count.any()):
            raise NothingSeen("the replies that it would read are held back, or hold no parameters")
        return (total / count.clamp_min(1.0))[known.items]

    def _updates(self, seen: Seen) -> Iterator[Message]:
        """Yield what says how a client, or several together, moved the model: of the first rounds, each reply once."""
        found: dict[tuple[Position, tuple[str, ...]], Message] = {}
        for client in seen.clients:
            for message, _, _ in updates(seen, client):
                found[message.at, message.clients] = message
        yield from found.values()

    def _gradients(self, known: Candidates, client: str, message: Message) -> tuple[Tensor, Tensor]:
        """Return the gradient of each candidate of a client at the model that it was sent, and which each is."""
        part = known.parts[client]
        inside = torch.zeros(known.size, dtype=torch.bool)
        inside[known.items] = True
        chosen = (inside[part.item_ids] & (part.labels >= 0)).nonzero().flatten()
        course, params = known.course, getattr(message.requests[client], "params", {})
        model = build_model(course, *dims_of(course, part, client))
        load_params(model, {**model.state_dict(), **params})
        live = {name: slot for name, slot in model.named_parameters() if slot.requires_grad and name in params}
        rows = []
        for loss in _losses(course, model, part, chosen):
            grads = torch.autograd.grad(loss, list(live.values()), retain_graph=True, allow_unused=True)
            filled = {n: torch.zeros_like(s) if g is None else g for (n, s), g in zip(live.items(), grads, strict=True)}
            rows.append(self._sketched(filled, course.seed))
        wide = torch.stack(rows) if rows else torch.zeros(0, self.columns)
        return wide.double(), part.item_ids[chosen]

    def _sketched(self, params: Params, seed: int) -> Tensor:
        """Return the numbers of some parameters, added up with random signs in a few places, (columns,)."""
        total = torch.zeros(self.columns)
        for name, tensor in params.items():
            place, sign = _places(name, tensor.numel(), self.columns, seed)
            total.index_add_(0, place, sign * tensor.detach().flatten().float())
        return total


_drawn: dict[tuple[str, int, int, int], tuple[Tensor, Tensor]] = {}


def _places(name: str, size: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return where each number of a parameter goes, and with which sign; drawn once."""
    key = (name, size, columns, seed)
    if key not in _drawn:
        stream = torch_generator(seed, "attack", "sketch", name)
        place = torch.randint(columns, (size,), generator=stream)
        sign = torch.randint(2, (size,), generator=stream).float() * 2 - 1
        while len(_drawn) > 64:  # of earlier courses
            _drawn.pop(next(iter(_drawn)))
        _drawn[key] = (place, sign)
    return _drawn[key]


def _change(message: Message) -> Params:
    """Return what was sent less what came back, of the parameters that are in both."""
    sent, back = made_of(message)
    return {name: tensor - back[name] for name, tensor in sent.items() if name in back}


def _sent(message: Message) -> Params:
    """Return what was sent of the parameters that came back."""
    sent, back = made_of(message)
    return {name: tensor for name, tensor in sent.items() if name in back}


def _losses(course: Course, model: torch.nn.Module, part: Any, chosen: Tensor) -> Iterator[Tensor]:
    """Yield the loss of each chosen item, at a model that drops nothing out."""
    prepared: Any = course.task.prepare(part)
    if isinstance(part, Graph):
        logits = model(prepared.graph, None)
        yield from F.cross_entropy(logits[chosen], part.y[chosen], reduction="none")
        return
    for item in torch.split(chosen, 1):
        yield F.cross_entropy(model(prepared.pile.batch(item), None), part.y[item])


def coefficients(rows: Tensor, update: Tensor, ridge: float) -> Tensor:
    """Return a with update = sum_i a_i rows_i as well as a ridge lets it, (rows,), in double precision."""
    gram = rows @ rows.t()
    gram.diagonal().add_(ridge * float(gram.diagonal().mean().clamp_min(1e-30)))
    found: Tensor = torch.linalg.solve(gram, rows @ update)
    return found
