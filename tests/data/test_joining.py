"""Holdings side by side: what each says in its own words is not mixed up."""

from __future__ import annotations

from dataclasses import replace

import torch

from isthmus.data.joining import joined
from tests.learn.tasks.link_toys import toy_ratings


def test_numbers_of_categories_that_stand_for_something_else_in_each_are_not_joined() -> None:
    sides = toy_ratings().node_attributes
    north, south = (
        replace(
            toy_ratings(),
            node_attributes={**sides, "zone": torch.full((13,), zone), "city": torch.zeros(13, dtype=torch.int64)},
            node_attribute_names={"city": names},
        )
        for zone, names in ((3, ("Ulm",)), (5, ("Bonn",)))
    )
    whole = joined([north, south], "both")
    assert set(whole.node_attributes) == {"side", "zone"} and not whole.node_attribute_names
    assert whole.node_attributes["side"].tolist() == 2 * sides["side"].tolist()
    assert whole.node_attributes["zone"].tolist() == [3] * 13 + [5] * 13
    numbers = replace(
        south, node_attributes={**south.node_attributes, "city": torch.arange(13)}, node_attribute_names={}
    )
    assert set(joined([north, numbers], "both").node_attributes) == {"side", "zone"}
