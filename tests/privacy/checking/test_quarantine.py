"""Who is barred, since when, for how long; what the notes say; and what becomes of scores and of a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.poisoning import Scaling, SignFlip
from isthmus.config.course import Course
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import Failure
from isthmus.privacy import NormBound, Quarantine
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import read_journal
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Trace, require_same
from tests.core.guards.toys import Doubting
from tests.privacy.checking.toys import Desk


def course(*guards: Guard, **changes: Any) -> Trace:
    words = {"num_clients": 4, "guards": guards, "rounds": 6, **changes}
    return trace_course(toy_course(FedAvg(local_steps=1), **words), toy_scenario(4))


def asked(trace: Trace, client: str) -> set[int]:
    return {message.position.round for message in trace.messages if message.client == client}


def told(desk: Desk, client: str, kind: str = "suspicious") -> None:
    desk.at("ab").failed(Failure(client, kind, "it lies"))


def barred(desk: Desk) -> set[str]:
    entry = "guard.0.Quarantine"
    return set(desk.guards[0].barred(desk.memories.get(entry, {}), desk.round))


def test_after_so_many_suspicious_replies_a_client_is_barred_from_the_next_round_on() -> None:
    desk = Desk((Quarantine(after=2),))
    for client in ("a", "b", "a"):
        assert not barred(desk)
        told(desk, client)
    assert not barred(desk)  # the round goes on with it
    assert desk.said == [
        "'a' is asked nothing from round 2 on: 2 of its replies were suspicious, the last one because it lies"
    ]
    for _ in range(5):
        desk.next_round()
        assert barred(desk) == {"a"}
    told(desk, "b")
    desk.next_round()
    assert barred(desk) == {"a", "b"}
    assert len(desk.said) == 2


def test_only_suspicious_replies_count() -> None:
    desk = Desk((Quarantine(after=1),))
    for kind in ("error", "late", "lost", "not_finite", "malformed"):
        told(desk, "a", kind)
    desk.next_round()
    assert not barred(desk)


def test_a_quarantine_may_end_and_the_count_begins_anew() -> None:
    desk = Desk((Quarantine(after=2, rounds=2),))
    told(desk, "a")
    told(desk, "a")
    assert desk.said[0].startswith("'a' is asked nothing from round 2 to 3: ")
    seen = []
    for _ in range(4):
        seen.append(barred(desk))
        desk.next_round()
    assert seen == [set(), {"a"}, {"a"}, set()]
    told(desk, "a")
    desk.next_round()
    assert not barred(desk)


def test_a_course_goes_on_without_the_one_who_lied_and_says_so() -> None:
    # In each round it is doubted twice: when it trains, and when it says how the model does.
    trace = course(Doubting("client-1"), Quarantine(after=3))
    assert asked(trace, "client-1") == {1, 2}
    assert [note for note in trace.said if "client-1" in note] == [
        "'client-1' is asked nothing from round 3 on: 3 of its replies were suspicious, the last one because it lies, "
        "unlike 3 others"
    ]


def test_once_somebody_is_barred_the_best_round_is_one_of_those_without_it() -> None:
    """Else no later round could be compared with the best one, which more clients scored."""
    trace = course(Scaling(("client-1",), times=300.0), NormBound(times_median=20.0), Quarantine(after=2))
    best = [report.round for report in trace.rounds if report.is_best]
    assert 3 in best
    assert trace.standings[6].best_round >= 3
    assert trace.standings[6].best_scorers == ("client-0", "client-2", "client-3")
    later = [report for report in trace.rounds if report.round >= 3]
    best_score = max(report.score for report in later if report.score is not None)
    assert trace.standings[6].best_score == best_score


def test_a_scaled_liar_is_found_and_barred_in_every_runtime() -> None:
    guards = (Scaling(("client-2",), times=300.0), NormBound(times_median=20.0), Quarantine(after=1))
    for runtime in ("loop", "strict", "auto"):
        trace = course(*guards, runtime=runtime)
        assert trace.ended_by is None
        failures = {failure.client for report in trace.exchanges for failure in report.failures}
        assert failures == {"client-2"}
        assert trace.rounds[-1].cohort == ("client-0", "client-1", "client-3")


def test_a_resume_goes_on_with_the_same_counts_to_the_bit() -> None:
    guards = (Scaling(("client-2",), times=300.0), NormBound(times_median=20.0), Quarantine(after=2))
    words = toy_course(FedAvg(local_steps=1), num_clients=4, guards=guards, rounds=5)
    whole = trace_course(words, toy_scenario(4))
    for round in range(5):
        again = trace_course(words, toy_scenario(4), resume_from=(whole, round))
        require_same(whole.values(), again.values(), f"resumed after round {round}")


def test_the_run_tells_of_it_in_its_notes_and_its_journal(tmp_path: Path) -> None:
    guards = [
        "{name: 'isthmus.attacks.poisoning:Scaling', clients: [client-1], times: 500.0}",
        "{name: norm_bound, times_median: 50.0}",
        "{name: quarantine, after: 2}",
    ]
    words = ["dataset.name=csbm", "num_clients=4", "model.gnn.hidden=4", "rounds=5", f"guards=[{', '.join(guards)}]"]
    result = isthmus.run(isthmus.load_course({}, words), run_dir=tmp_path / "run")
    notes = [note for note in result.notes if "client-1" in note]
    assert "'client-1' is asked nothing from round 3 on: 2 of its replies were suspicious" in notes[0]
    failed = [note for note in notes if "failed" in note]
    assert len(failed) == 1  # though the numbers in the reasons differ from round to round
    assert failed[0].startswith(
        "client-1 failed in 2 of 5 rounds: TrainModel: suspicious: what it changes has the norm"
    )
    assert notes[2] == "suspicious replies, which were not counted: client-1 2"
    events = read_journal(RunFolder(tmp_path / "run").journal)
    kinds = {f["kind"] for event in events for f in event.get("failures", ())}
    assert kinds == {"suspicious"}


def test_it_keeps_to_the_rules_of_guards() -> None:
    skip = ("stacked_equals_loop", "partial_participation")
    check_guard(Quarantine(), algorithms=(FedAvg(local_steps=1),), beside=(NormBound(1e3),), skip=skip)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Quarantine(0), "after is 0"),
        (lambda: Quarantine(rounds=0), "rounds is 0"),
        (lambda: Course(guards=(Quarantine(),)), "no other guard of the course says that a reply is suspicious"),
        (lambda: Course(guards=(SignFlip(), Quarantine())), "no other guard of the course"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
