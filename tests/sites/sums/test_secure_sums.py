"""Secure sums between sites: silos with secrets, books and hands of their own come to the simulation's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from isthmus.privacy.secure_sum import SecureSum
from isthmus.runs.simulated import run
from isthmus.sites.courses.site_course import Patience, SiteCourse
from tests.sites.in_process import FakeHub, fake_hub, scenario, site_course
from tests.sites.silo.test_consent import identity

HASTE = Patience(start_seconds=1.0, pause_seconds=1.0, retry_seconds=0.0)


def course(**changes: Any) -> Any:
    return site_course(**{"guards": (SecureSum(),), "runtime": "loop", "rounds": 2, "num_clients": 3, **changes})


def certified(folder: Path) -> FakeHub:
    """Silos with secrets of their own, and certificates."""
    hub = fake_hub(folder)
    for name, silo in hub.silos.items():
        silo.identity = identity(folder / "keys", name)
    return hub


def carried_out(made: Any, hub: FakeHub, folder: Path, **changes: Any) -> Any:
    return SiteCourse(made, hub, tuple(hub.silos), folder, patience=HASTE, say=hub.said.append, **changes).run()


def test_silos_with_secrets_of_their_own_come_to_the_parameters_of_the_loop_to_the_bit(tmp_path: Path) -> None:
    """Masks come off without a trace, so that it does not matter what they were."""
    found = carried_out(course(), certified(tmp_path), tmp_path / "run")
    loop = run(course(), scenario=scenario())
    assert found.params.keys() == loop.params.keys()
    assert all(torch.equal(found.params[name], loop.params[name]) for name in loop.params)
