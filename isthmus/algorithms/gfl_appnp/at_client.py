"""What a client of GFL-APPNP needs before it can answer, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.algorithms.gfl_appnp.hosted import Hosted
from isthmus.algorithms.gfl_appnp.messages import ReceiveAggregates
from isthmus.algorithms.gfl_appnp.shared_updates import Received
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import named
from isthmus.core.protocol import EvaluateModel
from isthmus.core.record import Params, State
from isthmus.learn.able import require_whole_graph
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks.node_classification import NodeClassification


def received(client: GraphClient) -> Received:
    """Return what the client was given to train with."""
    missing = [name for name in ("own", "params", "aggregate", "gradients") if name not in client.state]
    if missing:
        raise CourseFailed(f"this client has received no {missing[0]}: it failed in the setup")
    return Received(client.state["own"], client.state["aggregate"], client.state["gradients"])


def require_aggregates(request: ReceiveAggregates, client: GraphClient) -> None:
    """Refuse aggregates of other shapes than the client's nodes and model: sums with them would be of any size."""
    hosted, slots = Hosted.of(client), dict(client.model.named_parameters())
    if request.aggregate.ndim != 2 or len(request.aggregate) != hosted.num_nodes:
        raise BadInput(f"{client.id} hosts {hosted.num_nodes} nodes; their C cannot have {form_of(request.aggregate)}")
    for name, tensor in request.gradients.items():
        wanted = slots[name].shape if name in slots else None
        if tensor.ndim < 2 or tensor.shape[2:] != wanted or len(tensor) != len(hosted.train_nodes):
            raise BadInput(
                f"grad C of {named(name)} has {form_of(tensor)}; {client.id} trains on {len(hosted.train_nodes)} nodes "
                f"a parameter of shape {None if wanted is None else tuple(wanted)}"
            )


def form_of(tensor: Tensor) -> str:
    """Return a tensor's shape and type in words."""
    return f"the shape {tuple(tensor.shape)} of {tensor.dtype}"


def remembered(memory: State, request: EvaluateModel) -> State:
    """Return a memory to evaluate with; one whose aggregates belong to another model is refused."""
    if "own" not in memory or "aggregate" not in memory:
        raise CourseFailed("this client has received no aggregates: it failed in the setup")
    if not alike(memory.get("params", {}), request.params):
        raise CourseFailed("this client has missed the aggregates of the model that is evaluated")
    return memory


def alike(one: Params, two: Params) -> bool:
    """Whether two models are the same to the bit."""
    return one is two or (
        one.keys() == two.keys()
        and all(one[name] is tensor or torch.equal(one[name], tensor) for name, tensor in two.items())
    )


def same_params(requests: Sequence[Any]) -> Params:
    """Return the model that all are sent."""
    params: Params = requests[0].params
    if any(request.params is not params for request in requests):
        raise ValueError("clients are sent different models")
    return params


def require_fit(client: GraphClient) -> None:
    """Refuse a course in which clients cannot share."""
    if not isinstance(client.task, NodeClassification):
        raise BadInput(
            f"GFL-APPNP classifies nodes or their samples; the task is {type(client.task).__name__}: use "
            "task.name=node_classification or node_samples"
        )
    draws = "GFL-APPNP draws samples, not neighbourhoods"
    require_whole_graph(client, draws, further=" and algorithm.batch_size")
    if any(True for _ in client.model.buffers()):
        raise BadInput("GFL-APPNP needs an encoder that sees each sample by itself; set batch_norm to false")
    if client.own:
        raise BadInput(
            f"GFL-APPNP shares the whole encoder; {sorted(client.own)[0]!r} is personal: set shared to ['*']"
        )


def edges_of(client: GraphClient, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources, targets and weights of the edges of the client's nodes; no weights where all are one."""
    data = client.data
    listed: Tensor | None = data.attributes.get("neighbors")
    if listed is None:
        weight = torch.empty(0, device=keys.device) if data.edge_weight is None else data.edge_weight
        source, target = keys[data.edge_index[0]], keys[data.edge_index[1]]
        foreign = client.foreign
        if foreign is None:
            return source, target, weight
        if data.edge_weight is not None or foreign.weight is not None:
            own = torch.ones(data.num_edges, device=keys.device) if data.edge_weight is None else data.edge_weight
            others = torch.ones(len(foreign.key), device=keys.device) if foreign.weight is None else foreign.weight
            weight = torch.cat([own, others])
        return torch.cat([source, keys[foreign.node]]), torch.cat([target, foreign.key]), weight
    if not torch.equal(keys, data.node_ids):
        raise BadInput(
            f"the graph of {client.id} lists neighbours by the ids of one whole graph, which mean nothing between "
            "sites: leave out the attribute 'neighbors', and give a table of neighbours in the folder"
        )
    real = listed >= 0
    weights: Tensor | None = data.attributes.get("neighbor_weights")
    source = keys[:, None].expand_as(listed)[real]
    return source, listed[real], torch.empty(0, device=keys.device) if weights is None else weights[real]
