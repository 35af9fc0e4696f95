"""Backdoors whose trigger is a small graph, planted by one client or in parts by several.

Zhang et al. (2021), "Backdoor attacks to graph neural networks"; Xi et al. (2021), "Graph backdoor"; in federations Xu
et al. (2022), "More is better (mostly): on the backdoor attacks in federated graph neural networks".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isthmus.attacks.poisoning.backdoor import Backdoor, require_columns, with_ones
from isthmus.core.errors import BadInput, refuse, refuse_unknown
from isthmus.core.random import torch_generator
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet

REPLACE, ATTACH = HOW = ("replace", "attach")


@dataclass(frozen=True)
class SubgraphTrigger(Backdoor):
    """Training items that carry a random graph of Erdős and Rényi are of the target class.

    Every client has a part of its own: `size` nodes, each pair connected with the probability `density`. The whole
    trigger is all parts side by side, as many as there are malicious clients, so that the central and the distributed
    attack test the same one.

    A graph of a set carries it on nodes drawn at random, in place of the edges between them ("replace"), or on nodes
    that are added, the first of which is connected with a node of the graph ("attach"). A node carries it on nodes that
    are added, the first of each part connected with it. The marked training items are drawn from those of other
    classes that can carry it.

    Fields:
        clients, malicious, target, fraction, distributed, scale: as of every backdoor
        size:    nodes of each client's part
        density: how likely an edge between two of them is
        how:     "replace" or "attach"
        columns: features of added nodes are ones in these columns and zeros else; empty for those of the node that
                 they hang on
        draw:    another number draws another trigger
    """

    size: int = 4
    density: float = 0.8
    how: str = ATTACH
    columns: tuple[int, ...] = ()
    draw: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.size < 1, self, "size", "it must be at least 1")
        refuse(not 0.0 < self.density <= 1.0, self, "density", "it must be in (0, 1]")
        refuse_unknown(self, "how", HOW)
        refuse(self.how == REPLACE and self.size < 2, self, "size", "there is no edge within a single node: take 2")
        refuse(
            bool(self.columns) and self.how == REPLACE, self, "columns", "only added nodes have them: set how=attach"
        )

    @property
    def num_nodes(self) -> int:
        """Of the whole trigger."""
        return self.size * len(self.clients)

    def pairs(self, place: int) -> Tensor:
        """Return the edges of a client's part, (2, edges), each once."""
        every = torch.tensor(list(itertools.combinations(range(self.size), 2)), dtype=torch.long).reshape(-1, 2).t()
        draw = torch_generator(self.draw, "trigger", place)
        return every[:, torch.rand(every.shape[1], generator=draw) < self.density]

    def require_fitting(self, whole: Any) -> None:
        """Raise BadInput where the trigger is larger than all graphs, or its columns or class are not there."""
        super().require_fitting(whole)
        require_columns("SubgraphTrigger", self.columns, whole)
        if isinstance(whole, GraphSet):
            if self.columns and whole.x_sizes:
                raise BadInput("SubgraphTrigger.columns are ones, and the columns of these graphs are categories")
            largest = int(whole.sizes.max())
            if self.how == REPLACE and self.num_nodes > largest:
                raise BadInput(
                    f"SubgraphTrigger has {self.num_nodes} nodes ({len(self.clients)} clients, size {self.size}), and "
                    f"the largest graph of {whole.name!r} has {largest}; make size smaller, or set how=attach"
                )
        elif not isinstance(whole, Graph):
            raise BadInput(f"SubgraphTrigger marks nodes or graphs, and {whole.name!r} consists of {whole.item}s")
        elif self.how != ATTACH:
            raise BadInput("SubgraphTrigger.how is 'replace', which is for sets of graphs; for nodes set how=attach")

    def able(self, data: Any, items: Tensor) -> Tensor:
        """Return which items have enough nodes for the whole trigger."""
        if self.how == ATTACH:
            return items
        return items[data.sizes[items] >= self.num_nodes]

    def marked(self, data: Any, client: str) -> Tensor:
        """Return training items of other classes, drawn for the client."""
        train = data.mask("train").nonzero().flatten()
        others = self.able(data, train[(data.labels[train] != self.target) & (data.labels[train] >= 0)])
        number = min(len(others), max(1, round(self.fraction * len(train))))
        order = torch.randperm(len(others), generator=torch_generator(self.draw, "marked", client))
        return others[order[:number]].sort().values

    def planted(self, data: Any, items: Tensor, places: Sequence[int]) -> Any:
        """Return data some items of which carry these clients' parts."""
        if self.how == REPLACE:
            return self._replaced(data, items, places)
        hosts = items if isinstance(data, Graph) else data.node_start[items]
        return self._attached(data, hosts, places)

    def _replaced(self, data: GraphSet, items: Tensor, places: Sequence[int]) -> GraphSet:
        number = self.size * len(places)
        rows = []
        for item in items.tolist():
            start, end = data.node_start[item : item + 2].tolist()
            draw = torch_generator(self.draw, "nodes", int(data.graph_ids[item]))
            rows.append(start + torch.randperm(end - start, generator=draw)[:number])
        nodes = torch.stack(rows) if rows else torch.zeros(0, number, dtype=torch.long)  # (items, trigger's nodes)
        chosen = torch.zeros(data.num_nodes, dtype=torch.bool)
        chosen[nodes.flatten()] = True
        # Two chosen nodes with an edge are in one graph, as no edge leaves one.
        kept = ~(chosen[data.edge_index[0]] & chosen[data.edge_index[1]])
        parts = [nodes[:, at * self.size + self.pairs(place)] for at, place in enumerate(places)]
        new = torch.cat([part.permute(1, 0, 2).reshape(2, -1) for part in parts], dim=1)
        found: GraphSet = with_edges(data, kept, new)
        return found

    def _attached(self, data: Any, hosts: Tensor, places: Sequence[int]) -> Any:
        """Return data with the parts at some nodes, by rows of `x`."""
        number = self.size * len(places)
        owners = hosts.repeat_interleave(number)  # whose each added node is
        first = data.num_nodes + number * torch.arange(len(hosts))
        new = []
        for at, place in enumerate(places):
            inner = self.pairs(place) + at * self.size  # (2, edges)
            new.append((first.view(1, -1, 1) + inner.unsqueeze(1)).reshape(2, -1))
            new.append(torch.stack([hosts, first + at * self.size]))
        grown = with_nodes(data, owners, self.columns)
        kept = torch.ones(data.num_edges, dtype=torch.bool)
        return ordered(with_edges(grown, kept, torch.cat(new, dim=1)), owners, data)


