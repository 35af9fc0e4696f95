from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isthmus.data.zoo.block_model import BlockModel, _triangle


def test_phi_is_what_the_paper_states() -> None:
    # GFL-APPNP, A.2.1 and A.2.3.
    assert BlockModel(200, 10.0, 2.0, 1.0, 100).phi == pytest.approx(0.78, abs=0.005)
    assert BlockModel(50, 5.0, 2.2, 0.1, 100).phi == pytest.approx(0.96, abs=0.005)
    assert BlockModel(40, 25.0, 2.0, 1.0, 100).phi == pytest.approx(0.574, abs=0.0005)
    assert BlockModel(40, 25.0, 0.0, 1.0, 100).phi == 0.0
    assert BlockModel(40, 25.0, -2.0, 0.0, 100).phi == -1.0


@pytest.mark.parametrize("lam", [-2.0, 0.0, 2.0, 3.0])
def test_degree_and_homophily_follow_the_formulas(lam: float) -> None:
    model = BlockModel(20_000, 9.0, lam, 1.0, 10)
    rng = np.random.default_rng(1)
    v = model.communities(rng)
    assert abs(int(v.sum())) < 5 * math.sqrt(20_000) and set(v.tolist()) == {-1, 1}
    source, target = model.edges(v, rng).numpy()
    num_edges = len(source) / 2
    assert len(source) / 20_000 == pytest.approx(9.0, abs=5 * 2 * math.sqrt(90_000) / 20_000)
    share = float((v[source] == v[target]).mean())
    expected = (1 + lam / 3) / 2
    assert share == pytest.approx(expected, abs=1e-4 + 5 * math.sqrt(expected * (1 - expected) / num_edges))
    assert not bool((source == target).any())


def test_each_pair_has_its_probability() -> None:
    model = BlockModel(6, 3.0, 1.0, 1.0, 10)
    v = np.array([1, -1, 1, -1, 1, 1])
    rng = np.random.default_rng(2)
    counts = np.zeros((6, 6))
    for _ in range(2000):
        source, target = model.edges(v, rng).numpy()
        counts[source, target] += 1
    same = v[:, None] == v[None, :]
    expected = np.where(same, model.c_in / 6, model.c_out / 6)
    np.fill_diagonal(expected, 0)
    assert np.abs(counts / 2000 - expected).max() < 5 * 0.5 / math.sqrt(2000)
    assert np.array_equal(counts, counts.T)


def test_features_have_the_signal_and_noise_of_the_formula() -> None:
    model = BlockModel(4000, 5.0, 1.0, 400.0, 50)
    rng = np.random.default_rng(3)
    v, u = model.communities(rng), model.direction(rng)
    assert float(u @ u) == pytest.approx(1.0, abs=5 * math.sqrt(2 / 50))
    x = model.features(v, u, rng).numpy()
    assert x.dtype == np.float32 and x.shape == (4000, 50)
    mean = (x * v[:, None]).mean(axis=0)  # sqrt(mu / N) u, with noise 1 / sqrt(p N)
    assert np.abs(mean - math.sqrt(0.1) * u).max() < 5 / math.sqrt(50 * 4000)
    noise = x - math.sqrt(0.1) * v[:, None] * u
    assert float(noise.var()) == pytest.approx(1 / 50, rel=0.02)


def test_samples_have_a_sign_each() -> None:
    model = BlockModel(4, 2.0, 0.0, 1e6, 3)
    u = np.ones(3)
    signs = np.array([[1, -1], [1, 1], [-1, -1], [1, -1]])
    samples = model.features(signs, u, np.random.default_rng(0))
    assert samples.shape == (4, 2, 3)
    assert torch.equal(samples.sign()[..., 0], torch.from_numpy(signs).float())


def test_pairs_are_counted_without_gaps_even_where_roots_are_rounded() -> None:
    low, high = _triangle(np.arange(10))
    assert list(zip(low.tolist(), high.tolist(), strict=True))[:6] == [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    for node in (10**6, 10**7, 94_906_265):
        first = node * (node - 1) // 2
        low, high = _triangle(np.array([first - 1, first, first + node - 1]))
        assert low.tolist() == [node - 2, 0, node - 1] and high.tolist() == [node - 1, node, node]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes": 1}, "num_nodes is 1"),
        ({"degree": 0.0}, "degree is 0.0"),
        ({"mu": -1.0}, "mu -1.0"),
        ({"lam": 2.1}, "lam is 2.1; with degree 4.0 it lies between -2 and 2"),
        ({"num_nodes": 5}, "degree is 4.0, too much for num_nodes = 5"),
    ],
)
def test_bad_numbers_are_refused(changes: dict[str, float], message: str) -> None:
    good = {"num_nodes": 50, "degree": 4.0, "lam": 1.0, "mu": 1.0, "num_features": 10}
    with pytest.raises(ValueError, match=message):
        BlockModel(**(good | changes))  # type: ignore[arg-type]
