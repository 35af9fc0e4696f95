"""Journals that are lost, have holes, or grow for days."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.cli.federation import show_folder
from isthmus.core.errors import BadInput
from isthmus.runs.folder import Journal, RunFolder
from isthmus.runs.journal import FIELDS, StoredEvents, read_journal, read_whole_journal
from isthmus.testing import toy_course, toy_scenario
from tests.sites.courses.test_site_course import on_sites
from tests.sites.in_process import fake_hub, site_course


def finished(folder: Path, **changes: Any) -> ist.Result:
    return ist.run(toy_course(ist.FedAvg(), **changes), run_dir=folder, scenario=toy_scenario())


def test_every_hole_in_an_event_is_one_sentence_with_the_line(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    path = RunFolder(tmp_path / "run").journal
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = {event["event"]: number for number, event in enumerate(whole)}
    tried = 0
    for kind, fields in FIELDS.items():
        for name in fields if kind in kinds else ():
            missing = {key: value for key, value in whole[kinds[kind]].items() if key != name}
            for entry in (missing, {**missing, name: {"odd": 1} if fields[name] is list else ["odd"]}):
                lines = [json.dumps(e) for e in [*whole[: kinds[kind]], entry, *whole[kinds[kind] + 1 :]]]
                path.write_text("\n".join(lines) + "\n")
                with pytest.raises(
                    BadInput, match=rf"line {kinds[kind] + 1}, the event '{kind}', is damaged: .*{name}"
                ):
                    list(read_whole_journal(path))
                tried += 1
    assert tried > 30


def test_a_journal_with_holes_is_told_when_a_run_is_shown(tmp_path: Path) -> None:
    on_sites(site_course(rounds=1), fake_hub(tmp_path), tmp_path / "run").run()
    path = RunFolder(tmp_path / "run").journal
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in e.items() if k != "best_round"}) + "\n" for e in lines))
    with pytest.raises(BadInput, match="the event 'end', is damaged: it has no 'best_round'"):
        show_folder(tmp_path / "run")


def test_a_run_without_its_journal_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finished(tmp_path / "whole", rounds=4, checkpoint_every=1)
    course = toy_course(ist.FedAvg(), rounds=2, checkpoint_every=1)
    ist.run(course, run_dir=tmp_path / "cut", scenario=toy_scenario())
    RunFolder(tmp_path / "cut").journal.unlink()
    monkeypatch.setattr("isthmus.runs.simulated.load_scenario", lambda course, root: toy_scenario())
    result = ist.resume(tmp_path / "cut", course=toy_course(ist.FedAvg(), rounds=4, checkpoint_every=1))
    assert all((result.params[name] == tensor).all() for name, tensor in whole.params.items())
    assert "the journal was missing: it has nothing of the rounds up to 2" in result.notes
    events = list(read_journal(RunFolder(tmp_path / "cut").journal))
    assert [e["round"] for e in events if e["event"] == "round"] == [3, 4]
    assert {e["client"] for e in events if e["event"] == "client"} == set(toy_scenario().parts)


def test_a_course_between_sites_without_its_journal_goes_on(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    on_sites(site_course(rounds=2), hub, tmp_path / "run").run()
    RunFolder(tmp_path / "run").journal.unlink()
    result = on_sites(site_course(rounds=3), hub, tmp_path / "run").resume()
    assert result.num_rounds == 3 and any("the journal was missing" in note for note in result.notes)


def test_the_hint_for_a_run_between_sites_names_the_command_that_goes_on_with_it(tmp_path: Path) -> None:
    on_sites(site_course(rounds=1), fake_hub(tmp_path), tmp_path / "run").run()
    with pytest.raises(BadInput, match=r"go on with it: isthmus serve KIT --resume .*run"):
        RunFolder.check_new(tmp_path / "run")
    with pytest.raises(BadInput, match="between sites; go on with it: isthmus serve KIT --resume"):
        ist.resume(tmp_path / "run")
    finished(tmp_path / "simulated")
    with pytest.raises(BadInput, match="go on with it: isthmus run --resume"):
        RunFolder.check_new(tmp_path / "simulated")


def test_a_server_s_journal_is_read_back_and_not_held(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", keep=False)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3000):
        journal.write("round", round=number, metrics={}, score=None, seconds=0.0, text="x" * 500)
    assert tracemalloc.get_traced_memory()[0] - before < 100_000
    tracemalloc.stop()
    events = journal.events
    assert isinstance(events, StoredEvents) and len(events) == 3000
    assert events[-1]["round"] == 2999 and [e["round"] for e in events[:2]] == [0, 1]


def test_a_course_between_sites_holds_no_event_in_memory(tmp_path: Path) -> None:
    result = on_sites(site_course(rounds=2), fake_hub(tmp_path), tmp_path / "run").run()
    assert isinstance(result.events, StoredEvents)
    assert [e["event"] for e in result.events][-1] == "end" and result.bytes_up > 0
