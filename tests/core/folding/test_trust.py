"""FoolsGold and FLTrust, against the papers' boxes term by term, and where they equal the mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from isthmus.core.errors import CourseFailed
from isthmus.core.folding.trust import FLTrust, FoolsGold
from isthmus.core.folds import Answer, Fold, weighted_mean
from isthmus.core.record import Record
from tests.core.toys import same, update


def answers(rows: Any, sent: Any = None, weights: Any = None) -> list[Answer]:
    start = None if sent is None else update(list(sent), dtype=torch.float64)
    counts = [1.0] * len(rows) if weights is None else weights
    return [
        Answer(update([float(x) for x in row], float(w), torch.float64), start, f"client-{k}")
        for k, (row, w) in enumerate(zip(rows, counts, strict=True))
    ]


def folded(fold: Fold, given: list[Answer]) -> Any:
    total = fold.start()
    for answer in given:
        fold.add_answer(total, *answer)
    return fold.finish(total)


def cosine(a: Any, b: Any) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def slow_trust(history: Any, confidence: float = 1.0) -> list[float]:
    """Return what Fung et al. (2020), Algorithm 1, say, line by line."""
    n = len(history)
    cs = [[cosine(history[i], history[j]) if i != j else 0.0 for j in range(n)] for i in range(n)]
    v = [max(cs[i]) for i in range(n)]
    for i in range(n):
        for j in range(n):
            if v[j] > v[i]:
                cs[i][j] *= v[i] / v[j]
    alpha = [min(1.0, max(0.0, 1.0 - max(cs[i]))) for i in range(n)]
    largest = max(alpha)
    found = []
    for a in alpha:
        a /= largest
        logit = -math.inf if a <= 0.0 else math.inf if a >= 1.0 else confidence * (math.log(a / (1.0 - a)) + 0.5)
        found.append(min(1.0, max(0.0, logit)))
    return found


# ---- FoolsGold


@pytest.mark.parametrize("confidence", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_foolsgolds_trust_is_the_papers(seed: int, confidence: float) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(6, 4))
    rows[1] = rows[0] + 0.05 * draw.normal(size=4)
    found = FoolsGold(confidence).trust(torch.tensor(rows)).tolist()
    assert found == pytest.approx(slow_trust(rows.tolist(), confidence), abs=1e-9)


def test_clients_whose_changes_are_orthogonal_have_the_weighted_mean_to_the_bit() -> None:
    rows = [[0.7, 0, 0, 0], [0, -0.3, 0, 0], [0, 0, 1 / 3, 0], [0, 0, 0, 5.1]]
    given = answers(rows, weights=[1.0, 2.5, 3.0, 0.1])
    assert same(folded(FoolsGold(), given), weighted_mean(answer.reply for answer in given))
    opposite = answers([[1.0, 0.0], [-1.0, 0.0]])
    assert same(folded(FoolsGold(), opposite), weighted_mean(answer.reply for answer in opposite))


def test_where_all_are_alike_nobody_is_preferred() -> None:
    given = answers([[1.0, 2.0]] * 3)
    assert same(folded(FoolsGold(), given), weighted_mean(answer.reply for answer in given))
    assert FoolsGold().trust(torch.zeros(3, 4)).tolist() == [1.0, 1.0, 1.0]


def test_one_client_with_many_names_counts_for_nothing_beside_honest_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    honest = torch.randn(5, 60, generator=draw)
    sybil = 30.0 * torch.randn(1, 60, generator=draw).expand(9, 60)
    given = answers(torch.cat([sybil, honest]).tolist())
    trust = FoolsGold().trust(torch.cat([sybil, honest]))
    assert trust[:9].tolist() == [0.0] * 9
    assert float(trust[9:].min()) > 0.5
    assert float(folded(FoolsGold(), given).params["w"].abs().max()) <= float(honest.abs().max())


def test_those_who_flip_signs_are_trusted_and_honest_clients_who_pull_back_alike_are_not() -> None:
    """So a model that was once pushed off goes on that way: the paper's trust is against many names of one alone."""
    draw = torch.Generator().manual_seed(0)
    back = torch.randn(1, 60, generator=draw)
    honest = back + 0.1 * torch.randn(8, 60, generator=draw)
    flipped = -4.0 * (back + 0.8 * torch.randn(2, 60, generator=draw))
    rows = torch.cat([honest, flipped])
    trust = FoolsGold().trust(rows)
    assert trust.tolist() == pytest.approx(slow_trust(rows.tolist()), abs=1e-5)
    assert trust[8:].tolist() == [1.0, 1.0] and float(trust[:8].max()) < 0.1
    moved = folded(FoolsGold(), answers(rows.tolist())).params["w"]
    plain = weighted_mean(answer.reply for answer in answers(rows.tolist())).params["w"]
    assert cosine(moved.tolist(), back[0].tolist()) < -0.8  # of two that differ by 0.8 each: about -0.87
    assert float(plain.norm()) < 0.3 * float(moved.norm())


