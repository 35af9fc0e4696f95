"""Secure sums between sites, whatever breaks and whenever: no wrong sum, no mask used twice, no share too many."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.codec import decode
from isthmus.core.errors import IsthmusError
from isthmus.privacy.secure_sum import SecureSum
from isthmus.runs.simulated import run
from isthmus.runtime.envelope import Envelope
from isthmus.sites.courses.site_course import SiteCourse
from isthmus.testing.traces import require_close
from tests.sites.in_process import UNDECAYED, site_course
from tests.sites.sums.striking import (
    COUNTING,
    HASTE,
    HOWS,
    OUT,
    STAGES,
    Strike,
    Struck,
    carried_out,
    drawn,
    scenario_of,
    struck,
)
from tests.sites.sums.watching import Watch, watched


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that dies has written is there for the next one, synced or not."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def course(number: int = 4, guard: SecureSum | None = None, **changes: Any) -> Any:
    plain = {"guards": (guard or SecureSum(threshold=0.51),), "runtime": "loop", "num_clients": number}
    return site_course(UNDECAYED, **{**plain, "evaluate_every": 1000, **changes})


def seen(
    strikes: list[Strike], folder: Path, number: int = 4, guard: SecureSum | None = None, **changes: Any
) -> tuple[Any, Watch, Struck, int]:
    """Carry out a course with faults, and see that no sum of it is wrong and no mask was used twice."""
    made, world = course(number, guard, **changes), struck(folder, strikes, number)
    watch = Watch()
    with watched(watch):
        result, kills = carried_out(made, world, folder / "run")
    watch.check(made.guards[0].rules)
    return result, watch, world, kills


def test_silos_with_secrets_of_their_own_come_to_the_parameters_of_the_loop_to_the_bit(tmp_path: Path) -> None:
    """Masks come off without a trace, so that it does not matter what they were."""
    found, watch, _, _ = seen([], tmp_path, rounds=2, evaluate_every=1)
    loop = run(course(rounds=2, evaluate_every=1), scenario=scenario_of(4))
    assert found.params.keys() == loop.params.keys()
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert len(watch.sums) == 2 + 2 + 1 and len(watch.hidden) > 0


def dropouts(
    number: int, most: int, hows: tuple[Any, ...], gone: tuple[bool, ...], stages: tuple[str, ...] = STAGES
) -> list[list[Strike]]:
    """Return every way to lose up to so many silos at one stage, one for each round of a course."""
    found: list[list[Strike]] = []
    for stage in stages:
        for size in range(1, most + 1):
            for chosen in combinations([f"client-{place}" for place in range(number)], size):
                for how in hows:
                    for away in gone:
                        at = len(found) + 1
                        found.append([Strike(at, stage, who, how, away) for who in chosen])
    return found


def assert_dropouts(number: int, cases: list[list[Strike]], folder: Path, guard: SecureSum | None = None) -> None:
    """See that in each round those are in the sum who were there when their words were asked for, at once."""
    strikes = [strike for case in cases for strike in case]
    _, watch, world, _ = seen(strikes, folder, number, guard, rounds=len(cases), min_replies=3)
    assert len(world.done) == len(strikes)
    for round, case in enumerate(cases, 1):
        (added,) = watch.added(round)
        assert set(added.alive) == set(world.hub.silos) - {strike.who for strike in case if left_out(strike)}, case


def left_out(strike: Strike) -> bool:
    """Whether a silo that was hit is not in the sum: what is needed for that goes with its process."""
    forgets = strike.gone or strike.how.startswith("killed")
    return strike.stage in OUT or (forgets and strike.stage != STAGES[-1])


def test_every_dropout_of_one_of_four_at_every_stage(tmp_path: Path) -> None:
    """Three of four are enough: whoever is lost, before it answers or after, for a moment or for the round."""
    cases = dropouts(4, 1, ("unasked",), (True,))
    others = dropouts(4, 1, ("killed after",), (False,))
    assert_dropouts(4, [(cases if at % 3 else others)[at] for at in range(len(cases))], tmp_path)


def test_every_dropout_of_one_of_four_at_every_stage_where_holders_are_counted(tmp_path: Path) -> None:
    cases = dropouts(4, 1, ("unasked",), (True,), COUNTING)
    assert_dropouts(4, cases, tmp_path, SecureSum(threshold=0.51, min_holders=2))


@pytest.mark.slow
@pytest.mark.parametrize("stages", [STAGES, COUNTING])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("gone", [False, True])
def test_every_dropout_of_two_of_five_at_every_stage(
    how: str, gone: bool, stages: tuple[str, ...], tmp_path: Path
) -> None:
    guard = SecureSum(threshold=0.51, min_holders=1 if stages is STAGES else 2)
    assert_dropouts(5, dropouts(5, 2, (how,), (gone,), stages), tmp_path, guard)


def test_one_silo_more_than_can_be_lost_gives_no_sum_and_the_round_begins_anew_with_other_keys(tmp_path: Path) -> None:
    cases = [
        [Strike(at, stage, who) for who in ("client-0", "client-2")] for at, stage in enumerate(STAGES, 1)
    ]  # two of four
    strikes = [strike for case in cases for strike in case]
    result, watch, world, _ = seen(strikes, tmp_path, rounds=len(cases), min_replies=3)
    assert result.num_rounds == len(cases)
    assert all(len(watch.added(at)) == 1 for at in range(1, len(cases) + 1))
    begun = [at for at, stage, who in world.log if (stage, who) == ("ShareSecrets", "client-1")]
    # Once more in each round but the first, which was too small at once; two scores are in the last one.
    assert [begun.count(at) for at in range(1, len(cases) + 1)] == [1, 2, 2, 2 + 2]
    loop = run(course(rounds=len(cases)), scenario=scenario_of(4))
    assert all(torch.equal(result.params[name], loop.params[name]) for name in loop.params)


def test_keys_come_with_what_is_held_and_in_a_message_of_their_own_only_where_a_sum_is_begun_anew(
    tmp_path: Path,
) -> None:
    """Of four exchanges of a sum each is one message to each silo."""
    _, _, world, _ = seen([Strike(2, "ShareSecrets", "client-1")], tmp_path, rounds=2)
    asked = [[stage for at, stage, who in world.log if (at, who) == (round, "client-0")] for round in (1, 2)]
    assert asked[0] == list(STAGES)
    assert asked[1][: len(STAGES) + 2] == ["TrainModel", "ShareSecrets", "MakeKeys", *STAGES[1:]]


def test_a_server_killed_at_any_stage_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Before a stage, and when some of the silos have answered it: what it begins anew has other keys."""
    strikes = [Strike(at, stage, "server") for at, stage in enumerate(STAGES, 1)]
    found, watch, _, kills = seen(strikes, tmp_path, rounds=len(STAGES), min_replies=4)
    assert kills == len(STAGES)
    loop = run(course(rounds=len(STAGES)), scenario=scenario_of(4))
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
    assert len(watch.names) > len(watch.sums)


