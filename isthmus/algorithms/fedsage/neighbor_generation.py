"""Neighbours that a client's graph lacks: hiding some, learning to generate others, adding those to it.

Zhang, Yang, Li, Sun and Yiu (2021), "Subgraph federated learning with missing neighbor generation": NeighGen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params
from isthmus.data.graph import Graph, select_rows
from isthmus.models import SAGE
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Linear, glorot
from isthmus.models.products.sparse import Features, SparseMatrix, dense

# Numbers that are held at a time while distances are taken.
CHUNK = 4_000_000


# ---- hiding


def draw_hidden(num_nodes: int, fraction: float, stream: ProtectingStream) -> Tensor:
    """Return which nodes to hide, (nodes,), bool: the fraction rounded down, so that one stays at least."""
    hidden = torch.zeros(num_nodes, dtype=torch.bool)
    hidden[stream.permutation(num_nodes)[: int(fraction * num_nodes)]] = True
    return hidden


@dataclass(frozen=True, eq=False)
class Impaired:
    """A graph without its hidden nodes, and what is known of these.

    Fields:
        graph:    what is left: the visible nodes, in their order, and the edges between them
        hidden_x: (hidden, features); features of the hidden nodes, in the layout of the graph's
        owner:    (pairs,); visible nodes, ascending, once for each hidden neighbour
        neighbor: (pairs,); the hidden neighbours, as rows of `hidden_x`
    """

    graph: Graph
    hidden_x: Tensor
    owner: Tensor
    neighbor: Tensor

    @staticmethod
    def of(graph: Graph, hidden: Tensor) -> Impaired:
        """Hide the nodes of a mask, with all their edges."""
        visible, away = (~hidden).nonzero().flatten(), hidden.nonzero().flatten()
        place = graph.edge_index.new_empty(graph.num_nodes)
        for nodes in (visible, away):
            place[nodes] = torch.arange(len(nodes), device=place.device)
        source, target = graph.edge_index  # sorted by source, and so are the pairs
        lost = ~hidden[source] & hidden[target]
        return Impaired(graph.subgraph(visible), select_rows(graph.x, away), place[source[lost]], place[target[lost]])

    @cached_property
    def counts(self) -> Tensor:
        """n_v, the number of hidden neighbours of each visible node, (visible,)."""
        return torch.bincount(self.owner, minlength=self.graph.num_nodes)

    @cached_property
    def input(self) -> GraphInput:
        """What is left, as models take it."""
        return GraphInput(x=self.graph.x, edge_index=self.graph.edge_index, edge_weight=self.graph.edge_weight)


# ---- generating


class FeatureGenerator(nn.Module):
    """fGen: features of up to `num_slots` neighbours of a node, made of its noisy embedding.

    x^p = W_p relu(W e + b) + b_p for p = 1 ... num_slots. The last map has no bounded function around it, so that
    features of any range can be met.
    """

    def __init__(self, latent: int, hidden: int, num_slots: int, num_features: int) -> None:
        super().__init__()
        self.hidden_weight = glorot(latent, hidden)
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.slot_weight = nn.Parameter(torch.stack([glorot(hidden, num_features).data for _ in range(num_slots)]))
        self.slot_bias = nn.Parameter(torch.zeros(num_slots, num_features))

    def forward(self, inputs: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first `counts` neighbours of each node, (generated, features), and whose they are, (generated,).

        All first neighbours come before all second ones. What is not asked for is not computed.
        """
        return generated_features(dict(self.named_parameters()), inputs, counts)


