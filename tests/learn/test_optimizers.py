from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.codec import decode, encode
from isthmus.core.record import State
from isthmus.learn.optimizers import OPTIMIZERS, SCHEDULES, SGD, Adam, AdamW, Constant, Cosine, Optimizer, StepDecay

Reference = Callable[[list[Tensor]], torch.optim.Optimizer]

CASES: list[tuple[Optimizer, Reference]] = [
    (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (SGD(lr=0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        SGD(lr=0.1, momentum=0.5, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
    (Adam(lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    (
        Adam(lr=0.05, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    (AdamW(lr=0.05, weight_decay=0.2), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2)),
    (AdamW(lr=0.05, weight_decay=0.0), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.0)),
    (AdamW(lr=0.05), lambda p: torch.optim.AdamW(p, lr=0.05)),
]


def start_values() -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(4, 3, generator=draw), torch.randn(5, generator=draw)]


def gradient(params: list[Tensor]) -> list[Tensor]:
    """The gradient of an uneven bowl: large in some directions, tiny in others, none in one entry."""
    scales = [torch.logspace(-4, 1, p.numel()).reshape(p.shape) for p in params]
    scales[1][0] = 0.0
    return [s * p.detach() + 0.01 * (s > 0) for s, p in zip(scales, params, strict=True)]


@pytest.mark.parametrize(("optimizer", "reference"), CASES, ids=[repr(o) for o, _ in CASES])
def test_ten_steps_are_those_of_torch(optimizer: Optimizer, reference: Reference) -> None:
    mine, theirs = start_values(), [p.requires_grad_() for p in start_values()]
    state, other = optimizer.start(mine), reference(theirs)
    for _ in range(10):
        optimizer.step(mine, gradient(mine), state, optimizer.lr)
        for tensor, grad in zip(theirs, gradient(theirs), strict=True):
            tensor.grad = grad
        other.step()
    for a, b, start in zip(mine, theirs, start_values(), strict=True):
        torch.testing.assert_close(a, b.detach(), atol=1e-6, rtol=0.0)
        assert float((a - start).abs().max()) > 1e-3
    assert state["step"] == 10


@pytest.mark.parametrize("optimizer", [o for o, _ in CASES], ids=repr)
def test_how_parameters_and_gradients_lie_in_memory_does_not_matter(optimizer: Optimizer) -> None:
    lying, plain = [p.t().contiguous().t() if p.ndim == 2 else p for p in start_values()], start_values()
    assert not lying[0].is_contiguous()
    state, other = optimizer.start(lying), optimizer.start(plain)
    for _ in range(3):
        grads = gradient(plain)
        optimizer.step(plain, [g.t().contiguous().t() if g.ndim == 2 else g for g in grads], other, optimizer.lr)
        optimizer.step(lying, grads, state, optimizer.lr)
    for a, b in zip(lying, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("optimizer", [o for o, _ in CASES], ids=repr)
def test_state_survives_its_bytes_between_two_steps(optimizer: Optimizer) -> None:
    whole, broken = start_values(), start_values()
    state, other = optimizer.start(whole), optimizer.start(broken)
    for _ in range(3):
        optimizer.step(whole, gradient(whole), state, optimizer.lr)
        optimizer.step(broken, gradient(broken), other, optimizer.lr)
        other = decode(encode(other), State)
    assert all(torch.equal(a, b) for a, b in zip(whole, broken, strict=True))


def test_the_learning_rate_given_is_the_one_used() -> None:
    params = [torch.ones(2)]
    optimizer = SGD(lr=100.0)
    optimizer.step(params, [torch.tensor([1.0, 2.0])], optimizer.start(params), 0.5)
    assert torch.equal(params[0], torch.tensor([0.5, 0.0]))


def test_plain_sgd_has_nothing_to_remember_but_its_steps() -> None:
    assert SGD(lr=0.1).start(start_values()) == {"step": 0}


# ---- schedules


def test_constant_stays() -> None:
    assert [Constant().factor(r) for r in (1, 10, 1000)] == [1.0, 1.0, 1.0]


def test_step_decay_falls_after_each_period() -> None:
    schedule = StepDecay(every=3, gamma=0.5)
    assert [schedule.factor(r) for r in range(1, 8)] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


def test_cosine_rises_then_falls_to_its_floor() -> None:
    schedule = Cosine(rounds=10, warmup_rounds=2, floor=0.1)
    assert schedule.factor(1) == 0.5
    assert schedule.factor(2) == 1.0
    assert schedule.factor(6) == pytest.approx(0.1 + 0.9 * 0.5)  # half way between round 2 and round 10
    assert schedule.factor(10) == pytest.approx(0.1)
    assert schedule.factor(50) == pytest.approx(0.1)
    factors = [schedule.factor(r) for r in range(2, 11)]
    assert factors == sorted(factors, reverse=True)


def test_cosine_without_warmup_starts_near_one() -> None:
    assert Cosine(rounds=100).factor(1) == pytest.approx(0.5 * (1 + 0.9995065603657316))
    assert Cosine(rounds=100).factor(100) == pytest.approx(0.0, abs=1e-12)


# ---- fields


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (SGD, {"lr": 0.0}, "lr is 0.0; it must be positive"),
        (SGD, {"lr": float("nan")}, "lr is nan"),
        (SGD, {"weight_decay": -0.1}, "weight_decay is -0.1"),
        (SGD, {"momentum": 1.0}, "momentum is 1.0"),
        (Adam, {"beta1": 1.0}, "beta1 is 1.0"),
        (AdamW, {"beta2": -0.5}, "beta2 -0.5"),
        (StepDecay, {"every": 0}, "every is 0"),
        (StepDecay, {"gamma": 0.0}, "gamma 0.0"),
        (Cosine, {"rounds": 5, "warmup_rounds": 5}, "warmup_rounds is 5 of 5"),
    ],
)
def test_bad_fields_are_refused(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_tables_name_every_kind() -> None:
    assert {"sgd": SGD, "adam": Adam, "adamw": AdamW} == OPTIMIZERS
    assert {"constant": Constant, "step": StepDecay, "cosine": Cosine} == SCHEDULES
