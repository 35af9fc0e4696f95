"""Links from what clients tell of each node: nodes that are connected look alike in predictions and embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, ROWS, Case, Deciding, NothingSeen, Seen
from isthmus.attacks.measures import ranked
from isthmus.config.course import Course
from isthmus.core.exposure import fields_with_rows
from isthmus.core.protocol import reply_type
from isthmus.core.record import Record, leaves
from isthmus.data.graph import Graph


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes of which half are connected, by client as places among its nodes, with the nodes' features."""

    features: dict[str, Tensor]
    ends: dict[str, Tensor]


@dataclass(frozen=True)
class LinksFromRows(Deciding):
    """Takes pairs of nodes of a client for connected where the rows that it sends of them, and their features, agree.

    Of every field of the last replies that has a row for each node, rows are compared by their correlation; the ranks
    of these and of the features' correlation are added up. He et al., "Stealing Links from Graph Neural Networks"
    (2021), attacks 0 and 2, without any training.
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which nodes of a client are connected"
    knows: ClassVar[str] = "the features of each client's nodes, in the order of the rows"
    reads: ClassVar[tuple[str, ...]] = (ROWS,)

    def problem(self, course: Course) -> str:
        """Return why there are no rows to compare."""
        if not any(fields_with_rows(reply_type(kind)) for kind in type(course.algorithm).handlers()):
            return f"no reply of {type(course.algorithm).__name__} has a row for each node"
        return ""

    def known(self, case: Case) -> Pairs:
        """Return the pairs: all edges, and as many pairs without one, of each client that has some."""
        ends, features = {}, {}
        for client, part in case.scenario.parts.items():
            if isinstance(part, Graph) and part.num_edges:
                ends[client] = torch.cat(pairs_of(part, case.generator("pairs", client)), dim=1)
                features[client] = part.x.to_dense().double()
        return Pairs(features, ends)

    def guess(self, seen: Seen, known: Pairs) -> Tensor:
        """Return how much the rows and the features of each pair agree."""
        require_links(known.ends)
        parts = []
        for client, ends in known.ends.items():
            rows = list(_rows(seen, client, len(known.features[client])))
            alike = [ranks(correlation(row, ends)) for row in (*rows, known.features[client])]
            parts.append(torch.stack(alike).mean(dim=0))
        return torch.cat(parts)

    def prior(self, known: Pairs, clients: Sequence[str]) -> Tensor:
        """Return how much the features agree."""
        return by_features(known.features, known.ends)

    def truth(self, case: Case, known: Pairs) -> Tensor:
        """Return which pairs are connected: the first half of each client's."""
        return connected(known.ends)


def _rows(seen: Seen, client: str, num_nodes: int) -> Iterator[Tensor]:
    """Yield the last rows that a client sent of its nodes, field by field."""
    found: dict[str, Tensor] = {}
    for message in seen.messages:
        if message.clients == (client,):
            found.update(rows_in(message.reply, num_nodes))
    if not found:
        raise NothingSeen(f"nothing of {client} is seen that has a row for each node")
    yield from found.values()


def rows_in(reply: Record, num_nodes: int) -> dict[str, Tensor]:
    """Return the tensors of a reply that have a row for each node, by place."""
    names = fields_with_rows(type(reply))
    return {
        path: leaf.double()
        for path, leaf in leaves(reply).items()
        if isinstance(leaf, Tensor) and path.rsplit(".", 1)[-1] in names and leaf.shape[:1] == (num_nodes,)
    }


def pairs_of(graph: Graph, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the undirected edges of a graph, (2, edges), and as many pairs of other nodes without an edge."""
    source, target = graph.edge_index
    edges = graph.edge_index[:, source < target]
    taken = set((source * graph.num_nodes + target).tolist())
    most = graph.num_nodes * (graph.num_nodes - 1) // 2 - edges.shape[1]
    others: list[tuple[int, int]] = []
    while len(others) < min(edges.shape[1], most):
        first, second = torch.randint(graph.num_nodes, (2,), generator=stream).tolist()
        if first != second and first * graph.num_nodes + second not in taken:
            taken |= {first * graph.num_nodes + second, second * graph.num_nodes + first}
            others.append((first, second))
    return edges[:, : len(others)], torch.tensor(others, dtype=torch.int64).reshape(-1, 2).t()


def require_links(ends: Mapping[str, Tensor]) -> None:
    """Raise NothingSeen where no client has pairs to decide on."""
    if not ends:
        raise NothingSeen("no client holds nodes that are connected")


def by_features(features: Mapping[str, Tensor], ends: Mapping[str, Tensor]) -> Tensor:
    """Return how much the features of all clients' pairs agree, as ranks at each client, (pairs,)."""
    alike = [ranks(correlation(features[client], pairs)) for client, pairs in ends.items()]
    return torch.cat(alike) if alike else torch.zeros(0)


def connected(ends: Mapping[str, Tensor]) -> Tensor:
    """Return which of all clients' pairs are connected, (pairs,): the first half of each client's."""
    halves = [torch.arange(pairs.shape[1]) < pairs.shape[1] // 2 for pairs in ends.values()]
    return torch.cat(halves) if halves else torch.zeros(0, dtype=torch.bool)


def correlation(rows: Tensor, ends: Tensor) -> Tensor:
    """Return the correlation of the rows of each pair, (pairs,)."""
    centred = rows - rows.mean(dim=1, keepdim=True)
    centred = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    alike: Tensor = (centred[ends[0]] * centred[ends[1]]).sum(dim=1)
    return alike


def ranks(values: Tensor) -> Tensor:
    """Return the ranks of values as shares, equal ones alike."""
    return torch.from_numpy(ranked(values.double().numpy())) / max(1, len(values))
