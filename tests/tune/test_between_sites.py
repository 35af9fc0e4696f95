"""Studies between sites: a trial is a course of the federation, and comes to what it comes to in simulation."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.course import Course
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.desk import FOLLOW
from isthmus.sites.courses.ledger import CANCELLED
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.state import prune
from isthmus.sites.silo.studies import MAX_STUDIES, Studies
from isthmus.sites.submit import finished
from isthmus.tune.backends import Here
from isthmus.tune.between_sites import NAME_FILE, Federation, check_study
from isthmus.tune.reading import read_study
from isthmus.tune.results import final_scores
from isthmus.tune.running import Computed, search
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table
from tests.sites.courses.test_life import House
from tests.sites.in_process import CLASSES, scenario
from tests.sites.lines import SITES, LossyLine

PLAIN: dict[str, Any] = {
    "base": {
        "dataset": {"name": "folder", "class_names": list(CLASSES)},
        "model": {"gnn": {"name": "gcn", "hidden": 4, "layers": 2}},
        "masks": {"name": "ratio", "train": 0.4, "val": 0.3, "test": 0.3},
        "evaluate_every": 2,
    },
    "space": {
        "algorithm.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True},
        "algorithm.local_steps": [1, 2],
    },
    "fidelity": {"rounds": [3, 6]},
    "search": {"name": "sha", "arms": 4},
    "parallel": 2,
}


def study(**changes: Any) -> Study:
    found = read_study({**PLAIN, **changes}, "s.yaml", "mine", (), SITES)
    check_study(found, SITES)
    return found


class Waiting(House):
    """A server that is asked for news a hundred times a second, and no more often."""

    def start(self) -> None:
        super().start()
        line = LossyLine(self.desk)
        line.change = self.after_a_while
        self.operator = line.operator

    def after_a_while(self, kind: str, answer: bytes) -> bytes:
        if kind == FOLLOW:
            time.sleep(0.01)
        return answer


class Held:
    """The data of the toy silos, for any course."""

    def of(self, course: Course) -> Scenario:
        return scenario()


def simulated(found: Study, folder: Path) -> Table:
    here = Here()
    here.scenarios = Held()  # type: ignore[assignment]
    return search(found, Computed(found, folder, here))


@contextmanager
def serving(house: House) -> Iterator[None]:
    """Run what comes, as a server's process does."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            entry = house.ledger.next()
            if entry is not None:
                house.serve()
            over.wait(0.005)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def carried(found: Study, folder: Path, house: House, said: list[str] | None = None) -> Table:
    say = (said if said is not None else []).append
    with serving(house):
        return search(found, Computed(found, folder, Federation(house.operator, folder, SITES, say)))


def plain(table: Table) -> list[Row]:
    return [replace(row, seconds=0.0) for row in table.rows]


