from __future__ import annotations

import math

import pytest
import torch

from isthmus.privacy.compression.grid import step
from isthmus.privacy.compression.quantise import Quantise
from tests.core.toys import same
from tests.privacy.compression.toys import Answer, Pair, Question, model

BITS = (8, 4, 2, 1)


def replies(guard: Quantise, changed: torch.Tensor, repeats: int) -> torch.Tensor:
    """Return what the server gets of the same reply in many exchanges, (repeats, *shape), float64."""
    pair, sent = Pair(guard), Question({"w": torch.zeros_like(changed)})
    found = []
    for _ in range(repeats):
        pair.down({"a": sent})
        found.append(pair.up("a", Answer({"w": changed}, {})).params["w"].double())
    return torch.stack(found)


@pytest.mark.parametrize("bits", BITS)
def test_replies_are_right_on_average(bits: int) -> None:
    changed, repeats = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), 2000
    found = replies(Quantise(bits=bits, bucket=64, min_numbers=1), changed, repeats)
    apart = step(float(changed.abs().max()), bits)
    assert bool(((found - changed).abs() <= apart * (1 + 1e-6)).all())
    # A mean of so many is off by no more than five of its standard deviations, half a step each at most.
    assert bool(((found.mean(dim=0) - changed).abs() <= 2.5 * apart / math.sqrt(repeats)).all())
    assert float(found.std(dim=0).max()) > 0.0  # and it is by chance, another one in each exchange


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_over_clients_nears_the_truth_as_clients_grow_in_number(bits: int) -> None:
    changed, names = torch.randn(16, 16, generator=torch.Generator().manual_seed(2)), [f"c{i}" for i in range(64)]
    pair = Pair(Quantise(bits=bits, bucket=256), tuple(names))
    pair.down(dict.fromkeys(names, Question({"w": torch.zeros(16, 16)})))
    found = torch.stack([pair.up(name, Answer({"w": changed}, {})).params["w"] for name in names])
    one, all_of_them = (found[0] - changed).norm(), (found.mean(dim=0) - changed).norm()
    assert float(all_of_them) < 0.25 * float(one)  # an eighth, were it not for chance


@pytest.mark.parametrize("bits", BITS)
def test_requests_are_rounded_to_the_nearest_and_draw_nothing(bits: int) -> None:
    pair = Pair(Quantise(bits=bits, bucket=600, max_drift=1e9))
    start = model(0)
    pair.down({"a": Question(start)})
    target = model(1, near=start["w"])
    found = pair.down({"a": Question(target)})["a"].params["w"]  # type: ignore[attr-defined]
    change = target["w"] - start["w"]
    if bits == 1:
        expected = torch.where(change >= 0, 1.0, -1.0) * change.abs().mean()
    else:
        top = 2 ** (bits - 1) - 1
        expected = torch.floor(change / change.abs().max() * top + 0.5) * change.abs().max() / top
    assert torch.allclose(found, start["w"] + expected, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_a_reply_takes_as_many_bits_as_it_says(bits: int) -> None:
    pair, changed = Pair(Quantise(bits=bits, bucket=1024)), torch.randn(64, 64)
    pair.down({"a": Question({"w": torch.zeros(64, 64)})})
    pair.up("a", Answer({"w": changed}, {}))
    assert pair.wire.params["w"].numel() == 6 + 2 * 8 + 5 + 4 * 4 + 64 * 64 * bits // 8


def test_32_bits_are_the_tensor_itself() -> None:
    pair, answer = Pair(Quantise(bits=32)), Answer(model(3), {})
    pair.down({"a": Question(model(0))})
    assert pair.up("a", answer).params["w"] is answer.params["w"]
    assert same(pair.down({"a": Question(model(1))})["a"], Question(model(1)))
