"""How long faults between sites take to be noticed and mended, on the real engine, on loopback.

    python benchmarks/faults.py [--repeats 5]
    python benchmarks/faults.py --kills 100 [--seed 0]

The first prints medians in seconds: a silo killed with -9 until the server knows, and until an operator is told of the
pause; a silo started until it is connected; a connected silo expelled until it is out; a server started again until all
silos are back. The second kills server, silos and operator at random moments of one course, and compares the model with
that of an undisturbed run: every round needs all three silos, so that the same silos answered in both.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

import isthmus as ist
from isthmus.config.load import course_to_yaml
from isthmus.runs.folder import load_model_file
from isthmus.sites.courses.transfer import RUN_FILES
from isthmus.sites.parties.certificates import SERVER
from isthmus.sites.parties.kit import expel, open_kit
from isthmus.sites.serve import Server
from isthmus.sites.submit import Operator, connected
from isthmus.sites.up import Rehearsal

PROGRESS_SHARE = 0.3  # of kills, before which the course does a round at least
SITES = ("client-0", "client-1", "client-2")


def seconds_until(done: Callable[[], bool], limit: float = 60.0, every: float = 0.002) -> float:
    started = time.perf_counter()
    while not done():
        if time.perf_counter() - started > limit:
            raise TimeoutError(f"not within {limit} s")
        time.sleep(every)
    return time.perf_counter() - started


def small(**changes: object) -> ist.Course:
    """Return a course of which every round needs all three silos."""
    model = ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=8))
    return replace(ist.Course(num_clients=3, min_replies=3, model=model), **changes)


class Processes:
    """Server, silos and operator as processes in a folder, started as a person starts them."""

    def __init__(self, course: ist.Course) -> None:
        self._rehearsal = Rehearsal(course, say=lambda text: None)
        self.folder, self.kits = self._rehearsal.folder, self._rehearsal.kits
        plain = ist.Course()
        submitted = replace(self._rehearsal.course, runtime=plain.runtime, splitter=plain.splitter)
        self.course = replace(submitted, checkpoint_every=plain.checkpoint_every)
        (self.folder / "course.yaml").write_text(course_to_yaml(self.course))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        """Start a command."""
        command = [sys.executable, "-m", "isthmus", *words]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def serve(self) -> None:
        """Start the server."""
        self.start(SERVER, "serve", str(self.kits[SERVER]), "--pause", "3600", "--wait", "3600")

    def join(self, site: str) -> None:
        """Start a silo."""
        self.start(site, "join", str(self.kits[site]), "--data", str(self._rehearsal.data[site]))

    def kill(self, name: str) -> None:
        """Kill with -9."""
        self.running[name].kill()
        self.running[name].wait()

    def operate(self) -> AbstractContextManager[Operator]:
        """Be an operator, in this process."""
        return connected(open_kit(self.kits["operator"], "operator"), say=lambda text: None)

    def runs(self) -> list[Path]:
        """Return the folders of the server's courses."""
        return [path.parent for path in (self.folder / "runs").glob("*/status.json")]

    def __enter__(self) -> Processes:
        self.serve()
        for site in SITES:
            self.join(site)
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.running:
            self.kill(name)
        self._rehearsal._scratch.cleanup()


