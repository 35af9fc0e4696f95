"""Sites without a network: silos in this process behind a hub that can lose them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import isthmus as ist
from isthmus.core.protocol import Failure
from isthmus.data.sources import write_graph_folder
from isthmus.data.zoo import Folder
from isthmus.federation.policy import Policy
from isthmus.federation.service import SiloService
from isthmus.simulation import Scenario
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

    def connected(self) -> set[str]:
        return set(self.silos) - self.away

    def generation(self, site: str) -> int:
        return self.generations[site]

    def ask(
        self, kind: str, messages: Mapping[str, bytes], timeout_seconds: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        for site in reversed(list(messages)):
            self.log.append((site, kind))
            instead = self.hook(site, kind, messages[site])
            if site in self.away:
                yield site, Failure(site, "lost", "the connection was lost")
            else:
                yield site, instead if instead is not None else self.silos[site].handle(kind, messages[site])

    def restart(self, site: str) -> None:
        """Bring a site back as a new process: only its folders survive."""
        old = self.silos[site]
        self.silos[site] = SiloService(old.name, old.data, old.state, old.policy, old.say, old.id_secret)
        self.generations[site] += 1
        self.away.discard(site)


def scenario() -> Scenario:
    """Three toy silos whose classes have names."""
    made = toy_scenario()
    named = {name: replace(part, class_names=CLASSES) for name, part in made.parts.items()}
    return Scenario(replace(made.whole, class_names=CLASSES), named)


def site_course(algorithm: Any = None, **changes: Any) -> ist.Course:
    """A toy course for sites: every silo brings its own folder."""
    course = toy_course(algorithm or ist.FedAvg(local_steps=2), dataset=Folder(class_names=CLASSES))
    return replace(course, **changes)


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
) -> FakeHub:
    """Silos on toy graphs, each with its own folders."""
    said: list[str] = []
    return FakeHub(
        {
            name: SiloService(name, path, path.parent / "state", (policies or {}).get(name), said.append, id_secret)
            for name, path in write_silos(folder, made).items()
        }
    )
