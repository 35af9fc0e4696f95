"""Graphs of many clients side by side as one, each padded to as many rows as the largest has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix, dense, padded_starts


def stack_graphs(graphs: Sequence[GraphInput]) -> tuple[GraphInput, int]:
    """Return graphs side by side, each padded, without edges or features, to as many nodes as the largest has."""
    if any(graph.kept is not None or graph.complement is not None for graph in graphs):
        raise ValueError("a graph has edges left out or a complement; put the graphs side by side first")
    rows = max(graph.num_nodes for graph in graphs)
    edge_index = torch.cat([graph.edge_index + k * rows for k, graph in enumerate(graphs)], dim=1)
    x = _stack_features([graph.x for graph in graphs], rows)
    return GraphInput(x, edge_index, stack_weights(graphs)), rows


def stack_weights(graphs: Sequence[GraphInput]) -> Tensor | None:
    """Return the weights of all edges, graph after graph; None where all are one."""
    if all(graph.edge_weight is None for graph in graphs):
        return None
    ones = torch.ones(max(graph.num_edges for graph in graphs), device=graphs[0].edge_index.device)
    return torch.cat([ones[: g.num_edges] if g.edge_weight is None else g.edge_weight for g in graphs])


def _stack_features(parts: Sequence[Features], rows: int) -> Features:
    sparse = [part for part in parts if isinstance(part, SparseMatrix)]
    width = parts[0].shape[1]
    device = sparse[0].values.device if sparse else dense(parts[0]).device
    if len(sparse) < len(parts):
        stacked = torch.zeros(len(parts), rows, width, device=device)
        for k, part in enumerate(parts):
            stacked[k, : part.shape[0]] = dense(part)
        return stacked.flatten(0, 1)
    crow = padded_starts(sparse, rows)
    pattern = Pattern(crow, torch.cat([part.pattern.col for part in sparse]), (len(parts) * rows, width))
    return SparseMatrix(pattern, torch.cat([part.values for part in sparse]))
