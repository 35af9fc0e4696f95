from __future__ import annotations

import json

import numpy as np
import pytest

from isthmus.cli.inventory import summary
from isthmus.monitors import MONITORS, Measured


def test_the_numbers_of_pairs_are_over_different_clients_and_rounded() -> None:
    values = np.array([[1.0, 0.25, np.nan], [0.5, 1.0, np.nan], [np.nan, np.nan, np.nan]])
    facts = Measured(("a", "b", "c"), values / 3 * 3, ("d",)).facts()
    assert facts == {
        "clients": ["a", "b", "c"],
        "matrix": [[1.0, 0.25, None], [0.5, 1.0, None], [None, None, None]],
        "mean": 0.375,
        "least": 0.25,
        "largest": 0.5,
        "absent": ["d"],
    }
    assert Measured(("a", "b"), np.full((2, 2), 1 / 3)).facts()["matrix"][0] == [0.333333, 0.333333]
    json.dumps(facts, allow_nan=False)


def test_numbers_of_clients_are_over_all_of_them() -> None:
    facts = Measured(("a", "b"), np.array([1.0, 2.0])).facts()
    assert facts == {
        "clients": ["a", "b"],
        "values": [1.0, 2.0],
        "mean": 1.5,
        "least": 1.0,
        "largest": 2.0,
        "absent": [],
    }


@pytest.mark.parametrize("values", [np.zeros((0, 0)), np.ones((1, 1)), np.full((2, 2), np.nan)])
def test_without_a_pair_there_is_no_mean(values: np.ndarray) -> None:
    facts = Measured(("a", "b")[: len(values)], values).facts()
    assert facts["mean"] is facts["least"] is facts["largest"] is None


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 2\) for 3 clients"):
        Measured(("a", "b", "c"), np.zeros((3, 2)))


def test_every_monitor_says_what_it_measures() -> None:
    assert all(summary(kind) for kind in MONITORS.values())
