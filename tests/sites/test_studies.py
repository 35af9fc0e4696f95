"""A study on the real engine: server, silos and operator are processes, and the operator's is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config.load import course_to_dict
from isthmus.tune.backends import Here
from isthmus.tune.reading import read_study
from isthmus.tune.running import Computed, search
from tests.sites.test_engine import Machines, _wait_for, machines, small

pytestmark = [pytest.mark.sites, pytest.mark.slow]
__all__ = ["machines"]

SEARCH: dict[str, Any] = {
    "space": {"algorithm.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True}, "algorithm.local_steps": [1, 2]},
    "fidelity": {"rounds": [3, 6]},
    "search": {"name": "sha", "arms": 6},
    "parallel": 2,
}
ONLY_SIMULATED = ("num_clients", "runtime", "splitter", "checkpoint_every", "sinks", "threads", "seed", "rounds")


def lines(folder: Path) -> int:
    path = folder / "trials.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_study_that_is_killed_on_the_way_has_the_scores_of_simulation_and_a_silo_s_policy_bounds_it(
    machines: Callable[..., Machines], tmp_path: Path
) -> None:
    course = small(rounds=6)
    site = machines(course)
    site.start("server", "serve", str(site.kits["server"]))
    names = list(site.data)
    for name in names:
        policy = tmp_path / f"{name}.yaml"
        policy.write_text("tell_reasons: true\n" + ("max_trials: 8\n" if name == names[0] else ""))
        site.start(name, "join", str(site.kits[name]), "--data", str(site.data[name]), "--policy", str(policy))
    for name in names:
        _wait_for(tmp_path / "server.log", f"{name} is connected", seconds=300)
    base = {key: value for key, value in course_to_dict(site.course).items() if key not in ONLY_SIMULATED}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"title": "mine", "base": base, **SEARCH}))
    command = [sys.executable, "-m", "isthmus", "tune", "s.yaml", "--federation", str(site.kits["operator"])]

    def started(out: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / "operator.log").open("ab")
        return subprocess.Popen([*command, "--out", out, "--json"], cwd=tmp_path, stdout=log, stderr=log)

    rng, kills = random.Random(0), 0
    while kills < 3:
        process, before = started("out"), lines(tmp_path / "out")
        deadline = time.monotonic() + 300
        while lines(tmp_path / "out") == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.3)
        assert process.poll() is None, (tmp_path / "operator.log").read_text()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    last = started("out")
    assert last.wait(timeout=600) == 0, (tmp_path / "operator.log").read_text()
    found = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    # In simulation it is the same course, on the graph before it was divided.
    simulated = {key: value for key, value in course_to_dict(course).items() if key not in ("seed", "rounds")}
    study = read_study({"title": "mine", "base": simulated, **SEARCH}, "s.yaml", "mine")
    table = search(study, Computed(study, tmp_path / "simulated", Here()))
    assert [line["trial"] for line in found] == [json.loads(json.dumps(vars(row.trial))) for row in table.rows]
    assert [line["scores"] for line in found] == [list(row.scores) for row in table.rows] and len(found) == 9
    assert len(list((tmp_path / "runs").glob("*/course.yaml"))) == 6  # nothing was handed in twice
    assert (tmp_path / "out" / "best.yaml").exists()
    # Another study of nine configurations: the first silo takes part in eight.
    (tmp_path / "s.yaml").write_text(
        yaml.safe_dump({"title": "more", "base": base, **SEARCH, "search": {"name": "sha", "arms": 9}})
    )
    assert started("more").wait(timeout=600) == 1
    log = (tmp_path / "operator.log").read_text()
    assert f"{names[0]}: trials: it has taken part in 8 courses of this study, its policy allows 8 (max_trials)" in log
    assert lines(tmp_path / "more") == 8
