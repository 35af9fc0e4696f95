"""Guards in whole courses: in every runtime, through checkpoints, and what a round makes of what they say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_yaml, load_course
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput, CourseFailed, TooFewReplies
from isthmus.core.folding import FLTrust
from isthmus.core.folds import Median
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.outside import parse_yaml
from isthmus.core.record import State
from isthmus.core.training import finished
from isthmus.privacy import RobustFold
from isthmus.runs.at_workers import at_workers
from isthmus.runs.folder import RunFolder, load_checkpoint
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import resume, run
from isthmus.runtime.cluster import Crew
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Fault, Trace, require_close, require_same
from tests.core.guards.toys import Adding, Affine, Boxed, Counting, Doubting, Refusing
from tests.quick import by_kind, quick

PATH = "tests.core.guards.toys"


def guarded(*guards: Guard, name: str = "fedavg", **changes: Any) -> Trace:
    course = toy_course(quick(name), **{"num_clients": 4, "guards": guards, **changes})
    return trace_course(course, toy_scenario(4))


def models(trace: Trace) -> dict[str, Any]:
    """Return what training made: the server's state and the score, without what guards remember."""
    values = trace.values()
    return {name: values[name] for name in values if not name.startswith("the memory")}


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("name", by_kind())
def test_neutral_guards_are_no_guards_to_the_bit(name: str, runtime: str) -> None:
    plain = guarded(name=name, runtime=runtime)
    behind = guarded(Boxed(), Affine(times=4.0, requests=True), name=name, runtime=runtime)
    assert plain.ended_by is None
    assert behind.ended_by is None
    # Behind guards, clients that answered together are folded one by one: their sums run in another order.
    differs = 1e-5 if runtime == "auto" else 0.0
    require_close(models(plain), models(behind), "a course behind neutral guards and the plain one", differs)


def test_the_wire_has_what_the_guards_made() -> None:
    plain, behind = guarded(), guarded(Affine(plus=1.0), Affine(times=4.0))
    first = {(m.client, m.position): m.outcome.reply for m in plain.messages}
    for message in behind.messages:
        expected = first[message.client, message.position]
        if not hasattr(expected, "params") or message.position.round != 1:
            continue
        for key, tensor in expected.params.items():
            found = message.outcome.reply.params[key]  # type: ignore[union-attr]
            assert torch.allclose(found, (tensor + 1.0) * 4.0, atol=1e-5)
            assert not torch.allclose(found, tensor)


def test_boxes_are_measured_as_they_travel() -> None:
    plain, behind = guarded(), guarded(Boxed())
    assert behind.exchanges[0].request == "TrainModel"
    assert behind.exchanges[0].bytes_up != plain.exchanges[0].bytes_up
    assert behind.exchanges[0].bytes_down != plain.exchanges[0].bytes_down


# ---- memories


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_what_guards_remember_is_in_checkpoints_and_a_resume_goes_on_with_the_same_bits(runtime: str) -> None:
    course = toy_course(FedAvg(local_steps=1), num_clients=4, guards=(Boxed(), Counting()), runtime=runtime)
    whole = trace_course(course, toy_scenario(4))
    at_server = whole.standings[3].guards["guard.1.Counting"]
    assert at_server["rounds"] == 3
    assert at_server["replies"] > 3 * 4
    # What a round does to them is no part of the standing before it, which is gone back to when the round fails.
    counts = [whole.standings[round].guards["guard.1.Counting"]["replies"] for round in (1, 2, 3)]
    assert counts == sorted(set(counts))
    for memory in whole.memories[3].values():
        assert decode(memory, State)["guard.1.Counting"]["replies"] >= 3
    for round in (0, 1, 2):
        again = trace_course(course, toy_scenario(4), resume_from=(whole, round))
        require_same(whole.values(), again.values(), f"resumed after round {round}")
        assert again.standings[3].guards == whole.standings[3].guards


