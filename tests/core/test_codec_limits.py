"""What a message may cost: counted in bytes and objects, for the worst that fits into it."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core import record
from isthmus.core.codec import MAX_KEY, MAX_VALUES, PREFIX, decode, encode, opened, pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.federation.judging import judged
from isthmus.core.outside import MAX_TEXT
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure
from isthmus.core.record import State, check_value
from isthmus.runtime.envelope import Answer

# What a message of one megabyte may cost while it is read, and what is left of it when it is refused.
FACTOR = 40


def message(value: Any, tensors: Any = (), tail: bytes = b"") -> bytes:
    text = json.dumps({"value": value, "tensors": list(tensors)}, separators=(",", ":")).encode()
    return PREFIX.pack(b"ISTH", 1, 0, len(text)) + text + tail


def peak_of(call: Any) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(data: bytes, expected: Any = State) -> str:
    with pytest.raises(BadMessage) as caught:
        decode(data, expected)
    return str(caught.value)


# The factor is the same for any number of entries.
MANY = 10_000
LONG = "k" * MAX_KEY
WORST = {
    "empty tuples": [[]] * MANY,
    "dicts": [{"d": []}] * MANY,
    "floats": [{"n": "nan"}] * MANY,
    "keys": {"d": [[f"{i}", 0] for i in range(MANY)]},
    "long keys": {"d": [[LONG, {"d": [[f"{i}", 0] for i in range(MANY)]}]]},
    "deep": {"d": [[LONG, {"d": [[LONG, {"d": [[f"{i}", 0] for i in range(MANY)]}]]}]]},
}


@pytest.mark.parametrize("kind", WORST)
def test_reading_the_worst_message_costs_a_bounded_multiple_of_its_size(kind: str) -> None:
    data = message(WORST[kind])
    peak = peak_of(lambda: decode(data, Any))
    print(kind, peak / len(data))
    assert peak < FACTOR * len(data)


def test_too_many_values_are_refused_before_they_are_built() -> None:
    data = message([[]] * MAX_VALUES)
    assert peak_of(lambda: refused(data, Any)) < 4 * len(data)
    assert "values, the limit is" in refused(data, Any)


def test_separators_within_a_text_are_no_values() -> None:
    text = "[,{" * MAX_VALUES
    assert decode(encode({"t": text, "q": '\\",' * 9}), State) == {"t": text, "q": '\\",' * 9}


def test_more_tensors_than_the_limit_are_refused_before_they_are_made() -> None:
    data = message([], [0] * (MAX_VALUES // 4 + 1))
    assert "tensors, the limit is" in refused(data, Any)


@pytest.mark.parametrize("shape", [[2**39, 0], [0, 2**30], [2**20, 2**20, 0]])
def test_a_tensor_of_nothing_may_not_claim_a_great_length(shape: list[int]) -> None:
    assert "impossible shape" in refused(message({"t": 0}, [["f32", shape]]), Any)
    assert decode(message({"t": 0}, [["f32", [1000, 0]]]), Any).shape == (1000, 0)


def test_a_long_key_is_refused_with_a_short_reason_on_both_sides() -> None:
    assert len(refused(message({"d": [["k" * 160_000, 1]]}))) < MAX_TEXT
    with pytest.raises(BadMessage, match="has 201 characters") as caught:
        encode({"k" * 201: 1})
    assert len(str(caught.value)) < MAX_TEXT
    assert decode(encode({"k" * MAX_KEY: 1}), State)


@pytest.mark.parametrize(
    "data",
    [
        message({"d": [[["x" * 10**6], 1]]}),
        message({"x" * 10**6: 1}),
        message({"r": "x" * 10**6, "f": {}}),
        message({"r": "Evaluation", "f": {"x" * 10**6: 1}}),
        message(["x" * 10**6] * 3),
        message([[1, 2, 3]] * 10**4),
        message(1, [["x" * 10**6, []]]),
        message(int("9" * 4000)),
        b"x" * 10**6,
    ],
    ids=range(9),
)
def test_no_reason_is_as_long_as_what_it_is_about(data: bytes) -> None:
    assert len(refused(data, Evaluation)) < MAX_TEXT


def test_a_place_is_told_in_short_even_with_long_keys() -> None:
    with pytest.raises(BadMessage) as caught:
        check_value({"k" * 160_000: {"k" * 160_000: object()}}, State, "state")
    assert len(str(caught.value)) < MAX_TEXT


def test_a_long_tuple_leaves_nothing_in_a_cache() -> None:
    caches = [thing for thing in vars(record).values() if hasattr(thing, "cache_info")]
    data = encode({"t": tuple(range(50_000))})
    record.leaves(decode(data, State))
    before = sum(cache.cache_info().currsize for cache in caches)
    value = decode(encode({"t": tuple(range(100_000))}), State)
    record.leaves(value)
    assert sum(cache.cache_info().currsize for cache in caches) == before


@pytest.mark.parametrize("split", [LONG, "val"])
def test_judging_many_metrics_costs_a_bounded_multiple_and_gives_a_short_reason(split: str) -> None:
    many = {"d": [[f"{i}", 0.5] for i in range(MANY)]}
    data = message({"r": "Evaluation", "f": {"metrics": {"d": [[split, many]]}, "counts": {"d": []}}})
    request = EvaluateModel({}, ("val",), "accuracy", False)
    found: list[Any] = []
    peak = peak_of(lambda: found.append(judged("mallory", decode(data, Evaluation), request, Evaluation)))
    assert peak < FACTOR * len(data)
    (verdict,) = found
    assert isinstance(verdict, Failure)
    assert (verdict.client, verdict.kind) == ("mallory", "malformed")
    assert len(verdict.reason) <= MAX_TEXT


# ---- copies


def high_water() -> int:
    """Return the largest resident size of this process since `reset`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def grown_by(call: Any) -> float:
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = high_water()
    kept = call()
    grown = high_water() - before
    del kept
    return grown


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of Linux")
def test_an_answer_is_copied_once_on_each_side() -> None:
    size = 2**26
    params = {"w": torch.ones(size // 4)}
    grown_by(lambda: None)
    assert grown_by(lambda: encode(params)) < 1.2 * size, "encoding makes the message and nothing else"
    payload = encode(params)
    assert grown_by(lambda: encode(Answer(pack(payload), None, ""))) < 1.2 * size, "so does putting it into an answer"
    message = encode(Answer(pack(payload), None, ""))

    def received() -> Any:
        answer: Answer = decode(message, Answer, share=True)
        return decode(opened(answer.payload), State)

    assert grown_by(received) < 1.2 * size, "reading makes the tensors and nothing else"


def test_a_packed_message_is_the_message() -> None:
    assert unpack(pack(b"abc")) == b"abc" == bytes(opened(pack(b"abc")))
    assert unpack(pack(b"")) == b""
    with pytest.raises(BadMessage, match="expected bytes"):
        opened(torch.zeros(2, 2))
    with pytest.raises(BadMessage, match="expected bytes"):
        opened(torch.zeros((2, 2), dtype=torch.uint8))
