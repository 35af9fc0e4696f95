"""What tells a silo that its data changed since it last took part in a course: kept at the silo, told as yes or no."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.data.folders.graph_folder import ForeignNeighbors, GraphFolder
from isthmus.runs.simulation import Scenario
from isthmus.sites.silo import seen
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.state import MEMORIES, prune
from tests.sites.courses.test_site_course import SITES, on_sites
from tests.sites.in_process import FakeHub, fake_hub, scenario, site_course, write_silos

OTHER = ", and holds other data than in this course before; its scores before and after are of other examples"


def with_other_values() -> Scenario:
    """The toy silos with features that differ in their values alone."""
    made = scenario()
    return Scenario(made.whole, {name: replace(part, x=part.x.flip(0)) for name, part in made.parts.items()})


def at(hub: FakeHub, changes: dict[int, Callable[[], Any]]) -> None:
    """Do something before the server's n-th exchange with the first silo; two of them are a round."""
    left = dict(changes)

    def hook(site: str, kind: str, data: bytes) -> None:
        now = hub.log.count(("client-0", "exchange"))
        if site == "client-0" and now in left:
            left.pop(now)()

    hub.hook = hook


def returning(said: list[str]) -> list[str]:
    return [text.removeprefix("client-1 takes part again") for text in said if text.startswith("client-1 takes part ")]


def test_a_silo_that_comes_back_with_other_values_of_the_same_sizes_is_noted(tmp_path: Path) -> None:
    hub, said = fake_hub(tmp_path), []
    own, other = hub.silos["client-1"].data, write_silos(tmp_path / "other", with_other_values())["client-1"]

    def back(path: Path) -> Callable[[], None]:
        def change() -> None:
            hub.silos["client-1"].data = path
            hub.restart("client-1")

        return change

    at(hub, {3: back(own), 5: back(other), 7: back(own)})
    result = on_sites(site_course(rounds=5), hub, tmp_path / "run", said).run()
    assert returning(said) == ["", OTHER, OTHER]
    assert f"client-1 takes part again{OTHER}" in result.notes
    assert any("its data are other than in this course before; the server is told so" in text for text in hub.said)


def test_the_same_data_in_a_folder_of_another_name_are_the_same(tmp_path: Path) -> None:
    hub, said = fake_hub(tmp_path), []

    def move() -> None:
        silo = hub.silos["client-1"]
        silo.data = silo.data.rename(silo.data.with_name("moved"))
        hub.restart("client-1")

    at(hub, {3: move})
    on_sites(site_course(), hub, tmp_path / "run", said).run()
    assert returning(said) == [""]


def test_a_server_that_goes_on_after_a_crash_hears_of_data_that_changed(tmp_path: Path) -> None:
    """Also where it goes back behind the round that noted it, of which its journal has nothing any more."""
    hub, said = fake_hub(tmp_path), []

    def change() -> None:
        hub.silos["client-1"].data = write_silos(tmp_path / "other", with_other_values())["client-1"]
        hub.restart("client-1")

    def crash() -> None:  # in round 3, in which the silo has just answered
        raise RuntimeError("the power went out")

    at(hub, {4: change, 5: crash})
    first: list[str] = []
    with pytest.raises(RuntimeError, match="power"):
        on_sites(site_course(rounds=5), hub, tmp_path / "run", first).run()
    assert returning(first) == [OTHER]
    at(hub, {})
    for site in SITES:
        hub.restart(site)
    result = on_sites(site_course(rounds=5), hub, tmp_path / "run", said).resume()
    told = f"client-1 {OTHER.removeprefix(', and ')}"
    assert told in said and told in result.notes
    assert not [text for text in said if text.startswith(("client-0 holds", "client-2 holds"))]


def test_a_yes_or_no_crosses_and_never_what_it_is_told_by(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path)
    crossed: list[bytes] = []
    ask = hub.ask

    def listening(kind: str, messages: Any, timeout_seconds: float) -> Any:
        for site, answer in ask(kind, messages, timeout_seconds):
            crossed.append(answer if isinstance(answer, bytes) else b"")
            yield site, answer

    hub.ask = listening  # type: ignore[method-assign]
    at(hub, {3: lambda: hub.restart("client-1")})
    on_sites(site_course(), hub, tmp_path / "run").run()
    kept = [path.read_text().split() for path in tmp_path.glob(f"*/state/{MEMORIES}/*/{seen.DATA_FILE}")]
    assert len(kept) == 3 and len(crossed) > 20
    for _, *fingerprints in kept:
        assert len(fingerprints) == 2
        assert not [answer for answer in crossed for each in fingerprints if each.encode() in answer]
        assert not [answer for answer in crossed for each in fingerprints if bytes.fromhex(each) in answer]


