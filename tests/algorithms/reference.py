"""A two-layer GCN written down densely, apart from the package's models: an independent formula to hold against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.core.record import Params
from isthmus.data.graph import Graph


def gcn_logits(graph: Graph, params: Params) -> Tensor:
    """S relu(S X W0 + b0) W1 + b1 with S = D^-1/2 (A + I) D^-1/2."""
    adjacency = torch.eye(graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1.0
    scale = adjacency.sum(dim=1).rsqrt()
    operator = scale[:, None] * adjacency * scale[None, :]
    x = graph.x.to_dense() if graph.x.layout != torch.strided else graph.x
    hidden = (operator @ x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]).relu()
    return operator @ hidden @ params["gnn.layers.1.weight"] + params["gnn.layers.1.bias"]


def gcn_loss(graph: Graph, params: Params) -> Tensor:
    """Mean cross-entropy over the labelled training nodes."""
    nodes = graph.mask("train") & (graph.y >= 0)
    return F.cross_entropy(gcn_logits(graph, params)[nodes], graph.y[nodes])


def gradients(graph: Graph, params: Params, mu: float = 0.0, anchor: Params | None = None) -> Params:
    """Gradient of the loss plus mu/2 |w - anchor|^2."""
    live = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    loss = gcn_loss(graph, live)
    if anchor is not None:
        loss = loss + mu / 2 * sum(((live[name] - anchor[name]) ** 2).sum() for name in live)
    return dict(zip(live, torch.autograd.grad(loss, list(live.values())), strict=True))


def gradient_descent(
    graph: Graph, params: Params, steps: int, lr: float, weight_decay: float = 0.0, mu: float = 0.0
) -> Params:
    """Plain gradient descent from `params`, with a proximal term to where it starts."""
    current = params
    for _ in range(steps):
        grads = gradients(graph, current, mu, params)
        current = {n: w - lr * (grads[n] + weight_decay * w) for n, w in current.items()}
    return current


def assert_close(found: Params, expected: Params, atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    gaps = {name: float((found[name] - expected[name]).abs().max()) for name in found}
    assert max(gaps.values()) <= atol, gaps


def assert_equal(found: Params, expected: Params) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
