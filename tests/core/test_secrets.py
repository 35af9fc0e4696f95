"""Secrets stay where they are, and protecting streams have the distributions and the vectors that they should."""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from isthmus.core.codec import encode
from isthmus.core.errors import BadMessage
from isthmus.core.protocol import Client, Position, Request
from isthmus.core.random import ProtectingStream, Secret, digest
from isthmus.core.record import Record, State

KEY = bytes(range(32))
AT = Position(5, 2, 1)
KNOWN: dict[str, Any] = {
    "bytes": "7b9e7c21f8ccc3ce",
    "uniform": [0.6861859086370524, 0.05050934650467409],
    "integers": [823, 709, 319, 717],
    "permutation": [0, 2, 1, 5, 4, 3],
    "normal": [-0.04070652276277542, -0.7146638631820679],
    "laplace": [-2.6706459522247314, -1.4241303205490112],
    "seed": 8284209107836786912,
}


def stream(*name: int | str | bytes) -> ProtectingStream:
    return Secret(KEY).stream(*name)


# ---- a secret is kept


def test_a_secret_shows_itself_in_no_text_and_no_copy() -> None:
    secret = Secret(KEY)
    for thing in (secret, secret.stream("a")):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert KEY.hex() not in text and "\\x01" not in text and "hidden" in text
        for copier in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copier(thing)
        assert not hasattr(thing, "__dict__")


def test_a_secret_goes_into_no_record_and_no_memory() -> None:
    for thing in (Secret(KEY), stream()):
        with pytest.raises(BadMessage, match="cannot encode a"):
            encode({"noise": thing})


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "a" * 32, None])
def test_a_secret_has_32_bytes_and_an_error_does_not_show_it(key: Any) -> None:
    for kind in (Secret, ProtectingStream):
        with pytest.raises(ValueError, match=r"32 bytes$"):
            kind(key)


def test_a_fingerprint_tells_secrets_apart_and_is_none_of_their_bytes() -> None:
    assert Secret(KEY).fingerprint() == Secret(KEY).fingerprint() != Secret(bytes(32)).fingerprint()
    assert Secret(KEY).fingerprint() not in KEY.hex()


def test_the_secret_of_a_simulation_follows_from_seed_and_name_and_says_so() -> None:
    one, same = Secret.of_simulation(1, "a"), Secret.of_simulation(1, "a")
    assert one.simulated and one.derive("course").simulated and "simulated" in repr(one)
    assert not Secret(KEY).simulated and not Secret(KEY).derive("course").simulated
    prints = [Secret.of_simulation(*who).fingerprint() for who in ((1, "a"), (1, "b"), (2, "a"))]
    assert one.fingerprint() == same.fingerprint() == prints[0] and len(set(prints)) == 3


def test_streams_and_derived_secrets_differ_by_every_part_of_their_names() -> None:
    names: list[tuple[Any, ...]] = [
        (),
        (1,),
        ("1",),
        (b"1",),
        (1, 2),
        (12,),
        ("1", "2"),
        ("12",),
        ("1:str:1:2",),
        (1, ""),
    ]
    assert len({stream(*name).take(16) for name in names}) == len(names)
    assert len({Secret(KEY).derive(*name).fingerprint() for name in names}) == len(names)
    assert Secret(KEY).derive("a").stream().take(16) != stream("a").take(16)


# ---- the draws


def test_the_bytes_are_shake_of_key_and_number_of_the_draw() -> None:
    drawn = ProtectingStream(KEY)
    for number in (1, 2, 3):
        assert drawn.take(40) == hashlib.shake_128(KEY + number.to_bytes(8, "little")).digest(40)


def test_the_streams_are_the_known_ones() -> None:
    """A change here makes another noise of every course that waits to be resumed."""
    drawn = stream("x", 3)
    assert drawn.take(8).hex() == KNOWN["bytes"]
    assert drawn.uniform((2,)).tolist() == KNOWN["uniform"]
    assert drawn.integers(1000, (4,)).tolist() == KNOWN["integers"]
    assert drawn.permutation(6).tolist() == KNOWN["permutation"]
    assert drawn.normal((2,)).tolist() == pytest.approx(KNOWN["normal"], rel=1e-6)
    assert drawn.laplace((2,), 2.0).tolist() == pytest.approx(KNOWN["laplace"], rel=1e-6)
    assert drawn.seed() == KNOWN["seed"]


