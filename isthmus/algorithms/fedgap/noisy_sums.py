"""A client's sums over neighbours, made once, with noise that hides an edge or a node. Sajadmanesh et al. (2023), GAP.

Each hop adds up rows no longer than one, so that an edge changes two rows of the sums by one each, and a node with D
edges D rows, whatever the rows are; noise on each hop hides that, and what is made of noisy sums is as private as they
are. A network says which sets of sums there are: GAP's has one, of all hops, ProGAP's one for each hop. Each is made
once for a client: the memory holds what it is made by and the key of the noise, from which it is made again, to the
bit, after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
from isthmus.models.gnn.gap import GAPStack, HeadOnRows, OwnRows
from isthmus.models.gnn.progap import ProGAPStack
from isthmus.models.inputs import GraphInput

# By the names of what describes them; a subclass may look at edges again.
NETWORKS: dict[str, type[HeadOnRows]] = {"GAP": GAPStack, "ProGAP": ProGAPStack}


def own_rows(prepared: PreparedNodes) -> PreparedNodes:
    """Return a client's data without edges, for the encoder to learn from; kept with the data."""
    found: PreparedNodes | None = getattr(prepared, "own_rows", None)
    if found is None:
        found = replace(prepared, graph=OwnRows(prepared.graph.x, prepared.graph.edge_index[:, :0]))
        prepared.own_rows = found  # type: ignore[attr-defined]
    return found


def memory_of_sums(encoder: Params, client: GraphClient, hiding: NoisySums | None, number: int = 0) -> State:
    """Return what a client keeps to make a set of sums: the encoder, the key of the noise, and what it is about.

    `number` tells sets of a course apart, so that no two have the same noise.

    Raises BadInput where the graph has what the noise would not hide.
    """
    data = client.data
    _require_plain(data, hiding)
    about = _about(data)
    stream = client.protecting(f"sums {number}", {"encoder": encoder, "about": about})
    return {"encoder": dict(encoder), "key": stream.to_keep(), "about": about}


def with_sums(client: GraphClient, made: Sequence[State], hiding: NoisySums | None) -> PreparedNodes:
    """Return a client's data as the head reads them; sets of noisy sums are made once and kept with the data."""
    prepared: Any = client.prepared
    kept = getattr(prepared, "with_sums", None)
    if kept is None or kept[0] is not made:
        about = _about(client.data)
        if not all(torch.equal(about, each["about"].to(CPU)) for each in made):
            raise BadInput(
                f"{client.id}'s edges are other than those that it made noisy sums of in this course; the same noise "
                "on both would show the difference: start a new course"
            )
        kept = prepared.with_sums = (made, replace(prepared, graph=_summed(client, made, hiding)))
    found: PreparedNodes = kept[1]
    return found


def _summed(client: GraphClient, made: Sequence[State], hiding: NoisySums | None) -> GraphInput:
    network: HeadOnRows = client.model.gnn  # type: ignore[assignment]
    slots = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    streams = [ProtectingStream.kept(each["key"]) for each in made]
    graph: GraphInput = client.prepared.graph
    if hiding is not None and hiding.max_degree is not None:  # the same edges in all sets
        graph = GraphInput(graph.x, bounded(graph.edge_index, graph.num_nodes, hiding.max_degree, streams[0]))
    spread = 0.0 if hiding is None else hiding.spread(network.hops)
    view: GraphInput = own_rows(client.prepared).graph
    with torch.no_grad():
        for each, stream in zip(made, streams, strict=True):
            load_params(client.model, {**slots, **each["encoder"]})
            view = network.with_sums(view, graph, partial(_blurred, spread, stream))
    load_params(client.model, slots)  # of who asked, which may be a later stage's
    return view


def _blurred(spread: float, stream: ProtectingStream, sums: Tensor) -> Tensor:
    return sums + spread * stream.normal(sums.shape).to(sums.device) if spread else sums


def network_of(model: Any, name: str) -> HeadOnRows | None:
    """Return the graph network of a model, between no other parts, if it is the one of this name; None if not."""
    network = getattr(model, "gnn", None)
    alone = all(getattr(model, part, None) is None for part in ("encoder", "decoder", "readout"))
    return network if type(network) is NETWORKS[name] and alone else None


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
