"""What every fold that is registered must keep to: a setting in which it is the mean, equal replies, no replies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isthmus.core.errors import CourseFailed
from isthmus.core.folding import FOLDS
from isthmus.core.folds import weighted_mean
from tests.core.toys import same, update

# The settings with which a fold is the weighted mean to the bit ("bits"), or within rounding the mean of replies that
# count alike ("plain"). One that is registered without an entry fails the test: say so here, or say why it has none.
NEUTRAL: dict[str, tuple[str, dict[str, Any]]] = {
    "weighted_mean": ("bits", {}),
    "median": ("it has no settings, and is the mean of two replies alone", {}),
    "trimmed_mean": ("plain", {"trim_fraction": 0.0}),
    "krum": ("plain", {"num_malicious": 0, "num_selected": 10**6}),
    "bulyan": ("plain", {"num_malicious": 0}),
    "geometric_median": ("it is a median; that of equal replies is the mean", {}),
    "centred_clipping": ("bits", {"radius": math.inf}),
    "norm_bound": ("bits", {"largest": None}),
    "foolsgold": ("it is the mean where no two go the same way, by a test of its own", {}),
    "fltrust": ("it is the mean where all go the root's way as far, by a test of its own", {}),
}
ROWS = [[0.3, -1.0, 2.0], [1.5, 0.25, -0.125], [-0.7, 3.0, 1.0], [0.1, 0.1, 0.9]]
SENT = update([0.5, 0.5, 0.5])


def folded(fold: Any, replies: list[Any]) -> Any:
    total = fold.start()
    for number, reply in enumerate(replies):
        fold.add_answer(total, reply, SENT, f"client-{number}")
    return fold.finish(total)


def test_every_fold_has_a_neutral_setting_or_a_reason_why_not() -> None:
    assert list(NEUTRAL) == list(FOLDS), "add the fold to NEUTRAL"


@pytest.mark.parametrize("name", [name for name, (how, _) in NEUTRAL.items() if how in ("bits", "plain")])
def test_every_fold_at_its_neutral_setting_is_the_mean(name: str) -> None:
    how, settings = NEUTRAL[name]
    fold: Any = FOLDS[name](**settings)
    weights = [1.0, 5.0, 2.0, 7.5]
    replies = [update(row, weight if how == "bits" else 1.0) for row, weight in zip(ROWS, weights, strict=True)]
    found, mean = folded(fold, replies), weighted_mean(replies)
    if how == "bits":
        assert same(found, mean)
    else:
        assert torch.allclose(found.params["w"], mean.params["w"], atol=1e-6)
        assert found.weight == mean.weight


@pytest.mark.parametrize("name", FOLDS)
def test_the_fold_of_equal_replies_is_that_reply_and_their_weights_are_added(name: str) -> None:
    reply = update([0.6, 0.1, 1 / 3], 3.0)  # near enough to what was sent not to be cut short
    found = folded(FOLDS[name](), [reply] * 5)
    assert torch.allclose(found.params["w"], reply.params["w"], atol=1e-6)
    assert found.weight == 15.0


@pytest.mark.parametrize("name", FOLDS)
def test_no_replies_cannot_be_folded(name: str) -> None:
    with pytest.raises(CourseFailed):
        folded(FOLDS[name](), [])