def test_a_stream_that_a_client_kept_begins_again() -> None:
    first = stream("noise")
    kept = first.to_keep()
    assert kept.dtype == torch.uint8 and kept.shape == (32,)
    drawn = first.normal((5,))
    assert torch.equal(ProtectingStream.kept(kept).normal((5,)), drawn)
    assert not torch.equal(first.normal((5,)), drawn)  # a stream goes on


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda s, n: s.normal((n,)), stats.norm()),
        (lambda s, n: s.laplace((n,), 0.7), stats.laplace(scale=0.7)),
        (lambda s, n: s.uniform((n,)), stats.uniform()),
    ],
    ids=["normal", "laplace", "uniform"],
)
def test_draws_have_the_distribution_of_their_name(draw: Any, law: Any) -> None:
    number = 200_001
    found = draw(stream("law"), number).double()
    assert found.shape == (number,)
    assert stats.kstest(found.numpy(), law.cdf).pvalue > 1e-3
    assert float(found.mean()) == pytest.approx(law.mean(), abs=5 * law.std() / math.sqrt(number))
    assert float(found.var()) == pytest.approx(law.var(), rel=0.03)
    tail = law.ppf(0.9999)
    assert float((found > tail).double().mean()) == pytest.approx(1e-4, abs=1e-4)
    halves = found[: number // 2], found[number // 2 : 2 * (number // 2)]  # Box and Muller's pairs are independent
    assert abs(float(torch.corrcoef(torch.stack(halves))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([found[:-1], found[1:]]))[0, 1])) < 0.02


def test_uniform_numbers_are_never_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (0, -1, 2**63 - 1, -(2**63)):
        drawn = stream()
        monkeypatch.setattr(ProtectingStream, "_words", lambda self, number, word=word: torch.full((number,), word))
        assert 0.0 < float(drawn.uniform((1,))) < 1.0
        assert math.isfinite(float(drawn.normal((1,)))) and math.isfinite(float(drawn.laplace((1,), 1.0)))


@pytest.mark.parametrize("high", [1, 3, 10, 2**61 + 1])
def test_integers_are_drawn_evenly_below_high(high: int) -> None:
    found = stream("integers", high).integers(high, (100, 90))
    assert found.shape == (100, 90) and found.dtype == torch.int64
    assert int(found.min()) >= 0 and int(found.max()) < high
    if 1 < high <= 10:
        counts = torch.bincount(found.flatten(), minlength=high)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    if high > 10:
        assert stats.kstest(found.flatten().double().numpy() / high, "uniform").pvalue > 1e-3
    for bad in (0, -1, 2**62):
        with pytest.raises(ValueError, match=f"high is {bad}"):
            stream().integers(bad, (1,))


def test_permutations_are_drawn_evenly() -> None:
    drawn = stream("orders")
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        order = tuple(drawn.permutation(3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert stream().permutation(0).tolist() == []


def test_empty_shapes_and_numbers_without_a_shape_can_be_drawn() -> None:
    assert stream().normal((0, 3)).shape == (0, 3) and stream().laplace((), 1.0).shape == ()
    assert stream().integers(5, (0,)).shape == (0,) and stream().normal((3, 5)).shape == (3, 5)


# ---- told apart by type


def test_a_protecting_stream_is_no_torch_generator_and_none_stands_for_it() -> None:
    assert not isinstance(stream(), torch.Generator)
    with pytest.raises(TypeError):
        torch.randn(2, generator=stream())  # type: ignore[call-overload]
    from isthmus.algorithms.fedgnn.perturbation import free_rows

    with pytest.raises(AttributeError):
        free_rows(torch.tensor([0]), 4, 1, torch.Generator())  # type: ignore[arg-type]


def test_a_digest_tells_values_apart() -> None:
    values: list[Any] = [None, 1, {"a": 1}, {"b": 1}, (1,), torch.ones(2), torch.ones(2).double(), torch.zeros(2)]
    assert len({digest({"value": value}) for value in values}) == len(values)
    assert digest({"w": torch.arange(6.0).view(2, 3).t()}) == digest(
        {"w": torch.arange(6.0).view(2, 3).t().contiguous()}
    )


# ---- what a client draws from its own


@dataclass(frozen=True)
class Reply(Record):
    weight: float


@dataclass(frozen=True)
class Asks(Request[Reply]):
    params: dict[str, Tensor]


@dataclass(frozen=True)
class AlsoAsks(Request[Reply]):
    params: dict[str, Tensor]


class Holder(Client):
    def evaluate(self, params: Any, splits: tuple[str, ...]) -> Any:
        raise NotImplementedError


def test_a_protecting_stream_is_another_for_another_request_memory_value_place_or_purpose() -> None:
    ones = torch.ones(3)

    def drawn(
        request: Request[Any] | None = None,
        memory: State | None = None,
        guarded: Any = ones,
        at: Position = AT,
        purpose: str = "noise",
    ) -> bytes:
        client = Holder("client-0")
        client.secret, client.state = Secret(KEY), dict(memory or {})
        client.begin(at, request or Asks({"w": ones}))
        client.state["later"] = 1  # a handler's own notes are no part of what it answers from
        return client.protecting(purpose, guarded).take(16)

    assert drawn() == drawn()
    others = [
        drawn(Asks({"w": ones + 1e-6})),
        drawn(AlsoAsks({"w": ones})),
        drawn(memory={"mine": 1}),
        drawn(guarded=2 * ones),
        drawn(at=Position(6, 2, 1)),
        drawn(at=Position(5, 3, 1)),
        drawn(at=Position(5, 2, 2)),
        drawn(purpose="masks"),
    ]
    assert len({drawn(), *others}) == 1 + len(others)
