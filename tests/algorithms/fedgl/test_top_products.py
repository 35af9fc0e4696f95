from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus.algorithms.fedgl import top_products
from isthmus.algorithms.fedgl.top_products import TopProducts, approximate_top_products, exact_top_products


def by_hand(vectors: Tensor, count: int) -> list[dict[int, float]]:
    """For each row the columns and products of its largest positive products; of equal ones, the first columns."""
    rows = []
    for mine in vectors:
        products = [float(mine @ other) for other in vectors]
        order = sorted(range(len(products)), key=lambda j: (-products[j], j))[:count]
        rows.append({j: products[j] for j in order if products[j] > 0.0})
    return rows


def rows_of(found: TopProducts) -> list[dict[int, float]]:
    """The same, as it was found; no column may be there twice."""
    assert int(found.start[0]) == 0 and int(found.start[-1]) == len(found.column) == len(found.products)
    rows = []
    for first, last in zip(found.start[:-1].tolist(), found.start[1:].tolist(), strict=True):
        columns = found.column[first:last].tolist()
        assert len(columns) == len(set(columns))
        rows.append(dict(zip(columns, found.products[first:last].tolist(), strict=True)))
    return rows


def draw(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def clustered(rows: int, width: int, clusters: int, seed: int = 0) -> Tensor:
    """Vectors around a few directions, in random order, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(clusters, width, generator=generator))
    member = torch.randint(clusters, (rows,), generator=generator)
    lengths = torch.rand(rows, 1, generator=generator) + 0.5
    return lengths * (centres[member] + 0.3 / width**0.5 * torch.randn(rows, width, generator=generator))


# ---- exactly


def spread(rows: int, width: int) -> Tensor:
    """Vectors of which a few are long: most rows are done before the short ones are tried, and some are not."""
    lengths = torch.rand(rows, 1, generator=torch.Generator().manual_seed(1)) ** 6 * 10
    return lengths * clustered(rows, width, 3)


KINDS = {
    "alike": draw(40, 4),
    "clustered": clustered(40, 5, 3),
    "of many lengths": spread(40, 5),
    "one long one": torch.cat([draw(39, 3), 100.0 * draw(1, 3, seed=1)]),
    "one axis": draw(40, 1),
}


@pytest.mark.meet(2)
@pytest.mark.parametrize("count", [1, 3, 19, 20, 39, 40, 41, 100])
@pytest.mark.parametrize("block_bytes", [1, 4 * 40 * 7, 2**20], ids=["a row", "seven rows", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_products_of_each_row_in_blocks_of_any_size(kind: str, count: int, block_bytes: int) -> None:
    vectors = KINDS[kind]
    found = exact_top_products(vectors, count, block_bytes)
    for mine, other in zip(rows_of(found), by_hand(vectors, count), strict=True):
        assert mine.keys() == other.keys()
        assert [mine[j] for j in other] == pytest.approx(list(other.values()), rel=1e-4)
    assert found.start.dtype == found.column.dtype == torch.int64 and found.products.dtype == torch.float32


def test_rows_that_are_done_with_the_longest_vectors_and_rows_that_are_not_are_both_right() -> None:
    """At the size where only a quarter, or a half, of the vectors is tried first; looked at by a matrix of products."""
    for vectors in (spread(600, 6), draw(600, 6), clustered(600, 8, 10)):
        products = vectors @ vectors.t()
        for count in (1, 5, 70):
            wanted = products.topk(count).values.clamp(min=0.0)
            found = exact_top_products(vectors, count)
            row = torch.repeat_interleave(torch.arange(600), found.start.diff())
            torch.testing.assert_close(found.products, products[row, found.column], rtol=1e-4, atol=1e-5)
            kept = torch.zeros(600, count)
            kept[row, torch.arange(len(row)) - found.start[row]] = found.products
            torch.testing.assert_close(kept.sort(descending=True).values, wanted, rtol=1e-4, atol=1e-5)
            assert all(map(len, rows_of(found)))


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=14), count=st.integers(1, 15)
)
def test_among_equal_products_as_many_as_wanted_are_kept_and_none_that_is_not_positive(
    rows: list[tuple[int, int]], count: int
) -> None:
    """Whole numbers: every product is exact, and most rows have equal ones."""
    vectors = torch.tensor(rows, dtype=torch.float32)
    found = rows_of(exact_top_products(vectors, count, block_bytes=4 * 3 * len(rows)))
    for row, (mine, other) in enumerate(zip(found, by_hand(vectors, count), strict=True)):
        assert sorted(mine.values()) == sorted(other.values())
        assert mine == {j: float(vectors[row] @ vectors[j]) for j in mine}


def test_vectors_of_zeros_and_opposite_vectors_have_no_neighbours_but_themselves() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    assert rows_of(exact_top_products(vectors, 3)) == [{}, {1: 1.0}, {2: 1.0}, {3: 4.0}]
    assert rows_of(exact_top_products(torch.zeros(5, 3), 2)) == [{}] * 5


def test_without_vectors_there_is_nothing() -> None:
    found = exact_top_products(torch.zeros(0, 3), 2)
    assert found.start.tolist() == [0] and not len(found.column) and not len(found.products)


def test_vectors_that_are_trained_are_taken_without_their_gradient() -> None:
    assert not exact_top_products(draw(4, 2).requires_grad_(), 2).products.requires_grad


# ---- approximately


def approximate(vectors: Tensor, count: int, seed: int = 0) -> TopProducts:
    return approximate_top_products(vectors, count, torch.Generator().manual_seed(seed))


def recall(found: TopProducts, vectors: Tensor, count: int) -> float:
    exact = rows_of(exact_top_products(vectors, count))
    common = sum(len(mine.keys() & other.keys()) for mine, other in zip(rows_of(found), exact, strict=True))
    return common / sum(map(len, exact))


DATA = {
    "random": draw(1500, 8),
    "few columns": draw(1500, 3),
    "clustered": clustered(1500, 16, 12),
    "many clusters": clustered(1500, 16, 60),
}


@pytest.mark.parametrize(
    ("name", "bound"), [("random", 0.83), ("few columns", 0.99), ("clustered", 0.99), ("many clusters", 0.975)]
)
def test_most_of_the_largest_products_are_found_and_every_one_is_exact(name: str, bound: float) -> None:
    vectors, count = DATA[name], 20
    found = approximate(vectors, count)
    rows_of(found)
    row = torch.repeat_interleave(torch.arange(len(vectors)), found.start.diff())
    products = (vectors[row].double() * vectors[found.column].double()).sum(dim=1)
    torch.testing.assert_close(found.products.double(), products, rtol=1e-4, atol=1e-5)
    assert bool((found.products > 0).all()) and int(found.start.diff().max()) <= count
    assert recall(found, vectors, count) > bound


def test_more_candidates_find_more_and_all_find_everything() -> None:
    vectors, count = DATA["random"], 20
    found = [
        recall(approximate_top_products(vectors, count, torch.Generator().manual_seed(0), factor), vectors, count)
        for factor in (1.0, 4.0, 16.0, 75.0)
    ]
    assert found == sorted(found) and found[0] < found[2] and found[3] == pytest.approx(1.0, abs=1e-3)


def test_the_seed_decides_the_approximation_and_nothing_else() -> None:
    vectors = DATA["random"]
    first = approximate(vectors, 10)
    torch.manual_seed(99)
    torch.rand(3)
    again, other = approximate(vectors, 10), approximate(vectors, 10, seed=1)
    assert torch.equal(first.column, again.column) and torch.equal(first.products, again.products)
    assert not torch.equal(first.column, other.column)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_few_vectors_have_their_exact_neighbours(rows: int) -> None:
    vectors = draw(rows, 3)
    for count in (1, 2, 50):
        assert [row.keys() for row in rows_of(approximate(vectors, count))] == [
            row.keys() for row in by_hand(vectors, count)
        ]


def test_vectors_of_zeros_or_all_alike_are_no_trouble() -> None:
    assert rows_of(approximate(torch.zeros(40, 3), 4)) == [{}] * 40
    assert [len(row) for row in rows_of(approximate(torch.ones(40, 3), 4))] == [4] * 40
    mixed = torch.cat([torch.zeros(20, 3), draw(20, 3)])
    assert [len(row) for row in rows_of(approximate(mixed, 4))[:20]] == [0] * 20


def test_products_that_are_not_positive_are_no_neighbours_in_the_approximation_either() -> None:
    found = approximate(DATA["few columns"][:60], 50)
    expected = rows_of(exact_top_products(DATA["few columns"][:60], 50))
    assert [row.keys() for row in rows_of(found)] == [row.keys() for row in expected]


# ---- memory


def test_no_matrix_of_all_products_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product that is computed on the way is larger than a block."""
    largest = 0
    matmul = torch.Tensor.__matmul__

    def watched(left: Tensor, right: Tensor) -> Tensor:
        nonlocal largest
        out = matmul(left, right)
        largest = max(largest, out.numel())
        return out

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    monkeypatch.setattr(top_products, "BLOCK_BYTES", 4 * 3000)
    for vectors in (draw(1500, 6), draw(1500, 6) * 0.01 + 1.0):  # of all directions, and of one: a cell for all
        largest = 0
        exact_top_products(vectors, 5, 4 * 3000)
        assert 0 < largest <= 3000
        largest = 0
        approximate(vectors, 5)
        assert 0 < largest <= 3000


PEAK = """
import resource, torch
from isthmus.algorithms.fedgl.top_products import approximate_top_products
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
vectors = torch.randn(20000, 8, generator=draw)
approximate_top_products(vectors[:500], 10, draw)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
approximate_top_products(vectors, 10, draw)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_twenty_thousand_vectors_take_a_few_megabytes() -> None:
    """All products would take 1,600 MB."""
    assert resource.getpagesize()  # a machine that can say
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 200 * 1024
