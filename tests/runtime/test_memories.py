"""Memories that are lost or damaged: told as such, and the silo starts anew or leaves, in one step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import ALGORITHMS
from isthmus.config.course import Course
from isthmus.core.errors import CourseFailed
from isthmus.core.training import Standing, run_course
from isthmus.runtime.answering import MemoryStore, memory_owner
from isthmus.runtime.envelope import BLANK, LEFT
from isthmus.runtime.reasons import KINDS, Reasons, Refusal, refused_as
from isthmus.runtime.remote import RemoteRuntime
from isthmus.testing import toy_course
from tests.quick import by_kind, quick

from .test_remote import Notes, Wire

LOST = "client-0"


class LosingNotes(Notes):
    """Does something to a silo's folder at the end of a round, and counts who is asked in which exchange."""

    def __init__(self, round: int, damage: Callable[[], None]) -> None:
        super().__init__()
        self.round, self.damage = round, damage
        self.failed: list[tuple[int, str, str, str]] = []

    def exchanged(self, report: Any) -> None:
        self.failed += [(report.position.round, report.request, f.client, f.kind) for f in report.failures]

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        super().checkpoint(standing, memories)
        if standing.round == self.round and len(self.checkpoints) == self.round:
            self.damage()


def survived(wire: Wire, said: list[tuple[str, str]], **fields: Any) -> RemoteRuntime:
    return RemoteRuntime(
        "course-1",
        list(wire.simulation.clients),
        wire,
        starts_anew=wire.course.algorithm.starts_anew,
        note=lambda client, text: said.append((client, text)),
        **fields,
    )


def four_rounds(algorithm: Any) -> Course:
    return toy_course(algorithm, rounds=4, checkpoint_every=1)


@pytest.mark.parametrize("name", by_kind(name for name, kind in ALGORITHMS.items() if not kind.pooled))
def test_a_silo_whose_memory_is_lost_starts_anew_or_leaves_in_one_step(name: str, tmp_path: Path) -> None:
    course = four_rounds(quick(name))
    wire, said = Wire(course, tmp_path), []
    notes = LosingNotes(2, lambda: shutil.rmtree(tmp_path / LOST, ignore_errors=True))
    runtime = survived(wire, said)
    run_course(course.algorithm, runtime, course.plan(), wire.simulation.initial, [notes])
    had_one = notes.checkpoints[2][1][LOST] != BLANK.encode()
    if not had_one:
        assert not notes.failed and not said
    elif course.algorithm.starts_anew:
        assert not notes.failed and [client for client, _ in said] == [LOST]
        assert "starts anew" in said[0][1]
    else:
        assert {failure[0] for failure in notes.failed} == {3} and {failure[2:] for failure in notes.failed} == {
            (LOST, "memory")
        }
        assert [client for client, _ in said] == [LOST] and "it leaves" in said[0][1]
        assert LOST not in runtime.clients and notes.checkpoints[4][1][LOST] == LEFT.encode()
    if had_one:
        assert any(str(tmp_path / LOST) in line and "is lost: there is no such file" in line for line in wire.said)


