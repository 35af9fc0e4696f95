"""Weights held as what training added: against the same training of whole matrices, one client after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from isthmus.learn.optimizers import SGD
from isthmus.models.products.affine import (
    HeldWeight,
    SpanFeatures,
    add_bias_,
    affine,
    bias_gradient,
    block_gram,
)
from isthmus.models.products.sparse import SparseMatrix

CLIENTS, ROWS, FEATURES, OUT = 4, 5, 9, 3


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(clients: int = CLIENTS, rows: int = ROWS, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return (clients, rows, features), few of them set: some rows have none, and the third client has none at all."""
    x = torch.randn(clients, rows, FEATURES, generator=draws(), dtype=torch.float64)
    x[torch.rand(x.shape, generator=draws(1)) < 0.6] = 0.0
    x[:, 1:2] = 0.0
    x[2:3] = 0.0
    return x.to(dtype)


def wrapped(full: Tensor) -> SparseMatrix:
    return SparseMatrix.from_csr(full.to_sparse_csr())


def in_blocks(parts: Tensor) -> Tensor:
    return torch.block_diag(*parts)


# ---- the Gram matrix


@pytest.mark.parametrize(("clients", "rows"), [(4, 5), (1, 6), (7, 1), (2, 30)])
def test_the_gram_matrix_is_that_of_each_block_and_nothing_crosses(clients: int, rows: int) -> None:
    x = features(clients, rows, torch.float32)
    found = block_gram(wrapped(x.flatten(0, 1)), clients)
    assert found.shape == (clients * rows, clients * rows) and found.dtype == torch.float32
    expected = in_blocks(torch.stack([part.double() @ part.double().t() for part in x]))
    torch.testing.assert_close(found.to_dense().double(), expected, rtol=1e-6, atol=1e-6)
    owner = lambda index: index.long() // rows  # noqa: E731
    assert torch.equal(owner(found.pattern.row), owner(found.pattern.col))
    assert found.t() is found and torch.equal(found.to_dense(), found.to_dense().t())


def test_the_gram_matrix_of_features_none_of_which_is_set_is_empty() -> None:
    found = block_gram(wrapped(torch.zeros(6, FEATURES)), 2)
    assert found.pattern.nnz == 0 and found.shape == (6, 6)


# ---- one product


def pieces() -> tuple[Tensor, SpanFeatures, Tensor, SparseMatrix, Tensor]:
    """Return X by client, the span's features, an operator (dense and sparse), and a bias for each client."""
    x = features()
    gram = wrapped(in_blocks(torch.stack([part @ part.t() for part in x])))
    operator = torch.stack([torch.rand(ROWS, ROWS, generator=draws(k), dtype=torch.float64) for k in range(CLIENTS)])
    operator[torch.rand(operator.shape, generator=draws(8)) < 0.5] = 0.0
    bias = torch.randn(CLIENTS, OUT, generator=draws(9), dtype=torch.float64)
    return x, SpanFeatures(wrapped(x.flatten(0, 1)), gram), operator, wrapped(in_blocks(operator)), bias


@pytest.mark.parametrize("with_operator", [False, True])
@pytest.mark.parametrize("biases", ["none", "one", "each"])
def test_the_product_is_that_of_the_whole_weights(with_operator: bool, biases: str) -> None:
    x, span, operator, matrix, bias = pieces()
    start = torch.randn(FEATURES, OUT, generator=draws(3), dtype=torch.float64)
    coordinates = torch.randn(CLIENTS * ROWS + 1, OUT, generator=draws(4), dtype=torch.float64)
    by_client = coordinates[:-1].view(CLIENTS, ROWS, OUT)
    expected = []
    for k in range(CLIENTS):
        weight = start * coordinates[-1] + x[k].t() @ by_client[k]
        out = x[k] @ weight
        out = operator[k] @ out if with_operator else out
        expected.append(out + {"none": 0.0, "one": bias[0], "each": bias[k]}[biases])
    chosen = {"none": None, "one": bias[0], "each": bias}[biases]
    weight = HeldWeight(coordinates, span.matrix.matmul(start))
    found = affine(span, weight, chosen, matrix if with_operator else None)
    torch.testing.assert_close(found, torch.cat(expected))
    torch.testing.assert_close(affine(span, weight, chosen, matrix if with_operator else None), found)  # type: ignore[arg-type]
    assert span.shape == (CLIENTS * ROWS, FEATURES)


