from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.privacy.compression.blob import Kind, is_blob
from isthmus.privacy.compression.entropy import Entropy, unpacked
from isthmus.privacy.compression.top_k import BUCKET, TopK
from tests.privacy.compression.toys import Answer, Pair, Question, model


def slow(change: list[float], number: int, bits: int) -> list[float]:
    """The largest of some numbers, each at the nearest level of its bucket's grid, among zeros; one by one."""
    chosen = sorted(sorted(range(len(change)), key=lambda place: -abs(change[place]))[:number])
    found = [0.0] * len(change)
    for first in range(0, number, BUCKET):
        places = chosen[first : first + BUCKET]
        scale, top = max(abs(change[place]) for place in places), 2 ** (bits - 1) - 1
        for place in places:
            level = change[place] if bits == 32 else round(change[place] / scale * top) * scale / top
            found[place] = level
    return found


@pytest.mark.parametrize(("bits", "feedback"), [(32, True), (8, True), (4, True), (32, False)])
def test_replies_of_many_rounds_are_those_of_a_slow_loop(bits: int, feedback: bool) -> None:
    """Delta first, then what was lacking, then the largest, then their bits."""
    pair, number = Pair(TopK(fraction=0.5, bits=bits, error_feedback=feedback, direction="up")), 300
    lack = [0.0] * 600
    for round in range(5):
        sent, trained = model(round), model(100 + round)
        pair.down({"a": Question(sent)})
        came = pair.up("a", Answer(trained, {})).params["w"]
        wanted = [float(x) for x in (trained["w"] - sent["w"]).flatten()]
        change = [x + y for x, y in zip(wanted, lack, strict=True)]
        crossed = slow(change, number, bits)
        lack = [x - y for x, y in zip(change, crossed, strict=True)] if feedback else lack
        expected = sent["w"] + torch.tensor(crossed).view(20, 30)
        # A number half-way between two levels may go either way.
        assert float(((came - expected).abs() > 1e-4).float().mean()) <= 0.01


def test_requests_of_many_rounds_are_those_of_a_slow_loop() -> None:
    pair, held = Pair(TopK(fraction=0.5, bits=32, max_drift=1e9)), model(0)["w"]
    pair.down({"a": Question(model(0))})
    for round in range(1, 5):
        target = model(round)["w"]
        found: Tensor = pair.down({"a": Question({"w": target})})["a"].params["w"]  # type: ignore[attr-defined]
        held = held + torch.tensor(slow([float(x) for x in (target - held).flatten()], 300, 32)).view(20, 30)
        assert torch.allclose(found, held, atol=1e-5)


def test_without_feedback_what_crosses_is_rounded_at_random() -> None:
    pair, change = Pair(TopK(fraction=0.5, bits=4, error_feedback=False)), model(1)["w"]
    found = []
    for _ in range(400):
        pair.down({"a": Question({"w": torch.zeros(20, 30)})})
        found.append(pair.up("a", Answer({"w": change}, {})).params["w"])
    mean, chosen = torch.stack(found).mean(dim=0), found[0] != 0
    apart = float(change.abs().max()) / 7  # of the bucket with the largest
    assert int(chosen.sum()) <= 300
    assert bool(((mean - change).abs()[change.abs() > change.abs().median()] < 5 * 0.5 * apart / 20).all())


def test_the_error_is_the_share_that_is_left_out_at_most() -> None:
    pair, change = Pair(TopK(fraction=0.25, bits=32, error_feedback=False)), model(1)["w"]
    pair.down({"a": Question({"w": torch.zeros(20, 30)})})
    came = pair.up("a", Answer({"w": change}, {})).params["w"]
    assert float((came - change).square().sum()) <= 0.75 * float(change.square().sum())


def test_what_entropy_coding_packs_is_what_the_largest_are_written_as() -> None:
    """The order on the wire: bytes of the chosen numbers inside, packed outside."""
    pair = Pair(TopK(fraction=0.1, bits=8))
    pair.down({"a": Question(model(0))})
    pair.up("a", Answer(model(1), {}))
    wire = Entropy()._packed(pair.wire).params["w"]
    assert is_blob(wire, Kind.PACKED)
    inner = unpacked(wire)
    assert is_blob(inner, Kind.CHOSEN) and torch.equal(inner, pair.wire.params["w"])
