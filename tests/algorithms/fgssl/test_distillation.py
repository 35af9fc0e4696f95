"""Equations 9 to 11 of FGSSL, held against loops over nodes and their neighbours."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fgssl import row_log_softmax, structure_divergence
from isthmus.models.products.sparse import SparseMatrix

# Node 0 has three neighbours, 1 and 2 two, 3 one (degree 1), 4 and 5 each other (degree 1), 6 none.
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (4, 5)]
NUMBER = 7


def adjacency(
    pairs: list[tuple[int, int]] = PAIRS, number: int = NUMBER, weights: Tensor | None = None
) -> SparseMatrix:
    both = torch.tensor([*pairs, *((b, a) for a, b in pairs)], dtype=torch.int64).view(-1, 2).t()
    return SparseMatrix.from_edges(both, weights, (number, number))


def scores(seed: int, classes: int = 4, number: int = NUMBER) -> Tensor:
    return torch.randn(number, classes, generator=torch.Generator().manual_seed(seed))


def looped(z: Tensor, teacher: Tensor, omega: float, pairs: list[tuple[int, int]] = PAIRS) -> Tensor:
    """Equation 11 of each node, neighbour by neighbour."""
    found = []
    for i in range(len(z)):
        neighbors = sorted({b for a, b in pairs if a == i} | {a for a, b in pairs if b == i})
        theirs = [torch.exp((teacher[i] * teacher[j]).sum() / omega) for j in neighbors]
        mine = [torch.exp((z[i] * z[j]).sum() / omega) for j in neighbors]
        loss = z.new_zeros(())
        for e, own in zip(theirs, mine, strict=True):
            s_g, s_m = e / sum(theirs), own / sum(mine)
            loss = loss + s_g * torch.log(s_g / s_m)
        found.append(loss)
    return torch.stack(found)


def test_three_nodes_by_hand() -> None:
    """The middle node's products with its neighbours are 2 and 0 for the teacher, 1 and 1 for the own scores."""
    neighbors = adjacency([(0, 1), (1, 2)], 3)
    teacher = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    share = math.exp(2 / 4) / (math.exp(2 / 4) + 1)
    expected = share * math.log(share / 0.5) + (1 - share) * math.log((1 - share) / 0.5)
    found = structure_divergence(z, teacher, neighbors, omega=4.0)
    torch.testing.assert_close(found, torch.tensor([0.0, expected, 0.0]))


