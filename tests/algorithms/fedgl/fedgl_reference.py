"""FedGL's equations written down densely, node by node and client by client, apart from the package: a second reading.

Chen, Hu, Xu and Zheng (2021), "FedGL: Federated graph learning framework with global self-supervision".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.algorithms.fedgl import Guidance
from isthmus.core.record import Params
from isthmus.data.graph import Graph

Held = Mapping[str, Sequence[int]]  # client -> the ids of its nodes, in its own order


def fused(held: Held, parts: Mapping[str, Tensor], mean: bool) -> dict[int, Tensor]:
    """Equations 11 and 13 for each node, in double precision: sum over clients of N_k / M times its row."""
    total = sum(len(held[client]) for client in parts)
    found: dict[int, Tensor] = {}
    for node in sorted({node for client in parts for node in held[client]}):
        row, mass = torch.zeros(next(iter(parts.values())).shape[1], dtype=torch.float64), 0.0
        for client, part in parts.items():
            if node in held[client]:
                share = len(held[client]) / total
                row += share * part[list(held[client]).index(node)].double()
                mass += share
        found[node] = row / mass if mean else row
    return found


def labels_of(predictions: Mapping[int, Tensor], threshold: float) -> dict[int, int]:
    """Equation 12: the most probable class where it is more probable than the threshold, else -1."""
    found = {}
    for node, row in predictions.items():
        best = max(range(len(row)), key=lambda j: (float(row[j]), -j))
        found[node] = best if float(row[best]) > threshold else -1
    return found


def graph_of(embeddings: Mapping[int, Tensor], num_neighbors: int) -> dict[tuple[int, int], float]:
    """Equation 14: relu of all products, the largest of each row, rows adding up to one."""
    found: dict[tuple[int, int], float] = {}
    for i, mine in embeddings.items():
        row = {j: max(0.0, float(mine @ other)) for j, other in embeddings.items()}
        kept = sorted(row, key=lambda j: -row[j])[:num_neighbors]
        total = sum(row[j] for j in kept)
        found.update({(i, j): row[j] / total for j in kept if row[j] > 0.0})
    return found


def edge_gaps(embeddings: Mapping[int, Tensor], num_neighbors: int) -> float:
    """How far the smallest product that is kept is from the largest that is not, over all rows, as a share."""
    least = 1.0
    for mine in embeddings.values():
        row = sorted((max(0.0, float(mine @ other)) for other in embeddings.values()), reverse=True)
        if num_neighbors < len(row) and row[0] > 0.0:
            least = min(least, (row[num_neighbors - 1] - row[num_neighbors]) / row[0])
    return least


def projected(
    ids: Sequence[int], labels: Mapping[int, int], edges: Mapping[tuple[int, int], float]
) -> tuple[list[int], Tensor]:
    """Figure 4: the rows of the client's own nodes, and the columns; nodes that nobody spoke of have nothing."""
    graph = torch.zeros(len(ids), len(ids))
    for i, mine in enumerate(ids):
        for j, other in enumerate(ids):
            graph[i, j] = edges.get((mine, other), 0.0)
    return [labels.get(node, -1) for node in ids], graph


def guidance_of(labels: Sequence[int], graph: Tensor) -> Guidance:
    """The record that carries these labels and this dense graph."""
    start, neighbors, weights = [0], [], []
    for row in graph.tolist():
        for j, weight in enumerate(row):
            if weight != 0.0:
                neighbors.append(j)
                weights.append(weight)
        start.append(len(neighbors))
    return Guidance(
        torch.tensor(labels, dtype=torch.int32),
        torch.tensor(start, dtype=torch.int32),
        torch.tensor(neighbors, dtype=torch.int32),
        torch.tensor(weights),
    )


# ---- the client


def complement(graph: Tensor, beta: float, degrees: str) -> Tensor:
    """The second term of equation 9, entry by entry; a node without neighbours has none of it."""
    size = len(graph)
    degree = [sum((float(w) if degrees == "weights" else 1.0) for w in row if w > 0) for row in graph]
    found = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            if degree[i] > 0 and degree[j] > 0:
                found[i, j] = beta * float(graph[i, j]) / (degree[i] ** 0.5 * degree[j] ** 0.5)
    return found


def normalized(data: Graph) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 of the client's own edges (below equation 2)."""
    adjacency = torch.eye(data.num_nodes)
    weights = torch.ones(data.num_edges) if data.edge_weight is None else data.edge_weight
    for (source, target), weight in zip(data.edge_index.t().tolist(), weights.tolist(), strict=True):
        adjacency[target, source] += weight
    degree = adjacency.sum(dim=1)
    return adjacency / (degree[:, None] * degree[None, :]).sqrt()


def gcn(data: Graph, params: Params, operator: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 2 with biases: the hidden layer, and the scores."""
    x = data.x.to_dense() if data.x.layout != torch.strided else data.x
    hidden = (operator @ x @ params["gnn.layers.0.weight"] + params["gnn.layers.0.bias"]).relu()
    return hidden, operator @ hidden @ params["gnn.layers.1.weight"] + params["gnn.layers.1.bias"]


def loss_of(
    data: Graph, params: Params, operator: Tensor, labels: Sequence[int], alpha: float, reduction: str
) -> Tensor:
    """Equation 8, node by node; both sums over the number of training nodes, or each over its own number."""
    _, scores = gcn(data, params, operator)
    logs = F.log_softmax(scores, dim=1)
    train = [i for i in range(data.num_nodes) if bool(data.mask("train")[i]) and int(data.y[i]) >= 0]
    pseudo = [i for i in range(data.num_nodes) if i not in train and labels[i] >= 0]
    supervised = sum((-logs[i, int(data.y[i])] for i in train), torch.zeros(()))
    guessed = sum((-logs[i, labels[i]] for i in pseudo), torch.zeros(()))
    per_label = max(len(train), 1)
    return supervised / per_label + alpha * guessed / (max(len(pseudo), 1) if reduction == "mean" else per_label)


def descended(
    data: Graph,
    params: Params,
    operator: Tensor,
    labels: Sequence[int],
    alpha: float,
    reduction: str,
    *,
    steps: int,
    lr: float,
    weight_decay: float = 0.0,
) -> tuple[Params, float]:
    """Plain gradient descent on equation 8: the parameters after it, and the first loss."""
    first = float(loss_of(data, params, operator, labels, alpha, reduction))
    for _ in range(steps):
        live = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
        grads = torch.autograd.grad(loss_of(data, live, operator, labels, alpha, reduction), list(live.values()))
        params = {n: w - lr * (g + weight_decay * w) for (n, w), g in zip(params.items(), grads, strict=True)}
    return params, first
