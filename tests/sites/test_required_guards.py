"""What silos require of a course, and a graph of the server's own, in processes over TLS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.core.errors import CourseFailed
from isthmus.core.folding import FLTrust
from isthmus.core.guards.guard import Guard
from isthmus.privacy import ClientDP, RobustFold, SecureSum
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import read_journal
from isthmus.sites.courses.site_course import Patience
from isthmus.sites.up import Rehearsal
from tests.processes import copy_silos

pytestmark = pytest.mark.sites

PATIENCE = Patience(start_seconds=120, pause_seconds=60)
POLICY = """
tell_reasons: true
min_examples: 1
required_guards:
  client_dp: {mode: distributed, epsilon: 100}
  secure_sum: {min_cohort: 3}
"""
NOISE = ClientDP(mode="distributed", clip=1.0, noise=1.0, epsilon=100.0, enough=3)
REFUSED: list[tuple[tuple[Guard, ...], str]] = [
    ((), "requires the guard client_dp with mode distributed and epsilon 100 or less, which the course does not have"),
    ((replace(NOISE, epsilon=200.0), SecureSum(min_cohort=3)), "epsilon=200: 100 or less is needed"),
    ((replace(NOISE, epsilon=None), SecureSum(min_cohort=3)), "epsilon=null: 100 or less is needed"),
    ((NOISE, SecureSum(min_cohort=2)), "min_cohort=2: 3 or more is needed"),
]


def course(**changes: Any) -> ist.Course:
    """Three silos on Cora with a narrow model."""
    model = ist.ModelSpec(type(ist.ModelSpec().gnn)(hidden=8))
    words: dict[str, Any] = {"rounds": 2, "num_clients": 3, "model": model, "runtime": "loop", "min_replies": 3}
    return ist.Course(algorithm=ist.FedAvg(local_steps=1, weighting="uniform"), **{**words, **changes})


def exchanges(folder: Path) -> list[str]:
    return [event["request"] for event in read_journal(RunFolder(folder).journal) if event["event"] == "exchange"]


def test_silos_that_require_guards_send_nothing_to_a_course_without_them_and_take_part_in_one_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    rehearsal = Rehearsal(course(), say=lambda text: None)
    rehearsal.policy_file.write_text(POLICY)
    with rehearsal:
        assert rehearsal.server is not None
        for number, (guards, reason) in enumerate(REFUSED):
            folder = tmp_path / f"refused-{number}"
            with pytest.raises(CourseFailed, match="no silo takes part") as caught:
                rehearsal.server.run(replace(rehearsal.course, guards=guards), folder, patience=PATIENCE)
            assert reason in str(caught.value)
            assert exchanges(folder) == []
        guards = (NOISE, SecureSum(min_cohort=3))
        done = rehearsal.server.run(replace(rehearsal.course, guards=guards), tmp_path / "run", patience=PATIENCE)
    assert done.num_rounds == 2
    asked = exchanges(tmp_path / "run")
    assert asked[:2] == ["TrainModel", "MakeKeys"] and "RevealShares" in asked


@pytest.mark.slow
def test_a_graph_of_the_servers_own_is_what_it_is_in_a_simulation_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_silos(monkeypatch)
    made = course(guards=(RobustFold(FLTrust(root="server")),), server_share=0.1)
    with Rehearsal(made, say=lambda text: None) as rehearsal:
        found = rehearsal.run(tmp_path / "run", patience=PATIENCE)
    here = ist.run(made)
    assert found.params.keys() == here.params.keys()
    assert all(torch.equal(found.params[name], here.params[name]) for name in here.params)
    assert set(found.client_scores) == {"client-0", "client-1", "client-2"}
