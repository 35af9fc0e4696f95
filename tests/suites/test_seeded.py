"""Keys of a suite that get the seed's number: a new graph for each seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.suites.spec import load_suite

SUITE = """
seeds: [3, 5]
axes:
  data:
    drawn: {{dataset.name: csbm, masks.name: public, seeded: {seeded}}}
    fixed: {{dataset.name: csbm, masks.name: public}}
"""


def written(folder: Path, seeded: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(seeded=seeded))
    return path


def test_seeded_keys_get_the_seed_and_others_do_not(tmp_path: Path) -> None:
    points = load_suite(written(tmp_path, "[dataset.feature_seed]")).points()
    found = [(p.cell["data"], p.course.seed, p.course.dataset.feature_seed) for p in points]  # type: ignore[attr-defined]
    assert found == [("drawn", 3, 3), ("drawn", 5, 5), ("fixed", 3, 0), ("fixed", 5, 0)]


def test_what_is_no_list_of_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"axes\.data\.drawn.seeded is 'dataset\.feature_seed', expected a list of keys"):
        load_suite(written(tmp_path, "dataset.feature_seed"))
