"""A course between sites, with silos in this process: equal to the loop, and to itself whatever happens on the way."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.core.errors import BadInput, CourseFailed, TooFewReplies
from isthmus.core.protocol import Failure
from isthmus.learn.tasks import NodeClassification
from isthmus.report.summary import headline
from isthmus.runs.folder import load_model_file
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.policy import Policy
from tests.quick import by_kind, quick
from tests.sites.in_process import FakeHub, fake_hub, scenario, site_course, write_silos

QUICK = Patience(start_seconds=0.1, pause_seconds=0.3)
SITES = ("client-0", "client-1", "client-2")


def on_sites(course: ist.Course, hub: FakeHub, run_dir: Path, said: list[str] | None = None) -> SiteCourse:
    return SiteCourse(course, hub, SITES, run_dir, patience=QUICK, say=(said if said is not None else []).append)


def equal(one: ist.Params, two: ist.Params) -> bool:
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", by_kind(name for name, kind in ALGORITHMS.items() if not kind.pooled))
def test_every_algorithm_ends_with_the_parameters_and_scores_of_the_loop(name: str, tmp_path: Path) -> None:
    course = site_course(quick(name))
    hub = fake_hub(tmp_path, simulated=course.seed)
    found = on_sites(course, hub, tmp_path / "run").run()
    loop = ist.run(replace(course, runtime="loop"), scenario=scenario(), run_dir=tmp_path / "loop")
    assert equal(found.params, loop.params)
    assert found.client_scores == loop.client_scores
    assert found.best_round == loop.best_round
    for site in SITES:  # every silo keeps the model it would use
        (path,) = (tmp_path / site / "state" / "models").iterdir()
        own = loop.client_params.get(site, loop.params)
        assert equal(load_model_file(path)[0], own)


def test_the_server_s_folder_holds_no_client_s_model_and_no_memory(tmp_path: Path) -> None:
    on_sites(site_course(ist.Local()), fake_hub(tmp_path), tmp_path / "run").run()
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"course.yaml", "journal.jsonl", "checkpoint.isth", "course_id", "report.html", "report.md"}
    assert (tmp_path / "run" / "checkpoint.isth").stat().st_size < 2000  # names of memories, not memories


def test_a_silo_that_dies_in_mid_round_is_a_named_failure_and_is_taken_back(tmp_path: Path) -> None:
    course, hub, said = site_course(rounds=5), fake_hub(tmp_path), []

    def die_in_round_2(site: str, kind: str, data: bytes) -> None:
        trained = hub.log.count(("client-1", "exchange"))
        if site == "client-1" and kind == "exchange" and trained == 3:  # train, evaluate, train
            hub.away.add("client-1")
        if site == "client-0" and hub.log.count(("client-0", "exchange")) == 7 and "client-1" in hub.away:
            hub.restart("client-1")

    hub.hook = die_in_round_2
    result = on_sites(course, hub, tmp_path / "run", said).run()
    journal = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    failed = [(e["round"], f["client"], f["kind"]) for e in journal if e["event"] == "exchange" for f in e["failures"]]
    assert failed[0] == (2, "client-1", "lost") and {site for _, site, _ in failed} == {"client-1"}
    assert max(round for round, _, _ in failed) < 5 and result.num_rounds == 5
    assert any("client-1 takes part again" in text for text in said)


def test_rounds_without_a_lost_silo_are_not_compared_with_whole_ones_and_everybody_is_told(tmp_path: Path) -> None:
    course, hub, said = site_course(rounds=5, min_replies=2), fake_hub(tmp_path), []

    def lose_for_good(site: str, kind: str, data: bytes) -> None:
        if hub.log.count(("client-2", "exchange")) == 5:  # two rounds of training and evaluation, then
            hub.away.add("client-2")

    hub.hook = lose_for_good
    result = on_sites(course, hub, tmp_path / "run", said).run()
    rounds = [event for event in result.events if event["event"] == "round"]
    assert [event["num_clients"] for event in rounds] == [3, 3, 2, 2, 2]
    assert {event["num_asked"] for event in rounds} == {3}
    assert [event["missing"] for event in rounds[2:]] == [["client-2"]] * 3 == [e["unscored"] for e in rounds[2:]]
    assert [event["num_scored"] for event in rounds] == [3, 3, 2, 2, 2]
    assert result.best_round <= 2 and not any(event["is_best"] for event in rounds[2:])
    assert result.clients == SITES and result.missing == ["client-2"]
    assert headline("accuracy", result.events).endswith(f"{result.best_round} of 5; 2 of 3 clients; client-2 missing")
    notes = " | ".join(result.notes)
    assert "client-2 failed in 3 of 5 rounds" in notes
    assert "3 of 5 scored rounds were scored by fewer clients than round" in notes and "client-2 missing" in notes
    assert all(note in said for note in result.notes if "scored rounds" in note)


def test_below_min_replies_the_course_pauses_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    course = site_course(ist.Local(optimizer=ist.SGD(lr=0.1, momentum=0.9)), rounds=4, min_replies=3)
    undisturbed = on_sites(course, fake_hub(tmp_path / "a"), tmp_path / "a" / "run").run()
    hub, said = fake_hub(tmp_path / "b"), []

    def lose_one(site: str, kind: str, data: bytes) -> Failure | None:
        if site == "client-2" and hub.log.count(("client-2", "exchange")) == 6 and hub.generations["client-2"] == 1:
            assert hub.silos[site].handle(kind, data)  # it has trained, but nobody hears of it
            hub.away.add("client-2")
            return Failure(site, "lost", "the line was cut")
        return None

    def hear(text: str) -> None:
        said.append(text)
        if text.startswith("waiting for client-2"):
            threading.Timer(0.15, hub.restart, ["client-2"]).start()

    hub.hook = lose_one
    disturbed = on_sites(course, hub, tmp_path / "b" / "run")
    disturbed.say, disturbed.patience = hear, replace(QUICK, pause_seconds=20.0)
    result = disturbed.run()
    assert any(text.startswith("paused: ") for text in said) and "the course goes on" in said
    assert result.client_scores == undisturbed.client_scores
    for site in SITES:
        (one,) = (tmp_path / "a" / site / "state" / "models").iterdir()
        (two,) = (tmp_path / "b" / site / "state" / "models").iterdir()
        assert equal(load_model_file(one)[0], load_model_file(two)[0])


def test_when_too_few_come_back_the_course_ends_with_an_error_and_a_checkpoint(tmp_path: Path) -> None:
    course, hub = site_course(rounds=5, min_replies=2), fake_hub(tmp_path)

    def leave(site: str, kind: str, data: bytes) -> None:
        if hub.log.count((site, "exchange")) == 4 and site != "client-0":
            hub.away.add(site)

    hub.hook = leave
    with pytest.raises(CourseFailed, match=r"1 of 3 sites are connected \(client-0\), 2 are needed"):
        on_sites(course, hub, tmp_path / "run").run()
    hub.hook = lambda site, kind, data: None
    hub.away.clear()
    resumed = on_sites(course, hub, tmp_path / "run").resume()
    assert resumed.num_rounds == 5


def test_a_killed_server_resumes_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    for algorithm in (ist.FedOpt(server="adam"), ist.Local()):
        folder = tmp_path / type(algorithm).__name__
        course = site_course(algorithm, rounds=5)
        undisturbed = on_sites(course, fake_hub(folder / "a"), folder / "a" / "run").run()
        hub = fake_hub(folder / "b")

        def crash(site: str, kind: str, data: bytes, hub: FakeHub = hub) -> None:
            if hub.log.count(("client-0", "exchange")) == 7:
                raise RuntimeError("the power went out")

        hub.hook = crash
        with pytest.raises(RuntimeError, match="power"):
            on_sites(course, hub, folder / "b" / "run").run()
        hub.hook = lambda site, kind, data: None
        for site in SITES:  # everything starts anew
            hub.restart(site)
        resumed = on_sites(course, hub, folder / "b" / "run").resume()
        assert equal(resumed.params, undisturbed.params) and resumed.client_scores == undisturbed.client_scores
        rounds = [e["round"] for e in resumed.events if e["event"] == "round"]
        assert rounds == [1, 2, 3, 4, 5]


def test_a_silo_refuses_by_its_policy_and_the_others_go_on(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, {"client-1": Policy(algorithms=("fedprox",))})
    result = on_sites(site_course(), hub, tmp_path / "run").run()
    assert set(result.client_scores) == {"client-0", "client-2"}
    failures = {f["reason"] for e in result.events if e["event"] == "exchange" for f in e["failures"]}
    assert failures == {"policy: its policy allows the algorithms fedprox, not fedavg"}


def test_nobody_takes_part_when_all_refuse(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, dict.fromkeys(SITES, Policy(min_sites=4)))
    with pytest.raises(CourseFailed, match="its policy asks for 4 sites at least; this course has 3"):
        on_sites(site_course(), hub, tmp_path / "run").run()


def test_a_silo_with_other_classes_is_refused_and_told_why(tmp_path: Path) -> None:
    made = scenario()
    odd = replace(made.parts["client-2"], class_names=("red", "green", "violet"))
    made.parts["client-2"] = odd
    course = site_course(dataset=type(site_course().dataset)())  # no class list in the course: each silo infers its own
    hub = fake_hub(tmp_path, made=made)
    on_sites(course, hub, tmp_path / "run").run()
    assert "it has the class 'violet', the others do not" in hub.silos["client-2"].refused
    assert not hub.silos["client-0"].refused


@pytest.mark.parametrize("junk", [b"", b"garbage", b"\x00" * 200])
def test_a_silo_that_answers_garbage_is_left_out(junk: bytes, tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    hub.hook = lambda site, kind, data: junk if site == "client-0" and kind == "exchange" else None
    result = on_sites(site_course(), hub, tmp_path / "run").run()
    assert set(result.client_scores) == {"client-1", "client-2"} and result.num_rounds == 3


def test_the_centralised_method_is_not_for_sites(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="whole graph in one place"):
        on_sites(site_course(ist.Pooled()), fake_hub(tmp_path), tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


def test_monitors_are_not_for_sites(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    course = replace(site_course(), monitors=("cka",))
    said = "monitors has 'cka'; between sites nobody may hold all models and graphs"
    with pytest.raises(BadInput, match=said):
        on_sites(course, hub, tmp_path / "run").run()
    assert not (tmp_path / "run").exists()
    on_sites(replace(course, monitors=()), hub, tmp_path / "run").run()
    with pytest.raises(BadInput, match=said):
        on_sites(course, hub, tmp_path / "run").resume()


def test_a_silo_that_does_not_answer_a_proposal_is_asked_again_and_not_shut_out(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    deaf = {"client-1": 1}

    def miss_the_first_proposal(site: str, kind: str, data: bytes) -> Failure | None:
        if kind == "propose" and deaf.get(site, 0):
            deaf[site] -= 1
            return Failure(site, "late", "no answer within 1 s")
        return None

    hub.hook = miss_the_first_proposal
    result = on_sites(site_course(rounds=3), hub, tmp_path / "run").run()
    assert set(result.client_scores) == set(SITES)
    assert not [f for e in result.events if e["event"] == "exchange" for f in e["failures"]]


def test_a_silo_that_changed_its_policy_may_come_back(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, {"client-1": Policy(algorithms=("fedprox",))})

    def relent(site: str, kind: str, data: bytes) -> None:
        if site == "client-0" and hub.log.count(("client-0", "exchange")) == 3 and hub.generations["client-1"] == 1:
            hub.silos["client-1"].policy = Policy()
            hub.restart("client-1")

    hub.hook = relent
    result = on_sites(site_course(rounds=4), hub, tmp_path / "run").run()
    assert set(result.client_scores) == set(SITES)


@pytest.mark.parametrize(("part", "named"), [("client-2", True), ("client-0", False)])
def test_a_silo_that_comes_back_with_more_data_than_it_agreed_to_is_refused(
    part: str, named: bool, tmp_path: Path
) -> None:
    """What a silo agreed to hold bounds its weight: more of it later would weigh more than anybody agreed to."""
    hub, said = fake_hub(tmp_path), []
    other = write_silos(tmp_path / "other", Scenario(scenario().whole, {"client-1": scenario().parts[part]}))

    def change(site: str, kind: str, data: bytes) -> None:
        if site == "client-0" and hub.log.count(("client-0", "exchange")) == 3 and hub.generations["client-1"] == 1:
            hub.silos["client-1"].data = other["client-1"]
            hub.restart("client-1")

    hub.hook = change
    result = on_sites(site_course(rounds=4), hub, tmp_path / "run", said).run()
    refused = "client-1 is refused: it came back with more data than it agreed to hold"
    assert any(text.startswith(refused) for text in said) is named
    assert ("client-1" not in result.client_scores) is named


@pytest.mark.parametrize(("part", "told"), [("client-0", True), ("client-1", False)])
def test_a_silo_that_comes_back_with_other_data_is_noted(part: str, told: bool, tmp_path: Path) -> None:
    """Its scores before and after are not of the same examples, and everybody who reads them should know."""
    hub, said = fake_hub(tmp_path), []
    made = Scenario(scenario().whole, {"client-1": scenario().parts[part]})
    other = write_silos(tmp_path / "other", made)

    def change(site: str, kind: str, data: bytes) -> None:
        if site == "client-0" and hub.log.count(("client-0", "exchange")) == 3 and hub.generations["client-1"] == 1:
            hub.silos["client-1"].data = other["client-1"]
            hub.restart("client-1")

    hub.hook = change
    result = on_sites(site_course(rounds=4), hub, tmp_path / "run", said).run()
    back = [text for text in said if text.startswith("client-1 takes part again")]
    assert len(back) == 1 and back[0] in result.notes
    holds = [NodeClassification().holds(scenario().parts[name]) for name in (part, "client-1")]
    more = f", and holds other data: {holds[0]}, before {holds[1]}; its scores before and after are of other examples"
    assert back == [f"client-1 takes part again{more * told}"]


def test_rounds_after_a_silo_came_back_with_fewer_validation_examples_are_not_compared(tmp_path: Path) -> None:
    hub, said = fake_hub(tmp_path), []
    part = scenario().parts["client-1"]
    val = part.mask("val").clone()
    val[val.nonzero()[0]] = False
    fewer = part.with_masks({"train": part.mask("train"), "val": val, "test": part.mask("test")})
    other = write_silos(tmp_path / "other", Scenario(scenario().whole, {"client-1": fewer}))

    def change(site: str, kind: str, data: bytes) -> None:
        if site == "client-0" and hub.log.count(("client-0", "exchange")) == 4 and hub.generations["client-1"] == 1:
            hub.silos["client-1"].data = other["client-1"]
            hub.restart("client-1")

    hub.hook = change
    result = on_sites(site_course(rounds=5), hub, tmp_path / "run", said).run()
    rounds = [event for event in result.events if event["event"] == "round"]
    assert [event["num_scored"] for event in rounds] == [3] * 5
    assert [event["is_best"] for event in rounds[2:]] == [False] * 3 and result.best_round <= 2
    note = "3 of 5 scored rounds were scored by other clients, or on other numbers of validation examples, than round"
    assert [text for text in result.notes if text.startswith(note)] and [text for text in said if text.startswith(note)]


def test_a_round_that_fails_although_everybody_is_there_is_tried_again_and_then_ends_the_course(tmp_path: Path) -> None:
    """A pause would go on for ever: nobody is missing."""
    hub, said = fake_hub(tmp_path), []
    hub.hook = lambda site, kind, data: b"junk" if kind == "exchange" else None
    course = on_sites(site_course(), hub, tmp_path / "run", said)
    course.patience = replace(QUICK, num_retries=2, retry_seconds=0.01)
    with pytest.raises(TooFewReplies, match="0 of 3 clients replied"):
        course.run()
    assert not any(text.startswith("paused") for text in said)
    assert hub.log.count(("client-0", "exchange")) == 3


def test_a_silo_that_was_restarted_unseen_is_asked_to_agree_again(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)

    def forget(site: str, kind: str, data: bytes) -> None:
        if site == "client-1" and kind == "exchange" and hub.log.count(("client-1", "exchange")) == 3:
            old = hub.silos[site]  # a new process on the same connection: the generation stays
            hub.silos[site] = type(old)(old.name, old.data, old.state, old.policy, old.say)

    hub.hook = forget
    result = on_sites(site_course(rounds=5), hub, tmp_path / "run").run()
    failed = [(e["round"], f["reason"]) for e in result.events if e["event"] == "exchange" for f in e["failures"]]
    assert failed == [(2, "it was restarted and has to agree again")]
    assert set(result.client_scores) == set(SITES)


def test_more_replies_than_sites_cannot_be_asked_for(tmp_path: Path) -> None:
    course = site_course()
    with pytest.raises(BadInput, match="min_replies is 4 but there are 3 clients"):
        on_sites(replace(course, num_clients=9, min_replies=4), fake_hub(tmp_path), tmp_path / "run")


class Hanging:
    """Lets a silo that stays connected answer nothing, until it wakes up."""

    def __init__(self, hub: FakeHub, site: str, after: int) -> None:
        self.hub, self.site, self.after = hub, site, after
        self.awake_at = 10**9  # exchanges of another silo after which it wakes up
        hub.hook = self.hook

    def asked(self) -> int:
        return self.hub.log.count((self.site, "exchange"))

    def hook(self, site: str, kind: str, data: bytes) -> Failure | None:
        awake = self.hub.log.count(("client-0", "exchange")) >= self.awake_at
        if site != self.site or self.asked() <= self.after or awake:
            return None
        return Failure(site, "late", "no answer within 1 s")


def test_a_silo_that_hangs_is_late_twice_then_lost_and_not_waited_for(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    hanging = Hanging(hub, "client-1", after=2)
    result = on_sites(site_course(rounds=6), hub, tmp_path / "run").run()
    failures = [f for e in result.events if e["event"] == "exchange" for f in e["failures"]]
    assert {failure["client"] for failure in failures} == {"client-1"}
    kinds = [failure["kind"] for failure in failures]
    assert kinds[:2] == ["late", "late"] and set(kinds[2:]) == {"lost"} and len(kinds) > 6
    assert failures[-1]["reason"] == "it was late 2 times in a row and is silent since"
    assert hanging.asked() == 4  # two answered, two waited for, and none after
    assert ("client-1", "ping") in hub.log and ("client-1", "finish") not in hub.log


def test_a_silo_that_hung_is_asked_again_as_soon_as_it_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.sites.courses.hub.PING_SECONDS", 0.0)
    hub = fake_hub(tmp_path)
    Hanging(hub, "client-1", after=2).awake_at = 9
    result = on_sites(site_course(rounds=8), hub, tmp_path / "run").run()
    lost = [e["round"] for e in result.events if e["event"] == "exchange" and e["failures"]]
    assert max(lost) < 7 and set(result.client_scores) == set(SITES)


def test_a_late_answer_shows_that_a_silo_is_back(tmp_path: Path) -> None:
    from isthmus.sites.courses.hub import Silence

    hub = fake_hub(tmp_path)
    silence, late = Silence(hub), Failure("client-1", "late", "no answer")
    hub.hook = lambda site, kind, data: late
    silence.judge("client-1", late)
    assert not silence.has("client-1")
    silence.judge("client-1", b"an answer")
    silence.judge("client-1", late)
    assert not silence.has("client-1")  # twice, but not in a row
    silence.judge("client-1", late)
    assert silence.has("client-1") and silence.has("client-1")
    assert hub.log == [("client-1", "ping")]  # and not at every look
    hub.num_heard["client-1"] += 1
    assert not silence.has("client-1")
    silence.judge("client-1", late)
    assert not silence.has("client-1")  # it starts anew
    silence.judge("client-1", late)
    hub.generations["client-1"] += 1
    assert not silence.has("client-1")  # so does one that connects anew


def test_the_course_pauses_while_too_many_hang_and_goes_on_when_they_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.sites.courses.hub.PING_SECONDS", 0.0)
    hub, said = fake_hub(tmp_path), []
    hanging = Hanging(hub, "client-1", after=2)
    course = on_sites(site_course(rounds=4, min_replies=3), hub, tmp_path / "run", said)
    course.patience = replace(QUICK, pause_seconds=20.0, retry_seconds=0.01)
    pings = []

    def hook(site: str, kind: str, data: bytes) -> Failure | None:
        if kind == "ping":
            pings.append(site)
            if len(pings) == 3:
                hanging.awake_at = 0
        return hanging.hook(site, kind, data)

    hub.hook = hook
    assert course.run().num_rounds == 4
    assert any(text.startswith("paused: ") for text in said) and len(pings) == 3


def test_a_refused_silo_that_is_needed_pauses_the_course_until_time_is_up(tmp_path: Path) -> None:
    """It is connected, so a pause that waits for connections alone would end at once, again and again."""
    hub, said = fake_hub(tmp_path, {"client-1": Policy(algorithms=("fedprox",))}), []
    with pytest.raises(CourseFailed, match=r"2 of 3 sites .*client-0, client-2.*, 3 are needed"):
        on_sites(site_course(min_replies=3), hub, tmp_path / "run", said).run()
    assert len([text for text in said if text.startswith("paused: ")]) == 1
