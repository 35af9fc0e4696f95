"""Clients that poison a course: by what they send, or by what they learn from.

    from isthmus.testing.poisoning import Flipped, flip_labels
    run(replace(course, guards=(Flipped(clients=("client-0",)), *course.guards)))
    run(course, scenario=flip_labels(scenario, ("client-0",)))

Poisoners of messages are guards that have nothing but a client half: first in the list, they change what leaves the
handlers of the clients that they name, whatever the method, the runtime and the guards behind them. Poisoners of data
return another scenario.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import Request
from isthmus.core.random import derive_seed
from isthmus.core.record import Record, leaves, with_leaves
from isthmus.data.graph import Graph
from isthmus.runs.simulation import Scenario


@dataclass(frozen=True)
class Poisoner(Guard):
    """Some clients send other changes than they should have; what has no counterpart in the request counts as a change.

    Fields:
        clients:    who does so
        from_round: since when
    """

    clients: tuple[str, ...] = ("client-0",)
    from_round: int = 1

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return what is sent in place of a reply."""
        if at.client.id not in self.clients or at.position.round < self.from_round:
            return reply
        sent, found = leaves(request), leaves(reply)
        for path, leaf in found.items():
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                start = sent.get(path)
                matched = isinstance(start, Tensor) and start.shape == leaf.shape
                base = start.double() if matched and start is not None else torch.zeros_like(leaf, dtype=torch.float64)
                found[path] = (base + self.poisoned(leaf.double() - base, path, at)).to(leaf.dtype)
        return with_leaves(reply, found)

    @abstractmethod
    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change that is sent in place of an honest one."""


@dataclass(frozen=True)
class Flipped(Poisoner):
    """They send the opposite of what they learned, so many times over."""

    times: float = 1.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the opposite."""
        return -self.times * change


@dataclass(frozen=True)
class Scaled(Poisoner):
    """They send what they learned so many times over.

    With as many times as there are clients, and poisoned data, it is model replacement (Bagdasaryan et al., 2020).
    """

    times: float = 10.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return more of it."""
        return self.times * change


@dataclass(frozen=True)
class Noisy(Poisoner):
    """They send Gaussian noise in place of what they learned."""

    scale: float = 1.0

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return noise."""
        draw = torch.Generator().manual_seed(derive_seed(at.position.seed, at.position.round, at.client.id, path))
        return self.scale * torch.randn(change.shape, generator=draw, dtype=torch.float64)


@dataclass(frozen=True)
class Shifted(Poisoner):
    """They all move every number the same way by as much as their own changes vary: little is enough, if many agree.

    A little is enough (Baruch et al., 2019), with each attacker's own standard deviation for that of all clients.
    """

    deviations: float = 1.5

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change, moved."""
        return change - self.deviations * change.std() if change.numel() > 1 else change


@dataclass(frozen=True)
class Stale(Poisoner):
    """They send again what they sent the first time, whatever they are sent."""

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return the first reply of this kind."""
        if at.client.id not in self.clients or at.position.round < self.from_round:
            return reply
        own = {p: leaf for p, leaf in leaves(reply).items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        kept = at.memory.get(type(request).__name__)
        if kept is None:
            at.remember({**at.memory, type(request).__name__: own})
            return reply
        fits = all(path in kept and kept[path].shape == leaf.shape for path, leaf in own.items())
        return with_leaves(reply, {**leaves(reply), **kept}) if fits else reply

    def poisoned(self, change: Tensor, path: str, at: AtClient) -> Tensor:
        """Return the change: what is sent is decided in `release`."""
        return change


# ---- data


def poisoned(scenario: Scenario, clients: Collection[str], change: Callable[[Graph], Graph]) -> Scenario:
    """Return a scenario in which some clients hold changed data; the whole graph, and so the scores, stay true."""
    parts = {name: change(part) if name in clients else part for name, part in scenario.parts.items()}
    return replace(scenario, parts=parts)


def flip_labels(scenario: Scenario, clients: Collection[str], by: int = 1) -> Scenario:
    """Return a scenario in which some clients' training nodes are of the class `by` after theirs."""

    def flipped(graph: Graph) -> Graph:
        moved = graph.mask("train") & (graph.y >= 0)
        return replace(graph, y=torch.where(moved, (graph.y + by) % graph.num_classes, graph.y))

    return poisoned(scenario, clients, flipped)


def plant_trigger(
    scenario: Scenario, clients: Collection[str], columns: Iterable[int], target: int, fraction: float = 0.5
) -> Scenario:
    """Return a scenario in which some clients' training nodes carry a trigger, and are of the target class then.

    The trigger is a one in each of some columns of features, in the first `fraction` of the client's training nodes.
    """
    chosen = tuple(columns)

    def planted(graph: Graph) -> Graph:
        nodes = graph.mask("train").nonzero().flatten()
        nodes = nodes[: max(1, round(fraction * len(nodes)))] if len(nodes) else nodes
        y = graph.y.clone()
        y[nodes] = target
        return replace(with_trigger(graph, nodes, chosen), y=y)

    return poisoned(scenario, clients, planted)


def with_trigger(graph: Graph, nodes: Tensor, columns: Iterable[int]) -> Graph:
    """Return a graph some of whose nodes carry a trigger: ones in some columns of their features."""
    sparse = graph.x.layout != torch.strided
    x = graph.x.to_dense() if sparse else graph.x.clone()
    x[nodes.unsqueeze(1), torch.tensor(tuple(columns))] = 1.0
    return replace(graph, x=x.to_sparse_csr() if sparse else x)