def test_the_divergence_is_from_the_teacher_to_the_own_and_not_the_other_way() -> None:
    z, teacher = 0.5 * scores(0), 2.0 * scores(1)
    found, turned = (structure_divergence(a, b, adjacency(), 2.0) for a, b in ((z, teacher), (teacher, z)))
    torch.testing.assert_close(found, looped(z, teacher, 2.0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(turned, looped(teacher, z, 2.0), rtol=1e-4, atol=1e-6)
    assert float((found - turned).abs().max()) > 0.05


@pytest.mark.parametrize("omega", [0.5, 1.0, 5.0, 100.0])
def test_the_loss_and_its_gradient_are_those_of_the_loops(omega: float) -> None:
    z, teacher = scores(2).requires_grad_(), scores(3)
    found = structure_divergence(z, teacher, adjacency(), omega)
    expected = looped(z, teacher, omega)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    cotangent = torch.rand(NUMBER, generator=torch.Generator().manual_seed(4))
    ours, theirs = (torch.autograd.grad(each, z, cotangent)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    assert float(ours.abs().max()) > 1e-5


def test_the_gradient_is_that_of_finite_differences() -> None:
    z, teacher = scores(2), scores(3)

    def mean(z: Tensor) -> float:
        return float(structure_divergence(z, teacher, adjacency(), 2.0).double().mean())

    live = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(structure_divergence(live, teacher, adjacency(), 2.0).mean(), live)
    for row, column in ((0, 0), (1, 2), (2, 3), (3, 1), (5, 0), (6, 2)):
        step = torch.zeros_like(z)
        step[row, column] = 1e-2
        difference = (mean(z + step) - mean(z - step)) / 2e-2
        assert difference == pytest.approx(float(slope[row, column]), abs=2e-4)


def test_nodes_with_one_neighbour_or_none_contribute_nothing_but_are_seen_by_others() -> None:
    z, teacher = scores(0).requires_grad_(), scores(1)
    found = structure_divergence(z, teacher, adjacency(), 1.0)
    assert found[3:].tolist() == [0.0] * 4
    (slope,) = torch.autograd.grad(found.sum(), z)
    assert not slope[4:].any()
    assert slope[3].any()  # the neighbour of node 0, which has others


def test_it_is_never_negative_and_zero_only_where_both_agree() -> None:
    for seed in range(20):
        z, teacher = scores(seed), scores(seed + 100)
        assert float(structure_divergence(z, teacher, adjacency(), 1.0).min()) >= -1e-6
        live = z.clone().requires_grad_()
        same = structure_divergence(live, z, adjacency(), 1.0)
        assert float(same.detach().abs().max()) <= 1e-6
        (slope,) = torch.autograd.grad(same.sum(), live)
        assert float(slope.abs().max()) <= 1e-5


def test_a_turned_teacher_says_the_same() -> None:
    """Only products of scores count."""
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))
    found = structure_divergence(scores(0), scores(0) @ turn, adjacency(), 1.0)
    assert float(found.abs().max()) < 1e-5


def test_no_gradient_flows_into_the_teacher() -> None:
    z, teacher = scores(0).requires_grad_(), scores(1).requires_grad_()
    found = structure_divergence(z, teacher, adjacency(), 1.0).sum()
    mine, theirs = torch.autograd.grad(found, [z, teacher], allow_unused=True)
    assert mine is not None and theirs is None
    fixed = structure_divergence(scores(0), teacher, adjacency(), 1.0)
    assert not fixed.requires_grad


@pytest.mark.parametrize("size", [30.0, 1e3, 1e6])
def test_large_scores_stay_finite(size: float) -> None:
    z, teacher = (size * scores(0)).requires_grad_(), size * scores(1)
    for a, b in ((z, teacher), (z, -z.detach()), (z, torch.zeros(NUMBER, 4))):
        found = structure_divergence(a, b, adjacency(), 0.5)
        (slope,) = torch.autograd.grad(found.sum(), z)
        assert bool(torch.isfinite(found).all()) and bool(torch.isfinite(slope).all())


def test_large_scores_give_the_value_that_loops_with_exact_numbers_give() -> None:
    """Node 1's teacher is sure of node 0, its own scores of node 2: the loss is the gap of the own products."""
    neighbors = adjacency([(0, 1), (1, 2)], 3)
    teacher = torch.tensor([[100.0], [100.0], [-100.0]])
    z = torch.tensor([[-100.0], [100.0], [100.0]])
    found = structure_divergence(z, teacher, neighbors, 2.0)
    assert found.tolist() == [0.0, pytest.approx(20_000 / 2), 0.0]


def test_the_values_of_the_matrix_play_no_part() -> None:
    weights = torch.linspace(0.1, 9.0, 2 * len(PAIRS))
    z, teacher = scores(0), scores(1)
    weighted = structure_divergence(z, teacher, adjacency(weights=weights), 1.0)
    assert torch.equal(weighted, structure_divergence(z, teacher, adjacency(), 1.0))


@pytest.mark.parametrize("number", [0, 1, 5])
def test_graphs_without_edges_have_nothing_to_learn_from(number: int) -> None:
    z = scores(0, number=number).requires_grad_()
    found = structure_divergence(z, scores(1, number=number), adjacency([], number), 1.0)
    assert found.tolist() == [0.0] * number
    (slope,) = torch.autograd.grad(found.sum(), z)
    assert not slope.any()


def test_the_row_softmax_adds_up_to_one_in_each_row_that_has_entries() -> None:
    pattern = adjacency().pattern
    values = 50.0 * torch.randn(pattern.nnz, generator=torch.Generator().manual_seed(0)) - 500.0
    logs = row_log_softmax(pattern, values)
    for row in range(NUMBER):
        mine = values[pattern.row == row]
        torch.testing.assert_close(logs[pattern.row == row], mine.log_softmax(dim=0), rtol=1e-4, atol=1e-4)


def test_scores_of_double_precision_are_taken_too() -> None:
    z, teacher = scores(0).double(), scores(1).double()
    found = structure_divergence(z, teacher, adjacency(), 2.0)
    torch.testing.assert_close(found, looped(z, teacher, 2.0))
