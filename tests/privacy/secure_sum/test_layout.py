"""Replies as rows of numbers: there and back, and what has no place in a sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from isthmus.core.codec import pack
from isthmus.core.errors import BadMessage
from isthmus.core.protocol import ModelState
from isthmus.core.record import Record, leaves
from isthmus.privacy.secure_sum.layout import Layout, Outline, names_in, refuse_own_names


@dataclass(frozen=True)
class Inner(Record):
    share: float
    each: tuple[Tensor, ...]


@dataclass(frozen=True)
class Mixed(Record):
    params: dict[str, Tensor]
    counter: Tensor
    loss: float
    inner: Inner
    missing: Tensor | None
    weight: float


@dataclass(frozen=True)
class Named(Record):
    text: str


def mixed(weight: float = 3.0) -> Mixed:
    params = {"w": torch.arange(6.0).view(2, 3), "b": torch.tensor(7.0)}
    inner = Inner(0.5, (torch.ones(2, dtype=torch.float16), torch.zeros(0)))
    return Mixed(params, torch.tensor([4], dtype=torch.int64), 1.25, inner, None, weight)


def test_a_reply_comes_back_from_its_rows() -> None:
    reply = mixed()
    layout = Layout.of(reply)
    numbers = layout.numbers(reply)
    assert layout.size(True) == len(numbers.narrow) == 9
    assert layout.size(False) == len(numbers.wide) == 3
    back = layout.record(numbers, 3.0)
    for path, leaf in leaves(reply).items():
        found = leaves(back)[path]
        same = torch.equal(found, leaf) and found.dtype == leaf.dtype if isinstance(leaf, Tensor) else found == leaf
        assert same, path


def test_whole_numbers_are_rounded_and_the_weight_is_the_total() -> None:
    layout = Layout.of(mixed())
    numbers = layout.numbers(mixed())
    numbers.wide[0] = 4.6
    back = layout.record(numbers, 10.0)
    assert back.counter.tolist() == [5] and back.weight == 10.0  # type: ignore[attr-defined]


def test_the_weight_is_in_no_row_and_numbers_are_in_no_outline() -> None:
    light, heavy = Layout.of(mixed(1.0)), Layout.of(mixed(1e9))
    assert torch.equal(light.numbers(mixed(1.0)).wide, heavy.numbers(mixed(1e9)).wide)
    assert light.to_tell().reply.tolist() == heavy.to_tell().reply.tolist()
    other = replace(mixed(), loss=-77.0, params={"w": torch.randn(2, 3), "b": torch.tensor(0.5)})
    assert Layout.of(other).to_tell().reply.tolist() == light.to_tell().reply.tolist()


def test_double_precision_stays() -> None:
    layout = Layout.of(ModelState({"w": torch.tensor([1 / 3], dtype=torch.float64)}))
    assert layout.numbers(ModelState({"w": torch.tensor([1 / 3], dtype=torch.float64)})).narrow.tolist() == [1 / 3]


def test_texts_and_plain_integers_are_refused_by_their_place() -> None:
    with pytest.raises(BadMessage, match=r"Named.text is of the type str, which cannot be added up"):
        Layout.of(Named("mine"))


def test_what_was_told_comes_back() -> None:
    layout = Layout.of(mixed())
    told = Layout.told(layout.to_tell(), Mixed)
    assert told.shapes == layout.shapes and told.size(True) == 9
    shaped = told.shaped()
    assert shaped.params["w"].shape == (2, 3) and shaped.params["w"].is_meta  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        (((2, 3),), "a shape for each"),
        (((2, 3), (), (1,), (2,), (-1,)), "negative size"),
        (((2**40, 3), (), (1,), (2,), (0,)), "numbers are not added up"),
    ],
)
def test_outlines_that_cannot_be_are_refused(shapes: tuple[tuple[int, ...], ...], what: str) -> None:
    told = Layout.of(mixed()).to_tell()
    with pytest.raises(BadMessage, match=what):
        Layout.told(Outline(told.reply, shapes), Mixed)


def test_an_outline_of_something_else_is_refused() -> None:
    told = Layout.of(mixed()).to_tell()
    with pytest.raises(BadMessage):
        Layout.told(told, ModelState)
    with pytest.raises(BadMessage):
        Layout.told(Outline(pack(b"nonsense"), told.shapes), Mixed)


def test_names_that_only_a_client_has_are_refused() -> None:
    sent = ModelState({"w": torch.zeros(2)})
    refuse_own_names(ModelState({"w": torch.ones(2)}), sent)
    with pytest.raises(BadMessage, match=r"has the name 'smith', which ModelState has not"):
        refuse_own_names(ModelState({"w": torch.ones(2), "smith": torch.ones(1)}), sent)
    assert names_in(mixed()) == {"w", "b"}
