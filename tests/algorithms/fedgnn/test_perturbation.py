"""Clipping, Laplace noise and pseudo rows, against formulas and plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus.algorithms.fedgnn.perturbation import TableRows, free_rows, lookalikes, perturbed, privacy_bound
from isthmus.core.random import ProtectingStream, Secret, torch_generator
from isthmus.core.record import Params


def stream(*name: int | str) -> ProtectingStream:
    return Secret(bytes(32)).stream(*name)


def models() -> tuple[Params, Params]:
    draw = torch_generator(0, "models")
    before = {"a": torch.randn(3, 4, generator=draw), "table": torch.randn(9, 5, generator=draw)}
    return before, {name: w + 0.3 * torch.randn(w.shape, generator=draw) for name, w in before.items()}


def test_the_ratio_of_densities_of_clipped_and_noisy_numbers_is_bounded_by_epsilon() -> None:
    clip, noise = 0.1, 0.2
    assert privacy_bound(clip, noise) == 1.0
    worst = 0.0
    for seen in torch.linspace(-2, 2, 401).tolist():
        density = [math.exp(-abs(seen - x) / noise) for x in (-clip, -0.03, 0.0, 0.08, clip)]
        worst = max(worst, math.log(max(density) / min(density)))
    assert worst == pytest.approx(privacy_bound(clip, noise))
    assert privacy_bound(None, 0.2) == privacy_bound(0.1, 0.0) == math.inf


def test_an_update_is_clipped_number_by_number() -> None:
    before, after = models()
    found = perturbed(before, after, clip=0.1, noise=0.0, stream=stream(0))
    for name, start in before.items():
        for ours, w, trained in zip(
            found[name].flatten().tolist(), start.flatten().tolist(), after[name].flatten().tolist(), strict=True
        ):
            assert ours == pytest.approx(w + min(max(trained - w, -0.1), 0.1), abs=1e-6)
        assert float((found[name] - start).abs().max()) <= 0.1 + 1e-6
    assert any(float((after[name] - start).abs().max()) > 0.1 for name, start in before.items())


def test_noise_is_added_after_clipping_and_is_that_of_its_scale() -> None:
    before = {"w": torch.zeros(200_000)}
    after = {"w": torch.full((200_000,), 7.0)}
    found = perturbed(before, after, clip=0.5, noise=0.25, stream=stream(3))["w"].double()
    assert float(found.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(found.var()) == pytest.approx(2 * 0.25**2, rel=0.03)


def test_nothing_asked_for_changes_nothing_to_the_bit() -> None:
    before, after = models()
    found = perturbed(before, after, clip=None, noise=0.0, stream=stream(0))
    assert all(torch.equal(found[name], after[name]) for name in after)


# ---- pseudo rows


def test_pseudo_rows_are_never_used_ones_and_are_drawn_evenly() -> None:
    used, draw, rounds = torch.tensor([0, 3, 4, 9]), stream(0, "rows"), 6000
    counts = torch.zeros(12)
    for _ in range(rounds):
        rows = free_rows(used, 12, 3, draw)
        assert len(rows) == len(set(rows.tolist())) == 3 and rows.tolist() == sorted(rows.tolist())
        assert not set(rows.tolist()) & set(used.tolist())
        counts[rows] += 1
    expected = rounds * 3 / 8
    free = counts[[row for row in range(12) if row not in used.tolist()]]
    assert float((free - expected).square().sum() / expected) < 24.3  # chi square, 7 degrees, 0.1 %


def test_there_are_no_more_pseudo_rows_than_free_ones() -> None:
    assert free_rows(torch.tensor([1]), 4, 100, stream(0)).tolist() == [0, 2, 3]
    assert free_rows(torch.arange(4), 4, 2, stream(0)).tolist() == []
    assert free_rows(torch.tensor([1]), 4, 0, stream(0)).tolist() == []


def test_pseudo_updates_have_mean_and_covariance_of_the_real_ones() -> None:
    draw = torch_generator(1, "updates")
    real = torch.randn(6, 3, generator=draw) @ torch.randn(3, 3, generator=draw) + torch.tensor([1.0, -2.0, 0.5])
    found = lookalikes(real, 200_000, stream(2))
    torch.testing.assert_close(found.mean(dim=0), real.mean(dim=0), atol=0.03, rtol=0)
    torch.testing.assert_close(torch.cov(found.t()), torch.cov(real.t()), atol=0.1, rtol=0.03)


def test_pseudo_updates_of_one_row_are_that_row_and_of_none_are_zero() -> None:
    row = torch.tensor([[1.0, 2.0]])
    assert torch.equal(lookalikes(row, 3, stream(0)), row.repeat(3, 1))
    assert torch.equal(lookalikes(row[:0], 3, stream(0)), torch.zeros(3, 2))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_of_a_table_only_used_and_pseudo_rows_leave_and_the_others_stay_to_the_bit(noise: float) -> None:
    before, after = models()
    table = TableRows("table", torch.tensor([1, 4, 5]), torch.tensor([0, 8]))
    found = perturbed(before, after, clip=None, noise=noise, stream=stream(0), table=table)
    for row in range(9):
        changed = not torch.equal(found["table"][row], before["table"][row])
        assert changed == (row in (0, 1, 4, 5, 8))
    if not noise:
        torch.testing.assert_close(found["table"][table.used], after["table"][table.used])
        assert torch.equal(found["a"], after["a"])
    assert torch.equal(before["table"], models()[0]["table"])  # what was received is not changed in place


def test_pseudo_rows_are_clipped_like_the_others() -> None:
    before, after = models()
    table = TableRows("table", torch.tensor([1, 4, 5]), torch.tensor([0, 2, 3, 6, 7, 8]))
    found = perturbed(before, after, clip=0.05, noise=0.0, stream=stream(0), table=table)
    moved = (found["table"] - before["table"]).abs()
    assert float(moved.max()) <= 0.05 + 1e-6 and float(moved[table.pseudo].min()) >= 0.0
    assert int((moved[table.pseudo] > 0.049).sum()) > 5
