"""Krum and Bulyan against their definitions, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.errors import CourseFailed
from isthmus.core.folding.changes import change_of
from isthmus.core.folding.krum import Bulyan, Krum
from isthmus.core.folds import weighted_mean
from isthmus.core.record import Record
from tests.core.toys import Update, Word, quick, same, update


@dataclass(frozen=True)
class Bare(Record):
    w: Tensor


def slow_krum(rows: list[list[float]], num_malicious: int) -> list[float]:
    """Return the scores of Blanchard et al. (2017), section 4, term by term."""
    scores = []
    for i, mine in enumerate(rows):
        distances = []
        for j, other in enumerate(rows):
            if i != j:
                distances.append(sum((a - b) ** 2 for a, b in zip(mine, other, strict=True)))
        scores.append(sum(sorted(distances)[: len(rows) - num_malicious - 2]))
    return scores


@quick
@given(
    st.integers(3, 8).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3), min_size=n, max_size=n),
            st.integers(0, n - 3),
        )
    )
)
def test_krum_chooses_a_reply_of_least_score(case: tuple[list[list[float]], int]) -> None:
    rows, num_malicious = case
    replies = [update(row, 2.0) for row in rows]
    found = Krum(num_malicious)(replies)
    assert found.weight == 2.0 * len(rows)
    scores = slow_krum(rows, num_malicious)
    chosen = next(i for i, reply in enumerate(replies) if reply.params["w"] is found.params["w"])
    assert scores[chosen] == pytest.approx(min(scores), rel=1e-9, abs=1e-9)


def test_krum_looks_at_all_float_tensors_of_a_reply() -> None:
    rows = [[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [0.0, 9.0]]
    replies = [
        Update({"a": torch.tensor(a), "b": torch.tensor([b]), "n": torch.tensor([k * 100])}, 1.0)
        for k, (a, b) in enumerate(rows)
    ]
    best = replies[int(np.argmin(slow_krum(rows, 1)))]
    assert same(Krum(1)(replies).params, best.params)


def test_multi_krum_is_the_plain_mean_of_the_best() -> None:
    rows = [[0.0, 1.0], [0.5, 1.0], [0.2, 1.3], [0.1, 0.9], [40.0, -3.0], [-7.0, 9.0]]
    replies = [update(row, float(k + 1)) for k, row in enumerate(rows)]
    best = np.argsort(slow_krum(rows, 2), kind="stable")[:3]
    found = Krum(num_malicious=2, num_selected=3)(replies)
    assert isinstance(found, Update)
    assert found.params["w"].tolist() == pytest.approx(np.mean([rows[i] for i in best], axis=0).tolist())
    assert found.weight == 21.0  # of all that were compared


def test_krum_compares_updates_and_not_models() -> None:
    """Clients that were sent different models: the odd one is odd in what it changed, not in where it began."""
    starts = [0.0, 0.1, 0.2, 90.0]
    changes = [5.0, 1.0, 1.1, 1.2]
    total = Krum(num_malicious=1).start()
    for start, change in zip(starts, changes, strict=True):
        Krum(num_malicious=1).add_answer(total, update([start + change]), update([start]))
    found = Krum(num_malicious=1).finish(total)
    assert found.params["w"].item() in (pytest.approx(1.1), pytest.approx(1.3), pytest.approx(91.2))
    scores = slow_krum([[change] for change in changes], 1)
    assert found.params["w"].item() == pytest.approx(starts[int(np.argmin(scores))] + changes[int(np.argmin(scores))])
    among_models = slow_krum([[a + b] for a, b in zip(starts, changes, strict=True)], 1)
    assert np.argmin(among_models) != np.argmin(scores)


def test_what_has_no_counterpart_in_the_request_is_compared_as_it_is() -> None:
    assert change_of(update([3.0, 5.0]), update([1.0, 1.0])).tolist() == [2.0, 4.0]
    assert change_of(update([3.0, 5.0]), update([1.0])).tolist() == [3.0, 5.0]
    assert change_of(update([3.0, 5.0]), Bare(torch.ones(2))).tolist() == [3.0, 5.0]
    assert change_of(update([3.0, 5.0]), None).tolist() == [3.0, 5.0]


def test_krum_with_too_few_replies_says_how_many_it_needs() -> None:
    replies = [update([float(k)]) for k in range(4)]
    Krum(num_malicious=1)(replies)
    with pytest.raises(CourseFailed, match="needs at least 5 replies; there are 4"):
        Krum(num_malicious=2)(replies)
    with pytest.raises(CourseFailed, match="needs at least 4 replies; there are 3"):
        Krum(num_malicious=1)([*replies[:3], update([0.0], weight=0.0)])


def test_krum_of_replies_without_float_tensors_is_refused() -> None:
    with pytest.raises(CourseFailed, match="Word has none"):
        Krum()([Word("a"), Word("b"), Word("c")])


# ---- Bulyan


def slow_bulyan(rows: list[list[float]], num_malicious: int) -> list[float]:
    """Return what Mhamdi et al. (2018), section 4, say, step by step."""
    left, taken = list(rows), []
    while len(taken) < len(rows) - 2 * num_malicious:
        scores = []
        for i, mine in enumerate(left):
            apart = sorted(
                sum((a - b) ** 2 for a, b in zip(mine, x, strict=True)) for j, x in enumerate(left) if j != i
            )
            scores.append(sum(apart[: max(1, len(left) - num_malicious - 2)]))
        taken.append(left.pop(scores.index(min(scores))))
    found = []
    for column in zip(*taken, strict=True):
        middle = float(np.median(column))
        near = sorted(column, key=lambda x: abs(x - middle))[: len(taken) - 2 * num_malicious]
        found.append(sum(near) / len(near))
    return found


@pytest.mark.parametrize("num_malicious", [0, 1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_bulyan_is_the_mean_of_what_is_nearest_to_the_median_of_krums_choices(num_malicious: int, seed: int) -> None:
    draw = np.random.default_rng([seed, num_malicious])
    rows = draw.normal(size=(4 * num_malicious + 3 + seed % 3, 4))
    rows[: num_malicious + seed % 2] *= 20.0
    found = Bulyan(num_malicious)([update(row.tolist(), 2.0, torch.float64) for row in rows])
    assert found.params["w"].tolist() == pytest.approx(slow_bulyan(rows.tolist(), num_malicious), rel=1e-12)
    assert found.weight == 2.0 * len(rows)


def test_bulyan_without_anybody_to_fear_is_the_plain_mean() -> None:
    replies = [update([float(k), -3.0 * k], dtype=torch.float64) for k in (1, 2, 4)]
    assert Bulyan()(replies).params["w"].tolist() == pytest.approx(weighted_mean(replies).params["w"].tolist())
    assert same(Bulyan()(replies[:1]).params, replies[0].params)


def test_bulyan_with_too_few_replies_says_how_many_it_needs() -> None:
    assert (Bulyan(2).least_replies, Krum(2).least_replies) == (11, 7)
    with pytest.raises(CourseFailed, match="needs at least 7 replies; there are 6"):
        Bulyan(1)([update([1.0])] * 6)
    with pytest.raises(ValueError, match="num_malicious is -1"):
        Bulyan(-1)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e17])
@pytest.mark.parametrize("fold", [Bulyan(2), Krum(2), Krum(2, 5)], ids=repr)
def test_two_of_eleven_cannot_move_it_beyond_the_others(fold: Any, size: float) -> None:
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(9, 5, generator=draw)
    for wrong in (torch.ones(2, 5), torch.tensor([[1.0], [-1.0]]).expand(2, 5), torch.eye(5)[:2]):
        found = fold([*(update(row.tolist()) for row in honest), *(update((size * row).tolist()) for row in wrong)])
        low, high = honest.min(dim=0).values, honest.max(dim=0).values
        assert bool((low <= found.params["w"]).all()) and bool((found.params["w"] <= high).all())
