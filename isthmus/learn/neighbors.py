"""Neighbour sampling for mini-batches, vectorised over a CSR adjacency (Hamilton et al., 2017).

Several graphs side by side are sampled in one go, each with its own random stream, with the draws that it would have
alone. numpy does it: torch takes several times as long to sort, to repeat, and to take entries of one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.graph import spans

Numbers = NDArray[np.int64]

# Bits of a random key that count; which of two edges comes first when all of them agree does not matter.
_KEY_BITS = 28


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

    @staticmethod
    def side_by_side(parts: Sequence[Adjacency]) -> Adjacency:
        """Return graphs as one, the nodes and edges of each after those of the one before."""
        nodes = np.cumsum([0, *(len(part.start) - 1 for part in parts)]).tolist()
        edges = np.cumsum([0, *(len(part.source) for part in parts)]).tolist()
        start = [part.start[:-1] + first for part, first in zip(parts, edges, strict=False)]
        return Adjacency(
            torch.cat([*start, torch.tensor(edges[-1:])]),
            torch.cat([part.source + first for part, first in zip(parts, nodes, strict=False)]),
            torch.cat([part.edge + first for part, first in zip(parts, edges, strict=False)]),
        )


@dataclass(frozen=True)
class Neighborhood:
    """A sampled subgraph: `nodes` of the whole graph (the seeds first) and the columns of its sampled edges."""

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor  # (2, sampled), in positions of `nodes`
    num_seeds: int


@dataclass(frozen=True)
class Neighborhoods:
    """Sampled subgraphs of several graphs side by side, as numbers of all their nodes and of entries of the adjacency.

    Fields:
        hops:    the nodes that each hop reached first, the seeds at first; those of one graph after those of another
        counts:  how many of them are each graph's, (hops, graphs)
        entries: (sampled,): the sampled entries of the adjacency
        targets: (sampled,): the node that each of them is an in-edge of
    """

    hops: tuple[Numbers, ...]
    counts: Numbers
    entries: Numbers
    targets: Numbers


def _in_edges(
    start: Numbers, targets: Numbers, counts: Sequence[int], fanout: int, generators: Sequence[torch.Generator]
) -> tuple[Numbers, Numbers]:
    """Return CSR positions of sampled in-edges, target by target, and how many each target has.

    The first `counts[0]` targets are the first generator's, and so on.
    """
    first = start[targets]
    degree = start[targets + 1] - first
    taken = degree if fanout < 0 else np.minimum(degree, fanout)
    chosen = spans(first, taken)
    many = degree > taken
    if not many.any():
        return chosen, taken
    before = np.cumsum(degree) - degree  # candidates before those of each target
    keys = _keys(degree, many, counts, generators)
    # A random order within each target: sort by (target, key); the first `fanout` of each are a uniform sample.
    length, begin = degree[many], before[many]
    candidate = spans(begin, length)
    rank = candidate - np.repeat(begin, length)
    segment = np.repeat(np.arange(len(length)), length)
    key = (keys[candidate] * 2**_KEY_BITS).astype(np.int64)
    bits = int(length.max()).bit_length()
    if len(length).bit_length() + _KEY_BITS + bits < 64:  # one number has room for all: sorting it is the fastest
        rank = np.sort(((segment << _KEY_BITS | key) << bits) | rank) & (2**bits - 1)
    else:
        rank = rank[np.lexsort((key, segment))]
    lowest = rank[spans(np.cumsum(length) - length, np.full(len(length), fanout))].reshape(-1, fanout)
    into = spans((np.cumsum(taken) - taken)[many], np.full(len(length), fanout))
    chosen[into] = (first[many].reshape(-1, 1) + np.sort(lowest, axis=1)).flatten()
    return chosen, taken


def _keys(
    degree: Numbers, many: NDArray[np.bool_], counts: Sequence[int], generators: Sequence[torch.Generator]
) -> NDArray[np.float64]:
    """Return a random number for each candidate of the graphs where not all are taken; the others draw nothing."""
    ends = np.cumsum([0, *counts])
    candidates = np.concatenate([[0], np.cumsum(degree)])[ends].tolist()
    keys = torch.empty(candidates[-1], dtype=torch.float64)
    for k, generator in enumerate(generators):
        if many[ends[k] : ends[k + 1]].any():
            begin, end = candidates[k : k + 2]
            torch.rand(end - begin, generator=generator, out=keys[begin:end])
    found: NDArray[np.float64] = keys.numpy()
    return found


def sample_neighborhoods(
    adjacency: Adjacency,
    owner: Numbers,
    graphs: Sequence[int],
    seeds: Numbers,
    counts: Sequence[int],
    fanouts: Sequence[int],
    generators: Sequence[torch.Generator],
) -> Neighborhoods:
    """Grow `seeds` by one hop per fanout; each node's in-edges are sampled once, when it is first reached.

    `owner` says which graph each node belongs to, ascending. The first `counts[0]` seeds are of `graphs[0]` and draw
    from the first generator, and so on; graphs come in ascending order.
    """
    start, source = adjacency.start.cpu().numpy(), adjacency.source.cpu().numpy()
    seen = np.zeros(len(start) - 1, dtype=bool)
    seen[seeds] = True
    hops, each, entries, targets, frontier = [seeds], [np.array(counts)], [], [], seeds
    for fanout in fanouts:
        chosen, taken = _in_edges(start, frontier, each[-1].tolist(), fanout, generators)
        entries.append(chosen)
        targets.append(np.repeat(frontier, taken))
        before = seen.copy()
        seen[source[chosen]] = True
        frontier = np.flatnonzero(seen & ~before)  # ascending; sorting what was reached takes many times as long
        hops.append(frontier)
        each.append(np.bincount(np.searchsorted(graphs, owner[frontier]), minlength=len(counts)))
    return Neighborhoods(tuple(hops), np.stack(each), np.concatenate(entries), np.concatenate(targets))


def sample_neighborhood(
    adjacency: Adjacency, seeds: Tensor, fanouts: Sequence[int], generator: torch.Generator
) -> Neighborhood:
    """Grow `seeds` of one graph by one hop per fanout."""
    start, source = adjacency.start.cpu().numpy(), adjacency.source.cpu().numpy()
    owner = np.zeros(len(start) - 1, dtype=np.int64)
    found = sample_neighborhoods(adjacency, owner, [0], seeds.cpu().numpy(), [len(seeds)], fanouts, [generator])
    nodes = np.concatenate(found.hops)
    position = np.empty(len(owner), dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    ends = torch.from_numpy(position[np.stack([source[found.entries], found.targets])])
    device = seeds.device
    edges = adjacency.edge[torch.from_numpy(found.entries).to(device)]
    return Neighborhood(torch.from_numpy(nodes).to(device), edges, ends.to(device), len(seeds))
