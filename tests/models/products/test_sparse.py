from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.models.products.sparse import Pattern, SparseMatrix, block_diagonal, dense


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


# ---- sums, parts and blocks


def drawn(rows: int, columns: int, seed: int, density: float = 0.4) -> tuple[SparseMatrix, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    full = torch.randn(rows, columns, generator=draw)
    full[torch.rand(rows, columns, generator=draw) >= density] = 0.0
    return SparseMatrix.from_csr(full.to_sparse_csr()), full


def check_rows(matrix: SparseMatrix) -> None:
    """Rows of the pattern ascend, and nothing lies outside."""
    crow, col = matrix.pattern.crow, matrix.pattern.col
    assert crow[0] == 0 and crow[-1] == len(col) == len(matrix.values) and bool((crow.diff() >= 0).all())
    assert len(crow) == matrix.shape[0] + 1
    assert not len(col) or (int(col.min()) >= 0 and int(col.max()) < matrix.shape[1])


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 7),
    columns=st.integers(1, 7),
    seed=st.integers(0, 999),
    densities=st.tuples(*[st.floats(0, 1)] * 2),
)
def test_a_sum_is_the_dense_sum_and_keeps_every_entry_of_both(
    rows: int, columns: int, seed: int, densities: tuple[float, float]
) -> None:
    (a, dense_a), (b, dense_b) = (drawn(rows, columns, seed + k, density) for k, density in enumerate(densities))
    found = a.plus(b)
    check_rows(found)
    torch.testing.assert_close(found.to_dense(), dense_a + dense_b)
    assert found.pattern.nnz == a.pattern.nnz + b.pattern.nnz
    x = torch.randn(columns, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.matmul(x), (dense_a + dense_b) @ x)
    torch.testing.assert_close(found.t().to_dense(), (dense_a + dense_b).t())
    torch.testing.assert_close(a.to_dense(), dense_a)


def test_other_values_at_the_places_of_a_sum_have_a_transpose_of_their_own() -> None:
    (a, dense_a), (b, dense_b) = drawn(5, 4, 0, 0.5), drawn(5, 4, 1, 0.5)
    total = a.plus(b)
    doubled = total.with_values(2.0 * total.values)
    for _ in range(2):  # whichever is turned first, and again
        torch.testing.assert_close(total.t().to_dense(), (dense_a + dense_b).t())
        torch.testing.assert_close(doubled.t().to_dense(), 2.0 * (dense_a + dense_b).t())
    assert total.t() is total.t() and doubled.t() is doubled.t()


def test_numbers_of_rows_are_spread_over_their_entries() -> None:
    pattern = Pattern(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1]), (3, 2))
    assert pattern.spread(torch.tensor([5.0, 6.0, 7.0])).tolist() == [5.0, 5.0, 7.0]


def test_an_entry_that_both_have_stays_twice_and_sums_have_the_type_of_the_first() -> None:
    one = SparseMatrix.from_edges(torch.tensor([[1], [0]]), None, (2, 2), torch.float64)
    other = SparseMatrix.from_edges(torch.tensor([[1], [0]]), torch.tensor([2.0]), (2, 2))
    found = one.plus(other)
    assert found.pattern.col.tolist() == [1, 1] and found.values.tolist() == [1.0, 2.0]
    assert found.dtype == torch.float64


