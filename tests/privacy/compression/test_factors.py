from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.privacy.compression.factors import as_matrix, factors_of, orthonormal, product


def matrix(rows: int, columns: int, rank: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, rank, generator=draw) @ torch.randn(rank, columns, generator=draw)


def gram_schmidt(columns: np.ndarray) -> np.ndarray:
    found: list[np.ndarray] = []
    for column in columns.T:
        for other in found:
            column = column - other * (other @ column)
        found.append(column / np.linalg.norm(column))
    return np.stack(found, axis=1)


def test_factors_are_those_of_one_step_of_power_iteration() -> None:
    draw = torch.Generator().manual_seed(1)
    found, start = torch.randn(30, 20, generator=draw), torch.randn(20, 3, generator=draw)
    left, right = factors_of(found, start)
    p = gram_schmidt((found.double() @ start.double()).numpy())
    expected = p @ (found.double().numpy().T @ p).T
    assert np.allclose(product(left, right).numpy(), expected, atol=1e-4)
    assert torch.allclose(left.t() @ left, torch.eye(3), atol=1e-5)


def test_a_matrix_of_the_rank_comes_back() -> None:
    found = matrix(40, 25, 2)
    left, right = factors_of(found, torch.randn(25, 2, generator=torch.Generator().manual_seed(3)))
    assert torch.allclose(product(left, right), found, atol=1e-4)


def test_steps_from_the_factor_of_before_find_the_best_factors() -> None:
    found = matrix(40, 25, 10) + 3 * matrix(40, 25, 2, seed=5)
    start = torch.randn(25, 2, generator=torch.Generator().manual_seed(3))
    for _ in range(200):
        left, start = factors_of(found, start)
    u, s, v = torch.linalg.svd(found)
    best = (u[:, :2] * s[:2]) @ v[:2]
    assert torch.allclose(product(left, start), best, atol=1e-2 * float(s[0]))


def test_what_is_left_out_is_never_more_than_there_was() -> None:
    for seed in range(20):
        found = torch.randn(15, 12, generator=torch.Generator().manual_seed(seed))
        start = torch.randn(12, 3, generator=torch.Generator().manual_seed(100 + seed))
        assert float((found - product(*factors_of(found, start))).norm()) <= float(found.norm())


def test_a_matrix_of_zeros_or_of_a_lower_rank_has_factors_too() -> None:
    for found in (torch.zeros(9, 8), matrix(9, 8, 1)):
        left, right = factors_of(found, torch.randn(8, 3, generator=torch.Generator().manual_seed(3)))
        assert bool(torch.isfinite(left).all())
        assert torch.allclose(product(left, right), found, atol=1e-5)
    assert torch.allclose(orthonormal(torch.eye(4, 2)).abs(), torch.eye(4, 2))


@pytest.mark.parametrize(
    ("shape", "expected"), [((6, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((24,), (1, 24)), ((), (1, 1))]
)
def test_tensors_are_matrices_of_their_first_axis(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert as_matrix(shape, int(np.prod(shape))) == expected
