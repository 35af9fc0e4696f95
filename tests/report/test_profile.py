"""Where the time of a run went, from written journals."""

import pytest

import isthmus as ist
from isthmus.report.profile import PARTS, profile_table, time_by_part


def exchange(request: str, round: int, **seconds: float) -> dict[str, object]:
    fields = {"seconds": 0.0, "client_seconds": 0.0, "codec_seconds": 0.0, "check_seconds": 0.0, "fold_seconds": 0.0}
    return {"event": "exchange", "request": request, "round": round, **fields, **seconds}


JOURNAL = [
    {"event": "setup", "load_seconds": 1.0, "build_seconds": 0.5},
    exchange("StartFrom", 0, seconds=0.5, client_seconds=0.25),
    exchange("TrainModel", 1, seconds=10.0, client_seconds=6.0, codec_seconds=1.0, check_seconds=0.5, fold_seconds=1.5),
    exchange("EvaluateModel", 1, seconds=2.0, client_seconds=1.5, check_seconds=0.25),
    {"event": "round", "seconds": 12.0, "wall_seconds": 15.0},
    {"event": "checkpoint", "round": 1, "seconds": 0.125},
    {"event": "monitor", "round": 1, "name": "cka", "seconds": 0.25},
    {"event": "scored", "seconds": 0.75},
]


def test_every_second_goes_to_one_part() -> None:
    assert time_by_part(JOURNAL) == {
        "set-up": 1.5,
        "local compute": 6.25,
        "codec": 1.0,
        "aggregation": 0.5 + 1.5 + (15.0 - 12.0),  # checks, fold, and what the round took beyond its exchanges
        "evaluation": 2.0 + 0.75,
        "engine": 0.25 + (10.0 - 6.0 - 1.0 - 0.5 - 1.5),
        "checkpoints": 0.125,
        "monitors": 0.25,
    }


def test_clients_that_work_at_the_same_time_count_no_longer_than_the_exchange() -> None:
    found = time_by_part([exchange("TrainModel", 1, seconds=2.0, client_seconds=5.0, codec_seconds=0.5)])
    assert (found["local compute"], found["codec"], found["engine"]) == (1.5, 0.5, 0.0)


def test_the_table_has_the_largest_part_first_and_shares_of_the_whole() -> None:
    table = profile_table(JOURNAL)
    assert [row[0] for row in table.rows[:2]] == ["local compute", "aggregation"]
    assert {row[0] for row in table.rows} == {*PARTS, "all"}
    assert table.rows[0][2:] == ("6.250", f"{100 * 6.25 / 18.125:.1f} %")


def test_a_journal_without_times_gives_zeros() -> None:
    assert set(time_by_part([{"event": "course"}]).values()) == {0.0}
    assert profile_table([]).rows[0][3] == "-"


@pytest.mark.parametrize("runtime", ["auto", "loop", "strict"])
def test_the_parts_of_a_run_add_up_to_about_the_run(runtime: str) -> None:
    result = ist.run(ist.Course(rounds=3, runtime=runtime))
    spent = time_by_part(result.events)
    in_rounds = sum(spent[part] for part in ("local compute", "codec", "aggregation", "engine"))
    evaluation = sum(e["seconds"] for e in result.events if e.get("request") == "EvaluateModel")
    # Listeners and checkpoints are the rest of a round; every part that a round has is there.
    assert 0.5 * result.seconds < in_rounds + evaluation <= result.seconds
    assert all(spent[part] > 0 for part in PARTS if part not in ("checkpoints", "monitors"))
