"""Suites beyond one machine: courses on a cluster, and campaigns that go on by the rows of their runs.csv."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.codec import pack
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.runs import in_processes
from isthmus.suites import elsewhere, runner
from isthmus.suites.comparison import Comparison
from isthmus.suites.moving import BY_ROW
from isthmus.suites.part import part_of
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import load_suite

SUITE = """
title: small
seeds: 2
base: {num_clients: 2, rounds: 2, splitter: {name: random}, model: {gnn: {hidden: 4}}}
axes:
  method:
    FedAvg: {algorithm.name: fedavg}
    Local: {algorithm.name: local}
"""


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
    ) as running:
        yield running.scheduler_address


def told(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def compared(suite: Any, folder: Path, **where: Any) -> Comparison:
    found = Comparison(suite, run_suite(suite, folder, **where))
    found.write(folder)
    return found


def never(*arguments: Any) -> Any:
    raise AssertionError("a course was run")


def test_courses_on_a_cluster_give_what_they_give_here_and_none_is_run_twice(
    suite_file: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load_suite(suite_file)
    compared(suite, tmp_path / "here", workers=1)
    compared(suite, tmp_path / "there", cluster=address)
    assert told(tmp_path / "here") == told(tmp_path / "there") and len(told(tmp_path / "there")) == 4
    for run in (tmp_path / "here" / "runs").iterdir():
        names = {path.name for path in run.iterdir()}
        assert names == {path.name for path in (tmp_path / "there" / "runs" / run.name).iterdir()}
    monkeypatch.setattr(elsewhere, "on_cluster", never)
    compared(suite, tmp_path / "there", cluster=address)


def test_an_interruption_leaves_what_is_finished(suite_file: Path, tmp_path: Path, address: str) -> None:
    suite = load_suite(suite_file)
    done: list[str] = []

    def interrupt(run: Any) -> None:
        done.append(run.point.key)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path / "there", cluster=address, on_done=interrupt)
    assert [path.name for path in (tmp_path / "there" / "runs").iterdir()] == done
    assert len(run_suite(suite, tmp_path / "there", cluster=address)) == 4


def test_workers_and_a_cluster_are_one_or_the_other(suite_file: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give one of them"):
        run_suite(load_suite(suite_file), tmp_path / "x", workers=1, cluster="tcp://a:1")


def test_files_outside_of_a_run_folder_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "/x"):
        with pytest.raises(BadInput, match="outside of its run folder"):
            elsewhere.unpacked({name: pack(b"1")}, tmp_path / "run")
    assert not (tmp_path / "x").exists()


# ---- a campaign moves


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison without its runs."""
    place = tmp_path_factory.mktemp("finished")
    (place / "small.yaml").write_text(SUITE)
    compared(load_suite(place / "small.yaml"), place / "out", workers=1)
    shutil.rmtree(place / "out" / "runs")
    return place / "out"


