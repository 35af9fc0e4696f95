"""Clients hold communities of the graph, as in FS-G (Wang et al., 2022) and FedSage (Zhang et al., 2021).

Communities by the Louvain method (Blondel, Guillaume, Lambiotte and Lefebvre, 2008), the Leiden method (Traag, Waltman
and van Eck, 2019) or METIS (Karypis and Kumar, 1998).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import MissingExtra, refuse_unknown
from isthmus.data.dividing import Holding, Splitter, deal_at_random, deal_evenly, groups_of, part_of
from isthmus.data.dividing import Items as Nodes
from isthmus.data.graph import EdgesByNode, Graph, undirected_pairs
from isthmus.data.on_demand import csgraph, sparse

MAX_WEIGHT = 10_000  # METIS takes whole numbers


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

    METIS makes as many communities as it is told, of about equal size (within 3 %), so none is cut for balance; with
    more than one for each client, clients are less compact, and less equal when not balanced.

    "louvain" is scikit-network's, which comes with the package; "igraph_louvain", "leiden" and "metis" come with the
    extra `communities`. The two Louvains find communities of equal quality, not the same ones. Of a structureless graph
    of a million edges "louvain" and "metis" take seconds, "igraph_louvain" about a minute, "leiden" more than five.

    Fields:
        method:          how communities are found: "louvain", "igraph_louvain", "leiden" or "metis"
        balanced:        whether clients get about the same number of nodes
        num_communities: how many METIS makes; null for one for each client
    """

    items = ("node",)

    method: str = "louvain"
    balanced: bool = True
    num_communities: int | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self, "method", METHODS)
        if self.num_communities is not None and (self.method != "metis" or self.num_communities < 1):
            raise ValueError(
                f"num_communities is {self.num_communities!r} and method is {self.method!r}; only 'metis' is told "
                "how many communities to make, at least 1"
            )

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's nodes."""
        if not isinstance(data, Graph):
            raise self.refusal(data)
        pairs, weights = undirected_pairs(data.edge_index, data.num_nodes, data.edge_weight)
        wanted = min(self.num_communities or num_clients, data.num_nodes)
        membership = METHODS[self.method](data.num_nodes, pairs, weights, wanted, rng)
        limit = -(-data.num_nodes // num_clients) if self.balanced and self.method != "metis" else data.num_nodes
        both_ways = EdgesByNode.of(torch.cat([pairs, pairs.flip(0)], dim=1), data.num_nodes)
        pieces = _pieces(groups_of(membership), both_ways, limit, num_clients)
        clients = deal_evenly(pieces, num_clients) if self.balanced else deal_at_random(pieces, num_clients, rng)
        return [part_of(held) for held in clients]


def _louvain(num_nodes: int, pairs: Tensor, weights: Tensor | None, _: int, rng: np.random.Generator) -> Nodes:
    from sknetwork.clustering import Louvain

    seed = int(rng.integers(2**32))
    weight = np.ones(pairs.shape[1]) if weights is None else weights.double().numpy()
    if weight.sum() <= 0:
        return np.arange(num_nodes)
    source, target = pairs.numpy()
    both_ways = np.concatenate([source, target]), np.concatenate([target, source])
    network = sparse.csr_matrix((np.tile(weight, 2), both_ways), shape=(num_nodes, num_nodes))
    # Nodes are visited in an order of the seed's: in that of the file, the draw would change nothing.
    method = Louvain(shuffle_nodes=True, random_state=seed, return_probs=False, return_aggregate=False)
    return np.asarray(method.fit_predict(network), dtype=np.int64)


def _igraph_louvain(num_nodes: int, pairs: Tensor, weights: Tensor | None, _: int, rng: np.random.Generator) -> Nodes:
    igraph = _package("igraph", "igraph_louvain")
    network = igraph.Graph(n=num_nodes, edges=pairs.t().contiguous().numpy())
    igraph.set_random_number_generator(random.Random(int(rng.integers(2**63))))
    try:
        communities = network.community_multilevel(weights=None if weights is None else weights.tolist())
    finally:
        # igraph has no way to ask for the generator; Python's own module is what it starts with.
        igraph.set_random_number_generator(random)
    return np.asarray(communities.membership, dtype=np.int64)


def _leiden(num_nodes: int, pairs: Tensor, weights: Tensor | None, _: int, rng: np.random.Generator) -> Nodes:
    igraph, leidenalg = _package("igraph", "leiden"), _package("leidenalg", "leiden")
    communities = leidenalg.find_partition(
        igraph.Graph(n=num_nodes, edges=pairs.t().contiguous().numpy()),
        leidenalg.ModularityVertexPartition,
        weights=None if weights is None else weights.tolist(),
        seed=int(rng.integers(2**31)),
    )
    return np.asarray(communities.membership, dtype=np.int64)


def _metis(num_nodes: int, pairs: Tensor, weights: Tensor | None, wanted: int, rng: np.random.Generator) -> Nodes:
    """Return the community of each node, numbered without gaps."""
    pymetis = _package("pymetis", "metis")
    edges = EdgesByNode.of(torch.cat([pairs, pairs.flip(0)], dim=1), num_nodes)
    whole = None
    if weights is not None and len(weights) > 0:
        scaled = np.round(weights.double().numpy() * (MAX_WEIGHT / max(float(weights.max()), 1e-30)))
        whole = np.tile(np.clip(scaled, 1, MAX_WEIGHT).astype(np.int64), 2)[edges.column]
    options = pymetis.Options(seed=int(rng.integers(2**31)))
    # Older versions know only the pair of arrays, newer ones warn of it.
    if hasattr(pymetis, "CSRAdjacency"):
        adjacency = pymetis.CSRAdjacency(edges.start, edges.target)
        _, parts = pymetis.part_graph(wanted, adjacency, eweights=whole, options=options)
    else:
        _, parts = pymetis.part_graph(wanted, xadj=edges.start, adjncy=edges.target, eweights=whole, options=options)
    return np.unique(np.asarray(parts), return_inverse=True)[1].astype(np.int64)


METHODS: dict[str, Callable[[int, Tensor, Tensor | None, int, np.random.Generator], Nodes]] = {
    "louvain": _louvain,
    "igraph_louvain": _igraph_louvain,
    "leiden": _leiden,
    "metis": _metis,
}


def _package(name: str, method: str) -> Any:
    """Return a package of the extra; igraph and leidenalg are GPL, so this package must not need them."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(name, "communities", f"splitter 'community' with method {method!r}") from None


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
    if len(nodes) == 1:
        return nodes
    source, target = edges.between(nodes)[0]
    degree = np.bincount(source, minlength=len(nodes))
    start = np.concatenate([[0], np.cumsum(degree)])
    inside = sparse.csr_matrix((np.ones(len(target)), target, start), shape=(len(nodes), len(nodes)))
    num_components, component_of = csgraph.connected_components(inside, directed=False)
    if num_components > 1:
        # Each apart: a search costs time in proportion to all the nodes it is given, whether it gets to them or not.
        return np.concatenate([_breadth_first(edges, nodes[group]) for group in groups_of(component_of)])
    ordered: Nodes = nodes[csgraph.breadth_first_order(inside, degree.argmax(), return_predecessors=False)]
    return ordered
