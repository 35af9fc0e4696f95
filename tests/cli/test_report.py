"""isthmus report: pages of runs that are finished, and of some that are not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import call


def test_a_run_ends_with_a_page_and_several_are_laid_over_each_other(tmp_path: Path) -> None:
    quick = ["rounds=2", "dataset.name=csbm", "num_clients=3", "-q"]
    for name in ("a", "b"):
        assert call("run", *quick, f"seed={ord(name)}", "--out", str(tmp_path / name))[0] == 0
    page = (tmp_path / "a" / "report.html").read_text()
    assert "val/accuracy over rounds" in page and str(tmp_path / "a" / "course.yaml") in page
    code, told = call("report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "both.html"))
    assert code == 0 and "both.html" in told
    assert "Keys in which they differ" in (tmp_path / "both.html").read_text()

    journal = tmp_path / "a" / "journal.jsonl"
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"event": "end"' not in line))
    assert call("report", str(tmp_path / "a"))[0] == 0
    assert "not finished" in (tmp_path / "a" / "report.html").read_text()


def test_what_cannot_be_shown_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    quick = ["rounds=1", "dataset.name=csbm", "num_clients=3", "-q"]
    for name in ("a", "b"):
        assert call("run", *quick, "--out", str(tmp_path / name))[0] == 0
    run, other = str(tmp_path / "a"), str(tmp_path / "b")
    refused = {
        (str(tmp_path / "empty"),): "is not a run folder",
        (run, run, "--out", str(tmp_path / "x.html")): "named twice",
        (run, other): "with --out FILE",
        (run, "--out", str(tmp_path / "no" / "x.html")): "a file in a folder that exists",
    }
    for words, why in refused.items():
        code, told = call("report", *words)
        assert code == 2 and why in told
    (tmp_path / "a" / "journal.jsonl").write_text("rubbish\nmore\n")
    assert "line 1 is not JSON" in call("report", run)[1]


def test_runs_are_listed_filtered_and_written_as_a_table(tmp_path: Path) -> None:
    quick = ["rounds=2", "dataset.name=csbm", "num_clients=3", "-q"]
    for name in ("fedavg", "fedprox"):
        assert call("run", *quick, f"algorithm.name={name}", "--out", str(tmp_path / "runs" / name))[0] == 0
    code, told = call("runs", str(tmp_path / "runs"), "--where", "algorithm=fedprox", "--csv", str(tmp_path / "t.csv"))
    assert code == 0 and "1 runs" in told and "finished" in told and "fedavg" not in told
    head, row = (tmp_path / "t.csv").read_text().splitlines()
    assert head.startswith("run,began,algorithm") and row.startswith("fedprox,")
    found = json.loads(call("runs", str(tmp_path / "runs"), "--json")[1])["runs"]
    assert [(each["run"], each["state"]) for each in found] == [("fedavg", "finished"), ("fedprox", "finished")]
    assert "is not a folder" in call("runs", str(tmp_path / "nowhere"))[1]
