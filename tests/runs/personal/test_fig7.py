"""FS-G's Fig. 7: coefficients of one's own are above FedAvg and Local where clients differ by their edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.suites.runner import run_suite
from isthmus.suites.spec import load_suite
from isthmus.suites.table import cells

SUITE = Path(__file__).parents[3] / "papers" / "fs_g" / "fig7.yaml"


def test_the_personalised_courses_share_all_but_gamma_and_clients_are_in_the_order_of_phi() -> None:
    suite = load_suite(SUITE)
    for point in suite.points():
        personal = point.cell["method"] == "Personalised"
        assert point.course.shared == (("*", "!gnn.gamma") if personal else None)
        assert point.course.dataset.graph_seed == point.seed  # type: ignore[attr-defined]
    course = suite.points()[0].course
    graph = course.dataset.load(Path("unused"))
    assert graph.attribute_names["client"][0] == "phi=0.1"  # type: ignore[union-attr]
    held = course.splitter.assign(graph, 8, np.random.default_rng(0))
    assert [graph.attributes["client"][nodes].unique().tolist() for nodes in held] == [[k] for k in range(8)]  # type: ignore[union-attr]


@pytest.mark.slow
def test_personal_coefficients_are_the_best_on_average(tmp_path: Path) -> None:
    suite = load_suite(SUITE)
    found = {cell.choices["method"]: cell.mean for cell in cells(suite, run_suite(suite, tmp_path))}
    assert found["Personalised"] > max(found["FedAvg"], found["Local"])  # type: ignore[type-var, operator]