def test_the_data_are_read_through_once_for_each_start_and_course_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, counted = fake_hub(tmp_path), []
    found = seen.fingerprint

    def counting(*data: Any) -> str:
        counted.append(1)
        return found(*data)

    monkeypatch.setattr(seen, "fingerprint", counting)

    def reconnect() -> None:
        hub.generations["client-1"] += 1

    at(hub, {1: reconnect, 3: reconnect, 5: reconnect})
    on_sites(site_course(rounds=4), hub, tmp_path / "run").run()
    assert hub.log.count(("client-1", "propose")) == 4
    assert len(counted) == len(SITES)
    hub.restart("client-0")
    on_sites(site_course(rounds=4), hub, tmp_path / "second").run()
    assert len(counted) == 2 * len(SITES)  # the second course is another one
    hub.restart("client-0")
    on_sites(site_course(rounds=4), hub, tmp_path / "second").resume()
    assert len(counted) == 2 * len(SITES) + 1  # of the one that started anew


def test_a_proposal_that_comes_to_nothing_computes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = fake_hub(tmp_path)
    monkeypatch.setattr(seen, "fingerprint", lambda *data: pytest.fail("computed"))
    hub.hook = lambda site, kind, data: b"junk" if kind == "exchange" else None
    with pytest.raises(ist.IsthmusError):
        on_sites(site_course(), hub, tmp_path / "run").run()
    assert not list(tmp_path.glob(f"*/state/{MEMORIES}/*"))


def test_it_goes_with_the_rest_of_its_course_and_stays_while_that_is_used(tmp_path: Path) -> None:
    hub, policy = fake_hub(tmp_path), Policy()
    state = hub.silos["client-1"].state
    ages: list[float] = []

    def age() -> None:
        (folder,) = (state / MEMORIES).iterdir()
        ages.append(time.time() - folder.stat().st_mtime)
        os.utime(folder, (0, 0))

    at(hub, {3: age, 4: age})
    on_sites(site_course(), hub, tmp_path / "first").run()
    assert len(ages) == 2 and max(ages) < 600  # a course that is used is not an old one
    (first,) = (state / MEMORIES).iterdir()
    assert prune(state, policy) == 0  # the last that is over stays until another is agreed to
    on_sites(site_course(), hub, tmp_path / "second").run()
    (second,) = (state / MEMORIES).iterdir()
    assert second != first and (second / seen.DATA_FILE).is_file()


@pytest.mark.parametrize("content", ["", "garbage", "0.0 " + "a" * 16 + " " + "b" * 16, "\x00" * 40])
def test_what_is_damaged_or_of_another_version_says_nothing(content: str, tmp_path: Path) -> None:
    """Another version may read the same folder otherwise: that its fingerprint differs does not say that data do."""
    hub, said = fake_hub(tmp_path), []

    def damage() -> None:
        (path,) = (hub.silos["client-1"].state / MEMORIES).glob(f"*/{seen.DATA_FILE}")
        path.write_text(content)
        hub.restart("client-1")

    at(hub, {3: damage, 5: lambda: hub.restart("client-1")})
    on_sites(site_course(rounds=4), hub, tmp_path / "run", said).run()
    assert returning(said) == ["", ""]


def test_a_full_disk_is_told_and_the_course_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(tmp_path)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(seen, "replace_file", full)
    assert set(on_sites(site_course(), hub, tmp_path / "run").run().client_scores) == set(SITES)
    told = [text for text in hub.said if "cannot be written: No space left on device" in text]
    assert len(told) == len(SITES) and "if its data change, the server is not told" in told[0]


def test_ids_of_nodes_and_edges_to_nodes_of_others_count_as_data() -> None:
    graph = scenario().parts["client-0"]
    held = GraphFolder(graph, {"id": ()}, ("a", "b"))
    same, other = replace(held), replace(held, node_ids=("a", "c"))
    edges = ForeignNeighbors(torch.tensor([0]), ("x",), torch.tensor([1.0]))
    told = [seen.fingerprint_of(each) for each in (held, same, other, replace(held, foreign=edges))]
    assert told[0] == told[1] and len(set(told)) == 3
