"""isthmus submit and courses: what is said before anything is connected, and what an operator is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.course import Course
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.schema.schema import Number, Schema, read_schema, write_schema
from isthmus.sites import submit as operators
from isthmus.sites.courses.messages import CourseStatus
from isthmus.sites.parties.kit import make_federation
from isthmus.sites.submit import Operator

from .command import call

COURSE = "dataset: {name: folder, class_names: [red, green, blue]}\nrounds: 2\n"


def status(course_id: str, state: str = "running", place: int = 0, reason: str = "") -> CourseStatus:
    return CourseStatus(course_id, "fedavg", state, reason, 1, 2, place, "operator", 1.0, 2.0)


class FakeOperator(Operator):
    """Does nothing but remember what it was asked."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.there = [status("aaaa1111"), status("bbbb2222", "queued", 1), status("cccc3333", "failed", 0, "no silo")]
        self.interrupt = False
        self.known: tuple[str, ...] = ("bank-a", "bank-b", "bank-c")
        self.submitted: list[Course] = []

    def sites(self) -> tuple[str, ...]:
        return self.known

    def courses(self) -> tuple[CourseStatus, ...]:
        return tuple(self.there)

    def submit(self, course: Any, submission: str = "") -> CourseStatus:
        self.did.append(("submit", course.num_clients))
        self.submitted.append(course)
        return self.there[1]

    def follow(self, course_id: str, on_event: Any, on_status: Any = None) -> CourseStatus:
        self.did.append(("follow", course_id))
        if self.interrupt:
            raise KeyboardInterrupt
        return next(course for course in self.there if course.course_id == course_id)

    def cancel(self, course_id: str) -> CourseStatus:
        self.did.append(("cancel", course_id))
        return self.there[0]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeOperator:
    made = FakeOperator()

    @contextmanager
    def connected(kit: Any, say: Any = print, patience_seconds: float = 60.0) -> Iterator[FakeOperator]:
        yield made

    monkeypatch.setattr(operators, "connected", connected)
    return made


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("federation") / "f"
    return make_federation(folder, "localhost:9", ["bank-a", "bank-b", "bank-c"])


@pytest.fixture
def course(tmp_path: Path) -> str:
    (tmp_path / "course.yaml").write_text(COURSE)
    return str(tmp_path / "course.yaml")


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("num_clients=7", "num_clients is 7, but the federation has 3 sites"),
        ("dataset.path=/etc", "dataset.path is '/etc'"),
        ("splitter.name=random", "splitter is 'random', which means nothing between sites"),
        ("runtime=strict", "runtime is 'strict', which means nothing between sites"),
        ("block_mb=7", "block_mb is 7, which means nothing between sites"),
    ],
)
@pytest.mark.parametrize("verb", ["submit", "serve"])
def test_a_key_that_means_nothing_between_sites_is_refused_before_anything_is_connected(
    verb: str, word: str, part: str, kits: dict[str, Path], course: str, fake: FakeOperator
) -> None:
    kit = kits["operator" if verb == "submit" else "server"]
    code, text = call(verb, str(kit), course, word)
    assert code == 2 and part in text and not fake.did


def test_a_number_of_clients_in_the_file_is_not_overridden_in_silence(
    kits: dict[str, Path], tmp_path: Path, fake: FakeOperator
) -> None:
    (tmp_path / "course.yaml").write_text(COURSE + "num_clients: 7\n")
    code, text = call("submit", str(kits["operator"]), str(tmp_path / "course.yaml"))
    assert code == 2 and "num_clients is 7" in text and not fake.did


def test_a_federation_that_has_grown_since_the_kit_was_made_follows_the_schema_as_well(
    kits: dict[str, Path], course: str, fake: FakeOperator, tmp_path: Path
) -> None:
    write_schema(Schema((Number("age"),), ("red", "green", "blue")), tmp_path / "schema.yaml")
    fake.known, fake.interrupt = (*fake.known, "bank-d"), True
    call("submit", str(kits["operator"]), course, "--schema", str(tmp_path / "schema.yaml"))
    (submitted,) = fake.submitted
    assert isinstance(submitted.dataset, Folder) and submitted.num_clients == 4
    assert submitted.dataset.schema_digest == read_schema(tmp_path / "schema.yaml").digest