def rounds_of(run: Path) -> list[int]:
    if not (run / "journal.jsonl").is_file():
        return []
    lines = (run / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [event["round"] for event in events if event["event"] == "round"]


def pauses(repeats: int) -> list[float]:
    """Return seconds from killing a silo that is needed until an operator who follows is told of the pause."""
    told: list[float] = []
    heard = threading.Event()
    with Processes(small(rounds=10_000)) as house, house.operate() as operator:
        status = operator.submit(house.course)

        def hear(event: object) -> None:
            if getattr(event, "text", "").startswith("paused: "):
                heard.set()

        threading.Thread(target=operator.follow, args=(status.course_id, hear), daemon=True).start()
        for number in range(repeats):
            done = len(rounds_of(house.runs()[0]))
            seconds_until(lambda done=done: len(rounds_of(house.runs()[0])) > done + 1, 300, 0.1)
            heard.clear()
            started = time.perf_counter()
            house.kill(SITES[number % 3])
            assert heard.wait(60)
            told.append(time.perf_counter() - started)
            house.join(SITES[number % 3])
        operator.cancel(status.course_id)
    return told


def kills(number: int, seed: int, rounds: int) -> None:
    """Kill whoever it hits, whenever it hits; the course must end with the model of an undisturbed run."""
    draw, course = random.Random(seed), small(rounds=rounds, algorithm=ist.FedOpt(server="adam", server_lr=0.01))
    struck, before, in_training = dict.fromkeys((SERVER, *SITES, "operator"), 0), 0, 0
    with Processes(course) as house:
        house.start("operator", "submit", str(house.kits["operator"]), "course.yaml", "--out", "first")
        seconds_until(lambda: bool(house.runs()), 300, 0.1)
        (run,) = house.runs()
        while sum(struck.values()) < number and json.loads((run / "status.json").read_text())["state"] != "done":
            done = len(rounds_of(run))
            if draw.random() < PROGRESS_SHARE:  # else hardly a round would be done between two kills
                seconds_until(lambda done=done: len(rounds_of(run)) > done, 600, 0.1)
            time.sleep(draw.uniform(0.0, 6.0))
            name = draw.choice(list(struck))
            house.kill(name)
            struck[name] += 1
            done = len(rounds_of(run))
            before, in_training = done, in_training + (done > before)
            if name == SERVER:
                house.serve()
            elif name == "operator":
                house.start(name, "courses", str(house.kits["operator"]), "attach")
            else:
                house.join(name)
            print(f"kill {sum(struck.values())}: {name}, round {done}", flush=True)
        seconds_until(lambda: json.loads((run / "status.json").read_text())["state"] == "done", 3600, 0.1)
        house.kill("operator")
        with house.operate() as operator:
            (status,) = operator.courses()
            operator.fetch(status.course_id, house.folder / "mine")
        mine = house.folder / "mine"
        whole = all(
            (mine / name).read_bytes() == (run / name).read_bytes() for name in RUN_FILES if (run / name).exists()
        )
        found = load_model_file(mine / "model.safetensors")[0]
        expected = ist.run(replace(course, runtime="loop")).params
        equal = all(torch.equal(found[name], expected[name]) for name in expected)
        print(f"killed: {', '.join(f'{name} {times}' for name, times in struck.items())}")
        print(f"kills with rounds done since the one before: {in_training} of {sum(struck.values())}")
        print(f"each of {rounds} rounds once: {rounds_of(run) == list(range(1, rounds + 1))}")
        print(f"the operator's folder is the server's, byte for byte: {whole}")
        print(f"the model is that of the undisturbed run, bit for bit: {equal}")


def expulsions(repeats: int) -> list[float]:
    """Return seconds from expelling a connected silo until the server has cut it off; for each of three at most."""
    out: list[float] = []
    with Rehearsal(ist.Course(num_clients=3), say=lambda text: None) as rehearsal:
        assert rehearsal.server is not None
        federation, hub = rehearsal.folder / "federation", rehearsal.server.hub
        seconds_until(lambda: len(hub.connected()) == 3, 120)
        for site in SITES[:repeats]:
            started = time.perf_counter()
            expel(federation, [site])
            seconds_until(lambda site=site: site not in hub.connected())
            out.append(time.perf_counter() - started)
    return out


def measure(repeats: int) -> None:
    noticed, returned, rejoined = [], [], []
    with Rehearsal(ist.Course(num_clients=3), say=lambda text: None) as rehearsal:
        assert rehearsal.server is not None
        seconds_until(lambda: len(rehearsal.server.hub.connected()) == 3)
        for number in range(repeats):
            site = SITES[number % 3]
            rehearsal.silos[site].kill()
            noticed.append(seconds_until(lambda site=site: site not in rehearsal.server.hub.connected()))
            rehearsal.silos[site].wait()
            rehearsal.start(site)
            returned.append(seconds_until(lambda site=site: site in rehearsal.server.hub.connected()))
        for _ in range(repeats):
            rehearsal.server.stop()
            time.sleep(1.0)
            kit = open_kit(rehearsal.kits[SERVER], "server")
            rehearsal.server = Server(kit, interface="localhost", say=lambda text: None)
            rejoined.append(seconds_until(lambda: len(rehearsal.server.hub.connected()) == 3))
    print("| fault | median s | range |")
    print("| --- | --- | --- |")
    for name, times in {
        "a silo killed with -9, until the server knows": noticed,
        "a silo that is needed killed with -9, until the operator is told of the pause": pauses(repeats),
        "a connected silo expelled, until the server has cut it off": expulsions(repeats),
        "a silo started again (Python and torch included), until it is connected": returned,
        "the server stopped and started again, until all three silos are back": rejoined,
    }.items():
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} to {max(times):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=300, help="of the course with kills")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.kills:
        kills(chosen.kills, chosen.seed, chosen.rounds)
    else:
        measure(chosen.repeats)


if __name__ == "__main__":
    main()
