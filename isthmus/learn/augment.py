"""Other views of a graph: some edges removed, some features masked. Zhu et al. (2020), "GRACE"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.learn.tasks.task import StackedData
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import Features, SparseMatrix


@dataclass(frozen=True)
class Augmentation:
    """Removes each undirected edge, and masks each feature column with zeros for all nodes, at random.

    Fields:
        edges:    probability that an edge is removed, in both directions
        features: probability that a column is masked
    """

    edges: float = 0.3
    features: float = 0.3

    def __post_init__(self) -> None:
        for name in ("edges", "features"):
            refuse(not 0.0 <= getattr(self, name) < 1.0, self, name, "a rate of removal is at least 0 and below 1")

    def view(self, graph: GraphInput, generator: torch.Generator) -> GraphInput:
        """Return a view of a graph; with both rates 0, the graph itself."""
        kept, columns = self.draw(graph, generator)
        return thinned(graph, kept, columns)

    def draw(self, graph: GraphInput, generator: torch.Generator) -> tuple[Tensor | None, Tensor | None]:
        """Return which edges stay, (edges,), and which columns, (features,); None for all."""
        kept = columns = None
        if self.edges:
            pair, number = graph.undirected_pairs()
            kept = (torch.rand(number, generator=generator) >= self.edges).to(pair.device)[pair]
        if self.features:
            columns = (torch.rand(graph.num_features, generator=generator) >= self.features).to(graph.edge_index.device)
        return kept, columns


def thinned(graph: GraphInput, kept: Tensor | None, columns: Tensor | None) -> GraphInput:
    """Return a graph with only some of its edges, and with zeros in all but some columns."""
    if kept is not None:
        graph = graph.replace(kept=kept if graph.kept is None else graph.kept & kept)
    return graph if columns is None else graph.replace(x=masked(graph.x, columns))


def views_together(rule: Augmentation, graphs: Sequence[GraphInput], data: StackedData, streams: Streams) -> GraphInput:
    """Return the views of many clients side by side, each drawn from the client's own stream as it would be alone."""
    drawn = [rule.draw(graph, generator) for graph, generator in zip(graphs, streams.generators, strict=True)]
    graph = data.graph
    if rule.edges:
        graph = graph.replace(kept=torch.cat([kept for kept, _ in drawn if kept is not None]))
    if not rule.features:
        return graph
    columns = [each for _, each in drawn if each is not None]
    if isinstance(graph.x, SparseMatrix):
        # The entries are each client's, one after the other, in whatever columns this form of the features has.
        entries = [mask[each.x.pattern.col] for each, mask in zip(graphs, columns, strict=True)]  # type: ignore[union-attr]
        return graph.replace(x=graph.x.with_values(graph.x.values * torch.cat(entries)))
    rows = torch.stack(columns).repeat_interleave(data.rows, dim=0)  # (clients * rows, features)
    return graph.replace(x=graph.x * rows)


def masked(x: Features, columns: Tensor) -> Features:
    """Return features with zeros in the columns for which `columns` is false."""
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values * columns[x.pattern.col])
    return x * columns