def test_what_clients_did_in_rounds_before_counts_too_and_once_for_an_exchange() -> None:
    first, second = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    fold = FoolsGold()
    _, memory = fold.finish_with(answers(first), {}, "1.0")
    assert {name: h.tolist() for name, h in memory["sums"].items()} == {
        f"client-{k}": row for k, row in enumerate(first)
    }
    found, after = fold.finish_with(answers(second), memory, "2.0")
    sums = (np.array(first) + np.array(second)).tolist()
    assert [h.tolist() for h in after["sums"].values()] == sums
    trust = slow_trust(sums)
    expected = np.average(np.array(second), axis=0, weights=trust)
    assert found.params["w"].tolist() == pytest.approx(expected.tolist())
    again, twice = fold.finish_with(answers(second), after, "2.0")  # a part of the same exchange is folded again
    assert same(again, found)
    assert [h.tolist() for h in twice["sums"].values()] == sums
    alone = folded(fold, answers(second))
    assert not same(alone, found)  # without a memory, this round alone counts
    assert [h.tolist() for h in memory["sums"].values()] == first  # what was remembered before is as it was


def test_changes_and_not_models_are_compared() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    sent = np.array([100.0, 100.0])
    trust = slow_trust(rows.tolist())
    expected = sent + np.average(rows, axis=0, weights=trust)
    assert folded(FoolsGold(), answers(rows + sent, sent)).params["w"].tolist() == pytest.approx(expected.tolist())


# ---- FLTrust


def slow_fltrust(rows: np.ndarray, root: int, counts: bool) -> np.ndarray:
    """Return what Cao et al. (2021), section 4.2, say, client by client."""
    g0 = rows[root]
    total, trust_in_all = np.zeros_like(g0), 0.0
    for k, g in enumerate(rows):
        if k == root and not counts:
            continue
        trust = max(0.0, cosine(g, g0))
        total = total + trust * (np.linalg.norm(g0) / np.linalg.norm(g)) * g
        trust_in_all += trust
    return total / trust_in_all


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_fltrust_is_the_papers(seed: int, counts: bool) -> None:
    draw = np.random.default_rng(seed)
    rows, sent = draw.normal(size=(6, 4)), draw.normal(size=4)
    given = answers(rows + sent, sent, weights=[1, 50, 3, 4, 5, 6])
    found = folded(FLTrust("client-2", counts), given)
    assert found.params["w"].tolist() == pytest.approx((sent + slow_fltrust(rows, 2, counts)).tolist())
    assert found.weight == 69.0


def test_clients_that_change_what_the_root_changes_are_followed() -> None:
    given = answers([[3.0, 4.0]] * 4, [1.0, 1.0])
    assert same(folded(FLTrust("client-1"), given).params, given[0].reply.params)


@pytest.mark.parametrize("size", [1e3, 1e17])
def test_even_most_clients_cannot_move_fltrust_farther_than_the_root_moved(size: float) -> None:
    draw = torch.Generator().manual_seed(0)
    honest = torch.ones(2, 4) + 0.1 * torch.randn(2, 4, generator=draw)
    wrong = size * torch.randn(9, 4, generator=draw)
    found = folded(FLTrust(), answers(torch.cat([honest, wrong]).tolist(), [0.0] * 4)).params["w"]
    assert float(found.norm()) <= float(honest[0].norm()) * (1 + 1e-9)


def test_where_nobody_goes_the_roots_way_nothing_is_changed() -> None:
    given = answers([[2.0, 2.0], [-3.0, -3.0]], [1.0, 1.0])
    assert folded(FLTrust(), given).params["w"].tolist() == [1.0, 1.0]
    still = answers([[1.0, 1.0], [5.0, 5.0]], [1.0, 1.0])
    assert folded(FLTrust(), still).params["w"].tolist() == [1.0, 1.0]


def test_a_root_that_gave_no_reply_is_named() -> None:
    with pytest.raises(CourseFailed, match=r"trusts the client 'bank'.*client-0, client-1"):
        folded(FLTrust("bank"), answers([[1.0], [2.0]]))
    with pytest.raises(CourseFailed, match="'client-0'"):
        folded(FLTrust(), answers([[1.0], [2.0]], weights=[0.0, 1.0]))


def test_impossible_settings_are_refused_and_reprs_differ() -> None:
    with pytest.raises(ValueError, match="confidence"):
        FoolsGold(0.0)
    assert repr(FoolsGold()) != repr(FoolsGold(2.0)) and repr(FLTrust("a")) != repr(FLTrust("b"))
    assert isinstance(update([1.0]), Record)