def test_matrices_of_other_sizes_cannot_be_added() -> None:
    with pytest.raises(ValueError, match=r"cannot add SparseMatrix\(3 x 2.*to SparseMatrix\(2 x 3"):
        drawn(2, 3, 0)[0].plus(drawn(3, 2, 0)[0])


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (2, 4), (1, 2), (3, 1), (2, 3)])
def test_corners_are_the_first_rows_and_columns_of_each_block(rows: int, columns: int) -> None:
    blocks = [drawn(3, 4, seed, 0.6)[1] for seed in range(3)]
    whole = torch.block_diag(*blocks).to_sparse_csr()
    found = SparseMatrix.from_csr(whole).corners(3, rows, columns)
    expected = torch.block_diag(*(block[:rows, :columns] for block in blocks))
    assert torch.equal(found.to_dense(), expected)
    assert torch.equal(found.t().to_dense(), expected.t())


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns"), [(slice(2, 5), slice(3, 7)), (slice(2, 5), slice(3, 5)), (slice(0, 9), slice(0, 9))]
)
def test_a_block_is_some_rows_and_columns_without_what_is_behind_them(
    rows: slice, columns: slice, turned: bool
) -> None:
    full = torch.block_diag(drawn(2, 3, 0, 0.6)[1], drawn(3, 4, 1, 0.7)[1], drawn(4, 2, 2, 0.6)[1])
    matrix = SparseMatrix.from_csr(full.to_sparse_csr())
    if turned:
        matrix.mark_transposed(SparseMatrix.from_csr(full.t().to_sparse_csr()))
    found = matrix.block(rows, columns)
    check_rows(found)
    assert torch.equal(found.to_dense(), full[rows, columns])
    assert torch.equal(found.t().to_dense(), full[rows, columns].t())


def test_a_block_of_a_symmetric_matrix_is_its_own_transpose() -> None:
    part = drawn(4, 4, 0, 0.6)[1]
    matrix = SparseMatrix.from_csr(torch.block_diag(part + part.t(), part + part.t()).to_sparse_csr())
    matrix.mark_symmetric()
    found = matrix.block(slice(4, 8), slice(4, 8))
    assert found.t() is found and torch.equal(found.to_dense(), part + part.t())


@pytest.mark.parametrize("padding", [0, 2])
def test_gathered_rows_are_taken_from_where_they_are(padding: int) -> None:
    matrix, full = drawn(3, 5, 0, 0.6)
    back = torch.zeros(5, 2)
    place = torch.tensor([1, 0, 0, 1, 0])
    back[torch.arange(5), place] = 1.0
    back[5 - padding :] = 0.0
    found = matrix.gathering(SparseMatrix.from_csr(back.to_sparse_csr()))
    assert torch.equal(found.to_dense(), full @ back) and torch.equal(found.t().to_dense(), (full @ back).t())


def test_row_sums_are_the_dense_ones_also_of_rows_without_entries() -> None:
    matrix, full = drawn(6, 4, 0, 0.3)
    torch.testing.assert_close(matrix.row_sums(), full.sum(dim=1))
    doubled = matrix.plus(matrix)
    torch.testing.assert_close(doubled.row_sums(), 2 * full.sum(dim=1))
    assert SparseMatrix.from_edges(torch.zeros(2, 0, dtype=torch.int64), None, (3, 2)).row_sums().tolist() == [0, 0, 0]


@pytest.mark.parametrize(("sizes", "rows"), [((3, 1, 4), 4), ((3, 1, 4), 6), ((2,), 2), ((0, 2), 3)])
def test_blocks_lie_along_the_diagonal_padded_with_nothing(sizes: tuple[int, ...], rows: int) -> None:
    blocks = [drawn(size, size, seed, 0.6) for seed, size in enumerate(sizes)]
    found = block_diagonal([matrix for matrix, _ in blocks], rows)
    check_rows(found)
    expected = torch.zeros(len(sizes) * rows, len(sizes) * rows)
    for k, (_, full) in enumerate(blocks):
        expected[k * rows : k * rows + len(full), k * rows : k * rows + len(full)] = full
    assert torch.equal(found.to_dense(), expected)


def test_blocks_without_entries_are_blocks_too() -> None:
    nothing = SparseMatrix.from_edges(torch.zeros(2, 0, dtype=torch.int64), None, (2, 2))
    found = block_diagonal([nothing, drawn(3, 3, 1)[0], nothing], 3)
    torch.testing.assert_close(found.to_dense()[3:6, 3:6], drawn(3, 3, 1)[1])
    assert found.shape == (9, 9) and found.pattern.nnz == drawn(3, 3, 1)[0].pattern.nnz
