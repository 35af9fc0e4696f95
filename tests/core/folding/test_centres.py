"""Folds around a centre, against slow versions, against the mean, and against replies that are arbitrarily wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.errors import CourseFailed
from isthmus.core.folding.centres import BoundedMean, CentredClipping, GeometricMedian, weighted_middle
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.record import Params, Record
from tests.core.toys import Update, Word, quick, same, update

NEUTRAL = [CentredClipping(math.inf), CentredClipping(math.inf, 3), BoundedMean()]
ROBUST = [GeometricMedian(), CentredClipping(1.0), CentredClipping(1.0, 3), BoundedMean(1.0)]


@dataclass(frozen=True)
class Rich(Record):
    params: Params
    other: Tensor
    count: Tensor
    loss: float
    steps: int
    weight: float


def rich(values: list[float], weight: float, k: int) -> Rich:
    whole = torch.tensor(values)
    return Rich({"w": whole[:2], "v": whole[2:].reshape(1, -1)}, whole[:1] * 2, torch.tensor([k]), k / 3, k, weight)


def folded(fold: Fold, replies: list[Any], sent: Record | None = None) -> Any:
    total = fold.start()
    for number, reply in enumerate(replies):
        fold.add_answer(total, reply, sent, f"client-{number}")
    return fold.finish(total)


rows = st.lists(
    st.tuples(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4), st.floats(0.0, 50.0)),
    min_size=1,
    max_size=5,
).filter(lambda given: any(weight > 0.0 for _, weight in given))


@pytest.mark.parametrize("fold", NEUTRAL, ids=repr)
@quick
@given(rows)
def test_without_a_bound_they_are_the_weighted_mean_to_the_bit(fold: Fold, given: Any) -> None:
    replies = [rich(values, weight, k) for k, (values, weight) in enumerate(given)]
    assert same(folded(fold, replies, update([1.0, 2.0])), weighted_mean([r for r in replies if r.weight > 0.0]))


@pytest.mark.parametrize("fold", [*ROBUST, *NEUTRAL], ids=repr)
def test_equal_replies_are_what_they_are_to_the_bit(fold: Fold) -> None:
    reply = update([0.1, -0.7, 1 / 3], 3.0)
    found = folded(fold, [reply] * 5, update([0.0, 0.0, 0.0]))
    assert same(found.params, reply.params)
    assert found.weight == 15.0


# ---- the geometric median


@pytest.mark.parametrize("seed", range(6))
def test_the_geometric_median_has_the_least_sum_of_distances(seed: int) -> None:
    draw = np.random.default_rng(seed)
    points, weights = draw.normal(size=(7, 3)) * 4, draw.uniform(0.2, 3.0, size=7)

    def cost(v: np.ndarray) -> float:
        return float(sum(w * math.dist(v, p) for w, p in zip(weights, points, strict=True)))

    replies = [update(p.tolist(), w, torch.float64) for p, w in zip(points, weights, strict=True)]
    found = GeometricMedian(num_iterations=2000)(replies).params["w"].numpy()
    best = scipy.optimize.minimize(
        cost, points.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
    )
    assert cost(found) <= best.fun + 1e-5
    assert found.tolist() == pytest.approx(best.x.tolist(), abs=1e-3)
    alike = [update(p.tolist(), 1.0, torch.float64) for p in points]
    assert same(GeometricMedian(weighted=False)(replies).params, GeometricMedian()(alike).params)


def test_the_geometric_median_of_numbers_on_a_line_is_their_weighted_median() -> None:
    replies = [update([value], weight, torch.float64) for value, weight in ((0.0, 1.0), (1.0, 2.0), (50.0, 2.0))]
    assert GeometricMedian(num_iterations=500)(replies).params["w"].item() == pytest.approx(1.0, abs=1e-3)
    assert GeometricMedian(num_iterations=500, weighted=False)(replies).params["w"].item() == pytest.approx(
        1.0, abs=1e-3
    )
    heavy = [update([50.0], 4.0, torch.float64), *replies[:2]]
    assert GeometricMedian(num_iterations=500)(heavy).params["w"].item() == pytest.approx(50.0, abs=1e-3)


def test_a_weighted_median_counts_weights_as_repetitions() -> None:
    draw = np.random.default_rng(0)
    rows, counts = draw.normal(size=(5, 3)), [1, 4, 2, 5, 1]
    repeated = np.repeat(rows, counts, axis=0)
    expected = np.sort(repeated, axis=0)[(len(repeated) - 1) // 2]
    found = weighted_middle(torch.tensor(rows), torch.tensor(counts, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected.tolist())


def test_the_geometric_median_of_changes_does_not_depend_on_where_they_began() -> None:
    total = GeometricMedian().start()
    for start, change in ((0.0, 1.0), (10.0, 1.5), (1000.0, 2.0)):
        GeometricMedian().add_answer(total, update([start + change]), update([start]))
    pulls = GeometricMedian()._pulls(torch.tensor([[1.0], [1.5], [2.0]]).double(), torch.ones(3).double())
    expected = float(pulls @ torch.tensor([1.0, 11.5, 1002.0]).double() / pulls.sum())
    assert GeometricMedian().finish(total).params["w"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [1e2, 1e8, 1e17])
@pytest.mark.parametrize("num_wrong", [1, 3])
def test_the_geometric_median_stays_within_its_bound_while_the_wrong_are_fewer(size: float, num_wrong: int) -> None:
    """|v - c| <= 2 (1 - r)/(1 - 2 r) max |w - c| for any c, with r the share that is wrong (Pillutla et al., 2022)."""
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(5, 6, generator=draw)
    wrong = size * torch.randn(num_wrong, 6, generator=draw).sign()
    found = GeometricMedian()([update(row.tolist()) for row in torch.cat([wrong, honest])]).params["w"]
    centre, share = honest.mean(dim=0), num_wrong / (5 + num_wrong)
    bound = 2 * (1 - share) / (1 - 2 * share) * float((honest - centre).norm(dim=1).max())
    assert float((found - centre).norm()) <= bound


# ---- clipping


def slow_clipping(points: np.ndarray, weights: np.ndarray, radius: float, steps: int, start: np.ndarray) -> np.ndarray:
    """Return what Karimireddy et al. (2021), equation (CC), say, client by client."""
    v = start
    for _ in range(steps):
        move = np.zeros_like(v)
        for point, weight in zip(points, weights, strict=True):
            apart = point - v
            length = math.sqrt(sum(x * x for x in apart))
            move = move + weight / weights.sum() * apart * (1.0 if length <= radius else radius / length)
        v = v + move
    return v


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("radius", [0.3, 2.0, 100.0])
def test_centred_clipping_is_its_equation(radius: float, steps: int) -> None:
    draw = np.random.default_rng(steps)
    points, weights, sent = draw.normal(size=(6, 4)) * 3, draw.uniform(0.5, 2.0, size=6), draw.normal(size=4)
    replies = [update(p.tolist(), w, torch.float64) for p, w in zip(points, weights, strict=True)]
    start = update(sent.tolist(), dtype=torch.float64)
    found = folded(CentredClipping(radius, steps), replies, start).params["w"].tolist()
    assert found == pytest.approx(slow_clipping(points, weights, radius, steps, sent).tolist(), rel=1e-9)
    found = folded(CentredClipping(radius, steps, weighted=False), replies, start).params["w"].tolist()
    assert found == pytest.approx(slow_clipping(points, np.ones(6), radius, steps, sent).tolist(), rel=1e-9)
    without = folded(CentredClipping(radius, steps), replies).params["w"].tolist()
    assert without == pytest.approx(
        slow_clipping(points, weights, radius, steps, np.median(points, axis=0)).tolist(), rel=1e-9
    )


def test_a_bounded_mean_shortens_changes_that_are_too_long() -> None:
    sent = update([1.0, 1.0], dtype=torch.float64)
    replies = [update([4.0, 5.0], 1.0, torch.float64), update([1.0, 2.0], 3.0, torch.float64)]
    # Changes (3, 4) of length 5, and (0, 1).
    assert folded(BoundedMean(2.5), replies, sent).params["w"].tolist() == pytest.approx([1.375, 2.25])
    assert folded(BoundedMean(2.5, weighted=False), replies, sent).params["w"].tolist() == pytest.approx([1.75, 2.5])
    assert same(folded(BoundedMean(5.0), replies, sent).params, weighted_mean(replies).params)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e17])
@pytest.mark.parametrize("fold", [CentredClipping(0.5), BoundedMean(0.5)], ids=repr)
def test_nobody_moves_a_clipped_mean_farther_than_the_radius_times_its_share(fold: Fold, size: float) -> None:
    draw = torch.Generator().manual_seed(1)
    sent = update(torch.randn(4, generator=draw).tolist())
    honest = [update((sent.params["w"] + 0.1 * torch.randn(4, generator=draw)).tolist()) for _ in range(4)]
    still = folded(fold, [*honest, sent], sent).params["w"]
    wrong = update((size * torch.randn(4, generator=draw)).tolist())
    assert float((folded(fold, [*honest, wrong], sent).params["w"] - still).norm()) <= 0.5 / 5 + 1e-5


@pytest.mark.parametrize("fold", ROBUST, ids=repr)
def test_numbers_that_are_no_tensors_become_their_median(fold: Fold) -> None:
    replies = [rich([1.0, 2.0, 3.0], 1.0, k) for k in (1, 2, 3, 4)] + [rich([1.0, 2.0, 3.0], 1.0, 10**9)]
    found = folded(fold, replies, update([1.0, 2.0]))
    assert found.loss == pytest.approx(1.0)
    assert found.count.tolist() == [3]


@pytest.mark.parametrize("fold", ROBUST, ids=repr)
def test_replies_without_float_tensors_are_refused(fold: Fold) -> None:
    with pytest.raises(CourseFailed, match="Word has none"):
        folded(fold, [Word("a"), Word("b"), Word("c")])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GeometricMedian(0), "num_iterations"),
        (lambda: GeometricMedian(smoothing=0.0), "smoothing"),
        (lambda: CentredClipping(0.0), "radius"),
        (lambda: CentredClipping(math.nan), "radius"),
        (lambda: CentredClipping(1.0, 0), "num_iterations"),
        (lambda: BoundedMean(-1.0), "largest"),
    ],
)
def test_impossible_settings_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def test_a_weight_of_zero_leaves_no_trace() -> None:
    for fold in (*ROBUST, *NEUTRAL):
        honest = [update([1.0, 2.0]), update([2.0, 1.0])]
        assert same(folded(fold, [update([1e9, 1e9], 0.0), *honest]), folded(fold, honest))
        assert isinstance(folded(fold, honest), Update)
