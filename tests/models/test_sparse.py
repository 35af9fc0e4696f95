from __future__ import annotations

import warnings

import pytest
import torch

from isthmus.models.sparse import Pattern, SparseMatrix, dense


def random_matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[SparseMatrix, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    full = torch.randn(rows, columns, generator=draw, dtype=dtype)
    full[torch.rand(rows, columns, generator=draw) < 0.6] = 0.0
    return SparseMatrix.from_csr(full.to_sparse_csr()), full


@pytest.mark.parametrize("width", [1, 3, 16, 70])
def test_products_equal_dense_products(width: int) -> None:
    matrix, full = random_matrix(9, 6)
    x = torch.randn(6, width, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(matrix.matmul(x), full @ x)
    torch.testing.assert_close(matrix.t().matmul(full), full.t() @ full)
    torch.testing.assert_close(matrix.matmul(x.t().contiguous().t()), full @ x)


def test_gradients_are_right_to_second_order() -> None:
    matrix, _ = random_matrix(4, 5, torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: matrix.matmul(x), (x,))
    values = matrix.values.clone().requires_grad_()
    both = lambda values, x: matrix.with_values(values).matmul(x).tanh()  # noqa: E731
    assert torch.autograd.gradcheck(both, (values, x))
    assert torch.autograd.gradgradcheck(both, (values, x))


def test_a_product_that_needs_no_gradient_builds_no_transpose() -> None:
    matrix, _ = random_matrix(4, 5)
    matrix.matmul(torch.randn(5, 2))
    matrix.matmul(torch.randn(5, 2, requires_grad=True))
    assert matrix._transposed is None
    matrix.matmul(torch.randn(5, 2, requires_grad=True)).sum().backward()
    assert matrix._transposed is not None
    assert matrix.t() is matrix.t()


def test_the_transpose_of_changing_values_is_not_kept() -> None:
    matrix, full = random_matrix(4, 5)
    values = matrix.values.clone().requires_grad_()
    changing = matrix.with_values(values)
    changing.t()
    with torch.no_grad():
        values.mul_(2.0)
    torch.testing.assert_close(changing.t().to_dense(), 2.0 * full.t())


def test_edges_go_from_source_to_target_and_add_up() -> None:
    edges = torch.tensor([[0, 2, 0], [1, 1, 1]])
    matrix = SparseMatrix.from_edges(edges, torch.tensor([1.0, 2.0, 4.0]), (3, 3))
    assert matrix.to_dense().tolist() == [[0, 0, 0], [5, 0, 2], [0, 0, 0]]
    assert SparseMatrix.from_edges(edges, None, (3, 3)).to_dense()[1].tolist() == [2, 0, 1]


def test_shared_structure_with_other_values() -> None:
    matrix, full = random_matrix(5, 5)
    other = matrix.with_values(matrix.values * 3.0)
    assert other.pattern is matrix.pattern
    torch.testing.assert_close(other.t().to_dense(), 3.0 * full.t())
    torch.testing.assert_close(matrix.t().to_dense(), full.t())


def test_without_entries_the_product_is_zero_and_has_a_gradient() -> None:
    empty = SparseMatrix.from_edges(torch.zeros(2, 0, dtype=torch.int64), None, (3, 2))
    x = torch.ones(2, 4, requires_grad=True)
    out = empty.matmul(x)
    assert out.shape == (3, 4) and not out.any()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.shape == x.shape and not grad.any()


def test_products_do_not_depend_on_the_number_of_threads() -> None:
    matrix, _ = random_matrix(400, 300)
    x = torch.randn(300, 33)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = matrix.matmul(x)
        torch.set_num_threads(4)
        assert torch.equal(matrix.matmul(x), alone)
    finally:
        torch.set_num_threads(before)


def test_there_and_back_through_torch_without_a_warning() -> None:
    matrix, full = random_matrix(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = matrix.to_csr()
    torch.testing.assert_close(back.to_dense(), full)
    torch.testing.assert_close(dense(matrix), full)
    assert dense(full) is full


def test_errors_name_what_does_not_fit() -> None:
    matrix, full = random_matrix(4, 6)
    with pytest.raises(ValueError, match=r"cannot multiply SparseMatrix\(4 x 6.*dense \(5, 2\)"):
        matrix.matmul(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="sparse_csr"):
        SparseMatrix.from_csr(full)
    with pytest.raises(ValueError, match="needs"):
        matrix.with_values(torch.zeros(1))
    with pytest.raises(ValueError, match="axis 1 is outside"):
        Pattern.from_pairs(torch.tensor([0]), torch.tensor([3]), (3, 3))
    with pytest.raises(ValueError, match="axis 0 is outside"):
        Pattern.from_pairs(torch.tensor([-1]), torch.tensor([0]), (3, 3))


def test_repr_tells_size_entries_and_type() -> None:
    assert repr(SparseMatrix.from_edges(torch.tensor([[0], [1]]), None, (2, 3))) == (
        "SparseMatrix(2 x 3, 1 entries, float32)"
    )
    assert repr(random_matrix(1, 1, torch.float64)[0].pattern).startswith("Pattern(1 x 1")
