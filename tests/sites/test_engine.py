"""The real engine: processes, certificates and sockets on loopback. A few of these are in the default set."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS, GFLAPPNP, FedGRL
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import data_root
from isthmus.core.training import Callback, RoundReport
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.data.splitters import MetaSplitter, NodeHostsSplitter
from isthmus.data.zoo import Folder, Union
from isthmus.models import MLP, MLPDecoder
from isthmus.runs.life import Result
from isthmus.runs.simulation import load_scenario
from isthmus.sites.courses.site_course import Patience
from isthmus.sites.parties.admission import connection_problem
from isthmus.sites.parties.kit import make_federation, open_kit
from isthmus.sites.serve import Server
from isthmus.sites.silo.state import SECRET_FILE, simulate
from isthmus.sites.up import Rehearsal, free_port
from isthmus.testing import toy_graph
from isthmus.testing.hostile.siege import known_here
from tests.cli.command import call
from tests.core.guards.toys import Adding, Affine, Boxed, Counting
from tests.processes import copy_silos
from tests.sites.raw_peer import RawPeer

pytestmark = pytest.mark.sites

QUICK = Patience(start_seconds=120, pause_seconds=60)


class Hook(Callback):
    """Calls back at rounds and exchanges of a course."""

    def __init__(self, on_exchange: Callable[[ExchangeReport], None], on_round: Callable[[RoundReport], None]) -> None:
        self.exchanged, self.round_done = on_exchange, on_round


def nothing(report: Any) -> None: ...


def small(**changes: Any) -> ist.Course:
    """Three silos on Cora with a narrow model."""
    course = ist.Course(
        rounds=4, num_clients=3, model=ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=8)), runtime="loop"
    )
    return replace(course, **changes)


def equal(one: ist.Params, two: ist.Params) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def no_process_left(rehearsal: Rehearsal) -> bool:
    return all(process.poll() is not None for process in rehearsal.silos.values())


@pytest.fixture(scope="module")
def silent() -> list[str]:
    return []


def test_three_sites_end_with_the_parameters_of_the_loop_to_the_bit_and_one_killed_in_mid_round_is_named_and_returns(
    tmp_path: Path, silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    course = small()
    with Rehearsal(course, say=silent.append) as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
        killed = _with_a_site_killed_in_mid_round(rehearsal, tmp_path / "killed")
    loop = ist.run(course)
    assert equal(found.params, loop.params)
    assert found.client_scores == loop.client_scores
    assert no_process_left(rehearsal) and not rehearsal.folder.exists()
    failed = {
        e["round"]: [f["client"] for f in e["failures"]]
        for e in killed.events
        if e["event"] == "exchange" and e["request"] == "TrainModel" and e["failures"]
    }
    assert set(failed) == {3, 4} and all(clients == ["client-1"] for clients in failed.values())
    assert killed.num_rounds == 6 and set(killed.client_scores) == {"client-0", "client-1", "client-2"}


class WithToys(Rehearsal):
    """A rehearsal whose silos have the guards of tests installed."""

    def command(self, site: str) -> list[str]:
        return ["tests.sites.guarded_isthmus" if word == "isthmus" else word for word in super().command(site)]


def test_guarded_sites_end_with_the_parameters_of_the_loop_to_the_bit_and_a_lost_secret_of_the_server_is_refused(
    tmp_path: Path, silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    guards = (Affine(times=4.0, requests=True), Counting(), Adding())
    course = small(guards=guards, algorithm=ist.FedAvg(local_steps=2), rounds=3)
    with known_here(Affine, Boxed, Counting, Adding), WithToys(course, say=silent.append) as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
        boxed = replace(rehearsal.course, guards=(Boxed(),))
        assert rehearsal.server is not None
        other = rehearsal.server.run(boxed, tmp_path / "boxed", patience=QUICK)
        (tmp_path / "run" / SECRET_FILE).unlink()
        with pytest.raises(BadInput, match="secret is lost"):
            rehearsal.server.resume(tmp_path / "run", patience=QUICK)
    loop = ist.run(course)
    assert equal(found.params, loop.params) and found.client_scores == loop.client_scores
    asked = [event["request"] for event in found.events if event["event"] == "exchange"]
    assert asked.count("GiveUp") == 3
    assert equal(other.params, ist.run(replace(course, guards=())).params)


def _with_a_site_killed_in_mid_round(rehearsal: Rehearsal, run_dir: Path) -> Result:
    """Run a second course on the same sites; one of them dies and returns."""

    def strike(report: RoundReport) -> None:
        if report.round == 2:  # the silo stands still when the next round asks it, and dies before it answers
            rehearsal.silos["client-1"].send_signal(signal.SIGSTOP)
            threading.Timer(1.0, rehearsal.silos["client-1"].kill).start()
        if report.round == 4:
            rehearsal.silos["client-1"].wait()
            rehearsal.start("client-1")
            deadline = time.monotonic() + 60
            while "client-1" not in rehearsal.server.hub.connected() and time.monotonic() < deadline:
                time.sleep(0.05)

    course = replace(rehearsal.course, rounds=6)
    return rehearsal.server.run(course, run_dir, callbacks=[Hook(nothing, strike)], patience=QUICK)


def test_a_stranger_is_refused(tmp_path: Path, silent: list[str]) -> None:
    port = free_port()
    ours = make_federation(tmp_path / "ours", f"localhost:{port}", ["bank-a"])
    theirs = make_federation(tmp_path / "theirs", f"localhost:{port}", ["bank-a"])
    server = Server(open_kit(ours["server"], "server"), say=silent.append)
    try:
        assert connection_problem(open_kit(ours["bank-a"], "site")) == ""
        problem = connection_problem(open_kit(theirs["bank-a"], "site"))
        assert "not of this federation" in problem
        code, output = call("join", str(theirs["bank-a"]), "--data", str(_graph(tmp_path)))
        assert code == 2 and "not of this federation" in output
        assert server.hub.connected() == set()
    finally:
        server.stop()


def _graph(folder: Path) -> Path:
    from tests.sites.in_process import write_silos

    return write_silos(folder / "silos")["client-0"]


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        kits = make_federation(tmp_path, f"localhost:{taken.getsockname()[1]}", ["bank-a"])
        with pytest.raises(BadInput, match="cannot be used: Address already in use"):
            Server(open_kit(kits["server"], "server"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.pooled])
def test_every_algorithm_between_sites_equals_the_loop(name: str, tmp_path: Path, silent: list[str]) -> None:
    algorithm = ALGORITHMS[name]()
    head = MLPDecoder(hidden=8) if algorithm.keeps_heads else None
    course = small(algorithm=algorithm, model=replace(small().model, decoder=head))
    rehearsed = Rehearsal(course, say=silent.append)
    for site in rehearsed.data:  # else each silo draws its noise from a secret of its own
        simulate(rehearsed.kits[site] / "state", course.seed, site)
    with rehearsed as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
    loop = ist.run(course)
    assert equal(found.params, loop.params) and found.client_scores == loop.client_scores


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["lp1", "lp2"])
def test_silos_with_other_classes_learn_an_encoder_as_in_the_loop(
    protocol: str, tmp_path: Path, silent: list[str]
) -> None:
    course = small(
        dataset=Union(datasets=("csbm", "cora"), dim=16),
        splitter=MetaSplitter(attribute="dataset", deal="one_each", own_classes=True),
        num_clients=2,
        algorithm=FedGRL(protocol=protocol, downstream=Finetune(steps=4, evaluate_every=2)),
        model=replace(small().model, decoder=MLPDecoder(hidden=8)),
    )
    whole = load_scenario(course, data_root())
    with Rehearsal(course, say=silent.append) as rehearsal:
        held = {site: read_graph_folder(path).graph for site, path in rehearsal.data.items()}
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
    for site, part in whole.parts.items():
        named = [part.class_names[label] for label in part.y.tolist()]
        assert [held[site].class_names[label].removeprefix("class ") for label in held[site].y.tolist()] == named
    assert {part.num_classes for part in held.values()} == {2, 7}
    loop = ist.run(rehearsal.course, scenario=replace(whole, parts=held))
    assert equal(found.params, loop.params) and found.client_scores == loop.client_scores
    assert not any(name.startswith("decoder.") for name in found.params)


@pytest.mark.slow
def test_silos_with_edges_between_them_mix_what_they_share_as_in_the_loop(tmp_path: Path, silent: list[str]) -> None:
    """Keys are in another order than row numbers, so sums differ in their last bits."""
    write_graph_folder(toy_graph(60), tmp_path / "graph")
    course = small(
        dataset=Folder(path=str(tmp_path / "graph")),
        algorithm=GFLAPPNP(local_steps=5),
        model=ist.ModelSpec(MLP(hidden=8)),
        splitter=NodeHostsSplitter(),
        rounds=6,
    )
    with Rehearsal(course, say=silent.append) as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=QUICK)
    whole = load_scenario(course, data_root())
    apart = replace(whole, parts={name: replace(part, attributes={}) for name, part in whole.parts.items()})
    loop, unmixed = ist.run(course, scenario=whole), ist.run(course, scenario=apart)
    for name, tensor in loop.params.items():
        torch.testing.assert_close(found.params[name], tensor, rtol=1e-3, atol=1e-4)
    assert max(float((unmixed.params[name] - t).abs().max()) for name, t in loop.params.items()) > 1e-2
    for client, scores in loop.client_scores.items():
        assert found.client_scores[client]["accuracy"] == pytest.approx(scores["accuracy"])


@pytest.mark.slow
def test_twenty_kills_over_a_course_lose_nothing_but_the_rounds_under_way(tmp_path: Path, silent: list[str]) -> None:
    course = small(rounds=60, algorithm=ist.FedAvg(local_steps=4))
    kills = 0
    with Rehearsal(course, say=silent.append) as rehearsal:

        def strike(report: RoundReport) -> None:
            nonlocal kills
            if report.round % 3 == 0 and kills < 20:
                site = f"client-{kills % 3}"
                rehearsal.silos[site].kill()
                rehearsal.silos[site].wait()
                kills += 1
                # Two rounds are over before the loss is noticed; until then the site counts as connected.
                deadline = time.monotonic() + 60
                while site in rehearsal.server.hub.connected() and time.monotonic() < deadline:
                    time.sleep(0.01)
                rehearsal.start(site)
            if report.round % 3 == 2:  # all are back before the next blow
                deadline = time.monotonic() + 60
                while len(rehearsal.server.hub.connected()) < 3 and time.monotonic() < deadline:
                    time.sleep(0.05)

        result = rehearsal.run(tmp_path / "run", callbacks=[Hook(nothing, strike)], patience=QUICK)
    took_part = {e["round"]: 3 - len(e["failures"]) for e in result.events if e.get("request") == "TrainModel"}
    assert kills == 20 and result.num_rounds == 60 and min(took_part.values()) >= 2
    assert result.score("local_graph") > 0.75


def _wait_for(path: Path, text: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} did not appear in {path}")


class Machines:
    """Server, silos and operator as a person starts them: commands in folders."""

    def __init__(self, folder: Path, course: ist.Course, host: str = "localhost") -> None:
        self.folder = folder
        rehearsal = Rehearsal(course, say=lambda text: None)
        # What means something in simulation only is left out, as a person would.
        plain = ist.Course()
        self.course = replace(rehearsal.course, runtime=plain.runtime, splitter=plain.splitter)
        self.data = {}
        for site, path in rehearsal.data.items():
            self.data[site] = folder / "data" / site
            self.data[site].parent.mkdir(parents=True, exist_ok=True)
            path.rename(self.data[site])
        rehearsal._scratch.cleanup()
        self.port = free_port()
        self.kits = make_federation(folder / "kits", f"{host}:{self.port}", list(self.data))
        from isthmus.config.load import course_to_yaml

        (folder / "course.yaml").write_text(course_to_yaml(self.course))
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *args: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        log = (self.folder / f"{name}.log").open("a")
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "isthmus", *args], cwd=self.folder, stdout=log, stderr=log, text=True
        )
        self.processes[name] = process
        return process

    def join(self, site: str, within: Sequence[str] = ()) -> None:
        self.start(site, "join", str(self.kits[site]), "--data", str(self.data[site]), within=within)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machines]]:
    made: list[Machines] = []

    def make(course: ist.Course, host: str = "localhost") -> Machines:
        made.append(Machines(tmp_path, course, host))
        return made[-1]

    yield make
    for each in made:
        each.close()


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "server and a silo", "everybody"])
def test_a_killed_server_resumes_and_ends_with_the_same_bits(
    who: str, machines: Callable[..., Machines], tmp_path: Path
) -> None:
    course = small(rounds=30, algorithm=ist.FedOpt(server="adam", server_lr=0.01), min_replies=3)
    site = machines(course)
    for name in site.data:
        site.join(name)
    site.start("server", "serve", str(site.kits["server"]), "course.yaml", "--out", "run")
    _wait_for(tmp_path / "run" / "journal.jsonl", '"event": "round", ')
    _wait_for(tmp_path / "run" / "journal.jsonl", '"round": 4,')
    doomed = {"server": ["server"], "server and a silo": ["server", "client-1"]}.get(who, list(site.processes))
    for name in doomed:
        site.processes[name].send_signal(signal.SIGKILL)
        site.processes[name].wait()
    for name in doomed:
        if name != "server":
            site.join(name)
    done = site.start("server", "serve", str(site.kits["server"]), "--resume", "run")
    assert done.wait(timeout=180) == 0, (tmp_path / "server.log").read_text()
    loop = ist.run(small(rounds=30, algorithm=course.algorithm))
    from isthmus.runs.folder import load_model_file

    assert equal(load_model_file(tmp_path / "run" / "model.safetensors")[0], loop.params)
    assert port_is_free(site.port)


@pytest.mark.slow
def test_thirteen_hundred_half_open_connections_neither_end_a_course_nor_keep_a_silo_out(
    machines: Callable[..., Machines], tmp_path: Path
) -> None:
    site = machines(small(rounds=60, min_replies=3))
    few_files = ["prlimit", "--nofile=1024:1024"]
    server = site.start("server", "serve", str(site.kits["server"]), "course.yaml", "--out", "run", within=few_files)
    for name in site.data:
        site.join(name)
    _wait_for(tmp_path / "run" / "journal.jsonl", '"round": 4,', seconds=120)
    silent: list[socket.socket] = []
    try:
        for number in range(1300):
            silent.append(socket.create_connection(("localhost", site.port), 30))
            if number == 650:  # a silo goes and comes back in the midst of them
                site.processes["client-1"].kill()
                site.join("client-1")
        assert server.wait(timeout=300) == 0, (tmp_path / "server.log").read_text()
    finally:
        for each in silent:
            each.close()
    events = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "round"] == list(range(1, 61))
    assert "Too many open files" not in (tmp_path / "server.log").read_text()


@pytest.mark.slow
def test_ctrl_c_ends_each_side_cleanly(machines: Callable[..., Machines], tmp_path: Path) -> None:
    site = machines(small(rounds=500))
    for name in site.data:
        site.join(name)
    site.start("server", "serve", str(site.kits["server"]), "course.yaml", "--out", "run")
    _wait_for(tmp_path / "run" / "journal.jsonl", '"round": 3,')
    silo = site.processes["client-0"]
    silo.send_signal(signal.SIGINT)
    assert silo.wait(timeout=20) == 130
    _wait_for(tmp_path / "run" / "journal.jsonl", '"client": "client-0", "kind": "lost"')
    server = site.processes["server"]
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=30) == 130
    assert (tmp_path / "run" / "checkpoint.isth").is_file() and port_is_free(site.port)
    for name in ("client-1", "client-2"):
        assert site.processes[name].poll() is None  # they wait for the server
        site.processes[name].send_signal(signal.SIGTERM)
        assert site.processes[name].wait(timeout=20) == 130
    logs = "".join((tmp_path / f"{name}.log").read_text() for name in site.processes)
    assert "Traceback" not in logs, logs


@pytest.mark.slow
def test_the_operator_submits_watches_and_gets_the_run_folder(
    machines: Callable[..., Machines], tmp_path: Path
) -> None:
    course = small(rounds=5)
    site = machines(course)
    site.start("server", "serve", str(site.kits["server"]))
    for name in site.data:
        site.join(name)
    _wait_for(tmp_path / "server.log", "client-2 is connected")
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", "submit", str(site.kits["operator"]), "course.yaml", "--out", "mine"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "client-2" in done.stdout and "run folder: mine" in done.stdout
    assert "lost the server" not in done.stderr  # it is we who leave
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"course.yaml", "journal.jsonl", "checkpoint.isth", "model.safetensors", "report.md"} <= names
    from isthmus.runs.folder import load_model_file

    assert equal(load_model_file(tmp_path / "mine" / "model.safetensors")[0], ist.run(course).params)
    # A mistake in a course is answered, and the server goes on serving.
    bad = subprocess.run(
        [sys.executable, "-m", "isthmus", "submit", str(site.kits["operator"]), "course.yaml", "algorithm.name=global"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert bad.returncode in (1, 2) and "whole graph in one place" in bad.stderr, bad.stderr
    assert site.processes["server"].poll() is None


def _isthmus(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isthmus", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_course_outlives_its_operator_and_the_next_submission_waits_for_it(
    machines: Callable[..., Machines], tmp_path: Path
) -> None:
    site = machines(small(rounds=60))
    kit = str(site.kits["operator"])
    site.start("server", "serve", str(site.kits["server"]))
    for name in site.data:
        site.join(name)
    site.start("operator", "submit", kit, "course.yaml", "--out", "first")
    _wait_for(tmp_path / "operator.log", "submitted as", seconds=120)
    site.processes["operator"].send_signal(signal.SIGINT)
    assert site.processes["operator"].wait(timeout=60) == 130
    assert "goes on at the server" in (tmp_path / "operator.log").read_text()
    site.start("operator", "courses", kit, "attach")
    time.sleep(3)
    site.processes["operator"].kill()
    site.processes["operator"].wait()
    second = _isthmus(tmp_path, "submit", kit, "course.yaml", "rounds=2", "--out", "second")
    assert second.returncode == 0, second.stderr
    listed = json.loads(_isthmus(tmp_path, "courses", kit, "--json").stdout)["courses"]
    assert [(course["state"], course["round"]) for course in listed] == [("done", 60), ("done", 2)]
    fetched = _isthmus(tmp_path, "courses", kit, "fetch", listed[0]["course_id"][:8], "--out", "first")
    assert fetched.returncode == 0 and (tmp_path / "first" / "model.safetensors").is_file(), fetched.stderr


@pytest.mark.slow
def test_a_watching_operator_waits_for_a_killed_server_and_gets_the_result(
    machines: Callable[..., Machines], tmp_path: Path
) -> None:
    course = small(rounds=40, min_replies=3)
    site = machines(course)
    site.start("server", "serve", str(site.kits["server"]))
    for name in site.data:
        site.join(name)
    operator = site.start("operator", "submit", str(site.kits["operator"]), "course.yaml", "--out", "mine")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("*/checkpoint.isth")) and time.monotonic() < deadline:
        time.sleep(0.02)
    site.processes["server"].kill()
    site.processes["server"].wait()
    site.start("server", "serve", str(site.kits["server"]))
    assert operator.wait(timeout=300) == 0, (tmp_path / "operator.log").read_text()
    from isthmus.runs.folder import load_model_file

    assert equal(load_model_file(tmp_path / "mine" / "model.safetensors")[0], ist.run(small(rounds=40)).params)
    assert "lost the server; waiting for it" in (tmp_path / "operator.log").read_text()


@pytest.mark.slow
def test_a_silo_that_hangs_is_late_and_the_course_goes_on(tmp_path: Path, silent: list[str]) -> None:
    course = small(rounds=4, timeout_seconds=3.0)
    with Rehearsal(course, say=silent.append) as rehearsal:

        def freeze(report: RoundReport) -> None:
            if report.round == 1:
                os.kill(rehearsal.silos["client-2"].pid, signal.SIGSTOP)

        result = rehearsal.run(tmp_path / "run", callbacks=[Hook(nothing, freeze)], patience=QUICK)
        os.kill(rehearsal.silos["client-2"].pid, signal.SIGCONT)
    kinds = {(f["client"], f["kind"]) for e in result.events if e["event"] == "exchange" for f in e["failures"]}
    assert kinds == {("client-2", "late"), ("client-2", "lost")}  # late twice, and then not waited for
    assert result.num_rounds == 4


@pytest.mark.slow
def test_a_site_cannot_pose_as_another(tmp_path: Path, silent: list[str]) -> None:
    port = free_port()
    kits = make_federation(tmp_path / "kits", f"localhost:{port}", ["bank-a", "bank-b"])
    server = Server(open_kit(kits["server"], "server"), say=silent.append)
    facts = json.loads((kits["bank-b"] / "kit.json").read_text())
    (kits["bank-b"] / "kit.json").write_text(json.dumps({**facts, "party": "bank-a"}))
    try:
        poser = subprocess.run(
            [sys.executable, "-m", "isthmus", "join", str(kits["bank-b"]), "--data", str(_graph(tmp_path))],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert poser.returncode == 2 and "its certificate is for 'bank-b'" in poser.stderr
        # One that does not look at its own kit is refused by the server.
        stubborn = RawPeer(open_kit(kits["bank-b"], "site"))
        call = stubborn.stream()
        deadline = time.monotonic() + 20
        while call.is_active() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not call.is_active() and server.hub.connected() == set()
        stubborn.close()
    finally:
        server.stop()


def test_a_kit_of_another_role_and_a_damaged_kit_are_named(tmp_path: Path) -> None:
    kits = make_federation(tmp_path, "localhost:9", ["bank-a"])
    with pytest.raises(BadInput, match="is the kit of the site 'bank-a'; this command needs a kit for the role server"):
        open_kit(kits["bank-a"], "server")
    (kits["bank-a"] / "party.key").unlink()
    with pytest.raises(BadInput, match=r"party\.key is missing"):
        open_kit(kits["bank-a"], "site")
    (kits["bank-a"] / "kit.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        open_kit(kits["bank-a"], "site")
    with pytest.raises(BadInput, match="is not a kit"):
        open_kit(tmp_path, "site")


def test_sites_added_later_are_of_the_same_root_and_old_kits_keep_their_keys(tmp_path: Path) -> None:
    before = make_federation(tmp_path, "localhost:9", ["bank-a"])
    key, root = (before["bank-a"] / "party.key").read_bytes(), (before["bank-a"] / "rootCA.pem").read_bytes()
    after = make_federation(tmp_path, "localhost:9", ["bank-a", "bank-b"])
    assert (after["bank-a"] / "party.key").read_bytes() == key
    assert (after["bank-b"] / "rootCA.pem").read_bytes() == root
    assert open_kit(after["server"], "server").sites == ("bank-a", "bank-b")
    assert (after["bank-b"] / "party.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("sites", "server", "part"),
    [
        (["bank a"], "localhost:9", "'bank a'"),
        (["server"], "localhost:9", "'server'"),
        (["../x"], "localhost:9", "'../x'"),
        (["a", "a"], "localhost:9", "'a' twice"),
        ([], "localhost:9", "--sites is empty"),
        (["a"], "localhost", "HOST:PORT"),
        (["a"], "localhost:99999", "HOST:PORT"),
    ],
)
def test_bad_names_and_addresses_are_refused_before_anything_is_made(
    sites: list[str], server: str, part: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as caught:
        make_federation(tmp_path / "out", server, sites)
    assert part in str(caught.value) and not (tmp_path / "out").exists()


def test_a_clock_far_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.sites.parties import admission
    from isthmus.sites.parties.certificates import RevocationList

    kit = open_kit(make_federation(tmp_path, "localhost:9", ["bank-a"])["bank-a"], "site")
    assert admission.certificate_problem(kit, RevocationList()) == ""
    monkeypatch.setattr(admission.time, "time", lambda: 0.0)
    assert "this machine's clock says 1970-01-01" in admission.certificate_problem(kit, RevocationList())


@pytest.fixture
def remote_host() -> Iterator[tuple[str, list[str], Callable[[str], None]]]:
    """A network namespace that stands for another machine: the server's address, how to run there, and the cable."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2 to make a network namespace")
    name, inner, outer = f"isth-{os.getpid()}", f"isi{os.getpid() % 10000}", f"iso{os.getpid() % 10000}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", name)
        ip("addr", "add", "10.77.0.1/24", "dev", outer)
        ip("link", "set", outer, "up")
        within = ["ip", "netns", "exec", name]
        subprocess.run([*within, "ip", "addr", "add", "10.77.0.2/24", "dev", inner], check=True)
        subprocess.run([*within, "ip", "link", "set", inner, "up"], check=True)
        yield "10.77.0.1", within, lambda state: ip("link", "set", outer, state)
    finally:
        ip("netns", "del", name)


