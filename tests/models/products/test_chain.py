"""A chain of steps against autograd, which records the same steps."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from isthmus.learn.metrics.classification import Examples, losses_of_clients
from isthmus.models.dropout import Streams, activation
from isthmus.models.products.affine import affine, aggregated_affine
from isthmus.models.products.chain import chained
from isthmus.models.products.sparse import SparseMatrix

CLIENTS, ROWS, FEATURES, HIDDEN, CLASSES = 3, 5, 7, 6, 4


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def operator() -> SparseMatrix:
    dense = torch.block_diag(*torch.rand(CLIENTS, ROWS, ROWS, generator=draws(0)))
    return SparseMatrix.from_csr((dense * (dense > 0.4)).to_sparse_csr())


def params(classes: int = CLASSES) -> list[Tensor]:
    shapes = [(CLIENTS, FEATURES, HIDDEN), (CLIENTS, HIDDEN), (CLIENTS, HIDDEN, classes), (CLIENTS, classes)]
    return [torch.randn(shape, generator=draws(k)).requires_grad_() for k, shape in enumerate(shapes)]


def losses(found: list[Tensor], examples: Examples, p: float) -> Tensor:
    """Return those of two layers with dropout between them, with the same draws at every call."""
    x = torch.randn(CLIENTS * ROWS, FEATURES, generator=draws(9))
    streams = Streams(lambda: [draws(k) for k in range(CLIENTS)], [ROWS] * CLIENTS, ROWS, ())
    first, bias, second, other = found
    hidden = affine(x, first, bias, operator(), activation(p, streams))
    return losses_of_clients(affine(hidden, second, other, operator()), examples)


def examples() -> Examples:
    return Examples.of(torch.tensor([0, 3, 4, 6, 10, 11]), torch.tensor([0, 3, 1, 1, 2, 0]), (3, 1, 2))


@pytest.mark.parametrize("p", [0.0, 0.5, 0.3])
def test_the_gradients_are_those_of_autograd_to_the_bit(p: float) -> None:
    found, told = params(), examples()
    expected = losses(found, told, p)
    slopes = torch.autograd.grad(expected, found, torch.ones_like(expected))
    with chained() as chain:
        each = losses(found, told, p)
        mine = chain.slopes(found)
    assert torch.equal(each, expected) and not each.requires_grad
    assert all(torch.equal(one, other) for one, other in zip(mine, slopes, strict=True))


def test_rows_that_are_added_up_before_they_are_widened_are_a_step_of_their_own() -> None:
    told, wide = examples(), HIDDEN + 3
    found = params(wide)
    x = torch.randn(CLIENTS * ROWS, FEATURES, generator=draws(9))

    def widened(first: Tensor, bias: Tensor, second: Tensor, other: Tensor) -> Tensor:
        hidden = affine(x, first, bias, operator(), activation(0.0, None))
        return losses_of_clients(aggregated_affine(operator(), hidden, second, other), told)

    expected = widened(*found)
    slopes = torch.autograd.grad(expected, found, torch.ones_like(expected))
    with chained() as chain:
        each = widened(*found)
        mine = chain.slopes(found)
    assert torch.equal(each, expected)
    assert all(torch.equal(one, other) for one, other in zip(mine, slopes, strict=True))


def test_losses_that_count_differently_have_gradients_that_do() -> None:
    (weight,), told = params()[2:3], examples()
    h, counts = torch.randn(CLIENTS * ROWS, HIDDEN, generator=draws(1)), torch.tensor([1.0, -2.0, 0.5])
    (found,) = torch.autograd.grad(losses_of_clients(affine(h, weight), told), weight, counts)
    each = [torch.autograd.grad(losses_of_clients(affine(h, weight), told)[k], weight)[0] for k in range(CLIENTS)]
    torch.testing.assert_close(found, sum(c * one for c, one in zip(counts, each, strict=True)))


def test_logits_are_read_wherever_they_lie() -> None:
    logits, told = torch.randn(CLIENTS * ROWS, CLASSES, generator=draws(1)), examples()
    expected = losses_of_clients(logits, told)
    wide = torch.zeros(CLIENTS * ROWS, 16)
    wide[:, 2 : 2 + CLASSES] = logits
    for other in (wide[:, 2 : 2 + CLASSES], logits.t().contiguous().t()):
        assert not other.is_contiguous() and torch.equal(losses_of_clients(other, told), expected)


def test_a_step_that_takes_something_else_is_an_error_and_leaves_no_chain_behind() -> None:
    first, bias, second, _ = params()
    x, h = torch.ones(CLIENTS * ROWS, FEATURES), torch.ones(CLIENTS * ROWS, HIDDEN)
    with pytest.raises(RuntimeError, match="what the step before"), chained():
        affine(x, first, bias)
        affine(h, second)
    assert affine(x, first, bias).requires_grad


def test_another_threads_steps_are_none_of_the_chain() -> None:
    found: list[Tensor] = []
    x, weight = torch.ones(CLIENTS * ROWS, FEATURES), params()[0]
    with chained():
        other = threading.Thread(target=lambda: found.append(affine(x, weight)))
        other.start()
        other.join()
    assert found[0].requires_grad
