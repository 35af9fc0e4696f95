from __future__ import annotations

import math

import pytest
import torch

from isthmus.core.errors import BadMessage
from isthmus.core.random import derive_seed
from isthmus.privacy.compression.choosing import drawn_places
from isthmus.privacy.compression.random_k import RandomK
from tests.privacy.compression.toys import Answer, Pair, Question, model


def places_of(exchange: int, number: int, numbers: int, name: str) -> list[int]:
    """The places of an exchange of the first round of a course with the seed 7, as anybody can draw them."""
    return [int(p) for p in drawn_places(derive_seed(7, 1, exchange, f"guard.0.G{name}"), number, numbers)[0]]


@pytest.mark.parametrize("feedback", [True, False])
def test_replies_of_many_rounds_are_those_of_a_slow_loop(feedback: bool) -> None:
    pair, lack = Pair(RandomK(fraction=0.1, error_feedback=feedback, direction="up")), [0.0] * 600
    for round in range(1, 8):
        sent, trained = model(round), model(100 + round)
        pair.down({"a": Question(sent)})
        came = pair.up("a", Answer(trained, {})).params["w"]
        change = [float(x) + y for x, y in zip((trained["w"] - sent["w"]).flatten(), lack, strict=True)]
        crossed = [0.0] * 600
        for place in places_of(round, 60, 600, ".params['w']"):
            crossed[place] = change[place] if feedback else 10 * change[place]
        lack = [x - y for x, y in zip(change, crossed, strict=True)] if feedback else lack
        assert torch.allclose(came, sent["w"] + torch.tensor(crossed).view(20, 30), atol=1e-4)
        assert pair.wire.params["w"].shape == (60,)


def test_replies_are_right_on_average_without_feedback() -> None:
    pair, changed, repeats = Pair(RandomK(fraction=0.3, min_numbers=1)), torch.arange(1.0, 11.0), 4000
    total = torch.zeros(10)
    for _ in range(repeats):
        pair.down({"a": Question({"w": torch.zeros(10)})})
        total += pair.up("a", Answer({"w": changed}, {})).params["w"]
    # Each place is one of three or four, and what crosses is as many times as large.
    deviation = changed * math.sqrt(3) / math.sqrt(repeats)
    assert bool(((total / repeats - changed).abs() < 5 * deviation).all())


def test_all_clients_of_an_exchange_have_the_same_places_and_another_exchange_has_others() -> None:
    pair, seen = Pair(RandomK(fraction=0.1), ("a", "b")), []
    for _ in range(2):
        pair.down(dict.fromkeys("ab", Question({"w": torch.zeros(20, 30)})))
        found = [pair.up(name, Answer({"w": torch.ones(20, 30)}, {})).params["w"] > 0 for name in "ab"]
        assert torch.equal(*found)
        seen.append(found[0])
    assert not torch.equal(*seen)


@pytest.mark.parametrize("wire", [torch.zeros(59), torch.zeros(61), torch.zeros(60, dtype=torch.float64)])
def test_another_number_of_numbers_is_refused(wire: torch.Tensor) -> None:
    pair = Pair(RandomK(fraction=0.1))
    pair.down({"a": Question(model(0))})
    guard = pair.guard
    assert isinstance(guard, RandomK)
    with pytest.raises(BadMessage, match="expected 60 numbers of float32 in the places that are drawn"):
        guard.applied(wire, model(0)["w"], guard._draws_at_server(".params['w']", b"", pair.at_server()))
