"""Features of a client that occur at the same nodes with the same values, held as one row while they move alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.core.replies import Combination, StackedTensor
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer, proximal
from isthmus.learn.together.layouts import AlikeRows, CompactRows
from isthmus.learn.together.stacked_clients import GraphCohort, Together
from isthmus.learn.together.stacked_features import (
    AlikeStack,
    CompactStack,
    SpanStack,
    StackedFeatures,
    compact_sum,
    first_alike,
)
from isthmus.models import GCN, MLP, SAGE, ModelSpec
from isthmus.models.products.sparse import SparseMatrix
from tests.learn.together.test_stacked_clients import clients_of, start_of

CLIENTS, ROWS, FEATURES, OUT = 3, 4, 9, 2


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense() -> Tensor:
    """Return (clients, rows, features): at client 0 features 0, 3 and 7 are alike, and 1 is where they are."""
    x = torch.zeros(CLIENTS, ROWS, FEATURES)
    x[0, :2, [0, 3, 7]], x[0, :2, 1] = 2.0, 1.0
    x[0, 2, 4] = 1.0
    x[1, 0, [0, 3]], x[1, 1:, 5] = 1.0, torch.tensor([1.0, 2.0, 3.0])
    return x  # nothing occurs at client 2


def features() -> StackedFeatures:
    return StackedFeatures(SparseMatrix.from_csr(dense().flatten(0, 1).to_sparse_csr()), CLIENTS)


def spread(values: Tensor) -> Tensor:
    """Return the rows of sets as those of each client, (clients, features, out), by the definition."""
    x, found, known = dense(), torch.zeros(CLIENTS, FEATURES, OUT), {}
    for k in range(CLIENTS):
        for f in range(FEATURES):
            if bool(x[k, :, f].any()):
                found[k, f] = values[known.setdefault((k, tuple(x[k, :, f].tolist())), len(known))]
    assert len(known) == len(values) == 5
    return found


def rows(seed: int = 0) -> Tensor:
    return torch.randn(5, OUT, generator=draws(seed))


@pytest.mark.parametrize("seed", range(5))
def test_the_first_row_with_the_same_entries_is_found(seed: int) -> None:
    draw = np.random.default_rng(seed)
    given = [sorted(draw.choice(4, size=draw.integers(1, 4), replace=False).tolist()) for _ in range(40)]
    values = [[float(draw.choice([1.0, 2.0, -0.0, 0.0])) for _ in row] for row in given]
    crow = np.cumsum([0, *map(len, given)])
    col, flat = np.concatenate(given), np.concatenate(values).astype(np.float32)
    keys = [(tuple(row), np.array(mine, dtype=np.float32).tobytes()) for row, mine in zip(given, values, strict=True)]
    assert first_alike(crow, col, flat).tolist() == [keys.index(key) for key in keys]


def test_the_forms_of_the_features_hold_the_same_numbers() -> None:
    alike, x = features().alike, torch.block_diag(*dense())
    sets = torch.zeros(CLIENTS * FEATURES, 5)
    for column in range(5):
        values = torch.zeros(5, OUT)
        values[column] = 1.0
        sets[:, column] = spread(values)[..., 0].flatten()
    assert torch.equal(alike.sums.to_dense(), x @ sets)
    firsts = torch.stack([x[:, int(sets[:, column].nonzero()[0])] for column in range(5)])
    assert torch.equal(alike.firsts.to_dense(), firsts)
    assert features().alike_owner.tolist() == [0, 0, 0, 1, 1]


def test_a_stack_of_them_is_what_each_client_has() -> None:
    values, expected = rows(), spread(rows())
    stack = AlikeStack(values, features())
    assert torch.equal(stack.whole(), expected)
    assert all(torch.equal(stack.member(k), expected[k]) for k in range(CLIENTS))
    assert bool((stack.bound() >= expected.abs().amax(dim=(1, 2))).all()) and stack.finite().all()
    for weights in ([1.0, 2.0, 3.0], [0.0, 2.0, 1.0]):
        given = torch.tensor(weights, dtype=torch.float64)
        torch.testing.assert_close(
            stack.weighted_sum(given).float(), StackedTensor(expected).weighted_sum(given).float()
        )


def test_a_number_that_is_not_finite_is_its_clients_and_one_without_weight_adds_nothing() -> None:
    values = rows()
    values[3, 1] = float("nan")
    stack = AlikeStack(values, features())
    assert stack.finite().tolist() == [True, False, True]
    found = stack.weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found.float(), spread(values)[0])


def test_sums_with_others_are_rows_of_the_features_that_occur() -> None:
    of = features()
    start, span = torch.randn(FEATURES, OUT, generator=draws(1)), torch.randn(CLIENTS * ROWS, OUT, generator=draws(2))
    held = CompactStack(torch.randn(len(of.used), OUT, generator=draws(3)), start, of)
    one, other, third = AlikeStack(rows(), of), AlikeStack(rows(4), of), SpanStack(span, of)
    for terms in (
        [(1.0, one), (1.0, start)],
        [(2.0, one), (-0.5, other), (1.0, start)],
        [(1.0, one), (-1.0, held)],
        [(1.0, one), (3.0, third), (-1.0, held), (0.5, start)],
        [(1.0, one)],
    ):
        found = compact_sum(terms, of)
        assert found is not None
        expected = sum(f * (each if isinstance(each, Tensor) else each.whole()) for f, each in terms)
        torch.testing.assert_close(found.whole(), torch.as_tensor(expected).expand(CLIENTS, -1, -1))
    kept = Combination([(1.0, one), (1.0, start)])
    condensed = kept.condensed()
    # A memory has the same bits, taken apart before it is condensed or after.
    assert isinstance(condensed, CompactStack)
    assert all(torch.equal(kept.member(k), condensed.member(k)) for k in range(CLIENTS))


# ---- training


def kind_of(cohort: GraphCohort, optimizer: Optimizer, **asked: object) -> type:
    cohort._features.span_pays = False  # type: ignore[union-attr]
    starts = cohort.model.state_dict()
    layouts, _ = cohort._layouts(cohort.data, starts, None, Together(steps=1, optimizer=optimizer, **asked))  # type: ignore[arg-type]
    return type(layouts["gnn.layers.0.weight"])


def test_they_are_held_where_nothing_but_gradients_moves_them() -> None:
    cohort = GraphCohort(clients_of(ModelSpec(GCN(hidden=6)), is_sparse=True))
    drift = {"gnn.layers.0.weight": torch.zeros(20, 6)}
    assert kind_of(cohort, Adam()) is kind_of(cohort, SGD(momentum=0.9)) is AlikeRows
    assert kind_of(cohort, Adam(weight_decay=0.1)) is kind_of(cohort, Adam(), drifts=drift) is CompactRows
    assert kind_of(cohort, Adam(), alters_features=True) is CompactRows


def with_alike(client: GraphClient) -> GraphClient:
    """Return a client whose features are there or not, every third of them where the first is."""
    x = 0.3 * (client.data.x.to_dense() != 0.0).float()
    x[:, ::3] = x[:, :1]
    data = replace(client.data, x=x.to_sparse_csr())
    found = GraphClient(client.id, data, client.task, client.model, client.batching)
    found.position = client.position
    return found


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize(
    "optimizer",
    [Adam(lr=0.02, eps=1e-3), SGD(lr=0.2, momentum=0.5), AdamW(lr=0.02, eps=1e-3, weight_decay=0.0)],
    ids=["adam", "momentum", "adamw"],
)
@pytest.mark.parametrize("network", [GCN(hidden=6), MLP(hidden=6), SAGE(hidden=6, dropout=0.3)])
def test_training_leaves_everybody_with_the_weights_that_it_would_have_alone(
    network: object, optimizer: Optimizer, strength: float
) -> None:
    clients = [with_alike(client) for client in clients_of(ModelSpec(network), is_sparse=True)]  # type: ignore[arg-type]
    cohort, start = GraphCohort(clients), start_of(clients, 1)
    assert cohort._features is not None and len(cohort._features.alike_owner) < len(cohort._features.used)
    cohort._features.span_pays = False
    pull = {} if strength == 0.0 else {"proximal": strength, "pulled": start}
    found = cohort.fit(start, steps=3, optimizer=optimizer, **pull)
    for k, client in enumerate(clients):
        alone = client.fit(start, steps=3, optimizer=optimizer, penalty=proximal(strength, start))
        mine = found.member(k)
        for name, tensor in alone.params.items():
            torch.testing.assert_close(mine[name], tensor, atol=3e-5, rtol=3e-5)
        for one, other in zip(
            found.optimizer_states[k].get("first", ()), alone.optimizer_state.get("first", ()), strict=True
        ):
            torch.testing.assert_close(one, other, atol=3e-5, rtol=3e-5)
