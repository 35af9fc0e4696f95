"""The life of courses at a server: queue, status, news, cancelling, and what a crash leaves; without a network."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.protocol import Failure
from isthmus.runs.folder import load_model_file
from isthmus.sites.courses import desk as desks
from isthmus.sites.courses.desk import Desk
from isthmus.sites.courses.ledger import MAX_EVENTS, STATUS_FILE, Ledger, read_status
from isthmus.sites.courses.messages import (
    AskPart,
    CourseEvent,
    Courses,
    CourseStatus,
    FollowCourse,
    News,
    Submission,
    desk_answer,
    open_answer,
)
from isthmus.sites.courses.site_course import Patience
from isthmus.sites.serve import CourseRunner, leave_alone
from isthmus.sites.silo.policy import Policy
from isthmus.sites.submit import MAX_SAID, Line, Operator, finished
from tests.limits import within
from tests.sites.courses.test_site_course import equal
from tests.sites.in_process import FakeHub, fake_hub, submitted_course
from tests.sites.lines import SITES, LossyLine, desk_at

QUICK = Patience(start_seconds=0.1, pause_seconds=5.0)


class Killed(BaseException):
    """The server's process ends here, as with kill -9: nothing is written any more."""


class House:
    """A server without a network: its desk, its runner, the silos, and an operator."""

    def __init__(self, folder: Path, policies: dict[str, Policy] | None = None) -> None:
        self.folder = folder
        self.hub: FakeHub = fake_hub(folder, policies)
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        """Start the server's process anew: only its folders are left."""
        self.desk = desk_at(self.folder)
        self.ledger: Ledger = self.desk.ledger
        self.runner = CourseRunner(self.said.append)
        self.operator = LossyLine(self.desk).operator

    def submit(self, **changes: Any) -> CourseStatus:
        return self.operator.submit(submitted_course(**changes))

    def serve(self) -> None:
        """Run what is open, to the end."""
        while (entry := self.ledger.next()) is not None:
            self.runner.serve_one(entry, self.hub, QUICK)

    def state(self, course: CourseStatus) -> str:
        return self.operator.find(course.course_id).state

    def texts(self, course: CourseStatus) -> list[str]:
        return [event.text for event in self.ledger.find(course.course_id).events(0) if event.text]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def when(hub: FakeHub, exchanges: int, act: Callable[[], object]) -> None:
    """Do something once, when the first silo gets its n-th exchange."""
    done: list[int] = []

    def hook(site: str, kind: str, data: bytes) -> Failure | None:
        if not done and hub.log.count(("client-0", "exchange")) == exchanges:
            done.append(1)
            act()
        return None

    hub.hook = hook


def kill() -> None:
    raise Killed


# ---- queue


def test_submissions_queue_run_in_order_and_each_folder_can_be_fetched(house: House, tmp_path: Path) -> None:
    first, second, third = house.submit(), house.submit(seed=1), house.submit(seed=2)
    assert [first.place, second.place, third.place] == [0, 1, 2]
    assert [course.state for course in house.operator.courses()] == ["queued"] * 3
    house.serve()
    assert [course.state for course in house.operator.courses()] == ["done"] * 3
    changed = [course.changed for course in house.operator.courses()]
    assert changed == sorted(changed) and all(course.round == 3 for course in house.operator.courses())
    for number, course in enumerate((first, second, third)):
        house.operator.fetch(course.course_id, tmp_path / f"mine-{number}")
        path = house.ledger.find(course.course_id).path
        for name in ("model.safetensors", "journal.jsonl", "checkpoint.isth", "course.yaml", "course_id"):
            assert (tmp_path / f"mine-{number}" / name).read_bytes() == (path / name).read_bytes()
    models = [load_model_file(tmp_path / f"mine-{number}" / "model.safetensors")[0] for number in range(3)]
    assert not equal(models[0], models[1])


def test_the_same_submission_twice_is_one_course_also_after_a_restart(house: House) -> None:
    course = submitted_course()
    one = house.operator.submit(course, "ab" * 16)
    assert house.operator.submit(course, "ab" * 16).course_id == one.course_id
    house.start()
    assert house.operator.submit(course, "ab" * 16).course_id == one.course_id
    assert len(house.operator.courses()) == 1
    assert house.operator.submit(course).course_id != one.course_id


