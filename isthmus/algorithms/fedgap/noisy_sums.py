"""A client's sums over neighbours, made once, with noise that hides an edge or a node. Sajadmanesh et al. (2023), GAP.

Each hop adds up rows no longer than one, so that an edge changes two rows of the sums by one each, and a node with D
edges D rows, whatever the rows are; noise on each hop hides that, and what is made of noisy sums is as private as they
are. They are made once for a client: the memory holds the encoder and the key of the noise, from which they are made
again, to the bit, after a restart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.guards.hiding import NoisySums
from isthmus.core.random import ProtectingStream, digest
from isthmus.core.record import CPU, Params, State
from isthmus.data.graph import Graph
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import load_params
from isthmus.learn.tasks.node_classification import PreparedNodes
from isthmus.models.gnn.gap import GAPStack, OwnRows, SummedRows
from isthmus.models.inputs import GraphInput


def own_rows(prepared: PreparedNodes) -> PreparedNodes:
    """Return a client's data without edges, for the encoder to learn from; kept with the data."""
    found: PreparedNodes | None = getattr(prepared, "own_rows", None)
    if found is None:
        found = replace(prepared, graph=OwnRows(prepared.graph.x, prepared.graph.edge_index[:, :0]))
        prepared.own_rows = found  # type: ignore[attr-defined]
    return found


def memory_of_sums(encoder: Params, client: GraphClient, hiding: NoisySums | None) -> State:
    """Return what a client keeps to make its sums: the encoder, the key of the noise, and what it is about.

    Raises BadInput where the graph has what the noise would not hide.
    """
    data = client.data
    _require_plain(data, hiding)
    about = _about(data)
    stream = client.protecting("sums", {"encoder": encoder, "about": about})
    return {"encoder": dict(encoder), "key": stream.to_keep(), "about": about}


def with_sums(client: GraphClient, memory: State, hiding: NoisySums | None) -> PreparedNodes:
    """Return a client's data as the head reads them; the noisy sums are made once and kept with the data."""
    prepared: Any = client.prepared
    kept = getattr(prepared, "with_sums", None)
    if kept is None or kept[0] is not memory:
        if not torch.equal(_about(client.data), memory["about"].to(CPU)):
            raise BadInput(
                f"{client.id}'s edges are other than those that it made noisy sums of in this course; the same noise "
                "on both would show the difference: start a new course"
            )
        kept = prepared.with_sums = (memory, replace(prepared, graph=_summed(client, memory, hiding)))
    found: PreparedNodes = kept[1]
    return found


def _summed(client: GraphClient, memory: State, hiding: NoisySums | None) -> SummedRows:
    network = network_of(client.model)
    assert network is not None
    slots = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    load_params(client.model, {**slots, **memory["encoder"]})
    stream = ProtectingStream.kept(memory["key"])
    graph: GraphInput = client.prepared.graph
    if hiding is not None and hiding.max_degree is not None:
        graph = GraphInput(graph.x, bounded(graph.edge_index, graph.num_nodes, hiding.max_degree, stream))
    spread = 0.0 if hiding is None else hiding.spread(network.hops)

    def blur(sums: Tensor) -> Tensor:
        return sums + spread * stream.normal(sums.shape).to(sums.device) if spread else sums

    with torch.no_grad():
        return SummedRows(network.summed(graph, None, blur), graph.edge_index[:, :0])


def network_of(model: Any) -> GAPStack | None:
    """Return the graph network of a model that sums once, between no other parts; None for any other model."""
    network = getattr(model, "gnn", None)
    alone = all(getattr(model, part, None) is None for part in ("encoder", "decoder", "readout"))
    return network if type(network) is GAPStack and alone else None


def bounded(edge_index: Tensor, num_nodes: int, most: int, stream: ProtectingStream) -> Tensor:
    """Return the edges, (2, kept), of which no more than `most` leave a node; of more, so many drawn at random."""
    if int(degrees(edge_index, num_nodes).max(initial=0)) <= most:
        return edge_index
    drawn = stream.permutation(edge_index.shape[1]).to(edge_index.device)
    order = drawn[torch.argsort(edge_index[0][drawn], stable=True)]  # by source, each source's in a random order
    source = edge_index[0][order]
    first = torch.searchsorted(source, source)  # where the run of each edge's source begins
    place = torch.arange(len(source), device=source.device) - first
    return edge_index[:, order[place < most].sort().values]


def degrees(edge_index: Tensor, num_nodes: int) -> Any:
    """Return the number of edges that leave each node, as a numpy array."""
    return torch.bincount(edge_index[0], minlength=num_nodes).cpu().numpy()


def _about(data: Graph) -> Tensor:
    """Return what tells other edges and features from these."""
    x = data.x
    parts = (x,) if x.layout == torch.strided else (x.crow_indices(), x.col_indices(), x.values())
    found = digest({"edges": data.edge_index.to(CPU), "x": tuple(part.to(CPU) for part in parts)})
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def _require_plain(data: Graph, hiding: NoisySums | None) -> None:
    """Refuse edges that count for more than one, and nodes in more sums than the noise is made for."""
    if hiding is None:
        return
    if data.edge_weight is not None:
        raise BadInput(
            "the edges have weights, by which one could change a sum by more than the noise hides; leave the column of "
            "weights out"
        )
    pairs = data.edge_index[0] * data.num_nodes + data.edge_index[1]
    if len(torch.unique(pairs)) < len(pairs):
        raise BadInput("some edges are there more than once, and the noise hides one of each; keep one")
    most = int(degrees(data.edge_index, data.num_nodes).max(initial=0))
    if hiding.max_degree is not None and most > hiding.max_degree and not hiding.cut:
        raise BadInput(
            f"a node has {most} edges, and the noise hides one with {hiding.max_degree} at most; set max_degree to "
            f"{most}, or cut=true to leave edges out (what that does not hide: docs/guards/differential-privacy.md)"
        )
