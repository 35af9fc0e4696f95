from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.data.survey.statistics import survey
from isthmus.data.survey.walks import EXACT_WALKS
from isthmus.monitors.walk_distance import WalkDistance
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_graph, toy_scenario

from .views import toy_view


@pytest.mark.parametrize("seed", [0, 3])
def test_the_distances_are_those_of_the_survey(seed: int) -> None:
    dense = toy_graph(64, num_links=14, homophily=0.0)  # with more walks than are looked at one by one
    assert dense.num_edges * 20**4 > EXACT_WALKS
    made = toy_scenario(client_without_edges=True)
    made = Scenario(made.whole, {**made.parts, "dense": dense})
    expected = survey(made.whole, made.parts, seed)
    measured = WalkDistance().measure(toy_view({}, made, seed=seed))
    assert measured.clients == (*made.parts,)
    assert measured.values == pytest.approx(
        np.array(expected["heterogeneity"]["walk_distance_5"]["between"]), abs=1e-12
    )
    assert not expected["walks"]["clients"]["dense"]["exact"]


def test_a_client_without_nodes_has_no_distance() -> None:
    made = toy_scenario()
    empty = made.whole.subgraph(torch.zeros(0, dtype=torch.long))
    facts = WalkDistance().measure(toy_view({}, Scenario(made.whole, {**made.parts, "empty": empty}))).facts()
    assert facts["matrix"][3] == [None] * 4 and all(row[3] is None for row in facts["matrix"])
    assert 0.0 < facts["least"] <= facts["mean"] <= facts["largest"] < 1.0
