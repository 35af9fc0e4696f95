from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.products import affine
from isthmus.models.products.affine import product


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affine, "LEAST_WORK", 0)
    monkeypatch.setattr(affine, "LEAST_WIDTH", 0)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("shape", [(40, 16, 24), (7, 3, 5), (5, 1, 1)])
def test_products_of_any_size_and_layout_are_the_same(clients: int, shape: tuple[int, int, int]) -> None:
    rows, inner, outer = shape
    weight = drawn(clients, inner, outer)
    turned = drawn(clients, outer, inner, seed=1).mT
    for left in (
        drawn(clients, rows, inner),
        drawn(clients, inner, rows).mT,
        drawn(clients, rows, 2 * inner)[..., ::2],
    ):
        for right in (weight, turned):
            with torch.no_grad():
                torch.testing.assert_close(product(left, right), left.bmm(right))
                torch.testing.assert_close(product(left[0], right[0]), left[0].mm(right[0]))


@pytest.mark.usefixtures("every_size")
def test_where_a_gradient_of_it_is_wanted_it_has_one() -> None:
    left, right = drawn(4, 3).requires_grad_(), drawn(3, 2)
    product(left, right).sum().backward()  # type: ignore[no-untyped-call]
    assert left.grad is not None and torch.equal(left.grad, right.sum(dim=1).expand(4, 3))


def test_small_and_narrow_products_and_those_in_double_precision_stay_in_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: object) -> Tensor:
        raise AssertionError("a call for each client")

    monkeypatch.setattr(affine, "_linear", refused)
    with torch.no_grad():
        product(drawn(2, 8, 64), drawn(2, 64, 64))
        product(drawn(2, 40_000, 64), drawn(2, 64, 2))
        product(drawn(2, 600, 64).double(), drawn(2, 64, 64).double())
        with pytest.raises(AssertionError, match="each client"):
            product(drawn(2, 600, 64), drawn(2, 64, 64))


def test_without_the_other_library_all_is_as_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affine, "_linear", None)
    left, right = drawn(500, 64), drawn(64, 64)
    with torch.no_grad():
        assert torch.equal(product(left, right), left.mm(right))