def test_a_submission_over_a_line_that_repeats_and_drops_is_one_course(house: House) -> None:
    line = LossyLine(house.desk, seed=3, dropped=0.5, repeated=0.3)
    for _ in range(5):
        line.operator.submit(submitted_course())
    assert len(house.operator.courses()) == 5


def test_operators_are_alike_and_the_list_says_who_submitted(house: House) -> None:
    course = house.submit()
    other = LossyLine(house.desk, name="second-operator").operator
    theirs = other.submit(submitted_course())
    assert [found.operator for found in other.courses()] == ["operator", "second-operator"]
    assert other.cancel(course.course_id).state == "cancelled"
    assert house.operator.cancel(theirs.course_id).state == "cancelled"


def test_ids_may_be_cut_short_and_an_unknown_one_is_named(house: House) -> None:
    course = house.submit()
    assert house.operator.find(course.course_id[:6]).course_id == course.course_id
    assert house.operator.find("").course_id == course.course_id
    with pytest.raises(BadInput, match="0 courses have an id that begins with 'zz'; the last ones are"):
        house.operator.find("zz")
    house.submit()
    with pytest.raises(BadInput, match="2 courses are queued or running; name one by its id"):
        house.operator.find("")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": ist.Pooled()}, "whole graph in one place"),
        ({"num_clients": 7}, "num_clients is 7, but the federation has 3 sites"),
        ({"dataset": replace(submitted_course().dataset, path="/etc")}, "dataset.path is '/etc'"),
        ({"dataset": ist.Course().dataset}, "dataset.name is 'cora'"),
        ({"runtime": "strict"}, "runtime is 'strict', which means nothing between sites"),
        ({"sinks": ("tensorboard",)}, "sinks is"),
        ({"checkpoint_every": 7}, "checkpoint_every is 7"),
        ({"global_graph": "merged"}, "global_graph is 'merged'"),
        ({"monitors": ("cka",)}, "monitors has 'cka'"),
    ],
)
def test_a_course_that_cannot_be_or_sets_what_nobody_would_heed_is_refused_and_leaves_nothing(
    changes: dict[str, Any], reason: str, house: House, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as caught:
        house.submit(**changes)
    assert reason in str(caught.value)
    assert not (tmp_path / "runs").exists() and house.operator.courses() == ()


@pytest.mark.parametrize("text", ["[", "rounds: !!int ''", "a: &a [*a]", "- 1", "rounds: -5", "", "\x00"])
def test_a_submission_that_is_no_course_is_answered_and_the_desk_goes_on(text: str, house: House) -> None:
    from isthmus import __version__
    from isthmus.core.codec import encode

    answer = house.desk.answer("operator", "submit", encode(Submission("ab" * 16, text, __version__)))
    problem, _ = open_answer(answer)
    assert problem and house.operator.courses() == ()
    for kind, data in (("submit", b"junk"), ("nonsense", b""), ("part", b"\x00" * 99), ("follow", b"")):
        assert open_answer(house.desk.answer("operator", kind, data))[0]


def test_an_operator_of_another_version_is_told(house: House) -> None:
    from isthmus.core.codec import encode

    text = course_to_yaml(submitted_course())
    answer = house.desk.answer("operator", "submit", encode(Submission("ab" * 16, text, "0.0.1")))
    assert "the operator runs isthmus 0.0.1, the server" in open_answer(answer)[0]


# ---- crashes


def test_a_killed_server_takes_up_what_ran_and_what_was_queued_with_the_same_bits(tmp_path: Path) -> None:
    undisturbed = House(tmp_path / "a")
    calm = [undisturbed.submit(rounds=5, seed=seed) for seed in (0, 1)]
    undisturbed.serve()
    house = House(tmp_path / "b")
    courses = [house.submit(rounds=5, seed=seed) for seed in (0, 1)]
    for exchanges in (5, 8, 20):
        when(house.hub, exchanges, kill)
        with pytest.raises(Killed):
            house.serve()
        house.start()
        for site in SITES:
            house.hub.restart(site)
    assert [course.state for course in house.operator.courses()] == ["done", "running"]
    house.serve()
    for one, two in zip(calm, courses, strict=True):
        paths = undisturbed.ledger.find(one.course_id).path, house.ledger.find(two.course_id).path
        models = [load_model_file(path / "model.safetensors")[0] for path in paths]
        assert equal(*models)
        rounds = [json.loads(line) for line in (paths[1] / "journal.jsonl").read_text().splitlines()]
        assert [event["round"] for event in rounds if event["event"] == "round"] == [1, 2, 3, 4, 5]


def test_a_server_killed_before_the_first_round_or_before_the_status_says_done_loses_nothing(tmp_path: Path) -> None:
    house = House(tmp_path)
    course = house.submit()
    house.hub.hook = lambda site, kind, data: kill() if kind == "propose" else None
    with pytest.raises(Killed):
        house.serve()
    house.start()
    house.hub.hook = lambda site, kind, data: kill() if kind == "finish" else None
    with pytest.raises(Killed):
        house.serve()
    house.start()
    house.hub.hook = lambda site, kind, data: None
    house.serve()
    assert house.state(course) == "done"
    house.operator.fetch(course.course_id, tmp_path / "mine")
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_ctrl_c_at_the_server_pauses_the_course_and_the_next_server_goes_on(house: House) -> None:
    course = house.submit()

    def interrupt() -> None:
        raise KeyboardInterrupt

    when(house.hub, 3, interrupt)
    with pytest.raises(KeyboardInterrupt):
        house.serve()
    assert house.state(course) == "paused"
    assert "the server was stopped" in house.operator.find(course.course_id).reason
    house.start()
    house.serve()
    assert house.state(course) == "done"


def test_a_server_told_to_leave_them_alone_runs_only_what_is_new(house: House) -> None:
    old = house.submit()
    house.start()
    leave_alone(house.ledger)
    new = house.submit(seed=1)
    assert new.place == 0
    house.serve()
    assert (house.state(old), house.state(new)) == ("paused", "done")
    assert "--no-resume" in house.operator.find(old.course_id).reason
    house.start()
    house.serve()
    assert house.state(old) == "done"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": "done"}', '{"course_id": 5}', "\xff", "null"], ids=lambda text: text or "empty"
)
def test_a_damaged_status_file_is_told_and_the_other_courses_stand(text: str, house: House, tmp_path: Path) -> None:
    broken, whole = house.submit(), house.submit(seed=1)
    (house.ledger.find(broken.course_id).path / STATUS_FILE).write_text(text, encoding="latin-1")
    said: list[str] = []
    ledger = Ledger(tmp_path / "runs", said.append)
    assert [entry.status.course_id for entry in ledger.entries] == [whole.course_id]
    assert len(said) == 1 and STATUS_FILE in said[0]


