"""Courses of suites that are run again, beside the rows that were kept of them."""

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUITE = """
title: two
base:
  rounds: 2
  num_clients: 2
  dataset: {name: csbm, num_nodes: 60}
  model: {gnn: {name: gcn, hidden: 4}}
seeds: 2
axes:
  method:
    Local: {algorithm.name: local}
    FedAvg: {algorithm.name: fedavg, search: {algorithm.optimizer.lr: [0.1, 0.5]}}
"""


def test_scores_are_put_beside_the_kept_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import rerun

    from isthmus.suites.runner import run_suite
    from isthmus.suites.spec import load_suite
    from isthmus.suites.table import runs_csv

    path = tmp_path / "two.yaml"
    path.write_text(SUITE)
    suite = load_suite(path)
    rows = list(csv.DictReader(runs_csv(suite, run_suite(suite, tmp_path / "first", workers=1)).splitlines()))
    for number, row in enumerate(rows):  # the second seed is the quickest, and so is the second rate
        row["seconds"] = f"{100 - number}"
    moved = [dict(row) for row in rows]
    moved[-1]["accuracy"] = f"{float(rows[-1]['accuracy']) + 0.25:.6f}"

    def again(kept: list[dict[str, str]], **asked: object) -> list[tuple[str, ...]]:
        rerun.kept(path).parent.mkdir(exist_ok=True)
        with rerun.kept(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(kept[0]))
            writer.writeheader()
            writer.writerows(kept)
        return list(rerun.again(path, rerun.Asked(tmp_path / "again", **asked)))

    found = again(rows, longest=1000)
    assert [line[1:3] for line in found] == [("Local", "1"), ("FedAvg", "1")]
    scores = [f"{float(row['accuracy']):.6f}" for row in (rows[1], rows[-1])]
    assert [line[3] for line in found] == scores and [line[5] for line in found] == ["same", "same"]
    folders = {folder.name: folder.stat().st_mtime_ns for folder in (tmp_path / "again").glob("*/two/*")}
    assert len(folders) == 2
    local, fedavg = again(moved, longest=1000)
    assert local[-1] == "same" and fedavg[-1] == "-0.250000"
    assert folders == {folder.name: folder.stat().st_mtime_ns for folder in (tmp_path / "again").glob("*/two/*")}
    assert [line[1] for line in again(rows, longest=97)] == ["FedAvg"]
    assert [line[1:3] for line in again(rows, longest=99, every=True)] == [
        ("FedAvg", "1"),
        ("FedAvg", "0"),
        ("FedAvg", "1"),
        ("FedAvg", "0"),
        ("Local", "1"),
    ]
    assert [line[1] for line in again(rows, longest=100, every=True, only=["method=Local"])] == ["Local", "Local"]
