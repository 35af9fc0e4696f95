"""Sites without a network: silos in this process behind a hub that can lose them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import isthmus as ist
from isthmus.core.protocol import Failure
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.zoo import Folder
from isthmus.runs.simulation import Scenario
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.service import SiloService
from isthmus.sites.silo.state import simulate
from isthmus.testing import toy_course, toy_scenario

CLASSES = ("red", "green", "blue")
SECRET = b"a secret of all silos"


class FakeHub:
    """Calls silos directly. `hook(site, kind, data)` may raise Lost, or change what is answered."""

    def __init__(self, silos: Mapping[str, SiloService]) -> None:
        self.silos = dict(silos)
        self.away: set[str] = set()
        self.generations = dict.fromkeys(silos, 1)
        self.hook: Callable[[str, str, bytes], bytes | Failure | None] = lambda site, kind, data: None
        self.log: list[tuple[str, str]] = []
        self.said: list[str] = []  # on all the silos' screens
        self.check: Callable[[], None] = lambda: None
        self.num_heard = dict.fromkeys(silos, 0)

    def connected(self) -> set[str]:
        return set(self.silos) - self.away

    def generation(self, site: str) -> int:
        return self.generations[site]

    def heard(self, site: str) -> int:
        return self.num_heard[site]

    def ping(self, site: str) -> None:
        self.log.append((site, "ping"))
        if not isinstance(self.hook(site, "ping", b""), Failure):
            self.num_heard[site] += 1

    def ask(
        self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        for site in reversed(list(messages)):
            self.check()
            self.log.append((site, kind))
            instead = self.hook(site, kind, messages[site])
            if site in self.away:
                yield site, Failure(site, "lost", "the connection was lost")
            else:
                yield site, instead if instead is not None else self.silos[site].handle(kind, messages[site])

    def restart(self, site: str) -> None:
        """Bring a site back as a new process: only its folders survive."""
        old = self.silos[site]
        self.silos[site] = SiloService(old.name, old.data, old.state, old.policy, old.say, old.id_secret, old.identity)
        self.generations[site] += 1
        self.away.discard(site)


def scenario() -> Scenario:
    """Three toy silos whose classes have names."""
    made = toy_scenario()
    named = {name: replace(part, class_names=CLASSES) for name, part in made.parts.items()}
    return Scenario(replace(made.whole, class_names=CLASSES), named)


# For courses that count who changed a number: decay would change all.
UNDECAYED = ist.FedAvg(local_steps=2, optimizer=ist.SGD(weight_decay=0.0))


def site_course(algorithm: Any = None, **changes: Any) -> ist.Course:
    """A toy course for sites: every silo brings its own folder."""
    course = toy_course(algorithm or ist.FedAvg(local_steps=2), dataset=Folder(class_names=CLASSES))
    return replace(course, **changes)


def submitted_course(**changes: Any) -> ist.Course:
    """The same as an operator submits it: without what means something in simulation only."""
    plain = ist.Course()
    kept = {name: getattr(plain, name) for name in ("runtime", "splitter", "checkpoint_every")}
    return site_course(**{"num_clients": 3, **kept, **changes})


def write_silos(folder: Path, made: Scenario | None = None) -> dict[str, Path]:
    """Write each silo's graph folder."""
    paths = {}
    for name, part in (made or scenario()).parts.items():
        paths[name] = folder / name / "graph"
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        write_graph_folder(part, paths[name])
    return paths


def fake_hub(
    folder: Path,
    policies: Mapping[str, Policy] | None = None,
    made: Scenario | None = None,
    id_secret: bytes | None = SECRET,
    simulated: int | None = None,
    tell_reasons: bool = True,
) -> FakeHub:
    """Silos on toy graphs, each with its own folders; with a seed, with the secrets of its simulation.

    What is wrong crosses in full unless `tell_reasons` is False.
    """
    said: list[str] = []
    paths = write_silos(folder, made)
    if simulated is not None:
        for name, path in paths.items():
            simulate(path.parent / "state", simulated, name)
    hub = FakeHub(
        {
            name: SiloService(
                name,
                path,
                path.parent / "state",
                replace((policies or {}).get(name, Policy()), tell_reasons=tell_reasons),
                said.append,
                id_secret,
            )
            for name, path in paths.items()
        }
    )
    hub.said = said
    return hub


def until(done: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait until something is so; return how long it took."""
    started = time.monotonic()
    while not done():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started
