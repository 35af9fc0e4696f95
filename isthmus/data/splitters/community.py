"""Clients hold communities of the graph, as in FS-G (Wang et al., 2022) and FedSage (Zhang et al., 2021).

Communities by the Louvain method: Blondel, Guillaume, Lambiotte and Lefebvre (2008).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.data.cuts import EdgesByNode
from isthmus.data.edges import undirected_pairs
from isthmus.data.graph import Graph
from isthmus.data.splitters.splitter import Splitter

Nodes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CommunitySplitter(Splitter):
    """Finds communities, then gives whole communities to clients.

    Balanced: communities of more than ceil(N / clients) nodes are cut into pieces of about equal size, none
    larger; the pieces, largest first, go each to the client with the fewest nodes so far. So the largest
    client has at most ceil(N / clients) nodes more than the smallest.

    Not balanced: communities in random order; the first ones go one to each client, the others each to a
    random client.

    Either way, when there are fewer pieces than clients, the largest is halved until there are enough. A cut
    follows breadth-first order from the best connected member; pieces mostly, though not always, are connected.

    Fields:
        method:   how communities are found; "louvain"
        balanced: whether clients get about the same number of nodes
    """

    method: str = "louvain"
    balanced: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; known: {', '.join(sorted(METHODS))}")

    def assign(self, graph: Graph, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's nodes."""
        pairs, weights = undirected_pairs(graph.edge_index, graph.num_nodes, graph.edge_weight)
        membership = METHODS[self.method](graph.num_nodes, pairs, weights, rng)
        limit = -(-graph.num_nodes // num_clients) if self.balanced else graph.num_nodes
        both_ways = EdgesByNode.of(torch.cat([pairs, pairs.flip(0)], dim=1), graph.num_nodes)
        pieces = _pieces(_groups(membership), both_ways, limit, num_clients)
        clients = _deal_evenly(pieces, num_clients) if self.balanced else _deal(pieces, num_clients, rng)
        return [torch.from_numpy(np.sort(np.concatenate(held))) for held in clients]


def _louvain(num_nodes: int, pairs: Tensor, weights: Tensor | None, rng: np.random.Generator) -> Nodes:
    """Return the community of each node."""
    import igraph

    network = igraph.Graph(n=num_nodes, edges=pairs.t().contiguous().numpy())
    igraph.set_random_number_generator(random.Random(int(rng.integers(2**63))))
    try:
        communities = network.community_multilevel(weights=None if weights is None else weights.tolist())
    finally:
        # igraph has no way to ask for the generator; Python's own module is what it starts with.
        igraph.set_random_number_generator(random)
    return np.asarray(communities.membership, dtype=np.int64)


METHODS: dict[str, Callable[[int, Tensor, Tensor | None, np.random.Generator], Nodes]] = {"louvain": _louvain}


def _groups(membership: Nodes) -> list[Nodes]:
    order = np.argsort(membership, kind="stable")
    return np.split(order, np.cumsum(np.bincount(membership))[:-1])


def _pieces(communities: list[Nodes], edges: EdgesByNode, limit: int, num_clients: int) -> list[Nodes]:
    """Cut communities into pieces of at most `limit` nodes, then halve the largest until all clients get one."""
    heap: list[tuple[int, int, bool, Nodes]] = []  # size (largest first), number, whether in breadth-first order
    for nodes in communities:
        cut = len(nodes) > limit
        ordered = _breadth_first(edges, nodes) if cut else nodes
        for piece in np.array_split(ordered, -(-len(nodes) // limit)):
            heap.append((-len(piece), len(heap), cut, piece))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) < num_clients:
        _, _, cut, nodes = heapq.heappop(heap)
        for half in np.array_split(nodes if cut else _breadth_first(edges, nodes), 2):
            heapq.heappush(heap, (-len(half), number, True, half))
            number += 1
    return [nodes for _, _, _, nodes in sorted(heap, key=lambda entry: entry[1])]


def _breadth_first(edges: EdgesByNode, nodes: Nodes) -> Nodes:
    """Return the nodes in breadth-first order, component by component, each from its best connected node."""
    from scipy import sparse
    from scipy.sparse import csgraph

    if len(nodes) == 1:
        return nodes
    source, target = edges.between(nodes).ends
    degree = np.bincount(source, minlength=len(nodes))
    start = np.concatenate([[0], np.cumsum(degree)])
    inside = sparse.csr_matrix((np.ones(len(target)), target, start), shape=(len(nodes), len(nodes)))
    num_components, component_of = csgraph.connected_components(inside, directed=False)
    if num_components > 1:
        # Each apart: a search costs time in proportion to all the nodes it is given, whether it gets to them or not.
        return np.concatenate([_breadth_first(edges, nodes[group]) for group in _groups(component_of)])
    ordered: Nodes = nodes[csgraph.breadth_first_order(inside, degree.argmax(), return_predecessors=False)]
    return ordered


def _deal_evenly(pieces: list[Nodes], num_clients: int) -> list[list[Nodes]]:
    clients: list[list[Nodes]] = [[] for _ in range(num_clients)]
    loads = [(0, client) for client in range(num_clients)]
    for nodes in sorted(pieces, key=len, reverse=True):
        load, client = heapq.heappop(loads)
        clients[client].append(nodes)
        heapq.heappush(loads, (load + len(nodes), client))
    return clients


def _deal(pieces: list[Nodes], num_clients: int, rng: np.random.Generator) -> list[list[Nodes]]:
    order = rng.permutation(len(pieces))
    owners = np.concatenate([np.arange(num_clients), rng.integers(num_clients, size=len(pieces) - num_clients)])
    clients: list[list[Nodes]] = [[] for _ in range(num_clients)]
    for number, owner in zip(order.tolist(), owners.tolist(), strict=True):
        clients[owner].append(pieces[number])
    return clients
