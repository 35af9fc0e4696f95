"""Neighbour sampling for mini-batches, vectorised over a CSR adjacency (Hamilton et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Adjacency:
    """In-neighbours of every node in CSR form; `edge` gives each entry's column in `edge_index`."""

    start: Tensor  # (nodes + 1,)
    source: Tensor  # (edges,)
    edge: Tensor  # (edges,)

    @staticmethod
    def of(edge_index: Tensor, num_nodes: int) -> Adjacency:
        """Sort the edges by target."""
        order = torch.argsort(edge_index[1], stable=True)
        counts = torch.bincount(edge_index[1], minlength=num_nodes)
        start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Adjacency(start, edge_index[0][order], order)


@dataclass(frozen=True)
class Neighborhood:
    """A sampled subgraph: `nodes` of the whole graph (the seeds first) and the columns of its sampled edges."""

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor  # (2, sampled), in positions of `nodes`
    num_seeds: int


def sample_in_edges(adjacency: Adjacency, targets: Tensor, fanout: int, generator: torch.Generator) -> Tensor:
    """Return CSR positions of up to `fanout` in-edges of each target, uniform without replacement; -1 takes all."""
    degree = adjacency.start[targets + 1] - adjacency.start[targets]
    device = targets.device
    owner = torch.repeat_interleave(torch.arange(len(targets), device=device), degree)  # (candidates,)
    first = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    rank = torch.arange(len(owner), device=device) - first[owner]
    candidates = adjacency.start[targets][owner] + rank
    if fanout < 0 or not bool((degree > fanout).any()):
        return candidates
    # A random order within each target: sort by (owner, key); the first `fanout` of each segment are a uniform sample.
    keys = torch.rand(len(owner), generator=generator, dtype=torch.float64)
    order = torch.argsort(owner.cpu().double() + keys).to(device)  # not every device has numbers of double precision
    chosen = candidates[order][rank < fanout]
    return chosen.sort().values


def sample_neighborhood(
    adjacency: Adjacency, seeds: Tensor, fanouts: Sequence[int], generator: torch.Generator
) -> Neighborhood:
    """Grow `seeds` by one hop per fanout; each node's in-edges are sampled once, when it is first reached."""
    num_nodes = len(adjacency.start) - 1
    position = seeds.new_full((num_nodes,), -1)
    position[seeds] = torch.arange(len(seeds), device=seeds.device)
    nodes, frontier, taken = [seeds], seeds, []
    total = len(seeds)
    for fanout in fanouts:
        chosen = sample_in_edges(adjacency, frontier, fanout, generator)
        taken.append(chosen)
        reached = adjacency.source[chosen]
        frontier = torch.unique(reached[position[reached] < 0])
        position[frontier] = torch.arange(total, total + len(frontier), device=seeds.device)
        total += len(frontier)
        nodes.append(frontier)
    entries = torch.cat(taken) if taken else seeds[:0]
    # The target of a CSR entry is the row it lies in.
    target = torch.searchsorted(adjacency.start, entries, right=True) - 1
    edge_index = torch.stack([position[adjacency.source[entries]], position[target]])
    return Neighborhood(torch.cat(nodes), adjacency.edge[entries], edge_index, len(seeds))