def test_the_list_is_a_table_or_json(kits: dict[str, Path], fake: FakeOperator) -> None:
    code, text = call("courses", str(kits["operator"]))
    assert (
        code == 0 and "aaaa1111" in text and "queued (1 before it)" in text and "no silo" in text and "1 of 2" in text
    )
    code, text = call("courses", str(kits["operator"]), "--json")
    assert code == 0 and [found["state"] for found in json.loads(text)["courses"]] == ["running", "queued", "failed"]
    fake.there.clear()
    assert "the server has no courses" in call("courses", str(kits["operator"]))[1]


def test_ctrl_c_on_submit_says_that_the_course_goes_on_and_what_can_be_done(
    kits: dict[str, Path], course: str, fake: FakeOperator, tmp_path: Path
) -> None:
    fake.interrupt = True
    code, text = call("submit", str(kits["operator"]), course, "--out", str(tmp_path / "mine"))
    assert code == 130 and "submitted as bbbb2222; 1 course runs before it" in text
    assert "the course bbbb2222 goes on at the server" in text
    for verb in ("attach", "cancel", "fetch"):
        assert f"isthmus courses {kits['operator']} {verb} bbbb2222" in text
    assert [did[0] for did in fake.did] == ["submit", "follow"]  # and nothing is cancelled


def test_a_course_that_failed_ends_attach_with_its_reason_and_code_1(
    kits: dict[str, Path], fake: FakeOperator, tmp_path: Path
) -> None:
    code, text = call("courses", str(kits["operator"]), "attach", "cccc", "--out", str(tmp_path / "mine"))
    assert code == 1 and "the course cccc3333 failed: no silo" in text
    for what in ("resume cccc3333", "fetch cccc3333 --out FOLDER"):  # nothing of it is lost, and how to go on is said
        assert f"isthmus courses {kits['operator']} {what}" in text


def test_a_server_that_stopped_answering_is_not_told_as_a_course_that_failed(
    kits: dict[str, Path], course: str, fake: FakeOperator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(*arguments: Any) -> Any:
        raise operators.NoAnswer("the server has not answered for 60 s")

    monkeypatch.setattr(FakeOperator, "follow", silent)
    code, text = call("submit", str(kits["operator"]), course, "--out", str(tmp_path / "mine"))
    assert code == 1 and "not answered for 60 s; the course bbbb2222 may be running there still" in text
    assert f"isthmus courses {kits['operator']} attach bbbb2222" in text and "resume" not in text


def test_cancelling_is_told_with_the_way_back(kits: dict[str, Path], fake: FakeOperator) -> None:
    code, text = call("courses", str(kits["operator"]), "cancel", "aaaa")
    assert code == 0 and fake.did == [("cancel", "aaaa1111")] and "resume aaaa1111" in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["atach", "aaaa"], "Did you mean 'attach'?"),
        (["cancel"], "cancel needs the id of a course"),
        (["fetch"], "fetch needs the id of a course"),
        (["list", "aaaa"], "list takes neither an id nor --out"),
    ],
)
def test_what_cannot_be_meant_is_said(words: list[str], part: str, kits: dict[str, Path], fake: FakeOperator) -> None:
    code, text = call("courses", str(kits["operator"]), *words)
    assert code == 2 and part in text and not fake.did


def test_a_server_that_still_imports_is_waited_for_three_minutes_and_then_it_is_said(
    kits: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(operators.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(operators, "connection_problem", lambda kit: "nothing listens at localhost:9: refused")

    def waiting(kit: Any, say: Any, stopped: Callable[[], bool]) -> bool:
        clock[0] = 179.0
        assert not stopped()
        clock[0] = 181.0
        return not stopped()

    monkeypatch.setattr(operators, "wait_for_server", waiting)
    code, text = call("courses", str(kits["operator"]))
    assert code == 2 and "nothing listens at localhost:9: refused (waited 180 s for it)" in text


def test_a_kit_of_another_role_is_named(kits: dict[str, Path]) -> None:
    code, text = call("courses", str(kits["bank-a"]))
    assert code == 2 and "needs a kit for the role operator" in text