@pytest.mark.parametrize("with_operator", [False, True])
def test_the_gradient_by_the_coordinates_is_that_by_the_product(with_operator: bool) -> None:
    _, span, operator, matrix, bias = pieces()
    coordinates = torch.randn(CLIENTS * ROWS + 1, OUT, generator=draws(4), dtype=torch.float64, requires_grad=True)
    bias.requires_grad_()
    origin = torch.randn(CLIENTS * ROWS, OUT, generator=draws(5), dtype=torch.float64)
    out = affine(span, HeldWeight(coordinates, origin), bias, matrix if with_operator else None)
    cotangent = torch.randn(out.shape, generator=draws(6), dtype=torch.float64)
    by_coordinates, by_bias = torch.autograd.grad(out, [coordinates, bias], cotangent)
    for k in range(CLIENTS):
        mine = slice(k * ROWS, (k + 1) * ROWS)
        by_product = operator[k].t() @ cotangent[mine] if with_operator else cotangent[mine]
        torch.testing.assert_close(by_coordinates[mine], by_product)
        torch.testing.assert_close(by_bias[k], cotangent[mine].sum(dim=0))
    assert not by_coordinates[-1].any()


# ---- many steps


@dataclass(frozen=True)
class Recipe:
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0


RECIPES = [Recipe(), Recipe(momentum=0.9), Recipe(weight_decay=0.1), Recipe(proximal=0.3), Recipe(0.8, 0.2, 0.5)]


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return ((out - target).tanh() * (out + 0.3)).sum()


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("own_starts", [False, True])
@pytest.mark.parametrize("with_operator", [False, True])
def test_steps_on_coordinates_are_steps_on_the_whole_weights(
    recipe: Recipe, own_starts: bool, with_operator: bool
) -> None:
    x, span, operator, matrix, _ = pieces()
    starts = torch.randn(CLIENTS, FEATURES, OUT, generator=draws(3), dtype=torch.float64)
    if not own_starts:
        starts = starts[:1].expand(CLIENTS, FEATURES, OUT)
    target = torch.randn(CLIENTS, ROWS, OUT, generator=draws(7), dtype=torch.float64)
    lr, steps = 0.05, 6

    # The plain way, every client by itself with all its weights.
    expected = []
    for k in range(CLIENTS):
        weight, velocity = starts[k].clone(), torch.zeros(FEATURES, OUT, dtype=torch.float64)
        for _ in range(steps):
            weight.requires_grad_()
            out = x[k] @ weight
            out = operator[k] @ out if with_operator else out
            (grad,) = torch.autograd.grad(loss_of(out, target[k]), weight)
            weight = weight.detach()
            grad = grad + recipe.proximal * (weight - starts[k]) + recipe.weight_decay * weight
            velocity = recipe.momentum * velocity + grad
            weight = weight - lr * velocity
        expected.append(weight)

    origin = torch.cat([part @ start for part, start in zip(x, starts, strict=True)])
    coordinates = torch.zeros(CLIENTS * ROWS + 1, OUT, dtype=torch.float64)
    coordinates[-1] = 1.0
    anchor = coordinates.clone()
    optimizer = SGD(lr=lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    state = optimizer.start([coordinates])
    for _ in range(steps):
        coordinates.requires_grad_()
        out = affine(span, HeldWeight(coordinates, origin), None, matrix if with_operator else None)
        (grad,) = torch.autograd.grad(loss_of(out, target.flatten(0, 1)), coordinates)
        coordinates = coordinates.detach()
        grad = grad + recipe.proximal * (coordinates - anchor)
        optimizer.step([coordinates], [grad], state, lr)
    by_client = coordinates[:-1].view(CLIENTS, ROWS, OUT)
    for k in range(CLIENTS):
        found = starts[k] * coordinates[-1] + x[k].t() @ by_client[k]
        torch.testing.assert_close(found, expected[k], rtol=1e-10, atol=1e-10)
        assert not torch.allclose(found, starts[k]) or not x[k].any()


# ---- biases


def test_biases_and_their_gradients_are_for_all_rows_or_for_each_clients() -> None:
    h, bias = torch.randn(6, 2, generator=draws(1)), torch.randn(3, 2, generator=draws(2))
    for chosen, repeated in ((bias[0], bias[0].expand(6, 2)), (bias, bias.repeat_interleave(2, dim=0))):
        copy = h.clone()
        assert add_bias_(copy, chosen) is copy
        torch.testing.assert_close(copy, h + repeated)
    torch.testing.assert_close(bias_gradient(h, torch.Size([2])), h.sum(dim=0))
    expected = torch.stack([h[:2].sum(0), h[2:4].sum(0), h[4:].sum(0)])
    torch.testing.assert_close(bias_gradient(h, torch.Size([3, 2])), expected)
