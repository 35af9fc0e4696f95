"""An encoder written down densely in double precision, and graphs with odd nodes, to hold the objectives against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.selfsup import SelfSupervision
from isthmus.core.random import seeded
from isthmus.core.record import Params
from isthmus.models import GCN, GraphInput, MLPDecoder, Model, ModelSpec
from isthmus.models.products.sparse import dense

FEATURES, WIDTH = 4, 5
PLAIN = ModelSpec(GCN(hidden=WIDTH, dropout=0.0), decoder=MLPDecoder(hidden=3))
NORMED = ModelSpec(GCN(hidden=WIDTH, dropout=0.0, batch_norm=True), decoder=MLPDecoder(hidden=3), activate=True)
SPECS = {"plain": PLAIN, "batch norm": NORMED}


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ring(number: int = 9) -> GraphInput:
    """A ring with a chord; the last two nodes have no edges."""
    nodes = torch.arange(number - 2)
    pairs = torch.stack([nodes, (nodes + 1) % (number - 2)])
    pairs = torch.cat([pairs, torch.tensor([[0], [3]])], dim=1)
    return GraphInput(torch.randn(number, FEATURES, generator=stream(3)), torch.cat([pairs, pairs.flip(0)], dim=1))


def bare(number: int = 6) -> GraphInput:
    """Nodes without edges."""
    return GraphInput(torch.randn(number, FEATURES, generator=stream(4)), torch.zeros(2, 0, dtype=torch.int64))


GRAPHS = {"ring": ring, "no edges": bare}


def noisy(module: nn.Module, seed: int = 0) -> Params:
    """Values for a module's parameters and buffers in which biases and statistics matter too."""
    draw = stream(seed)
    found = {}
    for name, slot in module.state_dict().items():
        noise = torch.randn(slot.shape, generator=draw)
        found[name] = slot + 0.3 * (noise.abs() if "running_var" in name else noise)
    return found


def build(spec: ModelSpec, objective: SelfSupervision) -> tuple[Model, nn.Module]:
    """A model and the objective's own parts, all of them off their first values."""
    with seeded(1, "dense"):
        model, own = spec.build(FEATURES, 3), objective.build(WIDTH)
    model.load_state_dict(noisy(model, 5))
    own.load_state_dict(noisy(own, 6))
    return model, own


def encoder_of(model: nn.Module) -> Params:
    return {name: slot for name, slot in model.state_dict().items() if not name.startswith("decoder.")}


def doubled(params: Params, live: bool = True) -> Params:
    """Copies in double precision, with a gradient unless they are buffers."""
    return {n: t.detach().double().requires_grad_(live and "running" not in n) for n, t in params.items()}


def encoded(graph: GraphInput, p: Params) -> Tensor:
    """S relu(norm(S X W0 + b0)) W1 + b1 with S = D^-1/2 (A + I) D^-1/2; then relu(norm(.)) where there is one."""
    adjacency = torch.eye(graph.num_nodes, dtype=torch.float64)
    for number, (source, target) in enumerate(graph.edge_index.t().tolist()):
        if graph.kept is None or bool(graph.kept[number]):
            adjacency[target, source] = 1.0
    scale = adjacency.sum(dim=1).rsqrt()
    step = scale[:, None] * adjacency * scale[None, :]
    h = step @ dense(graph.x).double() @ p["gnn.layers.0.weight"] + p["gnn.layers.0.bias"]
    h = _normed(h, p, "gnn.norms.0").relu()
    h = step @ h @ p["gnn.layers.1.weight"] + p["gnn.layers.1.bias"]
    return _normed(h, p, "activation.norm").relu() if "activation.norm.weight" in p else h


def _normed(h: Tensor, p: Params, name: str) -> Tensor:
    if f"{name}.weight" not in p:
        return h
    mean, var = h.mean(dim=0), h.var(dim=0, correction=0)
    return (h - mean) / (var + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def perceptron(h: Tensor, p: Params, name: str) -> Tensor:
    """relu(H W0 + b0) W1 + b1."""
    hidden = (h @ p[f"{name}.layers.0.weight"] + p[f"{name}.layers.0.bias"]).relu()
    return hidden @ p[f"{name}.layers.1.weight"] + p[f"{name}.layers.1.bias"]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of two vectors, number by number."""
    products = [x * y for x, y in zip(a, b, strict=True)]
    lengths = [torch.stack([x * x for x in each]).sum().sqrt() for each in (a, b)]
    return torch.stack(products).sum() / (lengths[0] * lengths[1])


def require_same_slopes(found: Tensor, model: nn.Module, own: nn.Module, wanted: Tensor, p: Params, s: Params) -> None:
    """Hold a loss and its gradients in the model and the own parts against those of a reference at `p` and `s`."""
    torch.testing.assert_close(found.detach().double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    slots = {**dict(model.named_parameters()), **{f"own.{n}": t for n, t in own.named_parameters()}}
    theirs = {**p, **{f"own.{n}": t for n, t in s.items()}}
    slots = {name: slot for name, slot in slots.items() if name in theirs}
    grads = torch.autograd.grad(found, list(slots.values()), allow_unused=True)
    expected = torch.autograd.grad(wanted, [theirs[name] for name in slots], allow_unused=True)
    assert any(grad is not None and bool(grad.any()) for grad in grads)
    for name, grad, other in zip(slots, grads, expected, strict=True):
        ours = torch.zeros_like(slots[name]) if grad is None else grad
        right = torch.zeros_like(theirs[name]) if other is None else other
        torch.testing.assert_close(ours.double(), right, rtol=1e-3, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")