def generated_features(params: Params, inputs: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return what fGen with these parameters gives, as `FeatureGenerator` does."""
    h = torch.addmm(params["hidden_bias"], inputs, params["hidden_weight"]).relu()  # (nodes, hidden)
    owners = [(counts > slot).nonzero().flatten() for slot in range(len(params["slot_bias"]))]
    rows = [
        torch.addmm(bias, h.index_select(0, nodes), weight)
        for nodes, weight, bias in zip(owners, params["slot_weight"], params["slot_bias"], strict=True)
    ]
    return torch.cat(rows), torch.cat(owners)


class NeighborGenerator(nn.Module):
    """NeighGen: an encoder (GraphSAGE), dGen for the number of missing neighbours, fGen for their features."""

    def __init__(self, num_features: int, latent: int, hidden: int, num_slots: int) -> None:
        super().__init__()
        self.num_slots = num_slots
        self.encoder = SAGE(hidden=latent, layers=2, dropout=0.0).build(num_features, latent)
        self.number = Linear(latent, 1)
        self.features = FeatureGenerator(latent, hidden, num_slots, num_features)


@dataclass(frozen=True, eq=False)
class Generated:
    """What a generator makes of a graph.

    Fields:
        scores:    (nodes,); dGen's output, before rounding
        inputs:    (nodes, latent); what fGen is given: embeddings with noise
        counts:    (nodes,), int64; how many neighbours each node is given
        rows:      (generated, features); their features
        owner:     (generated,); whose neighbour each is
        num_nodes: how many nodes were looked at
    """

    scores: Tensor
    inputs: Tensor
    counts: Tensor
    rows: Tensor
    owner: Tensor
    num_nodes: int


def whole_counts(scores: Tensor, num_slots: int) -> Tensor:
    """Return the numbers of neighbours that scores stand for: rounded, from 0 to num_slots."""
    return scores.detach().round().clamp(0, num_slots).long()


class KeptNoise:
    """Noise from a seed in the client's own memory: a mended graph is made again from it, and never leaves."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Return N(0, 1) draws."""
        return torch.randn(tuple(shape), generator=self._generator)

    def permutation(self, number: int) -> Tensor:
        """Return the numbers below `number` in a random order."""
        return torch.randperm(number, generator=self._generator)


# For all that leaves the client, a protecting stream.
Noise: TypeAlias = ProtectingStream | KeptNoise


def generate(model: NeighborGenerator, graph: GraphInput, noise: Noise, max_nodes: int = 0) -> Generated:
    """Generate the neighbours that nodes of a graph lack: e_v = z_v + N(0, I) goes into fGen.

    With `max_nodes`, at most so many nodes, drawn at random, are given any.
    """
    z = model.encoder(graph, None)  # (nodes, latent)
    scores = model.number(graph, z, None).squeeze(1)
    counts = whole_counts(scores, model.num_slots)
    inputs = z + noise.normal(z.shape).to(z.device)
    num_nodes = len(z)
    if max_nodes and num_nodes > max_nodes:
        counts[noise.permutation(num_nodes)[max_nodes:].to(z.device)] = 0
        num_nodes = max_nodes
    rows, owner = model.features(inputs, counts)
    return Generated(scores, inputs, counts, rows, owner, num_nodes)


# ---- losses


def count_loss(scores: Tensor, counts: Tensor) -> Tensor:
    """Return the mean over nodes of the smooth L1 distance between dGen's output and n_v."""
    return F.smooth_l1_loss(scores, counts.to(scores.dtype))


def feature_loss(found: Generated, impaired: Impaired) -> Tensor:
    """Return sum_v sum_p min_u |x_v^p - x_u|^2 / nodes, where u are the hidden neighbours of v.

    Nodes without hidden neighbours count as nodes, but there is nothing to compare theirs with.
    """
    closest = closest_hidden(found.rows.detach(), found.owner, impaired)
    known = (closest >= 0).nonzero().flatten()
    return squared_distance(found.rows[known], impaired.hidden_x, closest[known]) / max(found.num_nodes, 1)


def foreign_loss(rows: Tensor, x: Tensor, features: Features) -> Tensor:
    """Return sum_r min_u |x_r - x_u|^2 over all nodes u of another client, whose features are `x`.

    `features` are the same in the form in which models take them.
    """
    if not x.shape[0]:
        return rows.sum() * 0.0
    return squared_distance(rows, x, nearest_rows(rows.detach(), features))


def squared_distance(rows: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """Return sum_r |rows_r - x_index(r)|^2."""
    return (rows - _dense_rows(x, index)).square().sum()


def nearest_rows(rows: Tensor, features: Features, turned: Tensor | None = None) -> Tensor:
    """Return for each of `rows` which row of `features` is nearest, (rows,); of equally near ones the first.

    `turned` are the rows as columns, for who asks several times.
    """
    sparse = isinstance(features, SparseMatrix)
    if isinstance(features, SparseMatrix):
        norms = SparseMatrix(features.pattern, features.values.square()).row_sums()
    else:
        norms = features.square().sum(dim=1)
    found = []
    for part in torch.split(rows, max(1, CHUNK // max(len(norms), 1))):
        whole = turned is not None and len(part) == len(rows)
        columns = turned if turned is not None and whole else part.t().contiguous() if sparse else part.t()
        found.append((norms.unsqueeze(1) - 2.0 * features.matmul(columns)).argmin(dim=0))
    return torch.cat(found)


def closest_hidden(rows: Tensor, owner: Tensor, impaired: Impaired) -> Tensor:
    """Return for each generated row the nearest hidden neighbour of its owner, a row of `hidden_x`; -1 for none."""
    length = impaired.counts[owner]  # (generated,)
    start = (impaired.counts.cumsum(0) - impaired.counts)[owner]
    device = rows.device
    row = torch.repeat_interleave(torch.arange(len(rows), device=device), length)  # (comparisons,)
    candidate = impaired.neighbor[torch.arange(len(row), device=device) - (length.cumsum(0) - length - start)[row]]
    distances = [
        (rows[some] - _dense_rows(impaired.hidden_x, other)).square().sum(dim=1)
        for some, other in zip(*(torch.split(t, max(1, CHUNK // rows.shape[1])) for t in (row, candidate)), strict=True)
    ]
    distance = torch.cat(distances)
    least = torch.full((len(rows),), torch.inf, device=device).scatter_reduce_(0, row, distance, "amin")
    tied = (distance == least[row]).nonzero().flatten()
    first = torch.full((len(rows),), len(row), device=device).scatter_reduce_(0, row[tied], tied, "amin")
    return torch.cat([candidate, candidate.new_full((1,), -1)])[first]


def _dense_rows(x: Tensor, index: Tensor) -> Tensor:
    rows = select_rows(x, index)
    return dense(SparseMatrix.from_csr(rows)) if rows.layout == torch.sparse_csr else rows


# ---- mending


def mended(graph: Graph, rows: Tensor, owner: Tensor) -> Graph:
    """Return the graph with generated nodes after its own, each tied to its owner.

    Generated nodes have no label and are in no split. Where edges have weights, theirs is the mean of the others.
    """
    if not len(rows):
        return graph
    size, added = graph.num_nodes, len(rows)
    new = torch.arange(size, size + added, device=owner.device)
    edges = torch.cat([graph.edge_index, torch.stack([owner, new]), torch.stack([new, owner])], dim=1)
    order = torch.argsort(edges[0] * (size + added) + edges[1])
    weight = graph.edge_weight
    if weight is not None:
        usual = weight.mean() if len(weight) else weight.new_ones(())
        weight = torch.cat([weight, usual.expand(2 * added)])[order]
    return replace(
        graph,
        x=_joined(graph.x, rows),
        edge_index=edges[:, order],
        edge_weight=weight,
        y=torch.cat([graph.y, graph.y.new_full((added,), -1)]),
        node_ids=torch.cat([graph.node_ids, graph.node_ids.new_full((added,), -1)]),
        masks={split: torch.cat([mask, mask.new_zeros(added)]) for split, mask in graph.masks.items()},
        attributes={},
    )


def _joined(x: Tensor, rows: Tensor) -> Tensor:
    """Return dense rows below others. Sparse ones stay sparse where few are added and nothing is differentiated.

    Measured with 1,433 features, of which 1 % are set, and 64 columns: products take the same time where as many rows
    are added as there were, and a fifth of it where a tenth is added.
    """
    if x.layout != torch.sparse_csr:
        return torch.cat([x, rows])
    if rows.requires_grad or 2 * len(rows) > len(x):
        return torch.cat([dense(SparseMatrix.from_csr(x)), rows])
    start, width = x.crow_indices().long(), x.shape[1]
    return torch.sparse_csr_tensor(
        torch.cat([start, start[-1] + width * torch.arange(1, len(rows) + 1, device=x.device)]),
        torch.cat([x.col_indices().long(), torch.arange(width, device=x.device).repeat(len(rows))]),
        torch.cat([x.values(), rows.flatten()]),
        (len(x) + len(rows), width),
        check_invariants=False,
    )
