"""GFL-APPNP written down densely and slowly, apart from the package: a perceptron by hand, Jacobians by torch.func."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.core.record import Params
from isthmus.data.graph import Graph


def walk_matrix(graph: Graph, alpha: float = 0.1, hops: int = 10) -> Tensor:
    """A~ by APPNP's recursion Z <- (1 - alpha) S Z + alpha H from H = I."""
    adjacency = torch.eye(graph.num_nodes, dtype=torch.float64)
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    adjacency[graph.edge_index[1], graph.edge_index[0]] = weight.double()
    scale = adjacency.sum(dim=1).rsqrt()
    operator = scale[:, None] * adjacency * scale[None, :]
    z = torch.eye(graph.num_nodes, dtype=torch.float64)
    for _ in range(hops):
        z = (1 - alpha) * operator @ z + alpha * torch.eye(graph.num_nodes, dtype=torch.float64)
    return z.float()


def mlp(params: Params, x: Tensor) -> Tensor:
    """relu(x W0 + b0) W1 + b1."""
    inner = (x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]).relu()
    return inner @ params["gnn.layers.1.weight"] + params["gnn.layers.1.bias"]


def samples_of(graph: Graph) -> Tensor:
    """(nodes, samples, features)."""
    if "samples" in graph.attributes:
        return graph.attributes["samples"]
    return graph.x[:, None]


def labels_of(graph: Graph) -> Tensor:
    """(nodes, samples)."""
    samples = samples_of(graph).shape[1]
    return graph.attributes.get("sample_labels", graph.y[:, None].expand(-1, samples))


def split_of(graph: Graph, split: str) -> Tensor:
    """(nodes, samples), truth values."""
    if "sample_split" in graph.attributes:
        return graph.attributes["sample_split"] == ("train", "val", "test").index(split)
    return graph.mask(split)[:, None].expand(-1, samples_of(graph).shape[1])


def hidden(params: Params, graph: Graph) -> Tensor:
    """h of each node, (nodes, classes)."""
    return mlp(params, samples_of(graph)).mean(dim=1)


def logits(params: Params, graph: Graph, mixing: Tensor) -> Tensor:
    """z of each sample, A~_kk h_k,s + sum over j != k of A~_kj h_j, (nodes, samples, classes)."""
    own = mixing.diagonal()
    rest = (mixing - torch.diag(own)) @ hidden(params, graph)
    return own[:, None, None] * mlp(params, samples_of(graph)) + rest[:, None]


def loss(params: Params, graph: Graph, mixing: Tensor, nodes: Sequence[int] | None = None) -> Tensor:
    """Mean cross-entropy over the training samples, of some nodes or of all."""
    chosen = split_of(graph, "train").clone()
    if nodes is not None:
        chosen[[k for k in range(graph.num_nodes) if k not in nodes]] = False
    return F.cross_entropy(logits(params, graph, mixing)[chosen], labels_of(graph)[chosen])


def gradient(params: Params, graph: Graph, mixing: Tensor, nodes: Sequence[int] | None = None) -> Params:
    """Autograd's gradient of centralised APPNP."""
    live = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    found = torch.autograd.grad(loss(live, graph, mixing, nodes), list(live.values()))
    return dict(zip(live, found, strict=True))


def jacobians(params: Params, graph: Graph) -> Params:
    """d h / d W of each node, name -> (nodes, classes, ...)."""
    found: Params = torch.func.jacrev(lambda p: hidden(p, graph))(params)
    return found


def local_updates(
    params: Params,
    graph: Graph,
    mixing: Tensor,
    node: int,
    steps: int,
    lr: float,
    compensate: bool = True,
    batches: Sequence[Tensor] | None = None,
) -> Params:
    """Eq. 15a and 15b for one client with one node: others stay as they were under `params`.

    `batches` says which of the training samples each step sees; by default all.
    """
    others = mixing[node].clone()
    others[node] = 0.0
    aggregate = others @ hidden(params, graph)
    slopes = {name: torch.tensordot(others, j, dims=1) for name, j in jacobians(params, graph).items()}
    chosen = split_of(graph, "train")[node]
    all_x, all_y = samples_of(graph)[node][chosen], labels_of(graph)[node][chosen]
    current = {name: tensor.clone() for name, tensor in params.items()}
    for step in range(steps):
        seen = torch.arange(len(all_y)) if batches is None else batches[step]
        x, y = all_x[seen], all_y[seen]
        own = torch.func.jacrev(mlp)(current, x)  # (samples, classes, ...)
        errors = (mixing[node, node] * mlp(current, x) + aggregate).softmax(dim=1) - F.one_hot(y, graph.num_classes)
        for name in current:
            total = mixing[node, node] * own[name]
            if compensate:
                total = total + slopes[name]
            each = torch.einsum("sc,sc...->s...", errors, total)
            current[name] = current[name] - lr * each.mean(dim=0)
    return current
