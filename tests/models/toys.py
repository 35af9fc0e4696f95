"""Small graphs, and the comparison of a module of ours with one of torch_geometric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from isthmus.models import GraphInput

TOYS = ("mixed", "weighted", "one_node", "no_edges")
UNWEIGHTED = ("mixed", "one_node", "no_edges")
FEATURES = 5


def toy(name: str, features: int = FEATURES) -> GraphInput:
    """A graph of seven nodes with an isolated one, without or with weights that differ by direction, or a bare one."""
    draw = torch.Generator().manual_seed(1)
    nodes = 1 if name == "one_node" else 7
    x = torch.randn(nodes, features, generator=draw)
    x[torch.rand(nodes, features, generator=draw) < 0.3] = 0.0
    if name in ("one_node", "no_edges"):
        return GraphInput(x, torch.zeros(2, 0, dtype=torch.int64))
    pairs = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 2, 4, 5, 5]])
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    weight = torch.rand(edges.shape[1], generator=draw) + 0.1 if name == "weighted" else None
    return GraphInput(x, edges, weight)


def sparse(graph: GraphInput) -> GraphInput:
    assert isinstance(graph.x, Tensor)
    return graph.replace(x=graph.x.to_sparse_csr())


def cotangent(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(2))


def randomise(module: nn.Module, seed: int = 3) -> None:
    """Give every parameter, biases too, a value that matters."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.5)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def assert_same_as_pyg(
    ours: nn.Module,
    call: Callable[[GraphInput], Tensor],
    theirs: nn.Module,
    reference: Callable[[Tensor], Tensor],
    names: Mapping[str, str],
    graph: GraphInput,
) -> None:
    """Copy the parameters by `names` (ours to theirs), then compare outputs and all gradients, the features' too."""
    randomise(ours)
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert set(names) == set(mine) and set(names.values()) == set(other)
    turned = {name: name.endswith("weight") and "norm" not in name for name in names}
    with torch.no_grad():
        for name, value in mine.items():
            other[names[name]].copy_((value.t() if turned[name] else value).reshape(other[names[name]].shape))
    assert isinstance(graph.x, Tensor)
    x = graph.x.clone().requires_grad_()
    out, expected = call(graph.replace(x=x)), reference(x)
    assert_close(out, expected)
    g = cotangent(out)
    found = torch.autograd.grad(out, [x, *mine.values()], g)
    wanted = torch.autograd.grad(expected, [x, *(other[names[name]] for name in mine)], g)
    for name, a, b in zip(["", *mine], found, wanted, strict=True):
        assert_close(a, (b.t() if turned.get(name) else b).reshape(a.shape))
