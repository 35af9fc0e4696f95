"""Rows of features are read from the update of a first layer that was made for it.

Fowl et al. (2022), "Robbing the fed: directly obtaining private data in federated learning with modified models";
Boenisch et al. (2023), "When the curious abandon honesty: federated learning is not private".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import MALICIOUS_SERVER, Attack, Case, Message, NothingSeen, Seen, Tampering
from isthmus.attacks.crafting.crafting_server import CraftingServer, constant_rows, crafted_messages
from isthmus.attacks.inputs.layers import steps_problem, without_decay
from isthmus.attacks.measures import mean_of
from isthmus.config.course import Course
from isthmus.core.errors import refuse, refuse_unknown
from isthmus.core.protocol import Position, Request
from isthmus.core.random import torch_generator
from isthmus.core.record import Params
from isthmus.data.graph import Graph

BINS, TRAPS = KINDS = ("bins", "traps")
# What the scores are together, about: small, so that no class is certain and every node has a say.
SCORES = 0.3
# A unit whose bias moved less than this share of the one that moved most was not reached.
STILL = 1e-4


@dataclass(frozen=True)
class RowReadingServer(CraftingServer):
    """Sends a model whose first layer takes nodes apart.

    Unit i of the first layer is open to a node with the row x where  w_i . x + b_i > 0,  and then the gradient of its
    weights is delta x, of its bias delta. With the same weights from all units to the next layer, delta is the same for
    all units that are open to the node. "bins": all w_i are one random direction and the b_i its quantiles, so that
    what unit i has beyond unit i + 1 is of the nodes between two quantiles. "traps": each w_i is a direction of its
    own, open to one node in `among_nodes`.

    Fields:
        from_round, rounds, clients: as of every such server
        kind:        "bins" or "traps"
        middle:      of the numbers that a random direction of length 1 makes of a row: their mean
        spread:      and their standard deviation
        among_nodes: how many nodes there are for each one that a trap is open to
    """

    kind: str = BINS
    middle: float = 0.0
    spread: float = 1.0
    among_nodes: int = 100

    def crafted(self, params: Params, at: Position) -> Params:
        """Return the model."""
        first, bias, others = first_layer(params)
        draw = torch_generator(at.seed, at.round, "crafted model")
        features, units = params[first].shape
        made = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in params.items()}
        directions = torch.randn(features, 1 if self.kind == BINS else units, generator=draw, dtype=torch.float64)
        # Weights that are shorter open the same units, leave scores small, and lose less of a change to rounding.
        short = SCORES / (units * max(self.spread, 1e-12))
        directions = short * directions / directions.norm(dim=0)
        made[first] = directions.expand(features, units).clone()
        made[bias] = -short * self.thresholds(units).reshape(made[bias].shape)
        for name in others:
            made[name] = constant_rows(params[name].shape, draw) if self.kind == BINS else params[name].double()
        return made

    def thresholds(self, units: int) -> Tensor:
        """Return from where on each unit is open, (units,): ascending quantiles, or one in so many."""
        if self.kind == BINS:
            share = (torch.arange(units, dtype=torch.float64) + 0.5) / units
        else:
            share = torch.full((units,), 1.0 - 1.0 / max(2, self.among_nodes), dtype=torch.float64)
        quantiles: Tensor = torch.special.ndtri(share)
        return self.middle + self.spread * quantiles


def first_layer(params: Params) -> tuple[str, str, list[str]]:
    """Return the names of the matrix that reads a node's own features, of its bias, and of the ways behind it.

    Matrices that read neighbours' features (GraphSAGE's) are in none: they are sent as zeros.
    """
    matrices = [name for name, each in params.items() if each.ndim == 2 and "neighbor" not in name]
    biases = [name for name, each in params.items() if each.ndim == 1 or (each.ndim == 2 and each.shape[0] == 1)]
    for name in matrices:
        prefix = name.rpartition(".")[0]
        bias = next((each for each in biases if each.rpartition(".")[0] == prefix), "")
        if bias:
            return name, bias, [each for each in matrices if each != name]
    raise NothingSeen("the model has no first layer with a bias")


@dataclass(frozen=True)
class ReadRows(Attack):
    """Reads rows of features off replies to a model that was made for it, one or a few from each unit.

    What the first layer reads is a node's features (GraphSAGE, an MLP), or their mean over the neighbourhood (GCN); in
    a network that mixes in its second layer too, rows of neighbours are read beside those of training nodes.

    read:  the share of a client's training nodes whose row is among those that were read, numbers as they are
    right: the share of rows that were read that are a row of one of the client's nodes

    Fields:
        kind:       "bins" (Fowl et al.) or "traps" (after Boenisch et al.)
        from_round: the first round in which models are crafted
        rounds:     in so many, each with other directions
        tolerance:  a row counts as read if no more than this share of its length is otherwise
    """

    position: ClassVar[str] = MALICIOUS_SERVER
    learns: ClassVar[str] = "the features of single training nodes, as they are"
    knows: ClassVar[str] = "mean and deviation of random mixtures of features"
    reads: ClassVar[tuple[str, ...]] = ("params",)
    measures: ClassVar[tuple[str, ...]] = ("read", "right")

    kind: str = BINS
    from_round: int = 1
    rounds: int = 1
    tolerance: float = 1e-2

    def __post_init__(self) -> None:
        refuse_unknown(self, "kind", KINDS)
        refuse(self.from_round < 1, self, "from_round", "rounds are counted from 1")
        refuse(self.rounds < 1, self, "rounds", "it must be at least 1")
        refuse(not 0.0 < self.tolerance < 1.0, self, "tolerance", "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return why rows do not lie in an update as they are."""
        gnn = getattr(course.model, "gnn", None)
        name = type(gnn).__name__
        if getattr(course.model, "encoder", None) is not None or name not in ("GCN", "SAGE", "MLP"):
            return (
                f"it crafts the first layer of gcn, sage or mlp without an encoder, and the model is {course.model!r}"
            )
        if getattr(gnn, "batch_norm", False):
            return "batch norm mixes nodes after the first layer: set model.gnn.batch_norm=false"
        if getattr(gnn, "input_dropout", 0.0) or (self.kind == BINS and getattr(gnn, "dropout", 0.0)):
            return "dropout takes numbers away at random: set model.gnn.dropout=0, or take kind traps"
        if course.rounds < self.from_round:
            return f"from_round is {self.from_round}, and the course has {course.rounds} rounds"
        return steps_problem(course, (1,))

    def server(self, case: Case) -> RowReadingServer:
        """Return the server that crafts."""
        x = case.scenario.whole.x.to_dense().double()
        direction = torch.randn(x.shape[1], 8, generator=case.generator("spread"), dtype=torch.float64)
        seen = x @ (direction / direction.norm(dim=0))
        return RowReadingServer(
            from_round=self.from_round,
            rounds=self.rounds,
            kind=self.kind,
            middle=float(seen.mean()),
            spread=float(seen.std()),
            among_nodes=max(2, case.scenario.whole.num_nodes // max(1, len(case.clients))),
        )

    def tampering(self, case: Case) -> tuple[Tampering, ...]:
        """Return the server that crafts."""
        return (self.server(case),)

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the rounds with crafted models."""
        return self.from_round <= at.round < self.from_round + self.rounds

    def known(self, case: Case) -> RowReadingServer:
        """Return the server that crafts."""
        return self.server(case)

    def guess(self, seen: Seen, known: RowReadingServer) -> dict[str, Tensor]:
        """Return the rows that are read of each client, (rows, features)."""
        found = {}
        for client in seen.clients:
            messages = crafted_messages(seen, client, known)
            found[client] = torch.cat([self._rows(message, known, seen.course) for message in messages])
        return found

    def _rows(self, message: Message, server: RowReadingServer, course: Course) -> Tensor:
        sent, back = message.request.params, message.reply.params  # type: ignore[attr-defined]
        first, bias, _ = first_layer(sent)
        weights = without_decay(sent[first].double(), back[first], course)  # (features, units)
        biases = without_decay(sent[bias].double(), back[bias], course).reshape(-1)
        if server.kind == BINS:  # units are open from ascending thresholds on: the next is open to fewer nodes
            none = torch.zeros_like(biases[:1])
            weights = weights - torch.cat([weights[:, 1:], torch.zeros_like(weights[:, :1])], dim=1)
            biases = biases - torch.cat([biases[1:], none])
        moved = biases.abs() > STILL * biases.abs().max().clamp_min(1e-30)
        return (weights[:, moved] / biases[moved]).t()

    def prior(self, known: Any, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return no rows: without a message there is nobody whose row it could be."""
        return dict.fromkeys(clients, torch.zeros(0, 0))

    def truth(self, case: Case, known: Any) -> dict[str, Any]:
        """Return the rows of each client's nodes that its model reads, and which are of training nodes."""
        mixed = type(getattr(case.course.model, "gnn", None)).__name__ == "GCN"
        return {
            client: Rows(rows_of(case.course, part, mixed), part.mask("train"), self.tolerance)
            for client, part in case.scenario.parts.items()
        }

    def scores(self, guess: Mapping[str, Any], truth: Mapping[str, Any]) -> dict[str, float]:
        """Return both measures in the mean over clients."""
        each = [rows.found_in(guess[client]) for client, rows in truth.items()]
        return {name: mean_of([found[name] for found in each]) for name in self.measures}


def rows_of(course: Course, data: Graph, mixed: bool) -> Tensor:
    """Return what a first layer reads of each node, (nodes, features)."""
    x: Tensor = data.x.to_dense()
    if mixed:
        operator = course.task.prepare(data).graph.operator("gcn")
        x = operator.matmul(x)
    return x.double()


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that there are, and those of training nodes among them; as a guess, all of them."""

    x: Tensor
    train: Tensor
    tolerance: float

    def found_in(self, guess: Tensor | Rows) -> dict[str, float]:
        """Return how many of the training nodes' rows are in a guess, and how many of its rows are rows at all."""
        read = guess.x if isinstance(guess, Rows) else guess
        if not len(read) or not len(self.x):
            return {"read": 0.0, "right": float("nan")}
        near = torch.cdist(read, self.x) <= self.tolerance * self.x.norm(dim=1).clamp_min(1e-12)
        ours = near.any(dim=0)[self.train]
        return {
            "read": float(ours.double().mean()) if len(ours) else 0.0,
            "right": float(near.any(dim=1).double().mean()),
        }
