from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.random import PoissonSampling, UniformSampling, numpy_generator

from .toys import quick

CLIENTS = [f"client-{i}" for i in range(10)]


@quick
@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(1, 50), st.integers(0, 2**32))
def test_a_cohort_is_distinct_clients_in_client_order(num: int, fraction: float, num_min: int, seed: int) -> None:
    clients = [f"c{i:02d}" for i in range(num)]
    cohort = UniformSampling(fraction, num_min).cohort(clients, np.random.default_rng(seed))
    assert list(cohort) == sorted(set(cohort))
    assert set(cohort) <= set(clients)
    assert min(num, num_min) <= len(cohort)
    assert len(cohort) >= fraction * num - 1e-6


@pytest.mark.parametrize(
    ("fraction", "num", "size"),
    [(0.3, 10, 3), (0.1, 10, 1), (0.25, 10, 3), (0.7, 10, 7), (0.07, 100, 7), (1.0, 10, 10), (0.001, 10, 1)],
)
def test_a_share_is_rounded_up_but_not_for_a_grain_of_rounding_error(fraction: float, num: int, size: int) -> None:
    clients = [str(i) for i in range(num)]
    assert len(UniformSampling(fraction).cohort(clients, np.random.default_rng(0))) == size


def test_at_least_num_min_clients_take_part_when_there_are_as_many() -> None:
    assert len(UniformSampling(0.1, 4).cohort(CLIENTS, np.random.default_rng(0))) == 4
    assert len(UniformSampling(0.1, 99).cohort(CLIENTS, np.random.default_rng(0))) == 10


def test_the_whole_federation_is_no_draw() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert UniformSampling().cohort(CLIENTS, rng) == tuple(CLIENTS)
    assert rng.bit_generator.state == before


def test_every_client_is_drawn_as_often() -> None:
    counts = dict.fromkeys(CLIENTS, 0)
    for round in range(2000):
        for client in UniformSampling(0.3).cohort(CLIENTS, numpy_generator(0, round, "cohort")):
            counts[client] += 1
    # 600 expected, standard deviation 20.
    assert all(500 < count < 700 for count in counts.values())


def test_the_draw_is_the_known_one() -> None:
    cohort = UniformSampling(0.3).cohort(CLIENTS, numpy_generator(0, 1, "cohort"))
    assert cohort == ("client-1", "client-5", "client-6")


@pytest.mark.parametrize("fields", [{"fraction": 0.0}, {"fraction": 1.1}, {"fraction": -0.5}, {"num_min": 0}])
def test_impossible_shares_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))} is .*; it must be"):
        UniformSampling(**fields)


def test_a_share_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="fraction is nan"):
        UniformSampling(float("nan"))


def test_each_client_is_drawn_by_itself_as_often_as_it_should_be() -> None:
    rng, rounds = np.random.default_rng(0), 20_000
    drawn = np.array(
        [
            [c in cohort for c in CLIENTS]
            for cohort in (PoissonSampling(0.3).cohort(CLIENTS, rng) for _ in range(rounds))
        ]
    )
    off = 5 * np.sqrt(0.3 * 0.7 / rounds)
    assert np.all(np.abs(drawn.mean(axis=0) - 0.3) < off)
    together = (drawn.T.astype(float) @ drawn) / rounds
    assert np.all(np.abs(together - 0.09)[~np.eye(10, dtype=bool)] < off)  # whatever the others do
    assert abs(float((drawn.sum(axis=1) == 0).mean()) - 0.7**10) < off  # nobody at all, now and then


def test_with_probability_one_everybody_takes_part() -> None:
    assert PoissonSampling().cohort(CLIENTS, np.random.default_rng(1)) == tuple(CLIENTS)
    assert PoissonSampling().least(10) == 10 and PoissonSampling(0.99).least(10) == 0
    assert UniformSampling(0.25).least(10) == 3


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction is .*; it must be in \(0, 1\]"):
        PoissonSampling(fraction)