def test_a_state_that_does_not_exist_is_refused(house: House) -> None:
    path = house.ledger.find(house.submit().course_id).path / STATUS_FILE
    path.write_text(path.read_text().replace('"queued"', '"lost"'))
    with pytest.raises(BadInput, match="state is 'lost'; known: queued"):
        read_status(path)


def test_folders_of_other_runs_and_folders_that_were_not_finished_are_no_courses(house: House, tmp_path: Path) -> None:
    course = house.submit()
    path = house.ledger.find(course.course_id).path
    (tmp_path / "runs" / "simulated").mkdir()
    (tmp_path / "runs" / ".20260101-fedavg.abcd.part").mkdir()
    half = tmp_path / "runs" / ".20260101-fedavg.abcd.part" / STATUS_FILE
    half.write_bytes((path / STATUS_FILE).read_bytes())
    assert [entry.path for entry in Ledger(tmp_path / "runs").entries] == [path]


@within()
def test_a_status_that_cannot_be_written_does_not_end_the_course(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.sites.courses import ledger

    course = house.submit()
    said: list[str] = []
    house.ledger.find(course.course_id)._say = said.append

    def full(path: Path, status: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger, "write_status", full)
    house.serve()
    assert house.state(course) == "done" and len(said) == 1 and "status.json cannot be written: No space" in said[0]


# ---- cancelling, and going on


def test_a_queued_course_is_cancelled_at_once_and_never_runs(house: House) -> None:
    first, second = house.submit(), house.submit(seed=1)
    assert house.operator.cancel(second.course_id).state == "cancelled"
    house.serve()
    assert (house.state(first), house.state(second)) == ("done", "cancelled")
    with pytest.raises(BadInput, match="the course is done; there is nothing to cancel"):
        house.operator.cancel(first.course_id)
    assert house.operator.cancel(second.course_id).state == "cancelled"  # twice is once


@pytest.mark.parametrize("exchanges", [1, 4])
def test_a_running_course_is_cancelled_in_mid_exchange_and_goes_on_from_its_checkpoint_when_told(
    exchanges: int, house: House, tmp_path: Path
) -> None:
    course = house.submit(rounds=4)
    when(house.hub, exchanges, lambda: house.operator.cancel(course.course_id))
    house.serve()
    assert house.state(course) == "cancelled" and house.hub.log.count(("client-0", "exchange")) == exchanges
    assert house.operator.resume(course.course_id).state == "queued"
    house.serve()
    other = House(tmp_path / "other")
    calm = other.submit(rounds=4)
    other.serve()
    paths = house.ledger.find(course.course_id).path, other.ledger.find(calm.course_id).path
    assert equal(*(load_model_file(path / "model.safetensors")[0] for path in paths))
    with pytest.raises(BadInput, match="the course is done; there is nothing to go on with"):
        house.operator.resume(course.course_id)


@pytest.mark.parametrize("away", [{"client-0", "client-1", "client-2"}, {"client-2"}])
def test_cancelling_is_heard_while_the_server_waits_for_sites(away: set[str], house: House) -> None:
    course = house.submit(min_replies=3)
    house.hub.away |= away
    threading.Timer(0.2, house.operator.cancel, [course.course_id]).start()
    started = time.monotonic()
    entry = house.ledger.next()
    assert entry is not None
    house.runner.serve_one(entry, house.hub, Patience(start_seconds=30, pause_seconds=30))
    assert house.state(course) == "cancelled" and time.monotonic() - started < 10


def test_cancelling_is_heard_while_the_course_is_paused(house: House) -> None:
    course = house.submit(min_replies=3, rounds=5)

    def lose() -> None:
        house.hub.away.add("client-2")
        threading.Timer(0.3, house.operator.cancel, [course.course_id]).start()

    when(house.hub, 3, lose)
    entry = house.ledger.next()
    assert entry is not None
    house.runner.serve_one(entry, house.hub, Patience(start_seconds=0.1, pause_seconds=60))
    assert house.state(course) == "cancelled"
    assert any(text.startswith("paused: ") for text in house.texts(course))


def test_a_course_that_failed_says_why_and_can_be_fetched_and_taken_up_again(house: House, tmp_path: Path) -> None:
    course, after = house.submit(min_replies=2), house.submit()
    house.hub.away |= {"client-0", "client-1"}
    entry = house.ledger.next()
    assert entry is not None
    house.runner.serve_one(entry, house.hub, Patience(start_seconds=0.1, pause_seconds=0.1))
    status = house.operator.find(course.course_id)
    assert status.state == "failed" and "1 of 3 sites are connected (client-2), 2 are needed" in status.reason
    with pytest.raises(CourseFailed, match="failed: 1 of 3 sites"):
        finished(status)
    house.operator.fetch(course.course_id, tmp_path / "failed")
    assert (tmp_path / "failed" / "journal.jsonl").is_file()
    house.hub.away.clear()
    assert house.operator.resume(course.course_id).place == 1  # after those that wait
    house.serve()
    assert (house.state(course), house.state(after)) == ("done", "done")


def test_a_course_that_breaks_does_not_end_the_server(house: House) -> None:
    broken, fine = house.submit(), house.submit(seed=1)

    def explode() -> None:
        raise RuntimeError("a bug")

    when(house.hub, 2, explode)
    house.serve()
    assert (house.state(broken), house.state(fine)) == ("failed", "done")
    assert house.operator.find(broken.course_id).reason == "RuntimeError: a bug"


def test_a_folder_is_fetched_only_when_the_course_is_over(house: House, tmp_path: Path) -> None:
    course = house.submit()
    with pytest.raises(
        BadInput, match=r"the course is queued \(round 0 of 3\); its folder can be fetched when it is over"
    ):
        house.operator.fetch(course.course_id, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    # Whoever asks for a part without the list of files gets none either: files change while the course runs.
    asked = encode(AskPart(course.course_id, "course.yaml", 0))
    problem, _ = open_answer(house.desk.answer("operator", desks.PART, asked))
    assert problem == "the course is queued; its folder can be fetched when it is over"


# ---- news


def test_an_operator_hears_every_event_once_and_those_of_a_server_that_began_to_count_anew(house: House) -> None:
    course = house.submit()
    house.serve()
    status = house.operator.find(course.course_id)
    told = [CourseEvent(number, f"event {number}", 0, None, None, 0, 0) for number in range(1, 4)]
    running = replace(status, state="running")
    answers = [
        News("first life", running, tuple(told)),
        News("first life", running, tuple(told[1:])),  # of a server that repeats itself
        News("second life", running, (replace(told[0], text="anew"),)),
        News("second life", status, (replace(told[0], text="anew"), replace(told[1], text="done"))),
    ]
    asked: list[FollowCourse] = []

    def ask(kind: str, question: FollowCourse, *more: Any, **limits: Any) -> News:
        asked.append(question)
        return answers[len(asked) - 1]

    house.operator.line.ask = ask  # type: ignore[assignment, method-assign]
    events: list[CourseEvent] = []
    assert house.operator.follow(course.course_id, events.append) == status
    assert [event.text for event in events] == ["event 1", "event 2", "event 3", "anew", "done"]
    assert [(question.life, question.after) for question in asked] == [
        ("", 0),
        ("first life", 3),
        ("first life", 3),
        ("second life", 1),
    ]


def test_texts_of_a_server_that_reach_an_operator_are_cut_and_printable(house: House) -> None:
    honest = house.submit()
    told = replace(house.operator.find(honest.course_id), reason="\x1b[2J\n" + "x" * 10**5, operator="[red]\r")

    def send(kind: str, ident: str, data: bytes) -> str:
        line.heard("answer", ident, desk_answer("", Courses((told,), ("bank\x07",))))
        return ""

    line = Line(send)
    (found,) = Operator(line).courses()
    assert found.reason.startswith("?[2J?xxx") and len(found.reason) == MAX_SAID
    assert found.operator == "[red]?" and Operator(line).sites() == ("bank?",)


def test_what_an_operator_is_told_is_on_disk_already(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, a server must not have said what it does not know any more when it is back."""
    course = house.submit()
    entry = house.ledger.find(course.course_id)
    monkeypatch.setattr(entry, "_changed", kill)
    with pytest.raises(Killed):
        entry.become("failed", "no silo takes part")
    house.start()
    assert house.state(course) == "failed"


def follow(house: House, course: CourseStatus) -> list[CourseEvent]:
    events: list[CourseEvent] = []
    house.operator.follow(course.course_id, events.append)
    return events


def test_rounds_pauses_lost_refused_and_returning_silos_are_told_while_they_happen(tmp_path: Path) -> None:
    house = House(tmp_path, {"client-1": Policy(algorithms=("fedprox",))})
    course = house.submit(min_replies=2, rounds=4)
    told_at: list[int] = []

    def lose() -> None:
        house.hub.away.add("client-2")
        threading.Thread(target=come_back_after_the_pause).start()

    def come_back_after_the_pause() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not any(text.startswith("paused: ") for text in house.texts(course)):
            time.sleep(0.02)
        told_at.append(len(house.texts(course)))
        house.hub.restart("client-2")

    when(house.hub, 3, lose)
    house.serve()
    texts = house.texts(course)
    assert texts[0] == "running" and texts[-1] == "done"
    for part in (
        "client-1 is refused",
        r"^round \d+, \w+: client-2: lost",
        "^paused: ",
        "the course goes on",
        "client-2 takes part again",
    ):
        assert any(re.search(part, text) for text in texts), part
    paused = next(number for number, text in enumerate(texts) if text.startswith("paused: "))
    assert paused < told_at[0]  # known before anybody was back
    assert len([text for text in texts if text.startswith("paused: ")]) == 1
    rounds = [event for event in follow(house, course) if not event.text]
    assert [event.round for event in rounds] == [1, 2, 3, 4] and rounds[-1].bytes_up > 0
    assert all(event.loss is not None for event in rounds)


def test_a_failure_that_goes_on_is_told_once(house: House) -> None:
    course = house.submit(rounds=5)
    when(house.hub, 2, lambda: house.hub.away.add("client-1"))
    house.serve()
    told = [text for text in house.texts(course) if re.search(r"^round \d+, \w+: client-1: lost", text)]
    assert 1 <= len(told) <= 2  # cut off, then not there


def test_an_operator_who_follows_hears_each_event_once_over_a_bad_line_and_a_restart(house: House) -> None:
    course = house.submit(rounds=5)
    when(house.hub, 4, kill)
    with pytest.raises(Killed):
        house.serve()
    old = house.desk.ledger.life
    seen = follow_once(house, course, "", 0)
    house.start()
    assert house.ledger.life != old
    house.serve()
    # Numbers of the earlier server mean nothing to this one: everything it knows is told.
    again = follow_once(house, course, old, seen.events[-1].number)
    assert again.events[0].number == 1 and again.status.state == "done"
    assert follow_once(house, course, again.life, again.events[-1].number).events == ()
    events: list[CourseEvent] = []
    bad = LossyLine(house.desk, seed=5, dropped=0.3, repeated=0.3, held=0.2, flipped=0.2).operator
    bad.follow(course.course_id, events.append)
    assert [event.number for event in events] == list(range(1, len(events) + 1))


def follow_once(house: House, course: CourseStatus, life: str, after: int) -> News:
    return house.operator.line.ask("follow", FollowCourse(course.course_id, life, after), News)


def test_what_is_kept_for_operators_is_bounded_in_number_and_size(house: House) -> None:
    entry = house.ledger.find(house.submit().course_id)
    for number in range(3 * MAX_EVENTS):
        entry.tell(f"{number} \x1b[31m{'x' * 5000}")
    kept = entry.events(0)
    assert len(kept) == MAX_EVENTS and kept[-1].text.startswith(f"{3 * MAX_EVENTS - 1} ?[31m")
    assert max(len(event.text) for event in kept) <= 1000


# ---- the desk's thread


class Answers:
    """Takes the desk's answers with the time at which they came."""

    def __init__(self) -> None:
        self.came: list[tuple[str, float]] = []

    def __call__(self, operator: str, ident: str, data: bytes) -> None:
        self.came.append((ident, time.monotonic()))

    def wait(self, number: int, seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while len(self.came) < number and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self.came) >= number


def question(course: CourseStatus, life: str = "", after: int = 0) -> bytes:
    from isthmus.core.codec import encode

    return encode(FollowCourse(course.course_id, life, after))


def test_a_question_for_news_waits_until_there_are_some_or_its_time_is_over(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    desk = Desk(house.ledger, SITES, answers)
    course = house.submit()
    entry = house.ledger.find(course.course_id)
    desk.start()
    try:
        desk.hear("operator", "follow", "first", question(course, house.ledger.life))
        time.sleep(0.2)
        assert not answers.came
        entry.tell("paused: too few")
        answers.wait(1, desks.HOLD_SECONDS - 1)  # long before its time is over
        assert answers.came[0][0] == "first"
        monkeypatch.setattr(desks, "HOLD_SECONDS", 0.6)
        desk.hear("operator", "follow", "second", question(course, house.ledger.life, 1))
        started = time.monotonic()
        answers.wait(2)
        assert answers.came[1][1] - started > 0.3  # nothing happened; the operator is told so
        desk.hear("operator", "follow", "third", question(course, house.ledger.life, 1))
        desk.hear("operator", "courses", "fourth", b"")
        answers.wait(3)
        assert answers.came[2][0] == "fourth"  # a held question keeps nobody waiting
    finally:
        desk.stop()


def test_questions_that_wait_are_bounded(house: House) -> None:
    course = house.submit()
    for number in range(10 * desks.MAX_QUESTIONS):
        house.desk.hear("operator", "follow", str(number), question(course))
    assert len(house.desk._waiting) == desks.MAX_QUESTIONS
    house.desk._waiting.clear()
    house.desk.hear("operator", "submit", "big", bytes(desks.MAX_QUESTION_BYTES + 1))
    assert not house.desk._waiting