def begun(house: House) -> list[str]:
    """Return the courses that the server has, by when they were submitted."""
    return [entry.path.name for entry in sorted(house.ledger.entries, key=lambda e: e.status.submitted)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return simulated(study(), tmp_path_factory.mktemp("study") / "out")


def test_a_study_between_sites_has_the_trials_and_the_scores_of_one_in_simulation(whole: Table, tmp_path: Path) -> None:
    house, found = Waiting(tmp_path / "house"), study(final_seeds=[5])
    table = carried(found, tmp_path / "out", house)
    assert plain(table) == plain(whole) and len(table.rows) == 4 + 2
    assert [entry.status.state for entry in house.ledger.entries].count("done") == 2
    assert [entry.status.state for entry in house.ledger.entries].count("frozen") == 2
    # What was done is not done again, and a trial's folder is that of its course.
    assert carried(found, tmp_path / "out", house).rows == table.rows and len(house.ledger.entries) == 4
    (last,) = (tmp_path / "out" / "trials").glob(f"{table.rows[-1].trial.arm:04d}-*/seed-0")
    events = [json.loads(line) for line in (last / "journal.jsonl").read_text().splitlines()]
    assert [e["after"] for e in events if e["event"] == "resume"] == [3] and events[-1]["event"] == "end"
    # The best course is scored on the silos as well.
    with serving(house):
        backend = Federation(house.operator, tmp_path / "out", SITES)
        (score,) = final_scores(found, table, tmp_path / "out", backend)
    simulated(found, tmp_path / "apart")
    here = Here()
    here.scenarios = Held()  # type: ignore[assignment]
    final_scores(found, table, tmp_path / "apart", here)
    (path,) = (tmp_path / "apart" / "final").glob("*/journal.jsonl")
    end = json.loads(path.read_text().splitlines()[-1])
    assert score == end["metrics"]["global_model/local_graph"]["accuracy"]  # nobody has the whole graph


class Stop(BaseException):
    """Ends the operator's process, as a kill does."""


def test_a_study_whose_operator_is_killed_anywhere_goes_on_and_hands_in_nothing_twice(
    whole: Table, tmp_path: Path
) -> None:
    house, stops = Waiting(tmp_path / "house"), 0
    ask, left = house.operator.line.ask, [0]

    def counted(*words: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        return ask(*words, **more)

    house.operator.line.ask = counted  # type: ignore[method-assign]
    for number in range(1, 40):
        left[0] = number
        try:
            table = carried(study(), tmp_path / "out", house)
            break
        except Stop:
            stops += 1
    assert stops >= 5 and plain(table) == plain(whole)
    assert len(house.ledger.entries) == len(set(begun(house))) == 4
    trained = [len((e.path / "journal.jsonl").read_text().split('"event": "round"')) - 1 for e in house.ledger.entries]
    assert sorted(trained) == [3, 3, 6, 6]


def test_a_server_that_is_started_again_knows_what_is_frozen(whole: Table, tmp_path: Path) -> None:
    house, found = Waiting(tmp_path / "house"), study()
    few = replace(found, budget=replace(found.budget, client_rounds=3 * 3 * 4))
    assert plain(carried(few, tmp_path / "out", house)) == plain(whole)[:4]
    for site in SITES:
        house.hub.restart(site)
    house.start()
    assert plain(carried(found, tmp_path / "out", house)) == plain(whole)


def test_who_watches_a_frozen_course_is_told_that_its_study_goes_on_with_it(tmp_path: Path) -> None:
    house, found = Waiting(tmp_path / "house"), study()
    few = replace(found, budget=replace(found.budget, client_rounds=9))
    carried(few, tmp_path / "out", house)
    (status,) = house.operator.courses()
    assert (status.state, status.round, status.reason) == ("frozen", 3, "after round 3")
    with pytest.raises(CourseFailed, match="is frozen after round 3: the study that it is a trial of goes on with it"):
        finished(house.operator.follow(status.course_id, lambda event: None))
    with pytest.raises(BadInput, match="the course is frozen; the study that it is a trial of goes on with it"):
        house.operator.resume(status.course_id)


def test_a_silo_takes_part_in_no_more_courses_of_a_study_than_its_policy_allows(whole: Table, tmp_path: Path) -> None:
    house = Waiting(tmp_path / "house", {"client-1": Policy(max_trials=3)})
    said = r"client-1: .*courses of this study, its policy allows 3 \(max_trials\)"
    with pytest.raises(CourseFailed, match=said + ".*; a budget of fewer trials or seeds would do, or a larger"):
        carried(study(), tmp_path / "out", house)
    assert len((tmp_path / "out" / "trials.jsonl").read_text().splitlines()) == 3
    # It counts courses, not stages, remembers them when it is started again, and knows a study from another.
    for site in SITES:
        house.hub.restart(site)
    with pytest.raises(CourseFailed, match=said):
        carried(study(), tmp_path / "out", house)
    fewer = study(search={"name": "sha", "arms": 3})
    assert len(carried(fewer, tmp_path / "fewer", house).rows) == 4
    # With a policy that allows more the study goes on with the same trials.
    house.hub.silos["client-1"].policy = Policy(max_trials=4)
    assert plain(carried(study(), tmp_path / "out", house)) == plain(whole)


def test_a_silo_tells_no_more_than_its_policy_lets_it(tmp_path: Path) -> None:
    house = Waiting(tmp_path / "house", {"client-1": Policy(max_trials=1)})
    house.hub.silos["client-1"].policy = Policy(max_trials=1, tell_reasons=False)
    with pytest.raises(CourseFailed, match=r"client-1: trials: it takes part in no more courses of this study by its"):
        carried(study(), tmp_path / "out", house)
    assert any("it has taken part in 1 courses of this study" in line for line in house.hub.said)


def test_a_proposal_is_not_counted_and_studies_leave_a_bounded_state(tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    for number in range(MAX_STUDIES + 3):
        studies.keep(f"{number:032x}", "ab" * 16)
        studies.keep(f"{number:032x}", "ab" * 16)
    assert len(list((tmp_path / "studies").iterdir())) == MAX_STUDIES
    last = f"{MAX_STUDIES + 2:032x}"
    assert (studies.others(last, "cd" * 16), studies.others(last, "ab" * 16)) == (1, 0)
    prune(tmp_path, Policy())
    assert studies.others(last, "") == 1
    # A course that is never trained, for the others stay away, leaves nothing.
    house = Waiting(tmp_path / "house", {"client-0": Policy(algorithms=("local",))})
    with pytest.raises(CourseFailed, match=r"a trial of a study needs all silos of the federation.*client-0: policy"):
        carried(study(), tmp_path / "out", house)
    assert not (tmp_path / "house" / "client-1" / "state" / "studies").exists()


def test_a_rate_that_is_too_large_is_the_trial_s_failure_and_ends_no_study(tmp_path: Path) -> None:
    house = Waiting(tmp_path / "house")
    base = {**PLAIN["base"], "min_replies": 3}
    found = study(base=base, space={"algorithm.optimizer.lr": [1e38, 0.1]}, search="sha", parallel=1)
    table = carried(found, tmp_path / "out", house)
    assert [(row.trial.arm, row.trial.rung, bool(row.error)) for row in table.rows] == [
        (0, 0, True),
        (1, 0, False),
        (1, 1, False),
    ]
    assert plain(table)[1:] == plain(simulated(found, tmp_path / "simulated"))[1:]


def test_a_course_that_an_operator_cancels_ends_the_study_which_goes_on_when_it_is_started_again(
    whole: Table, tmp_path: Path
) -> None:
    house, said = Waiting(tmp_path / "house"), []  # type: ignore[var-annotated]

    def cancel(site: str, kind: str, data: bytes) -> None:
        if house.hub.log.count((site, "exchange")) == 6:
            entry = next(entry for entry in house.ledger.entries if entry.status.state == "running")
            house.desk._cancel("bob", entry)

    house.hub.hook = cancel
    with pytest.raises(CourseFailed, match=r"was cancelled by an operator.*start the same again"):
        carried(study(), tmp_path / "out", house)
    assert CANCELLED in [entry.status.state for entry in house.ledger.entries]
    house.hub.hook = lambda site, kind, data: None
    assert plain(carried(study(), tmp_path / "out", house, said)) == plain(whole)
    assert any("goes on, which was cancelled" in line for line in said)


def test_what_cannot_be_searched_between_sites_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    for changes, words in (
        ({"search": {"name": "pbt", "size": 4}}, "search: its trials go on from copies of others"),
        ({"fidelity": {"rounds": [2, 4], "sampling.fraction": [0.5, 1.0]}}, "sampling.fraction changes from rung"),
        ({"base": {**PLAIN["base"], "num_clients": 4}}, "base: num_clients is 4, but the federation has 3 sites"),
        ({"base": {"dataset": "cora"}}, "base: dataset.name is 'cora'; between sites every silo brings its own"),
        ({"base": {**PLAIN["base"], "runtime": "loop"}}, "base: runtime is 'loop', which means nothing between"),
        ({"space": {"algorithm.name": ["fedavg", "global"]}}, "needs the whole graph in one place"),
    ):
        with pytest.raises(BadInput, match=words):
            study(**changes)
    house = Waiting(tmp_path / "house")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / NAME_FILE).write_text("{")
    found = study()
    with pytest.raises(BadInput, match="is not empty and holds no study"):
        carried(found, tmp_path / "out", house)
    (tmp_path / "out" / NAME_FILE).unlink()
    simulated(found, tmp_path / "out")
    with pytest.raises(BadInput, match="holds another study: it differs in sites"):
        carried(found, tmp_path / "out", house)


def test_every_silo_may_have_a_value_of_its_own(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"low": 0.01, "high": 1.0, "log": True, "each": "client"}}
    found = study(space=space, search={"name": "sha", "arms": 2}, fidelity={"rounds": 2})
    assert list(found.space.dimensions) == [f"client_settings.{site}.optimizer.lr" for site in SITES]
    table = carried(found, tmp_path / "out", Waiting(tmp_path / "house"))
    assert [row.error for row in table.rows] == ["", ""] and len({row.scores for row in table.rows}) >= 1
