"""The papers' suites: all can be read; the long ones run in the slow set."""

from pathlib import Path

import pytest
import torch

from isthmus.monitors.connectivity import connectivity
from isthmus.suites.part import narrowed
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import load_suite
from isthmus.suites.table import cells

PAPERS = Path(__file__).parent.parent / "papers"
SUITES = sorted(PAPERS.rglob("*.yaml"))


@pytest.mark.parametrize("path", SUITES, ids=[str(path.relative_to(PAPERS)) for path in SUITES])
def test_every_suite_can_be_read_and_every_expectation_is_met_by_a_cell(path: Path) -> None:
    suite = load_suite(path)
    found = [suite.expectation(cell) for cell in suite.cells()]
    assert suite.points() and {id(e) for e in suite.expected} <= {id(e) for e in found}


@pytest.mark.slow
def test_fs_g_tables_2_and_3_on_the_authors_split_are_as_near_as_asked(tmp_path: Path) -> None:
    suite = load_suite(PAPERS / "fs_g" / "gcn_cora.yaml")
    only = {"232 per class": suite.axes["split"]["232 per class"]}
    suite = type(suite)(**{**vars(suite), "axes": {**suite.axes, "split": only}})
    for cell in cells(suite, run_suite(suite, tmp_path)):
        assert cell.holds, f"{cell.choices}: {cell.mean} against {cell.expected}"


@pytest.mark.slow
def test_fedgl_table_2_on_cora_is_as_near_as_asked_and_fedgl_is_above_federated(tmp_path: Path) -> None:
    suite = narrowed(load_suite(PAPERS / "fedgl" / "table2.yaml"), ["dataset=Cora"])
    found = {cell.choices["method"]: cell for cell in cells(suite, run_suite(suite, tmp_path))}
    for cell in found.values():
        assert cell.holds in (True, None), f"{cell.choices}: {cell.mean} against {cell.expected}"
    assert found["FedGL"].mean > found["Federated"].mean > found["Local"].mean  # type: ignore[operator]


@pytest.mark.slow
def test_fgssl_is_above_fedavg_in_table_1_and_fedavg_as_near_as_asked(tmp_path: Path) -> None:
    names = ["split=per class", "dataset=Cora", "clients=5", "method=FedAvg,FGSSL"]
    suite = narrowed(load_suite(PAPERS / "fgssl" / "table1.yaml"), names)
    fedavg, fgssl = cells(suite, run_suite(suite, tmp_path))
    assert fedavg.holds, f"{fedavg.mean} against {fedavg.expected}"
    assert fedavg.mean is not None and fgssl.mean is not None
    assert fgssl.mean > fedavg.mean + 0.01


def test_the_graphs_of_gfl_appnp_s_fig_2a_have_the_connectivity_that_they_are_named_by() -> None:
    for point in load_suite(PAPERS / "gfl_appnp" / "fig2a.yaml").points():
        if point.seed > 1:  # one graph for all seeds
            continue
        whole = point.course.dataset.load(Path())
        adjacency = torch.zeros(whole.num_nodes, whole.num_nodes)
        adjacency[whole.edge_index[0], whole.edge_index[1]] = 1.0
        assert f"{connectivity(adjacency.double().numpy()):.3g}" == point.cell["connectivity"]