@pytest.mark.slow
def test_a_cut_cable_is_a_lost_silo_that_is_taken_back_when_it_is_mended(
    machines: Callable[..., Machines], remote_host: Any, tmp_path: Path
) -> None:
    host, within, cable = remote_host
    site = machines(small(rounds=400, timeout_seconds=3.0), host)
    site.join("client-0")
    site.join("client-1")
    site.join("client-2", within=within)
    server = site.start("server", "serve", str(site.kits["server"]), "course.yaml", "--out", "run")
    journal = tmp_path / "run" / "journal.jsonl"
    _wait_for(journal, '"round": 5,')
    cable("down")
    _wait_for(journal, '"client": "client-2", "kind": "lost"')  # late at first, then seen as gone
    cable("up")
    _wait_for(tmp_path / "server.log", "client-2 takes part again", seconds=90)
    assert server.wait(timeout=180) == 0, (tmp_path / "server.log").read_text()
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    failures = [f["client"] for e in events if e["event"] == "exchange" for f in e["failures"]]
    assert set(failures) == {"client-2"} and set(events[-1]["client_scores"]) == {"client-0", "client-1", "client-2"}


@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGKILL], [signal.SIGHUP], [signal.SIGINT, signal.SIGINT]])
def test_a_rehearsal_leaves_no_process_behind_however_it_ends(signals: list[signal.Signals], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "isthmus", "up", "--sites", "2", "--out", "run", "rounds=2000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(tmp_path / "run" / "journal.jsonl", '"round": 2,')
    silos = psutil.Process(process.pid).children(recursive=True)
    assert len(silos) >= 2
    for number in signals:
        process.send_signal(number)
        time.sleep(0.3)
    process.wait(timeout=30)
    _, alive = psutil.wait_procs(silos, timeout=30)
    assert not alive


def test_a_server_that_the_engine_forgets_to_end_is_ended_all_the_same(
    tmp_path: Path, silent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.runtime.flare import link

    monkeypatch.setattr(link, "STOP_SECONDS", 1.0)
    port = free_port()
    kits = make_federation(tmp_path, f"localhost:{port}", ["bank-a"])
    server = Server(open_kit(kits["server"], "server"), say=silent.append)
    assert connection_problem(open_kit(kits["bank-a"], "site")) == ""
    (connector,) = server.hub.link._cell.communicator.conn_manager.connectors.values()
    connector.driver.closing = True  # what makes FLARE's own shutdown return without doing anything
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 10 and port_is_free(port)
