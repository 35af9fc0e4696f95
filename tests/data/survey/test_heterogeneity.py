from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from isthmus.data.survey.statistics import js_divergence, kl_divergence, label_js, label_kl, walk_distance
from tests.data.strategies import many

rows = st.integers(2, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 50), min_size=classes, max_size=classes).filter(any), min_size=2, max_size=5
    )
)


def slow_kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log2(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def test_divergences_worked_out_by_hand() -> None:
    half, quarter = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    # 1/2 log2(2) + 1/2 log2(2/3)
    assert kl_divergence(half, quarter) == pytest.approx(0.5 - 0.5 * math.log2(1.5))
    assert kl_divergence(np.array([1.0, 0.0]), half) == 1.0
    assert kl_divergence(half, np.array([1.0, 0.0])) == math.inf
    assert js_divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0
    # m = (3/4, 1/4): (log2(4/3) + (log2(2/3) + log2(2)) / 2) / 2
    expected = (math.log2(4 / 3) + (math.log2(2 / 3) + 1) / 2) / 2
    assert js_divergence(np.array([1.0, 0.0]), half) == pytest.approx(expected)


def test_smoothing_adds_one_label_to_each_class() -> None:
    found = label_kl([[3, 0], [0, 1]], [3, 1])
    first, second, whole = [4 / 5, 1 / 5], [1 / 3, 2 / 3], [4 / 6, 2 / 6]
    assert found.between[0, 1] == pytest.approx(slow_kl(first, second))
    assert found.between[1, 0] == pytest.approx(slow_kl(second, first))
    assert found.to_whole == pytest.approx([slow_kl(first, whole), slow_kl(second, whole)])
    assert found.mean == pytest.approx((found.between[0, 1] + found.between[1, 0]) / 2)
    assert found.max == max(found.between[0, 1], found.between[1, 0])
    assert label_kl([[1, 0], [0, 1]], [1, 1], smoothing=0.0).max == math.inf


def test_a_class_that_nobody_has_does_not_count() -> None:
    assert label_kl([[3, 0, 0], [0, 0, 1]], [3, 0, 1]).mean == label_kl([[3, 0], [0, 1]], [3, 1]).mean


def test_clients_without_labels_are_left_out() -> None:
    found = label_js([[1, 0], [0, 0], [0, 1]], [1, 1])
    assert np.isnan(found.between[1]).all() and np.isnan(found.between[:, 1]).all() and np.isnan(found.to_whole[1])
    assert found.mean == found.max == 1.0
    assert found.mean_to_whole == pytest.approx(label_js([[1, 0]], [1, 1]).to_whole[0])
    nobody = label_kl([[0, 0], [0, 0]], [0, 0])
    assert nobody.mean is nobody.max is nobody.mean_to_whole is nobody.max_to_whole is None
    alone = label_js([[1, 2]], [1, 2])
    assert alone.mean is None and alone.mean_to_whole == 0.0
    assert label_js(np.empty((0, 2)), [1, 2]).mean is None


@many
@given(rows)
def test_label_divergences_equal_a_slow_version_and_that_of_scipy(counts: list[list[int]]) -> None:
    whole = [sum(column) for column in zip(*counts, strict=True)]
    found, smoothed, apart = label_js(counts, whole), label_kl(counts, whole), walk_distance(counts, whole)
    known = [c for c, number in enumerate(whole) if number]

    def shares(row: list[int]) -> list[float]:
        kept = [row[c] + 1 for c in known]
        return [number / sum(kept) for number in kept]

    for i, first in enumerate(counts):
        assert smoothed.to_whole[i] == pytest.approx(slow_kl(shares(first), shares(whole)), abs=1e-12)
        for j, second in enumerate(counts):
            assert smoothed.between[i, j] == pytest.approx(slow_kl(shares(first), shares(second)), abs=1e-12)
            # scipy takes the root of a difference that rounding leaves at about 1e-17.
            assert apart.between[i, j] == pytest.approx(jensenshannon(first, second, base=2), abs=1e-7)
            assert found.between[i, j] == pytest.approx(apart.between[i, j] ** 2)


@many
@given(rows)
def test_the_jensen_shannon_divergence_is_symmetric_bounded_and_zero_for_equals(counts: list[list[int]]) -> None:
    found = label_js(counts, np.sum(counts, axis=0)).between
    assert (found == found.T).all() and (np.diag(found) == 0.0).all()
    assert (found >= 0.0).all() and (found <= 1.0).all()