@pytest.fixture
def moved(finished: Path, tmp_path: Path) -> Path:
    """Return the folder of a comparison of which only runs.csv is left."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def test_rows_with_the_digest_of_the_course_count_as_finished(
    suite_file: Path, moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = moved
    before = told(folder)
    monkeypatch.setattr(runner, "finish_course", never)
    found = compared(load_suite(suite_file), folder, workers=1)
    assert told(folder) == before and BY_ROW in found.notes and not found.has_errors


def test_a_row_of_another_course_does_not_count_and_is_named(suite_file: Path, moved: Path) -> None:
    folder = moved
    text = (folder / "runs.csv").read_text()
    digest = told(folder)[0]["digest"]
    (folder / "runs.csv").write_text(text.replace(digest, "0" * 16))
    found = compared(load_suite(suite_file), folder, workers=1)
    assert [path.name for path in (folder / "runs").iterdir()] == [told(folder)[0]["run"]]
    (note,) = [note for note in found.notes if "does not count" in note]
    assert note.startswith("FedAvg seed=0: the row in runs.csv is of another course (digest 0000000000000000, now")


def test_more_rounds_are_another_course(suite_file: Path, moved: Path) -> None:
    folder = moved
    compared(part_of(suite_file, (), ["rounds=3"]), folder, workers=1)
    assert len(list((folder / "runs").iterdir())) == 4


def test_rows_without_digests_do_not_count_and_the_reader_is_told(suite_file: Path, moved: Path) -> None:
    folder = moved
    with (folder / "runs.csv").open(newline="") as file:
        rows = [row[:-2] for row in csv.reader(file)]
    with (folder / "runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    found = compared(load_suite(suite_file), folder, workers=1)
    assert len(list((folder / "runs").iterdir())) == 4
    assert "rows of runs.csv without a digest do not count: their courses were run" in found.notes


def test_a_row_of_a_course_that_failed_is_run_again(suite_file: Path, moved: Path) -> None:
    folder = moved
    first, *others = (folder / "runs.csv").read_text().splitlines()
    header = first.split(",")
    row = dict(zip(header, others[0].split(","), strict=True)) | {"error": "it failed"}
    (folder / "runs.csv").write_text("\n".join([first, ",".join(row.values()), *others[1:]]) + "\n")
    compared(load_suite(suite_file), folder, workers=1)
    assert len(list((folder / "runs").iterdir())) == 1


def test_a_part_of_a_suite_keeps_the_rows_of_the_others(suite_file: Path, moved: Path) -> None:
    folder = moved
    before = told(folder)
    compared(part_of(suite_file, ["method=Local"], ()), folder, workers=1)
    after = told(folder)
    assert sorted(map(str, after)) == sorted(map(str, before)) and after[0]["method"] == "Local"


def test_a_suite_that_is_cut_short_leaves_its_rows(suite_file: Path, tmp_path: Path) -> None:
    suite, count = load_suite(suite_file), [0]

    def interrupt(run: Any) -> None:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path / "out", workers=1, on_done=interrupt)
    assert len(told(tmp_path / "out")) == 2
    shutil.rmtree(tmp_path / "out" / "runs")
    run_suite(suite, tmp_path / "out", workers=1)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2


def test_a_process_that_is_killed_leaves_what_is_finished(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    def broken(*arguments: Any, **options: Any) -> Any:
        raise BrokenProcessPool

    # A pool whose processes are never started: nothing that they do is looked at.
    monkeypatch.setattr(in_processes, "ProcessPoolExecutor", lambda number, **options: ThreadPoolExecutor(number))
    monkeypatch.setattr(runner, "_finish_in_worker", lambda *arguments: None)
    monkeypatch.setattr(in_processes, "as_completed", broken)
    with pytest.raises(CourseFailed, match="what is finished stays"):
        run_suite(load_suite(suite_file), tmp_path / "out", workers=2)


def test_axes_may_be_named_like_what_a_row_tells_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = tmp_path / "names.yaml", tmp_path / "out"
    axes = "rounds: {one: {rounds: 1}, two: {rounds: 2}}\n  accuracy: {all: {}}\n  seed: {same: {}}\n  digest: {no: {}}"
    path.write_text(f"{SUITE[: SUITE.index('  method:')]}  {axes}\n")
    suite = load_suite(path)
    before = compared(suite, folder, workers=1).runs
    rows = told(folder)
    assert [(row["rounds"], row["run_rounds"]) for row in rows] == [
        ("one", "1"),
        ("one", "1"),
        ("two", "2"),
        ("two", "2"),
    ]
    assert [row["run_seed"] for row in rows] == ["0", "1", "0", "1"] and {row["accuracy"] for row in rows} == {"all"}
    shutil.rmtree(folder / "runs")
    monkeypatch.setattr(runner, "finish_course", never)
    assert [run.score for run in run_suite(suite, folder, workers=1)] == [run.score for run in before]
    compared(part_of(path, ["rounds=two"], ()), folder, workers=1)  # the rows of the other part stay
    assert told(folder)[:2] == rows[2:] and told(folder)[2:] == rows[:2]


def test_rows_that_a_changed_suite_has_no_place_for_are_set_aside_and_not_written_over(
    suite_file: Path, tmp_path: Path
) -> None:
    """Their runs are on another machine: the rows are all that there is of them here."""
    compared(load_suite(suite_file), tmp_path / "there", workers=1)
    out, said = tmp_path / "out", list[str]()
    out.mkdir()
    moved = (tmp_path / "there" / "runs.csv").read_bytes()
    (out / "runs.csv").write_bytes(moved)
    compared(load_suite(suite_file), out, workers=1)
    assert not list(out.glob("runs.csv.*")) and not (out / "runs").exists()
    suite_file.write_text(SUITE.replace("axes:", "axes:\n  steps: {one: {algorithm.local_steps: 1}}"))
    wider = load_suite(suite_file)
    found = Comparison(wider, run_suite(wider, out, workers=1))
    found.write(out, said.append)
    (aside,) = out.glob("runs.csv.*")
    assert {row["run"] for row in csv.DictReader(aside.read_text().splitlines())} == {
        row["run"] for row in csv.DictReader(moved.decode().splitlines())
    }
    assert said == [f"4 rows of runs.csv have no place in this suite and no run folder here; they are kept in {aside}"]
    found.write(out, said.append)  # those that have a folder are not lost
    assert len(said) == 1 and len(list(out.glob("runs.csv.*"))) == 1


def test_rows_of_other_courses_are_set_aside_when_a_suite_is_cut_short_too(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(load_suite(suite_file), tmp_path / "there", workers=1)
    out = tmp_path / "out"
    out.mkdir()
    moved = (tmp_path / "there" / "runs.csv").read_bytes()
    (out / "runs.csv").write_bytes(moved)
    suite_file.write_text(SUITE.replace("rounds: 2", "rounds: 3"))

    done, finish = [0], runner.finish_course

    def one_then_stop(*arguments: Any) -> Any:
        done[0] += 1
        if done[0] > 1:
            raise KeyboardInterrupt
        return finish(*arguments)

    monkeypatch.setattr(runner, "finish_course", one_then_stop)
    with pytest.raises(KeyboardInterrupt):
        run_suite(load_suite(suite_file), out, workers=1)
    (aside,) = out.glob("runs.csv.*")
    assert aside.read_bytes() == moved
