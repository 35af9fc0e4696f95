"""FGSSL's local objective as its paper states it: dense matrices, loops over nodes, one generator for all draws.

What is drawn, in this order: the dropout of the cross-entropy's forward pass; the strong view's edges (one number for
each undirected edge, by its smaller and then its larger end), then its columns; the dropout of the own model on it; the
weak view's edges and columns; the nodes to contrast with, where there are too many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.algorithms import FGSSL
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.augment import Augmentation
from isthmus.models.dropout import dropout


def pairs_of(data: Graph) -> list[tuple[int, int]]:
    return sorted({(min(a, b), max(a, b)) for a, b in data.edge_index.t().tolist()})


def operator(data: Graph, pairs: list[tuple[int, int]]) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 of the graph with some of its edges."""
    weights: dict[tuple[int, int], float] = {}
    for column, (a, b) in enumerate(data.edge_index.t().tolist()):
        weights[a, b] = 1.0 if data.edge_weight is None else float(data.edge_weight[column])
    matrix = torch.eye(data.num_nodes, dtype=torch.float64)
    for a, b in pairs:
        matrix[a, b], matrix[b, a] = weights[b, a], weights[a, b]
    scale = matrix.sum(dim=1).rsqrt()
    return scale[:, None] * matrix * scale[None, :]


def view_of(data: Graph, rule: Augmentation, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The operator and the features of a view."""
    pairs = pairs_of(data)
    x = (data.x.to_dense() if data.x.layout != torch.strided else data.x).double()
    if rule.edges:
        numbers = torch.rand(len(pairs), generator=generator).tolist()
        pairs = [pair for pair, number in zip(pairs, numbers, strict=True) if number >= rule.edges]
    if rule.features:
        for column, number in enumerate(torch.rand(x.shape[1], generator=generator).tolist()):
            if number < rule.features:
                x = x.clone()
                x[:, column] = 0.0
    return operator(data, pairs), x


def embed(view: tuple[Tensor, Tensor], params: Params, rate: float, generator: torch.Generator | None) -> Tensor:
    """relu(dropout(S X W0 + b0))."""
    matrix, x = view
    out = matrix @ x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]
    return (out * dropout(torch.ones(out.shape), rate, generator).double()).relu()


def classify(view: tuple[Tensor, Tensor], h: Tensor, params: Params) -> Tensor:
    """S H W1 + b1."""
    return view[0] @ h @ params["gnn.layers.1.weight"] + params["gnn.layers.1.bias"]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    length = a.norm() * b.norm()
    return (a * b).sum() / length if float(length.detach()) > 0 else a.new_zeros(())


def contrast(h: Tensor, g: Tensor, labels: dict[int, int], tau: float, sample: list[int] | None) -> Tensor:
    """Equation 8, the mean over the nodes that have a label here."""
    losses = []
    for i, label in labels.items():
        chosen = list(labels) if sample is None else sample
        positives = [i, *(p for p in chosen if labels[p] == label and p != i)]
        negatives = [k for k in chosen if labels[k] != label]
        if not negatives:
            losses.append(h.new_zeros(()))
            continue
        against = torch.stack([(cosine(h[i], g[k]) / tau).exp() for k in negatives]).mean()
        against = against * sum(other != label for other in labels.values())
        terms = [(cosine(h[i], g[p]) / tau).exp() for p in positives]
        losses.append(-torch.stack([(e / (e + against)).log() for e in terms]).mean())
    return torch.stack(losses).mean()


def divergence(z: Tensor, teacher: Tensor, data: Graph, omega: float) -> Tensor:
    """Equations 9 to 11, the mean over all nodes."""
    total = z.new_zeros(())
    pairs = pairs_of(data)
    for i in range(data.num_nodes):
        neighbors = [b for a, b in pairs if a == i] + [a for a, b in pairs if b == i]
        if neighbors:
            theirs = torch.stack([teacher[i] @ teacher[j] / omega for j in neighbors]).softmax(dim=0)
            mine = torch.stack([z[i] @ z[j] / omega for j in neighbors]).softmax(dim=0)
            total = total + (theirs * (theirs / mine).log()).sum()
    return total / data.num_nodes


def loss_of(
    data: Graph, params: Params, frozen: Params, algorithm: FGSSL, generator: torch.Generator, rate: float = 0.0
) -> Tensor:
    """Equation 12 of one step; `params` are of double precision."""
    frozen = {name: tensor.double() for name, tensor in frozen.items()}
    nodes = [i for i in range(data.num_nodes) if bool(data.mask("train")[i]) and int(data.y[i]) >= 0]
    labels = {i: int(data.y[i]) for i in nodes}
    as_it_is = view_of(data, Augmentation(0.0, 0.0), generator)
    scores = classify(as_it_is, embed(as_it_is, params, rate, generator), params)
    total = -torch.stack([scores[i].log_softmax(dim=0)[labels[i]] for i in nodes]).mean()
    strong = view_of(data, algorithm.strong, generator)
    h = embed(strong, params, rate, generator)
    weak = view_of(data, algorithm.weak, generator)
    g = embed(weak, frozen, 0.0, None)
    if algorithm.lambda_c:
        sample = None
        if len(nodes) > algorithm.max_contrast:
            drawn = torch.randperm(len(nodes), generator=generator)[: algorithm.max_contrast].tolist()
            sample = [nodes[k] for k in drawn]
        total = total + algorithm.lambda_c * contrast(h, g, labels, algorithm.tau, sample)
    if algorithm.lambda_d:
        z, teacher = classify(strong, h, params), classify(weak, g, frozen)
        total = total + algorithm.lambda_d * divergence(z, teacher, data, algorithm.omega)
    return total


def descended(
    data: Graph, start: Params, algorithm: FGSSL, generator: torch.Generator, steps: int, lr: float, rate: float = 0.0
) -> tuple[Params, list[float]]:
    """Plain gradient descent from `start`, and the loss of every step."""
    current = {name: tensor.double() for name, tensor in start.items()}
    losses = []
    for _ in range(steps):
        live = {name: tensor.clone().requires_grad_() for name, tensor in current.items()}
        loss = loss_of(data, live, start, algorithm, generator, rate)
        losses.append(float(loss.detach()))
        grads = torch.autograd.grad(loss, list(live.values()))
        current = {n: w - lr * grad for (n, w), grad in zip(current.items(), grads, strict=True)}
    return {name: tensor.float() for name, tensor in current.items()}, losses
