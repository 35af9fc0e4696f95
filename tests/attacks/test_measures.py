"""How good guesses are, against the plainest counting."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.attacks.measures import auc, names_found, true_positives_at
from tests.core.toys import quick

GUESSES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30)


def parted(pairs: list[tuple[int, bool]]) -> tuple[Tensor, Tensor, list[int], list[int]]:
    guess, truth = torch.tensor([g for g, _ in pairs]), torch.tensor([t for _, t in pairs])
    return guess, truth, [g for g, t in pairs if t], [g for g, t in pairs if not t]


@quick
@given(GUESSES)
def test_the_area_is_how_often_a_yes_is_above_a_no(pairs: list[tuple[int, bool]]) -> None:
    guess, truth, yes, no = parted(pairs)
    found = auc(guess, truth)
    if not yes or not no:
        assert math.isnan(found)
        return
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in yes for b in no)
    assert found == pytest.approx(wins / (len(yes) * len(no)))


@quick
@given(GUESSES, st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_true_positives_are_those_above_the_lowest_threshold_that_is_allowed(
    pairs: list[tuple[int, bool]], share: float
) -> None:
    guess, truth, yes, no = parted(pairs)
    found = true_positives_at(guess, truth, share)
    if not yes or not no:
        assert math.isnan(found)
        return
    allowed = [
        threshold
        for threshold in [-math.inf, *sorted({*yes, *no})]
        if sum(each > threshold for each in no) <= share * len(no) + 1e-9
    ]
    assert found == pytest.approx(sum(each > min(allowed) for each in yes) / len(yes))


@quick
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_names_are_counted(pairs: list[tuple[bool, bool]]) -> None:
    named, truth = torch.tensor([a for a, _ in pairs]), torch.tensor([b for _, b in pairs])
    found = names_found(named, truth)
    both = sum(a and b for a, b in pairs)
    for name, whole in (("precision", sum(a for a, _ in pairs)), ("recall", sum(b for _, b in pairs))):
        assert found[name] == pytest.approx(both / whole) if whole else math.isnan(found[name])
    others = sum(not b for _, b in pairs)
    wrong = sum(a and not b for a, b in pairs)
    assert found["false positives"] == pytest.approx(wrong / others) if others else True


def test_what_is_no_number_is_no_guess() -> None:
    with pytest.raises(ValueError, match="1 of 2 guesses are NaN"):
        auc(torch.tensor([0.0, math.nan]), torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"shape \(2,\) for a truth of shape \(3,\)"):
        auc(torch.zeros(2), torch.ones(3, dtype=torch.bool))
