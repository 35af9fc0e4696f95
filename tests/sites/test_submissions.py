"""Many submissions on the real engine: every folder arrives byte for byte as the server has it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import isthmus as ist
from isthmus.sites.courses.transfer import RUN_FILES
from isthmus.sites.parties.kit import open_kit
from isthmus.sites.submit import connected, finished
from tests.sites.test_engine import Machines, _wait_for, machines, small

pytestmark = [pytest.mark.sites, pytest.mark.slow]
__all__ = ["machines"]

NUM_SUBMISSIONS = int(os.environ.get("ISTHMUS_SUBMISSIONS", "50"))


@pytest.mark.parametrize(
    ("hidden", "num_sites", "model_bytes"),
    [(1220, 3, 7_000_000), (35_000, 1, 200_000_000)],
    ids=["7 MB", "200 MB"],
)
def test_every_one_of_many_submissions_brings_the_folder_of_the_server_byte_for_byte(
    hidden: int, num_sites: int, model_bytes: int, machines: Callable[..., Machines], tmp_path: Path
) -> None:
    model = ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=hidden))
    course = small(rounds=1, num_clients=num_sites, model=model)
    site = machines(course)
    site.start("server", "serve", str(site.kits["server"]))
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_parameters: 100000000\n")
    for name, data in site.data.items():
        site.start(name, "join", str(site.kits[name]), "--data", str(data), "--policy", str(policy))
    for name in site.data:
        _wait_for(tmp_path / "server.log", f"{name} is connected", seconds=300)
    with connected(open_kit(site.kits["operator"], "operator"), say=lambda text: None) as operator:
        for number in range(NUM_SUBMISSIONS):
            status = operator.submit(site.course)
            finished(operator.follow(status.course_id, lambda event: None))
            mine = tmp_path / "mine"
            operator.fetch(status.course_id, mine)
            (theirs,) = [path.parent for path in (tmp_path / "runs").glob("*/model.safetensors")]
            held = {name: (theirs / name).read_bytes() for name in RUN_FILES if (theirs / name).exists()}
            assert {path.name: path.read_bytes() for path in mine.iterdir()} == held, number
            assert len(held["model.safetensors"]) > model_bytes
            for folder in (mine, theirs):  # two hundred folders of this size would fill a disk
                shutil.rmtree(folder)
