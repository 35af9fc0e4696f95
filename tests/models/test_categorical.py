from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus.models import CategoricalEncoder
from isthmus.models.encoders import dense_indicators, indicators, places

from .toys import assert_close, cotangent, randomise, toy

SIZES = (3, 2, 4)
CODES = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0], [1.0, 1.0, 2.0], [0.0, 1.0, 3.0]])


def test_indicators_are_ones_at_the_categories() -> None:
    expected = torch.cat([nn.functional.one_hot(CODES[:, c].long(), size) for c, size in enumerate(SIZES)], dim=1)
    place = places(CODES, SIZES, "toys")
    assert indicators(place, 9).to_dense().tolist() == expected.tolist()
    assert dense_indicators(place, 9).tolist() == expected.tolist()
    assert dense_indicators(place, 9).dtype == torch.uint8


def test_encoder_adds_up_an_embedding_for_each_column() -> None:
    module = CategoricalEncoder(6).build(sum(SIZES))
    randomise(module)
    tables = [nn.Parameter(part.detach().clone()) for part in torch.split(module.weight, SIZES)]
    expected = sum(nn.functional.embedding(CODES[:, c].long(), table) for c, table in enumerate(tables))
    out = module(toy("mixed"), indicators(places(CODES, SIZES, "toys"), 9), None)
    assert_close(out, expected)
    g = cotangent(out)
    found = torch.autograd.grad(out, module.weight, g)[0]
    assert_close(found, torch.cat(torch.autograd.grad(expected, tables, g)))


def test_no_rows() -> None:
    place = places(torch.zeros(0, 3), SIZES, "toys")
    assert indicators(place, 9).to_dense().shape == (0, 9) == dense_indicators(place, 9).shape


@pytest.mark.parametrize("value", [4.0, -1.0, 0.5, float("nan")])
def test_a_number_that_is_no_category_is_refused(value: float) -> None:
    codes = CODES.clone()
    codes[2, 2] = value
    with pytest.raises(ValueError, match=r"toys: row 2, column 2 is .*; it must be a whole number from 0 to 3"):
        places(codes, SIZES, "toys")


def test_columns_without_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 columns, but sizes of 2"):
        places(CODES, (3, 2), "toys")


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match="dim is 0"):
        CategoricalEncoder(0)
    assert repr(CategoricalEncoder(8)) == "CategoricalEncoder(dim=8)"
    assert repr(CategoricalEncoder(8).build(9)) == "EmbeddingSum(9, 8)"