def test_methods_whose_server_holds_what_a_client_forgets_do_not_start_it_anew() -> None:
    leaving = {name for name, kind in ALGORITHMS.items() if not kind.starts_anew and not kind.pooled}
    assert leaving == {"local", "local_grl", "gfl_appnp", "scaffold", "feddyn", "fedgap", "fedprogap"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def damage(folder: Path) -> None:
    for path in folder.iterdir():
        flip(path)


def test_a_damaged_memory_is_told_by_its_file_and_the_silo_starts_anew(tmp_path: Path) -> None:
    course = four_rounds(ALGORITHMS["ditto"]())
    wire, said = Wire(course, tmp_path), []
    notes = LosingNotes(2, lambda: damage(tmp_path / LOST))
    run_course(course.algorithm, survived(wire, said), course.plan(), wire.simulation.initial, [notes])
    assert not notes.failed and [client for client, _ in said] == [LOST]
    assert any(str(tmp_path / LOST) in line and "is damaged: its checksum" in line for line in wire.said)


def test_a_course_ends_with_a_reason_when_too_few_are_left_after_one_has_lost_its_memory(tmp_path: Path) -> None:
    course = four_rounds(ALGORITHMS["scaffold"]())
    wire, said = Wire(course, tmp_path), []
    runtime = survived(wire, said, min_clients=len(wire.simulation.clients))
    notes = LosingNotes(2, lambda: shutil.rmtree(tmp_path / LOST, ignore_errors=True))
    with pytest.raises(CourseFailed, match=f"{LOST} has lost its memory .* 2 are left, 3 are needed"):
        run_course(course.algorithm, runtime, course.plan(), wire.simulation.initial, [notes])
    standing, memories = notes.checkpoints[2]
    assert standing.round == 2 and memories[LOST] == LEFT.encode()


def test_who_has_left_is_away_after_a_resume_too(tmp_path: Path) -> None:
    course = four_rounds(ALGORITHMS["scaffold"]())
    wire, said = Wire(course, tmp_path), []
    notes = LosingNotes(2, lambda: shutil.rmtree(tmp_path / LOST))
    run_course(course.algorithm, survived(wire, said), course.plan(), wire.simulation.initial, [notes])
    again = survived(wire, said)
    again.load_clients(notes.checkpoints[3][1])
    later = LosingNotes(99, lambda: None)
    run_course(course.algorithm, again, course.plan(), wire.simulation.initial, [later], notes.checkpoints[3][0])
    assert LOST not in again.clients and not later.failed and len(said) == 1


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "unsealed", "folder"])
def test_a_memory_that_was_changed_is_refused_as_such(change: str, tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, "mine")
    name = store.save({"w": torch.ones(300)}, BLANK, {})
    path = tmp_path / name
    content = path.read_bytes()
    if change == "flip":
        flip(path)
    elif change == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"cut": content[:-5], "empty": b"", "unsealed": content[40:]}[change])
    with pytest.raises(Refusal, match=name) as caught:
        store.load(name)
    assert caught.value.kind == "memory"


def test_a_memory_is_found_by_its_own_course_and_algorithm_only(tmp_path: Path) -> None:
    owners = {
        memory_owner(ALGORITHMS[name](), course) for name in ("fedavg", "fedprox", "local") for course in ("a", "b")
    }
    assert len(owners) == 6
    name = MemoryStore(tmp_path, "one").save({"w": torch.ones(3)}, BLANK, {})
    with pytest.raises(Refusal, match="another course or algorithm"):
        MemoryStore(tmp_path, "two").load(name)
    assert MemoryStore(tmp_path, "one").load(name)["w"].sum() == 3


def test_a_memory_is_not_found_by_the_same_algorithm_with_other_kinds_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An installed algorithm of the same name that answers something more could hand out what it never was kept for."""
    kind = ALGORITHMS["fedavg"]
    before, handlers = memory_owner(kind(), "a"), kind.handlers()

    class ShareMemory(next(iter(handlers))):  # type: ignore[misc]
        pass

    monkeypatch.setattr(kind, "handlers", classmethod(lambda cls: {**handlers, ShareMemory: "share"}))
    assert memory_owner(kind(), "a") != before
    monkeypatch.setattr(kind, "handlers", classmethod(lambda cls: dict(reversed(handlers.items()))))
    assert memory_owner(kind(), "a") == before  # in whatever order they are


def test_a_store_that_keeps_nothing_leaves_no_folder(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "course")
    assert store.save({}, BLANK, {}) == BLANK
    store.drop_all_but(())
    assert not (tmp_path / "course").exists()


def test_every_kind_of_refusal_has_a_sentence_without_a_place_for_data() -> None:
    said: list[str] = []
    for kind, text in KINDS.items():
        told = Reasons(said.append).crossing(kind, "row 17")
        assert told.startswith(f"{kind}: {text}") and "17" not in told
        assert Reasons(said.append, tell=True).crossing(kind, "row 17") == f"{kind}: row 17"
    with pytest.raises(ValueError, match="no kind of refusal"):
        Refusal("whatever", "")
    with pytest.raises(Refusal) as caught, refused_as("data"), refused_as("policy"):
        raise CourseFailed("x")
    assert caught.value.kind == "policy"
