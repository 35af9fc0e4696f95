"""The papers' suites: all can be read and stand for the published settings; the long ones run in the slow set."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.attacks.attack import POSITIONS
from isthmus.attacks.audit.reading import read_audit
from isthmus.config.course import Course
from isthmus.config.load import course_to_dict
from isthmus.data.splitters import CommunitySplitter
from isthmus.monitors.connectivity import connectivity
from isthmus.suites.part import narrowed
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import Point, load_suite
from isthmus.suites.table import cells
from isthmus.tune.reading import load_study
from isthmus.tune.searches.halving import Bracket

PAPERS = Path(__file__).parent.parent / "papers"
FILES = sorted(PAPERS.rglob("*.yaml"))
STUDIES = [path for path in FILES if "\nspace:" in path.read_text()]
AUDITS = [path for path in FILES if "\nattacks:" in path.read_text()]
SUITES = [path for path in FILES if path not in STUDIES + AUDITS]


# What every course of every suite was when its results were published: the keys that courses had then, and a digest of
# their values for each suite. Keys that came later do not count; a default that changes, or a field that is not kept
# any more, does.
SETTINGS = json.loads(Path(__file__).with_name("papers_settings.json").read_text())


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def published(course: Course, keys: Collection[str]) -> dict[str, Any]:
    # igraph's communities were those of "louvain" then.
    then = {"igraph_louvain": "louvain"}
    found = flat(course_to_dict(course))
    return {k: then.get(v, v) if k == "splitter.method" else v for k, v in found if k in keys}


def digest(points: Iterable[Point], keys: Collection[str]) -> str:
    total = hashlib.sha256()
    of_any_seed: dict[str, dict[str, Any]] = {}  # writing a course takes long, and most differ in their seeds only
    assert "seed" in keys
    for point in points:
        plain = replace(point.course, seed=0)
        told = repr(plain)
        if told not in of_any_seed:
            of_any_seed[told] = published(plain, keys)
        settings = {**of_any_seed[told], "seed": point.course.seed}
        total.update(json.dumps([point.cell, point.searched, point.seed, settings], sort_keys=True).encode())
    return total.hexdigest()[:16]


# Thousands of courses, of methods and data that smaller suites have too.
LARGE = {"fs_g/tables2_3.yaml", "fs_g/table4.yaml"}
NAMES = [str(path.relative_to(PAPERS)) for path in SUITES]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=[pytest.mark.slow] if name in LARGE else [])
        for path, name in zip(SUITES, NAMES, strict=True)
    ],
)
def test_every_suite_can_be_read_with_its_published_settings_and_every_expectation_is_met_by_a_cell(path: Path) -> None:
    suite = load_suite(path)
    points = suite.points()
    found = [suite.expectation(cell) for cell in suite.cells()]
    assert points and {id(e) for e in suite.expected} <= {id(e) for e in found}
    assert not any(point.notes for point in points)
    assert digest(points, frozenset(SETTINGS["keys"])) == SETTINGS["digests"][str(path.relative_to(PAPERS))]
    if suite.expected or (path.parent / "results" / f"{path.stem}.csv").is_file():
        splitters = (point.course.splitter for point in points)
        assert {s.method for s in splitters if isinstance(s, CommunitySplitter)} <= {"igraph_louvain"}


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


def test_section_6_of_fs_g_is_audits_all_of_whose_attacks_can_be_tried() -> None:
    assert [path.stem for path in AUDITS] == ["section6_gradients", "section6_malicious", "section6_updates"]
    audits = [read_audit(path) for path in AUDITS]
    assert not any(audit.problems() for audit in audits) and all(len(audit.seeds) == 5 for audit in audits)
    positions = {attack.position for audit in audits for attack in audit.attacks}
    assert positions == set(POSITIONS)


def test_fig_6_of_fs_g_has_the_paper_s_configurations_and_halvings() -> None:
    assert [path.name for path in STUDIES] == ["gcn.yaml", "gprgnn.yaml"]
    for path in STUDIES:
        study = load_study(path)
        assert len(study.space.listed) == 72 and len(study.seeds) == 5
        sizes = [bracket.sizes(study.top) for bracket in (Bracket(0, 72, 0, 2.0),)]
        assert sizes == [[72, 36, 18, 9, 4, 2, 1]] and study.rungs[-1].rounds == 56