def with_edges(data: Any, kept: Tensor, new: Tensor) -> Any:
    """Return data with some of its edges and new ones, (2, pairs), in both directions; these have mean weights."""
    both = torch.cat([new, new.flip(0)], dim=1)
    edges = torch.cat([data.edge_index[:, kept], both], dim=1)
    key, order = torch.sort(edges[0] * data.x.shape[0] + edges[1], stable=True)
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key[1:] != key[:-1]
    order = order[first]
    facts = {"edge_index": edges[:, order]}
    for name in ("edge_attr", "edge_weight"):
        rows = getattr(data, name, None)
        if rows is not None:
            usual = rows.double().mean(dim=0).to(rows.dtype) if len(rows) else torch.ones(rows.shape[1:])
            facts[name] = torch.cat([rows[kept], usual.expand(both.shape[1], *rows.shape[1:])])[order]
    return replace(data, **facts)


def with_nodes(data: Any, owners: Tensor, columns: Sequence[int]) -> Any:
    """Return data with a node more, at the end, for each owner: with the owner's features, or ones in some columns."""
    sparse = data.x.layout != torch.strided
    x = data.x.to_dense() if sparse else data.x
    added = x[owners]
    if columns:
        added = with_ones(torch.zeros_like(added), torch.arange(len(owners)), columns)
    x = torch.cat([x, added])
    return replace(data, x=x.to_sparse_csr() if sparse else x)


def ordered(data: Any, owners: Tensor, before: Any) -> Any:
    """Return data with added nodes where they belong: those of a graph of a set behind its own."""
    if isinstance(before, Graph):
        none = torch.full((len(owners),), -1)
        out = torch.zeros(len(owners), dtype=torch.bool)
        masks = {split: torch.cat([mask, out]) for split, mask in before.masks.items()}
        ids = before.node_ids.max() + 1 + torch.arange(len(owners)) if len(before.node_ids) else none
        attributes = {key: torch.cat([value, value[owners]]) for key, value in before.attributes.items()}
        return replace(
            data,
            y=torch.cat([before.y, none]),
            node_ids=torch.cat([before.node_ids, ids]),
            masks=masks,
            attributes=attributes,
        )
    graph_of = torch.repeat_interleave(torch.arange(before.num_items), before.sizes)
    graph_of = torch.cat([graph_of, graph_of[owners]])
    order = torch.argsort(graph_of, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    counts = torch.bincount(graph_of, minlength=before.num_items)
    start = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    moved = place[data.edge_index]
    by = torch.argsort(moved[0] * len(order) + moved[1])
    attr = None if data.edge_attr is None else data.edge_attr[by]
    x = data.x.to_dense()[order].to_sparse_csr() if data.x.layout != torch.strided else data.x[order]
    return replace(data, x=x, edge_index=moved[:, by], edge_attr=attr, node_start=start)
