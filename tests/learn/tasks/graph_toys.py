"""Small sets of graphs, with the odd graphs that real ones have: one without edges, one without nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from isthmus.data.graph import undirected
from isthmus.data.graph_set import GraphSet
from isthmus.models import GCN, GIN, CategoricalEncoder, MLPDecoder, ModelSpec, SumReadout

SIZES = (4, 3)
EDGE_SIZES = (2, 3)
PLAIN = ModelSpec(GCN(hidden=8), decoder=MLPDecoder(8), readout=SumReadout())
BONDS = ModelSpec(GIN(hidden=8, edge_dim=sum(EDGE_SIZES)), CategoricalEncoder(8), MLPDecoder(8), SumReadout())
NODES = (5, 1, 7, 0, 4, 6, 3, 8, 2, 5, 6, 4)  # of each graph


def toy_set(
    target: str = "class",
    *,
    sizes: Sequence[int] = NODES,
    categorical: bool = False,
    sparse: bool = False,
    num_outputs: int = 3,
    missing: float = 0.3,
    seed: int = 0,
) -> GraphSet:
    """Return graphs on rings with chords; labels depend on the features. The last two graphs have no label."""
    draw = torch.Generator().manual_seed(seed)
    start = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    pairs = [_ring(int(first), size, draw) for first, size in zip(start, sizes, strict=False) if size > 1]
    num_nodes = int(start[-1])
    edge_index = undirected(torch.cat(pairs, dim=1), num_nodes)[0]
    if categorical:
        x = torch.stack([torch.randint(n, (num_nodes,), generator=draw).float() for n in SIZES], dim=1)
        edge_attr = torch.stack(
            [torch.randint(n, (edge_index.shape[1],), generator=draw).float() for n in EDGE_SIZES], dim=1
        )
    else:
        x, edge_attr = torch.randn(num_nodes, 4, generator=draw), None
    y = _labels(target, x, start, num_outputs, missing, draw)
    y[-2:] = -1 if target == "class" else torch.nan
    number = torch.arange(len(sizes))
    return GraphSet(
        x=torch.where(x > 0, x, 0.0).to_sparse_csr() if sparse else x,
        edge_index=edge_index,
        node_start=start,
        y=y,
        num_classes=num_outputs,
        target=target,
        graph_ids=3 * number + 1,  # no positions: some of the graphs of a file may be left out
        edge_attr=edge_attr,
        x_sizes=SIZES if categorical else (),
        edge_sizes=EDGE_SIZES if categorical else (),
        masks={"train": number % 4 < 2, "val": number % 4 == 2, "test": number % 4 == 3},
        attributes={"size": torch.tensor(sizes)},
        name=f"toy {target}",
    )


def _ring(first: int, size: int, draw: torch.Generator) -> Tensor:
    nodes = torch.arange(size)
    chord = torch.randint(size, (2, size // 2), generator=draw)
    return first + torch.cat([torch.stack([nodes, (nodes + 1) % size]), chord[:, chord[0] != chord[1]]], dim=1)


def _labels(target: str, x: Tensor, start: Tensor, num_outputs: int, missing: float, draw: torch.Generator) -> Tensor:
    sums = torch.stack([x[a:b].sum(dim=0) for a, b in pairwise(start.tolist())])
    scores = sums @ torch.randn(x.shape[1], num_outputs, generator=draw)
    if target == "class":
        return scores.argmax(dim=1)
    y = (scores > scores.median()).float() if target == "binary" else scores
    y[torch.rand(y.shape, generator=draw) < missing] = torch.nan
    return y


def without_labels(data: GraphSet) -> GraphSet:
    return replace(data, y=torch.full_like(data.y, -1 if data.target == "class" else torch.nan))
