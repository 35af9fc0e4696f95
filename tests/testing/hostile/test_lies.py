"""A client that lies is named, and nobody else is harmed, in every algorithm and between sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.algorithms import ALGORITHMS, FedAvg
from isthmus.core.exposure import exposure
from isthmus.core.outside import MAX_TEXT
from isthmus.runs.folder import without_infinity
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.testing import HostileSilo, Liar, lies_about
from isthmus.testing.conformance import check_lies
from tests.quick import quick
from tests.sites.in_process import fake_hub, site_course


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "global"])
def test_every_lie_about_every_field_is_found_out_or_harms_nobody(name: str) -> None:
    assert check_lies(quick(name), thorough=True) >= 60


@pytest.mark.parametrize("start", [5, 60])
def test_a_silo_that_lies_is_named_by_the_server_and_the_course_ends_well(tmp_path: Path, start: int) -> None:
    hub = fake_hub(tmp_path / "silos")
    site = next(iter(hub.silos))
    liar = Liar(site, "TrainModel", lambda reply: [lie for lie in lies_about(reply) if lie.certain], start)
    hub.silos[site] = HostileSilo(hub.silos[site], liar, list(FedAvg.handlers()))  # type: ignore[assignment]
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    course = SiteCourse(
        site_course(), hub, tuple(hub.silos), tmp_path / "run", patience=patience, say=lambda text: None
    )
    result = course.run()
    failures = [failure for event in result.events for failure in event.get("failures", ())]
    assert liar.told and len(failures) == len(liar.told)
    assert {failure["client"] for failure in failures} == {site}
    assert all(len(failure["reason"]) <= MAX_TEXT and failure["reason"].isprintable() for failure in failures)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_exposure_lists_every_handled_request(name: str) -> None:
    kind = ALGORITHMS[name]
    assert {exchange.request for exchange in exposure(kind)} == {request.__name__ for request in kind.handlers()}


def test_an_infinite_number_is_nothing_in_a_journal() -> None:
    assert without_infinity({"a": [float("inf"), 1.0], "b": -float("inf")}) == {"a": [None, 1.0], "b": None}
