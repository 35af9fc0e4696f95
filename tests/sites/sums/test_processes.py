"""Secure sums between real processes that are killed with -9 at any stage, and come back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import torch

from isthmus.privacy.secure_sum import SecureSum
from isthmus.runs.folder import load_model_file
from isthmus.runs.simulated import run
from isthmus.sites.parties.certificates import SERVER
from isthmus.sites.parties.kit import make_federation, open_kit
from isthmus.sites.submit import Operator, connected
from isthmus.sites.up import free_port
from tests.processes import Process
from tests.sites.in_process import UNDECAYED, submitted_course, write_silos
from tests.sites.sums.striking import COUNTING, OUT, SELDOM, STAGES, scenario_of
from tests.sites.sums.watching import Watch, read

pytestmark = [pytest.mark.sites, pytest.mark.slow]

SITES = tuple(f"client-{place}" for place in range(4))
PARTS = ("before", "after")
PATIENT = "patient"
GUARD = SecureSum(threshold=0.51)
HOLDERS = SecureSum(threshold=0.51, min_holders=2)


def course(**changes: Any) -> Any:
    plain = {"algorithm": UNDECAYED, "guards": (GUARD,), "num_clients": len(SITES), "evaluate_every": 1000}
    return submitted_course(**{**plain, **changes})


@dataclass
class House:
    """A server and silos as processes; who dies is started again."""

    folder: Path
    running: dict[str, Process] = field(default_factory=dict)
    every: set[int] = field(default_factory=set)  # all processes there ever were
    restarts: int = 0

    def __post_init__(self) -> None:
        self.data = write_silos(self.folder / "data", scenario_of(len(SITES)))
        self.kits = make_federation(self.folder / "federation", f"localhost:{free_port()}", list(SITES))
        self.strikes = self.folder / "strikes"
        self.strikes.mkdir()

    def start(self, name: str) -> None:
        """Start a process."""
        words = ["serve", str(self.kits[SERVER]), "--pause", "3600", "--wait", "3600"]
        if name != SERVER:
            words = ["join", str(self.kits[name]), "--data", str(self.data[name])]
        command = [sys.executable, "-m", "tests.sites.sums.struck_isthmus", *words]
        environment = {**os.environ, "ISTHMUS_STRIKES": str(self.strikes)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = Process(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.running[name] = process
        self.every.add(process.pid)

    def tend(self) -> None:
        """Start again whoever has died."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                assert process.returncode == -9, (self.folder / f"{name}.log").read_text()[-2000:]
                self.restarts += 1
                self.start(name)

    def carried_out(self, made: Any, operator: Operator, strikes: list[str]) -> tuple[Path, Watch, int]:
        """Carry out a course with strikes; return its run folder, what was seen, and how many strikes hit."""
        for old in self.strikes.iterdir():
            old.unlink() if old.suffix != ".seen" and old.name != PATIENT else old.write_text("")
        for strike in strikes:
            (self.strikes / strike).touch()
        status = operator.submit(made)
        deadline = time.monotonic() + 600
        (path,) = [path for path in self.runs() if _status(path)["course_id"] == status.course_id]
        while _status(path)["state"] not in ("done", "failed", "cancelled"):
            self.tend()
            time.sleep(0.02)
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()[-3000:]
        left = sum(each.name in strikes for each in self.strikes.iterdir())
        return path, read(self.strikes), len(strikes) - left

    def runs(self) -> list[Path]:
        return [path.parent for path in (self.folder / "runs").glob("*/status.json")]

    def close(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(timeout=20)


def _status(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "status.json").read_text())
    return found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    for name in (SERVER, *SITES):
        made.start(name)
    try:
        yield made
    finally:
        made.close()
        assert not [pid for pid in made.every if psutil.pid_exists(pid)], "a process is left"


@pytest.fixture(scope="module")
def operator(house: House) -> Iterator[Operator]:
    with connected(open_kit(house.kits["operator"], "operator"), say=lambda text: None) as found:
        yield found


def model_of(path: Path) -> Any:
    return load_model_file(path / "model.safetensors")[0]


def test_a_silo_killed_at_any_stage_is_left_out_or_counts_by_what_it_sent(house: House, operator: Operator) -> None:
    """Each of the four in turn, before it answers and after, at each stage; all are back before the next round."""
    cases = [(stage, how) for stage in STAGES for how in PARTS]
    strikes = [f"{at},{stage},{SITES[at % 4]},{how}" for at, (stage, how) in enumerate(cases, 1)]
    (house.strikes / PATIENT).touch()
    path, watch, hits = house.carried_out(course(rounds=len(cases), min_replies=3), operator, strikes)
    (house.strikes / PATIENT).unlink()
    assert (_status(path)["state"], hits) == ("done", len(strikes)), _status(path)
    watch.check(GUARD.rules)
    for at, (stage, _) in enumerate(cases, 1):
        (added,) = watch.added(at)
        lost = {SITES[at % 4]} if stage in OUT else set()
        assert set(added.alive) == set(SITES) - lost, (at, stage)


@pytest.mark.parametrize("who", ["server", "silo"])
def test_processes_killed_between_any_two_stages_go_on_with_the_bits_of_the_loop(
    who: str, house: House, operator: Operator
) -> None:
    """All four silos are needed, so what an undisturbed simulation gives is known."""
    cases = [(stage, how) for stage in STAGES for how in PARTS]
    struck = {at: SERVER if who == "server" else SITES[at % 4] for at in range(1, len(cases) + 1)}
    strikes = [f"{at},{stage},{struck[at]},{how}" for at, (stage, how) in enumerate(cases, 1)]
    guard = SecureSum(threshold=1.0, min_cohort=4)
    # Of another seed than the first: the same replies would be added up over the same silos only.
    fields = {"rounds": len(cases), "min_replies": 4, "guards": (guard,), "seed": 1 + (who == "server")}
    made = course(**fields)
    path, watch, hits = house.carried_out(made, operator, strikes)
    assert (_status(path)["state"], hits) == ("done", len(strikes)), _status(path)
    watch.check(guard.rules)
    loop = run(course(**fields, runtime="loop"), scenario=scenario_of(4))
    found = model_of(path)
    assert all(torch.equal(found[name], loop.params[name]) for name in loop.params)


@pytest.mark.parametrize("first", [0, 25, 50, 75])
def test_none_of_a_hundred_random_schedules_gives_a_wrong_sum(first: int, house: House, operator: Operator) -> None:
    counted = dict.fromkeys(("courses", "done", "sums", "begun", "kills"), 0)
    for seed in range(first, first + 25):
        draw, strikes = Random(seed), []
        guard, stages = ((GUARD, STAGES), (HOLDERS, COUNTING))[seed % 2]
        for at in (1, 2):
            for _ in range(draw.randint(0, 3)):
                stage, who = draw.choice((*stages, *SELDOM)), draw.choice((*SITES, *SITES, SERVER))
                strikes.append(f"{at},{stage},{who},{draw.choice(PARTS)}")
        made = course(guards=(guard,), rounds=2, min_replies=3, evaluate_every=1, seed=1000 + seed)
        path, watch, hits = house.carried_out(made, operator, sorted(set(strikes)))
        watch.check(guard.rules)
        counted["courses"] += 1
        counted["done"] += _status(path)["state"] == "done"
        counted["sums"] += len(watch.sums)
        counted["begun"] += len(watch.names)
        counted["kills"] += hits
        assert psutil.pid_exists(house.running[SERVER].pid)
    print(counted, f"{house.restarts} processes started again")
    assert counted["courses"] == 25 and counted["done"] >= 23 and counted["kills"] > 25
