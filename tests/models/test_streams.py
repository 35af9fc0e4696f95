"""Each client's dropout mask is the one that it draws alone, whatever the others draw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models.dropout import Ahead, Streams, _kind, dropout
from isthmus.models.inputs import GraphInput, stack_graphs
from isthmus.models.products.sparse import SparseMatrix

SIZES = (7, 1, 12, 3, 12)
RATES = {0.5: 8, 0.25: 8, 1 / 1024: 16, 0.3: 32, 0.9: 32}  # with the bits that each needs


def alone(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + k)


def streams(sizes: tuple[int, ...] = SIZES, rows: int | None = None, entries: tuple[int, ...] = ()) -> Streams:
    return Streams(lambda: [alone(k) for k in range(len(sizes))], sizes, rows or max(sizes), entries)


def rows_of(stacked: Tensor, rows: int) -> list[Tensor]:
    return [stacked[k * rows : k * rows + size] for k, size in enumerate(SIZES)]


def test_the_rates_need_8_16_and_32_bits() -> None:
    assert {p: _kind(p)[1] for p in RATES} == RATES


@pytest.mark.parametrize("rows", [12, 13, 40])
@pytest.mark.parametrize("width", [1, 3, 8, 17])
@pytest.mark.parametrize("p", RATES)
def test_each_clients_mask_is_the_one_that_it_draws_alone(p: float, width: int, rows: int) -> None:
    together, generators = streams(rows=rows), [alone(k) for k in range(len(SIZES))]
    x = torch.rand(len(SIZES) * rows, width, generator=torch.Generator().manual_seed(1)) + 1.0
    for _ in range(3):  # the streams go on from layer to layer and from step to step
        out = dropout(x, p, together)
        assert out.shape == x.shape and out.dtype == x.dtype
        mine = zip(rows_of(out, rows), rows_of(x, rows), generators, strict=True)
        assert all(torch.equal(found, dropout(part, p, generator)) for found, part, generator in mine)


@pytest.mark.parametrize("sizes", [SIZES, (0, 5, 0), (4, 4)])
def test_masks_that_are_drawn_for_several_steps_at_once_are_those_of_step_after_step(sizes: tuple[int, ...]) -> None:
    generators = [alone(k) for k in range(len(sizes))]
    rows = max(sizes) + 2
    ahead = Streams(lambda: [alone(k) for k in range(len(sizes))], sizes, rows, (), repeats=3)
    x = torch.ones(len(sizes) * rows, 16)
    for _ in range(7):  # twice all of them, and one more
        out = dropout(x, 0.5, ahead).view(len(sizes), rows, 16)
        for found, size, generator in zip(out, sizes, generators, strict=True):
            assert torch.equal(found[:size], dropout(torch.ones(size, 16), 0.5, generator))


@pytest.mark.parametrize("then", [16, 24], ids=["the same", "another width"])
def test_streams_that_begin_alike_have_what_the_others_drew_and_go_on_after_it(then: int) -> None:
    drawn, rows = Ahead(), max(SIZES)
    for number in range(2):
        generators, starts = [alone(k) for k in range(len(SIZES))], []

        def start() -> list[torch.Generator]:
            starts.append(number)  # noqa: B023
            return [alone(k) for k in range(len(SIZES))]

        ahead = Streams(start, SIZES, rows, (), repeats=2, ahead=drawn)
        for step, width in enumerate([16, 16, then, 16]):
            out = dropout(torch.ones(len(SIZES) * rows, width), 0.5, ahead).view(len(SIZES), rows, width)
            assert len(starts) == (step > 1 or number == 0)  # the second ones have drawn nothing in the first two steps
            if then != 16 and step > 2:
                break  # what was drawn ahead for other widths comes in another order
            for found, size, generator in zip(out, SIZES, generators, strict=True):
                assert torch.equal(found[:size], dropout(torch.ones(size, width), 0.5, generator))
        assert drawn.words((16, 8)) is not None and drawn.words((24, 8)) is None
    first = drawn.words((16, 8))
    assert drawn.begin(None).words((16, 8)) is first and drawn.begin("elsewhere").words((16, 8)) is None
    assert drawn.room((16, 8), [2 * size for size in SIZES], 2)[0] is first  # the same room
    assert drawn.room((16, 8), [3 * size for size in SIZES], 2)[0] is not first


def test_much_that_was_drawn_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.models.dropout.KEPT_BYTES", 8 * 2 * 2 * sum(SIZES) - 1)
    drawn = Ahead()
    ahead = Streams(lambda: [alone(k) for k in range(len(SIZES))], SIZES, max(SIZES), (), repeats=2, ahead=drawn)
    dropout(torch.ones(len(SIZES) * max(SIZES), 16), 0.5, ahead)
    assert drawn.words((16, 8)) is None


def test_calls_of_different_widths_and_rates_share_each_clients_stream() -> None:
    together, generators = streams(), [alone(k) for k in range(len(SIZES))]
    calls = [(5, 0.5), (3, 0.3), (5, 0.5), (5, 0.3), (16, 1 / 1024), (5, 0.5), (3, 0.3)]
    kept = []
    for width, p in calls:
        x = torch.ones(len(SIZES) * 12, width)
        out = dropout(x, p, together)
        for found, generator in zip(rows_of(out, 12), generators, strict=True):
            assert torch.equal(found, dropout(torch.ones(found.shape), p, generator))
        kept.append((out, out.clone()))
    assert all(torch.equal(out, copy) for out, copy in kept)  # what a layer got stays as it was for its backward


@pytest.mark.parametrize("p", RATES)
def test_each_clients_sparse_features_lose_the_entries_that_they_lose_alone(p: float) -> None:
    draw = torch.Generator().manual_seed(2)
    graphs = []
    for size in (*SIZES, 4):
        x = torch.rand(size, 9, generator=draw) + 1.0
        x[torch.rand(size, 9, generator=draw) < 0.6] = 0.0
        graphs.append(
            GraphInput(x.to_sparse_csr() if size != 4 else torch.zeros(4, 9).to_sparse_csr(), torch.zeros(2, 0))
        )
    stacked, rows = stack_graphs(graphs)
    assert isinstance(stacked.x, SparseMatrix) and rows == 12
    sizes = (*SIZES, 4)
    entries = tuple(graph.x.pattern.nnz for graph in graphs)  # type: ignore[union-attr]
    assert entries[-1] == 0
    together, generators = streams(sizes, rows, entries), [alone(k) for k in range(len(sizes))]
    for _ in range(2):
        found = dropout(stacked.x, p, together).to_dense()
        for k, (graph, generator) in enumerate(zip(graphs, generators, strict=True)):
            assert isinstance(graph.x, SparseMatrix)
            expected = dropout(graph.x, p, generator).to_dense()
            assert torch.equal(found[k * rows : k * rows + sizes[k]], expected)
            assert not found[k * rows + sizes[k] : (k + 1) * rows].any()


def test_the_gradient_passes_through_the_same_mask() -> None:
    x = torch.randn(len(SIZES) * 12, 6, requires_grad=True)
    out = dropout(x, 0.5, streams())
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad * x, out)


def test_streams_are_started_at_the_first_draw_and_once() -> None:
    starts = []

    def start() -> list[torch.Generator]:
        starts.append(1)
        return [alone(k) for k in range(len(SIZES))]

    lazy = Streams(start, SIZES, 12, ())
    x = torch.ones(len(SIZES) * 12, 4)
    assert len(lazy) == len(SIZES)
    assert dropout(x, 0.0, lazy) is x and starts == []
    first, second = dropout(x, 0.5, lazy), dropout(x, 0.5, lazy)
    assert starts == [1] and not torch.equal(first, second)


def test_a_generator_for_each_client_is_needed() -> None:
    few = Streams(lambda: [alone(0)], SIZES, 12, ())
    with pytest.raises(ValueError, match="zip"):
        dropout(torch.ones(len(SIZES) * 12, 4), 0.5, few)