def test_a_silo_killed_at_any_stage_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """All four are needed, so each of these rounds is begun anew."""
    strikes = [
        Strike(at, stage, f"client-{at % 4}", how)
        for at, (stage, how) in enumerate(
            [(stage, how) for stage in STAGES for how in ("killed before", "killed after")], 1
        )
    ]
    rounds = len(strikes)
    guard = SecureSum(threshold=1.0, min_cohort=4)
    found, watch, world, _ = seen(strikes, tmp_path, guard=guard, rounds=rounds, min_replies=4)
    assert len(world.done) == rounds and all(set(added.alive) == set(world.hub.silos) for added in watch.sums)
    loop = run(course(rounds=rounds, guard=guard), scenario=scenario_of(4))
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)


def test_a_server_killed_after_a_sum_of_some_comes_to_the_same_sum_when_all_are_back(tmp_path: Path) -> None:
    """Else the difference of the two would be what the one who was lost sent."""
    strikes = [Strike(1, "SendMasked 1", "client-2"), Strike(1, "EvaluateModel", "server")]
    _, watch, world, kills = seen(strikes, tmp_path, rounds=1, evaluate_every=1)
    assert kills == 1
    first, second = watch.added(1)
    assert set(first.alive) == set(second.alive) == {"client-0", "client-1", "client-3"}
    require_close({"it": first.mean}, {"it": second.mean}, "the sum and its repetition", 1e-6)
    assert any("client-2: left out of the sum" in text for text in world.hub.said)


def test_a_course_waits_for_as_many_silos_as_a_sum_needs(tmp_path: Path) -> None:
    """Although the course by itself would go on with one."""
    made, world = course(3, guard=SecureSum(), rounds=2), struck(tmp_path, [], 3)
    paused: list[str] = []

    def lose(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange" and decode(data, Envelope).position.round == 2 and not paused:
            world.hub.away.add("client-1")

    def pause(reason: str) -> None:
        paused.append(reason)
        world.hub.away.discard("client-1")

    world.hub.hook = lose
    site_made = SiteCourse(
        made,
        world.hub,
        tuple(world.hub.silos),
        tmp_path / "run",
        patience=HASTE,
        say=world.hub.said.append,
        on_pause=pause,
    )
    assert site_made.run().num_rounds == 2
    assert "2 of 3 clients replied, 3 needed" in paused[0] or "3 are needed" in paused[0]


def schedules(seeds: range, folder: Path) -> dict[str, int]:
    """Carry out courses with random faults; return how often what happened."""
    counted = dict.fromkeys(("courses", "sums", "begun", "kills of the server", "strikes", "ended by an error"), 0)
    for seed in seeds:
        number, holders = 4 + seed % 2, 1 + seed // 2 % 2
        guard = SecureSum(threshold=0.51, min_holders=holders)
        made, place = course(number, guard, rounds=2, min_replies=3, evaluate_every=1), folder / str(seed)
        stages = STAGES if holders == 1 else COUNTING
        world = struck(place, drawn(seed, 2, [f"client-{k}" for k in range(number)], 5, stages), number)
        watch = Watch()
        with watched(watch):
            try:
                _, kills = carried_out(made, world, place / "run")
            except IsthmusError:
                kills = 0
                counted["ended by an error"] += 1
        watch.check(made.guards[0].rules)
        counted["courses"] += 1
        counted["sums"] += len(watch.sums)
        counted["begun"] += len(watch.names)
        counted["kills of the server"] += kills
        counted["strikes"] += len(world.done)
    print(counted)
    return counted


def test_no_random_schedule_gives_a_wrong_sum(tmp_path: Path) -> None:
    counted = schedules(range(6), tmp_path)
    assert counted["begun"] > counted["sums"] > 6 and counted["strikes"] > 10


@pytest.mark.slow
def test_none_of_a_hundred_random_schedules_gives_a_wrong_sum(tmp_path: Path) -> None:
    counted = schedules(range(100, 200), tmp_path)
    assert counted["begun"] > counted["sums"] > 200 and counted["strikes"] > 200
    assert counted["ended by an error"] < 20
