"""Every way to hold the weights of many clients, against as many separate dense matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from isthmus.learn.together.layouts import CompactRows, FullRows, Layout, Plain, Span
from isthmus.learn.together.stacked_features import StackedFeatures, Start
from isthmus.models.products.affine import affine
from isthmus.models.products.sparse import SparseMatrix

CLIENTS, ROWS, FEATURES, OUT = 5, 4, 12, 3


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features() -> Tensor:
    """Return (clients, rows, features): clients 1 and 4 have no feature set, features 10 and 11 are set at nobody."""
    x = torch.randn(CLIENTS, ROWS, FEATURES, generator=draws(0))
    x[torch.rand(x.shape, generator=draws(1)) < 0.7] = 0.0
    x[1], x[4], x[..., 10:] = 0.0, 0.0, 0.0
    x[0, :, :3] += 1.0  # some features occur at a client in several rows
    return x


def stacked_features() -> StackedFeatures:
    return StackedFeatures(SparseMatrix.from_csr(features().flatten(0, 1).to_sparse_csr()), CLIENTS)


def one_start() -> Tensor:
    return torch.randn(FEATURES, OUT, generator=draws(2))


def own_starts() -> list[Tensor]:
    return [torch.randn(FEATURES, OUT, generator=draws(10 + k)) for k in range(CLIENTS)]


def start_of(start: Start, k: int) -> Tensor:
    return start if isinstance(start, Tensor) else start[k]


FeatureLayout = FullRows | CompactRows | Span

CASES: dict[str, tuple[type[FeatureLayout], bool]] = {
    "full rows, one start": (FullRows, True),
    "full rows, own starts": (FullRows, False),
    "compact rows, one start": (CompactRows, True),
    "span, one start": (Span, True),
    "span, own starts": (Span, False),
}


def case(name: str) -> tuple[FeatureLayout, Start]:
    kind, shared = CASES[name]
    return kind(stacked_features()), one_start() if shared else own_starts()


LR, DECAY, PULL, STEPS = 0.1, 0.2, 0.3, 3


def trained(layout: Layout, x: object, start: Start, target: Tensor) -> Tensor:
    """Take steps of gradient descent with weight decay and a pull to the start on what the layout holds."""
    live = layout.live(start)
    anchor = live.clone()
    for _ in range(STEPS):
        live.requires_grad_()
        out = affine(x, layout.installed(live, start))  # type: ignore[arg-type]
        (grad,) = torch.autograd.grad(((out - target).square() / 2).sum(), live)
        live = live.detach()
        live = live - LR * (grad + DECAY * live + PULL * (live - anchor))
    return live


def plainly(start: Start, target: Tensor) -> list[Tensor]:
    """Return the same for each client by itself, by the formula in double precision."""
    found = []
    for k, x in enumerate(features().double()):
        weight = anchor = start_of(start, k).double()
        for _ in range(STEPS):
            grad = x.t() @ (x @ weight - target.view(CLIENTS, ROWS, OUT)[k].double())
            weight = weight - LR * (grad + DECAY * weight + PULL * (weight - anchor))
        found.append(weight)
    return found


def targets() -> Tensor:
    return torch.randn(CLIENTS * ROWS, OUT, generator=draws(3))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)


# ---- the features in other forms


def test_the_forms_of_the_features_hold_the_same_numbers() -> None:
    x, stacked = features(), stacked_features()
    full = stacked.full.to_dense()
    assert torch.equal(full, torch.block_diag(*x))
    used = [(k, f) for k in range(CLIENTS) for f in range(FEATURES) if bool(x[k, :, f].any())]
    assert stacked.used.tolist() == [k * FEATURES + f for k, f in used]
    assert list(zip(stacked.owner.tolist(), stacked.feature.tolist(), strict=True)) == used
    compact = stacked.compact.to_dense()
    assert compact.shape == (CLIENTS * ROWS, len(used) + FEATURES) and not compact[:, len(used) :].any()
    assert torch.equal(compact[:, : len(used)], full[:, stacked.used])
    close(stacked.span.gram.to_dense(), torch.block_diag(*[part @ part.t() for part in x]))
    assert torch.equal(stacked.span.matrix.to_dense(), x.flatten(0, 1))
    collected = torch.zeros(FEATURES, len(used))
    for column, (_, feature) in enumerate(used):
        collected[feature, column] = 1.0
    assert torch.equal(stacked.collected.to_dense(), collected)


def test_the_used_rows_of_each_clients_weights_are_gathered_in_order() -> None:
    stacked, starts = stacked_features(), own_starts()
    expected = [starts[k][f] for k, f in zip(stacked.owner.tolist(), stacked.feature.tolist(), strict=True)]
    assert torch.equal(stacked.gathered(starts), torch.stack(expected))


@pytest.mark.parametrize(
    ("rows", "num_features", "share", "pays"), [(4, 500, 0.02, True), (300, 10, 0.9, False)], ids=["few", "many"]
)
def test_the_span_pays_for_few_nodes_with_many_features(rows: int, num_features: int, share: float, pays: bool) -> None:
    x = (torch.rand(3 * rows, num_features, generator=draws(0)) < share).float()
    assert StackedFeatures(SparseMatrix.from_csr(x.to_sparse_csr()), 3).span_pays == pays


# ---- layouts


@pytest.mark.parametrize("name", CASES)
def test_the_model_finds_each_clients_weights_in_its_place(name: str) -> None:
    layout, start = case(name)
    expected = torch.cat([x @ start_of(start, k) for k, x in enumerate(features())])
    close(affine(layout.x, layout.installed(layout.live(start), start)), expected)  # type: ignore[arg-type]


def test_compact_rows_of_own_starts_serve_evaluation() -> None:
    layout, starts = CompactRows(stacked_features()), own_starts()
    expected = torch.cat([x @ starts[k] for k, x in enumerate(features())])
    close(affine(layout.x, layout.live(starts)), expected)
    with pytest.raises(TypeError, match="common start"):
        layout.finished(layout.live(starts), starts)


@pytest.mark.parametrize("name", CASES)
def test_training_leaves_every_client_with_the_weights_that_it_would_have_alone(name: str) -> None:
    layout, start = case(name)
    target, before = targets(), [start_of(start, k).clone() for k in range(CLIENTS)]
    finished = layout.finished(trained(layout, layout.x, start, target), start)
    expected = plainly(start, target)
    assert (len(finished), finished.shape, finished.dtype) == (CLIENTS, (FEATURES, OUT), torch.float32)
    for k in range(CLIENTS):
        close(finished.member(k), expected[k])
        assert not torch.allclose(finished.member(k), before[k], atol=1e-3)
        assert torch.equal(start_of(start, k), before[k])  # the start itself is as it was
    assert finished.finite().tolist() == [True] * CLIENTS
    for weights in ([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 7.0, 0.0, 0.5, 0.0], [0.0] * 5, [1e-4, 1e4, 1.0, 0.0, 3.0]):
        total = finished.weighted_sum(torch.tensor(weights, dtype=torch.float64))
        assert total.dtype == torch.float64 and total.shape == (FEATURES, OUT)
        explicit = torch.zeros(FEATURES, OUT, dtype=torch.float64)
        for weight, mine in zip(weights, expected, strict=True):
            explicit += weight * mine
        scale = max(*weights, 1e-3)
        close(total / scale, explicit / scale)


@pytest.mark.parametrize("name", CASES)
def test_without_training_every_client_has_its_start(name: str) -> None:
    layout, start = case(name)
    finished = layout.finished(layout.live(start), start)
    for k in range(CLIENTS):
        assert torch.equal(finished.member(k), start_of(start, k))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CASES)
def test_a_number_that_is_not_finite_is_found_at_its_client(name: str, bad: float) -> None:
    layout, start = case(name)
    places = torch.zeros(layout.live(start).shape[0])
    for client in range(CLIENTS):
        live = layout.live(start)
        rows = own_rows(layout, client)
        if not len(rows):
            continue
        live[rows[-1], 1] = bad
        places[rows] += 1
        finished = layout.finished(live, start)
        sound = [bool(torch.isfinite(finished.member(k)).all()) for k in range(CLIENTS)]
        assert finished.finite().tolist() == [k != client for k in range(CLIENTS)]
        assert sound == [k != client for k in range(CLIENTS)]
    assert int(places.max()) == 1


def own_rows(layout: FeatureLayout, client: int) -> Tensor:
    """Return the rows of what is trained that belong to one client alone."""
    if isinstance(layout, FullRows):
        return torch.arange(client * FEATURES, (client + 1) * FEATURES)
    if isinstance(layout, CompactRows):
        return (layout.features.owner == client).nonzero().flatten()
    rows = torch.arange(client * ROWS, (client + 1) * ROWS)
    return rows[features()[client].any(dim=1)]


@pytest.mark.parametrize("name", ["compact rows, one start", "span, one start", "span, own starts"])
def test_what_is_held_once_for_all_is_judged_for_all(name: str) -> None:
    layout, start = case(name)
    live = layout.live(start)
    live[-1, 0] = math.nan  # a row that no data touches, or what is left of the start
    finished = layout.finished(live, start)
    assert finished.finite().tolist() == [False] * CLIENTS
    assert all(not bool(torch.isfinite(finished.member(k)).all()) for k in range(CLIENTS))


def test_rows_that_stand_still_are_the_starts_and_have_no_gradients() -> None:
    start, held = one_start(), CompactRows(stacked_features(), still=True)
    live = held.live(start)
    assert len(live) == len(held.features.used)
    moved = live + 1.0
    whole = CompactRows(stacked_features()).finished(torch.cat([moved, start]), start)
    torch.testing.assert_close(held.finished(moved, start).whole(), whole.whole(), rtol=0.0, atol=0.0)
    gradients = held.beside(moved, start)
    untouched = torch.ones(CLIENTS, len(start), dtype=torch.bool)
    untouched.view(-1)[held.features.used] = False
    assert bool((gradients.whole()[untouched] == 0.0).all())
    assert torch.equal(live, one_start().index_select(0, held.features.feature))  # `finished` changes no start


def test_large_numbers_whose_sum_overflows_are_not_lost_in_the_verdict_of_a_member() -> None:
    layout, start = case("compact rows, one start")
    live = layout.live(start)
    live[own_rows(layout, 0)] = 3e38
    finished = layout.finished(live, start)
    # A sum beyond floats is odd, and whoever is odd is looked at by itself; it must not be called sound unseen.
    assert bool(torch.isfinite(finished.member(0)).all()) and finished.finite().tolist()[1:] == [True] * 4


def test_a_start_that_is_not_finite_is_everybodys() -> None:
    start = one_start()
    start[11, 0] = math.inf
    for kind in (FullRows, CompactRows, Span):
        layout = kind(stacked_features())
        assert layout.finished(layout.live(start), start).finite().tolist() == [False] * CLIENTS


@pytest.mark.parametrize("name", CASES)
def test_a_client_of_weight_zero_adds_nothing_whatever_it_holds(name: str) -> None:
    layout, start = case(name)
    live = layout.live(start)
    live[own_rows(layout, 2)] = math.nan
    total = layout.finished(live, start).weighted_sum(torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    close(total, sum(start_of(start, k) for k in (0, 1, 3, 4)))  # type: ignore[arg-type]


def test_weights_that_overflow_are_found_though_their_coordinates_are_finite() -> None:
    x = torch.zeros(2 * ROWS, FEATURES)
    x[0, 0], x[ROWS, 0] = 1e20, 1.0
    layout, start = Span(StackedFeatures(SparseMatrix.from_csr(x.to_sparse_csr()), 2)), one_start()
    live = layout.live(start)
    live[0], live[ROWS] = 1e30, 1e30
    finished = layout.finished(live, start)
    assert [bool(torch.isfinite(finished.member(k)).all()) for k in range(2)] == [False, True]
    assert finished.finite().tolist() == [False, True]


# ---- plain tensors


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_plain_tensors_are_copied_for_each(shape: Sequence[int]) -> None:
    layout = Plain(3)
    one, each = torch.randn(shape), [torch.randn(shape) for _ in range(3)]
    for start in (one, each):
        live = layout.live(start)
        assert layout.installed(live, start) is live and live.shape == (3, *shape)
        finished = layout.finished(live, start)
        assert all(torch.equal(finished.member(k), start_of(start, k)) for k in range(3))
        live += 1.0
        assert all(torch.equal(finished.member(k), start_of(start, k) + 1.0) for k in range(3))
    assert layout.live(one).is_contiguous()