@dataclass(frozen=True)
class Forgetting(Counting):
    """Forgets all that it counted, after every second round."""

    def round_done(self, round: int, memory: State) -> State:
        return {} if round % 2 == 0 else super().round_done(round, memory)


def test_a_guard_that_remembers_nothing_after_a_round_has_no_memory_in_the_next() -> None:
    course = toy_course(FedAvg(local_steps=1), num_clients=4, guards=(Forgetting(),))
    whole = trace_course(course, toy_scenario(4))
    assert whole.standings[1].guards["guard.0.Forgetting"]["rounds"] == 1
    assert "rounds" not in whole.standings[2].guards.get("guard.0.Forgetting", {})
    assert whole.standings[3].guards["guard.0.Forgetting"]["rounds"] == 1


def small(words: list[str]) -> Course:
    return load_course({}, ["dataset.name=csbm", "num_clients=2", "model.gnn.hidden=4", "rounds=2", *words])


def test_a_run_folder_keeps_what_guards_remember_and_its_journal_what_they_have_used_up(tmp_path: Path) -> None:
    course = small([f"guards=['{PATH}:Counting']"])
    run(course, run_dir=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    standing, _ = load_checkpoint(folder.checkpoint, course_digest(course), FedAvg())
    assert standing.guards["guard.0.Counting"]["rounds"] == 2
    rounds = [event for event in read_journal(folder.journal) if event["event"] == "round"]
    assert [event["spent"] for event in rounds] == [{"rounds": 1.0}, {"rounds": 2.0}]
    again = resume(tmp_path / "run", overrides=["rounds=3"])
    straight = run(replace(course, rounds=3), run_dir=tmp_path / "straight")
    assert again.num_rounds == 3
    require_same({"it": dict(again.params)}, {"it": dict(straight.params)}, "resumed and straight")


def test_a_course_without_guards_says_nothing_of_them_in_its_checkpoint_and_journal(tmp_path: Path) -> None:
    course = small([])
    run(course, run_dir=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert b"guards" not in folder.checkpoint.read_bytes()
    assert all("spent" not in event for event in read_journal(folder.journal))


def test_a_handler_that_fails_leaves_its_guards_memory_as_it_was() -> None:
    course = toy_course(FedAvg(local_steps=1), guards=(Counting(),))
    clean = trace_course(course, toy_scenario())
    failed = trace_course(course, toy_scenario(), fault=Fault("client-0", 2, 0, "after"))

    def counted(trace: Trace, client: str) -> int:
        return decode(trace.memories[3][client], State)["guard.0.Counting"]["replies"]  # type: ignore[no-any-return]

    assert counted(failed, "client-0") == counted(clean, "client-0") - 1
    assert counted(failed, "client-1") == counted(clean, "client-1")


# ---- replies that are not believed


@pytest.mark.parametrize("runtime", ["loop", "auto"])
@pytest.mark.parametrize("when", ["accept", "review"])
def test_who_is_not_believed_is_a_named_failure_and_counts_for_nothing(when: str, runtime: str) -> None:
    trace = guarded(Doubting("client-1", when), runtime=runtime, min_replies=1, rounds=2)
    assert trace.ended_by is None
    found = [failure for report in trace.exchanges for failure in report.failures]
    assert {(failure.client, failure.kind) for failure in found} == {("client-1", "suspicious")}
    assert "lies" in found[0].reason
    course = toy_course(quick("fedavg"), num_clients=4, rounds=2)
    without = trace_course(replace(course, guards=(Absent("client-1"),)), toy_scenario(4))
    found, wanted = {"the model": trace.state}, {"the model": without.state}
    differs = 1e-5 if runtime == "auto" else 0.0
    require_close(found, wanted, "a course that doubts one and a course that does not ask it", differs)


@dataclass(frozen=True)
class Absent(Guard):
    """One client is asked nothing."""

    client: str = ""

    def barred(self, memory: State, round: int) -> Collection[str]:
        return (self.client,)


def test_too_many_doubts_end_a_course_that_needs_the_replies() -> None:
    trace = guarded(Doubting("client-1"), min_replies=4)
    assert isinstance(trace.ended_by, TooFewReplies)
    assert "client-1" in str(trace.ended_by)
    assert "suspicious" in str(trace.ended_by)


def test_who_is_barred_is_not_asked_any_more() -> None:
    trace = guarded(Doubting("client-1", barred_after=1), rounds=3)
    asked = {m.position.round for m in trace.messages if m.client == "client-1"}
    assert asked == {1}
    assert trace.rounds[0].cohort == ("client-0", "client-1", "client-2", "client-3")
    assert trace.rounds[2].cohort == ("client-0", "client-2", "client-3")


def test_a_cohort_of_which_everybody_is_barred_ends_the_course_with_words() -> None:
    trace = trace_course(
        toy_course(quick("fedavg"), guards=tuple(Absent(f"client-{number}") for number in range(3))), toy_scenario()
    )
    assert isinstance(trace.ended_by, CourseFailed)


@dataclass(frozen=True)
class Mourning(Guard):
    """Remembers who failed, and where."""

    def failed(self, client: str, at: AtServer) -> None:
        place = f"{client} in round {at.position.round}"
        at.remember({"failed": (*at.memory.get("failed", ()), place)})


@pytest.mark.parametrize("when", ["before", "after"])
def test_guards_are_told_who_failed(when: str) -> None:
    course = toy_course(FedAvg(local_steps=1), guards=(Mourning(), Doubting("client-1", from_round=3)))
    trace = trace_course(course, toy_scenario(), fault=Fault("client-0", 2, 0, when))
    assert trace.standings[1].guards.get("guard.0.Mourning", {}) == {}
    assert trace.standings[2].guards["guard.0.Mourning"]["failed"] == ("client-0 in round 2",)
    # In round 3 one is not believed, in training and in evaluation.
    assert trace.standings[3].guards["guard.0.Mourning"]["failed"][1:] == ("client-1 in round 3",) * 2


# ---- budgets


def test_a_course_ends_when_a_guard_has_nothing_left() -> None:
    trace = guarded(Counting(most=2), rounds=9, evaluate_every=9)
    assert trace.last == 2
    assert trace.rounds[-1].score is not None  # its last round is scored, whatever evaluate_every is
    assert trace.rounds[-1].spent == {"rounds": 2.0}
    assert trace.said[-1] == "the course ends after round 2: 2 rounds are all there is"
    assert finished(replace(toy_course(FedAvg()).plan(), guards=(Counting(most=2),)), trace.standings[2])


# ---- sums


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_a_guard_that_adds_up_what_clients_hold_gives_the_mean(runtime: str) -> None:
    plain, added = guarded(runtime=runtime), guarded(Adding(), runtime=runtime)
    assert added.ended_by is None
    require_close({"the model": plain.state}, {"the model": added.state}, "summed and plain", tolerance=1e-6)
    kinds = [report.request for report in added.exchanges if report.position.round == 1]
    assert kinds[:2] == ["TrainModel", "GiveUp"]
    if runtime == "loop":
        held = [m.outcome.reply for m in added.messages if type(m.request).__name__ == "TrainModel"]
        assert all(not reply.params for reply in held)  # type: ignore[union-attr]


def test_guards_before_one_that_adds_are_undone_on_the_mean() -> None:
    plain, added = guarded(), guarded(Affine(times=4.0), Adding())
    require_close({"the model": plain.state}, {"the model": added.state}, "summed and plain", tolerance=1e-6)


def test_a_fold_that_is_no_mean_cannot_be_added_up() -> None:
    course = toy_course(FedAvg(fold=Median()), guards=(Adding(),))
    trace = trace_course(course, toy_scenario())
    assert isinstance(trace.ended_by, CourseFailed)
    assert "TrainModel" in str(trace.ended_by)
    assert "fold weighted_mean" in str(trace.ended_by)


def test_who_fails_while_a_sum_is_made_is_for_the_guard_to_judge() -> None:
    course = toy_course(FedAvg(local_steps=1), guards=(Adding(needed=2),))
    lost = trace_course(course, toy_scenario(), fault=Fault("client-0", 2, 0, "before"))
    assert lost.ended_by is None  # two of three still held something
    short = trace_course(
        replace(course, guards=(Adding(needed=3),)), toy_scenario(), fault=Fault("client-0", 2, 0, "before")
    )
    assert "2 gave what they hold, 3 are needed" in str(short.ended_by)


# ---- courses as files


def test_guards_are_keys_of_a_course_and_come_back_from_its_file() -> None:
    words = [f"guards=[{{name: '{PATH}:Affine', times: 4.0}}, '{PATH}:Boxed']"]
    course = small(words)
    assert course.guards == (Affine(times=4.0), Boxed())
    assert load_course(parse_yaml(course_to_yaml(course), "it")) == course
    assert course_digest(course) != course_digest(small([]))
    assert course_digest(replace(course, guards=())) == course_digest(small([]))


def test_a_course_without_guards_has_the_digest_that_it_had_before_there_were_guards() -> None:
    assert course_digest(Course()) == "ce871cd230c2b8fd"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (f"guards=['{PATH}:Refusing']", "guards: Refusing: it does not like 2 clients; take another guard"),
        (f"guards=['{PATH}:Adding', '{PATH}:Boxed']", "guards: Adding adds up what clients hold"),
        ("guards=[no_such_guard]", "entry 1 of guards.name is 'no_such_guard'"),
        (f"guards=[{{name: '{PATH}:Affine', tims: 4.0}}]", "entry 1 of guards.tims is not a known key"),
        ("guards=[fedavg]", "entry 1 of guards.name is 'fedavg'"),
        ("guards=['isthmus.algorithms:FedAvg']", "is no Guard"),
        ("guards=quantise", "guards is 'quantise', expected"),
    ],
)
def test_guards_that_cannot_be_are_refused_before_the_start(words: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        small([words])
    assert problem in str(caught.value)


def test_a_course_takes_guards_as_objects() -> None:
    assert Refusing not in {type(guard) for guard in isthmus.Course(guards=(Boxed(),)).guards}
    with pytest.raises(ValueError, match="it does not like 5 clients"):
        isthmus.Course(guards=(Refusing(),))


# ---- at workers


def test_clients_at_workers_have_their_guards_there(crew: Crew) -> None:
    course = toy_course(FedAvg(local_steps=1), num_clients=4, guards=(Boxed(), Counting()), runtime="auto")
    here = trace_course(course, toy_scenario(4))
    there = trace_course(course, toy_scenario(4), place=lambda simulation: at_workers(simulation, crew, 2))
    assert there.ended_by is None
    require_close(here.values(), there.values(), "guarded clients at workers and here")
    assert there.standings[3].guards == here.standings[3].guards
    added = trace_course(
        replace(course, guards=(Adding(),)), toy_scenario(4), place=lambda simulation: at_workers(simulation, crew, 2)
    )
    require_close({"it": here.state}, {"it": added.state}, "summed at workers", tolerance=1e-5)


def test_robust_folds_and_the_servers_own_graph_are_the_same_with_clients_at_workers(crew: Crew) -> None:
    for fold in (Median(), FLTrust(root="server")):
        words = {"num_clients": 4, "guards": (RobustFold(fold),), "server_share": 0.3, "runtime": "auto"}
        course = toy_course(FedAvg(local_steps=1), **words)
        here = trace_course(course, toy_scenario(4))
        there = trace_course(course, toy_scenario(4), place=lambda simulation: at_workers(simulation, crew, 2))
        assert here.ended_by is None and there.ended_by is None
        require_close({"it": here.state}, {"it": there.state}, f"{fold} at workers and here", 1e-5)
