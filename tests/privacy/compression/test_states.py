from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from isthmus.core.codec import MAX_KEY, decode, encode
from isthmus.core.protocol import EvaluateModel, Request
from isthmus.core.record import Params, Record, State
from isthmus.privacy.compression.states import (
    Book,
    base_of,
    changed_by,
    entry_of,
    filled,
    owes_tensors,
    params_of,
    same_objects,
    tag_of,
)
from tests.privacy.compression.toys import Answer, Question, model


@dataclass(frozen=True)
class Mixed(Record):
    """All that a message may hold."""

    params: Params
    """A model."""
    single: torch.Tensor
    """A tensor that is no entry of a dict."""
    several: tuple[torch.Tensor, ...]
    """Tensors without names."""
    count: int = 3
    """A number."""


@dataclass(frozen=True)
class Receipt(Record):
    """That it was done."""

    done: bool
    """Whether it was."""


@dataclass(frozen=True)
class Tell(Request[Receipt]):
    """Asks for a receipt."""


def test_parameters_are_floats_with_a_name_in_a_dict() -> None:
    flags, bytes_of = torch.ones(9, dtype=torch.int64), torch.ones(9, dtype=torch.uint8)
    params = {"w": torch.ones(9), "half": torch.ones(9).half(), "few": torch.ones(2), "n": flags, "b": bytes_of}
    mixed = Mixed(params, torch.ones(9), (torch.ones(9),))
    assert list(params_of(mixed)) == [".params['w']", ".params['half']", ".params['few']"]
    assert list(params_of(mixed, smallest=9)) == [".params['w']", ".params['half']"]
    assert list(params_of(mixed, smallest=9, wires=True)) == [".params['w']", ".params['half']", ".params['b']"]


def test_a_reply_is_a_change_of_what_the_request_has_in_its_place_or_of_zeros() -> None:
    known = {".params['w']": torch.ones(3)}
    assert base_of(".params['w']", known) is known[".params['w']"]
    assert torch.equal(base_of(".gradients['w']", known), torch.zeros(3))  # type: ignore[arg-type]
    assert base_of(".gradients['v']", known) is None


def test_states_are_told_apart_by_place_form_and_all_that_crossed() -> None:
    zeros = torch.zeros(6)
    tags = {
        tag_of("a", b"", zeros),
        tag_of("b", b"", zeros),
        tag_of("a", b"before", zeros),
        tag_of("a", b"", zeros.view(2, 3)),
        tag_of("a", b"", zeros.int()),
        tag_of("a", b"", torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -0.0])),
    }
    assert len(tags) == 6
    assert tag_of("a", b"", zeros) == tag_of("a", b"", zeros.clone())


def test_a_book_is_a_memory_and_lets_go_of_what_nobody_has() -> None:
    book = Book({})
    book.take("a", {"w": b"11111111"}, {"w": torch.ones(2)})
    book.take("b", {"w": b"22222222"}, {"w": torch.zeros(2)})
    book.meanings["3131313131313131"] = "00"
    book.meanings["3939393939393939"] = "00"  # of a state that nobody has
    kept = decode(encode(book.kept()), State)
    again = Book(kept)
    assert again.tags("a") == {"w": b"11111111"} and again.tags("c") == {}
    assert torch.equal(again.held[b"22222222"], torch.zeros(2))
    assert again.meaning(b"11111111") == b"\x00" and again.meaning(b"22222222") == b"22222222"
    assert list(kept["meanings"]) == ["3131313131313131"]
    again.who.pop("a")
    assert set(again.kept()["held"]) == {b"22222222".hex()} and again.kept()["meanings"] == {}


def test_kinds_that_owe_tensors_are_those_whose_replies_hold_any() -> None:
    assert owes_tensors(Question)
    assert not owes_tensors(Tell)
    assert not owes_tensors(EvaluateModel)


def test_small_things() -> None:
    first = model(0)
    assert same_objects(first, dict(first)) and not same_objects(first, {"w": first["w"].clone()})
    assert not same_objects(first, {**first, "v": first["w"]})
    assert filled({"a": {}, "b": {"c": 1}, "d": ()}) == {"b": {"c": 1}}
    answer = Answer(first, {})
    assert changed_by(answer, {}) is answer
    assert changed_by(answer, {".params['w']": torch.zeros(1)}).params["w"].numel() == 1


@pytest.mark.parametrize("length", [1, MAX_KEY, MAX_KEY + 1, 5000])
def test_any_place_is_a_key(length: int) -> None:
    assert len(entry_of("x" * length)) <= MAX_KEY
    assert (entry_of("x" * length) == "x" * length) == (length <= MAX_KEY)
