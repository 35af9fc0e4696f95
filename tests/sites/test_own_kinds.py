"""Courses on links and on sets of graphs between sites: equal to the loop, with models of the right size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode
from isthmus.core.errors import CourseFailed
from isthmus.core.training import EarlyStopping
from isthmus.data.dividing import RatioSplit
from isthmus.data.folders.own_kinds import kind_for
from isthmus.data.zoo import Cora, Folder, GraphSetFolder, LinkFolder
from isthmus.learn.batching import LinkBatch, MiniBatch
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import (
    GraphBinary,
    GraphClassification,
    GraphRegression,
    LinkClassification,
    LinkPrediction,
    NodeClassification,
    Task,
)
from isthmus.models import GCN, HadamardMLPDecoder, ModelSpec
from isthmus.runs.folder import load_model_file
from isthmus.runs.simulation import Scenario
from isthmus.sites import up as rehearsal_module
from isthmus.sites.courses.messages import Proposal, Terms
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.service import SiloService
from isthmus.sites.up import Rehearsal
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import BONDS, NODES, PLAIN, toy_set
from tests.learn.tasks.link_toys import toy_facts
from tests.quick import by_kind
from tests.sites.in_process import SECRET, FakeHub

NAMES = ("p", "q", "r")
LINKS = ModelSpec(GCN(hidden=5, dropout=0.3), decoder=HadamardMLPDecoder(hidden=4))
LINK_TASKS: dict[str, Task] = {
    "classes": LinkClassification(),
    "pairs": LinkPrediction(metrics=("accuracy", "loss", "auc")),
    "relations": LinkPrediction(metrics=("accuracy", "loss", "auc"), by_relation=True),
}
GRAPH_TASKS: dict[str, Task] = {"class": GraphClassification(), "binary": GraphBinary(), "value": GraphRegression()}
NUM_OUTPUTS = {"classes": 3, "pairs": 1, "relations": 3, "class": 3, "binary": 3, "value": 3}


def divided(whole: Any) -> Scenario:
    """Three silos of ragged sizes; what has no label is in no mask, as in a folder."""
    labels = whole.labels
    known = labels >= 0 if labels.dim() == 1 else ~labels.isnan().all(dim=1)
    whole = replace(whole, class_names=NAMES).with_masks({s: mask & known for s, mask in whole.masks.items()})
    parts = whole.divide(list(torch.split(torch.arange(whole.num_items), [9, 12, whole.num_items - 21])))
    return Scenario(whole, {f"client-{number}": part for number, part in enumerate(parts)})


def scenario(name: str) -> Scenario:
    return divided(toy_facts() if name in LINK_TASKS else toy_set(name, sizes=NODES * 3, categorical=name == "binary"))


def course(name: str, algorithm: str = "fedavg", **changes: Any) -> ist.Course:
    task = {**LINK_TASKS, **GRAPH_TASKS}[name]
    whole = scenario(name).whole
    fields: dict[str, Any] = {
        "dataset": kind_for(type(whole)).like(whole),
        "task": task,
        "model": LINKS if name in LINK_TASKS else BONDS if name == "binary" else PLAIN,
        "batching": LinkBatch(8) if name in LINK_TASKS else MiniBatch(4),
        "algorithm": ALGORITHMS[algorithm](local_steps=2, optimizer=SGD(lr=1e-3)),  # type: ignore[call-arg]
        "rounds": 2,
        "num_clients": 3,
        "stopping": EarlyStopping(metric=task.metrics[0]),
        "runtime": "loop",
    }
    return ist.Course(**{**fields, **changes})


TOLD = Policy(tell_reasons=True)


def hub_of(made: Scenario, folder: Path) -> FakeHub:
    silos = {}
    for site, part in made.parts.items():
        (folder / site).mkdir(parents=True)
        kind_for(type(part)).write(part, folder / site / "data")
        silos[site] = SiloService(site, folder / site / "data", folder / site / "state", TOLD, print, SECRET)
    return FakeHub(silos)


def on_sites(made: ist.Course, hub: FakeHub, run_dir: Path) -> ist.Result:
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    return SiteCourse(made, hub, tuple(hub.silos), run_dir, patience=patience, say=lambda text: None).run()


def with_negatives() -> Scenario:
    """Three silos with links and pairs that are none, but for the last, which has links alone."""
    data = toy_facts(num_relations=2)
    label = torch.where(torch.arange(40) < 21, data.label, 1)
    apart = torch.combinations(torch.arange(12))[torch.arange(0, 66, 66 / 40).long()].t()
    whole = replace(data, links=apart, label=label, linked=label, negatives="0", class_names=("0", "1"))
    parts = whole.divide(list(torch.split(torch.arange(40), [9, 12, 19])))
    return Scenario(whole, {f"client-{number}": part for number, part in enumerate(parts)})


def test_pairs_that_are_no_links_are_the_same_between_sites_as_in_the_loop(tmp_path: Path) -> None:
    made = with_negatives()
    asked = course("pairs", dataset=LinkFolder.like(made.whole))
    assert asked.dataset == LinkFolder(class_names=("0", "1"), negatives="0")
    found = on_sites(asked, hub_of(made, tmp_path / "silos"), tmp_path / "run")
    expected = ist.run(asked, scenario=made)
    assert all(torch.equal(found.params[key], value) for key, value in expected.params.items())
    silent = hub_of(made, tmp_path / "others")
    with pytest.raises(CourseFailed, match=r"dataset\.negatives=0"):
        on_sites(course("pairs", dataset=LinkFolder(class_names=("0", "1"))), silent, tmp_path / "refused")


@pytest.mark.parametrize("name", NUM_OUTPUTS)
def test_silos_end_with_the_parameters_and_scores_of_the_loop(name: str, tmp_path: Path) -> None:
    made, hub = scenario(name), hub_of(scenario(name), tmp_path / "silos")
    found = on_sites(course(name), hub, tmp_path / "run")
    expected = ist.run(course(name), scenario=made)
    assert found.client_scores == expected.client_scores and all(found.client_scores.values())
    assert all(torch.equal(found.params[key], tensor) for key, tensor in expected.params.items())
    assert (found.output_dim, found.input_dim) == (NUM_OUTPUTS[name], expected.input_dim)
    names = [] if name == "pairs" else list(NAMES)
    paths = [tmp_path / "run" / "model.safetensors"]
    paths += [path for silo in hub.silos.values() for path in (silo.state / "models").iterdir()]
    assert len(paths) == 4
    for path in paths:
        facts = load_model_file(path)[1]
        assert (json.loads(facts["class_names"]), facts["output_dim"]) == (names, str(NUM_OUTPUTS[name]))


@pytest.mark.meet(1)
@pytest.mark.parametrize("algorithm", by_kind(["fedprox", "fedopt", "local", "scaffold", "ditto", "gcfl_plus"]))
@pytest.mark.parametrize("name", ["pairs", "class"])
def test_other_general_algorithms_run_too(name: str, algorithm: str, tmp_path: Path) -> None:
    found = on_sites(course(name, algorithm), hub_of(scenario(name), tmp_path / "silos"), tmp_path / "run")
    assert found.client_scores == ist.run(course(name, algorithm), scenario=scenario(name)).client_scores


def renamed(made: Scenario, site: str, **changes: Any) -> Scenario:
    return replace(made, parts={n: replace(p, **changes) if n == site else p for n, p in made.parts.items()})


def test_names_of_links_do_not_matter_where_only_their_being_there_is_learned(tmp_path: Path) -> None:
    made = renamed(scenario("pairs"), "client-1", class_names=("u", "v", "w"))
    found = on_sites(course("pairs", dataset=LinkFolder()), hub_of(made, tmp_path / "silos"), tmp_path / "run")
    assert len(found.client_scores) == 3 and not found.notes
    relations = on_sites(course("relations", dataset=LinkFolder()), hub_of(made, tmp_path / "more"), tmp_path / "other")
    assert any("client-1 is refused: it has the class 'u'" in note for note in relations.notes)


@pytest.mark.parametrize(("name", "label"), [("classes", "label"), ("class", "y")])
def test_without_names_the_numbers_of_classes_must_agree(name: str, label: str, tmp_path: Path) -> None:
    plain = scenario(name)
    plain = replace(plain, parts={site: replace(part, class_names=()) for site, part in plain.parts.items()})
    own = replace(course(name).dataset, class_names=())
    found = on_sites(course(name, dataset=own), hub_of(plain, tmp_path / "same"), tmp_path / "run")
    assert found.output_dim == 3 and len(found.client_scores) == 3
    last = plain.parts["client-2"]
    fewer = renamed(plain, "client-2", **{label: last.labels.clamp(max=1)})  # type: ignore[attr-defined]
    found = on_sites(course(name, dataset=own), hub_of(fewer, tmp_path / "other"), tmp_path / "second")
    assert found.output_dim == 3 and set(found.client_scores) == {"client-0", "client-1"}
    (note,) = [note for note in found.notes if note.startswith("client-2 is refused")]
    assert "its labels ask for a model with 2 outputs, the others' for one with 3; state the same" in note


def test_a_silo_that_comes_back_with_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    plain = scenario("classes")
    plain = replace(plain, parts={site: replace(part, class_names=()) for site, part in plain.parts.items()})
    hub, seen = hub_of(plain, tmp_path / "silos"), 0

    def change(site: str, kind: str, data: bytes) -> None:
        nonlocal seen
        seen += site == "client-1" and kind == "exchange"
        if site == "client-1" and seen == 2 and hub.generations[site] == 1:
            silo, part = hub.silos[site], plain.parts[site]
            silo.data = silo.data.with_name("changed")
            LinkFolder.write(replace(part, label=part.label.clamp(max=1)), silo.data)  # type: ignore[attr-defined,arg-type]
            hub.restart(site)

    hub.hook = change
    found = on_sites(course("classes", dataset=LinkFolder(), rounds=4), hub, tmp_path / "run")
    assert any("client-1 is refused: it came back with another version" in note for note in found.notes)


def test_a_silo_divides_links_and_graphs_without_a_split_by_itself(tmp_path: Path) -> None:
    for name in ("pairs", "class"):
        made = scenario(name)
        made = replace(made, parts={site: part.with_masks({}) for site, part in made.parts.items()})
        ratio = course(name, masks=RatioSplit(0.5, 0.25, 0.25))
        found = on_sites(ratio, hub_of(made, tmp_path / name), tmp_path / f"run {name}")
        holds = [event["text"] for event in found.events if event["event"] == "client"]
        assert len(holds) == 3 and not any(" 0/0/0 " in text for text in holds)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        (
            "classes",
            {"dataset": GraphSetFolder()},
            "has the tables of a link folder: use dataset.name=link_folder, or mend",
        ),
        ("class", {"dataset": LinkFolder()}, "has the tables of a graph set folder: use dataset.name=graph_set"),
        ("classes", {"task": NodeClassification()}, "consists of links, the task 'node_classification' learns from"),
        ("classes", {"model": ModelSpec(GCN(hidden=5))}, "the model has no decoder; set model.decoder.name"),
        ("class", {"model": ModelSpec(GCN(hidden=5))}, "set model.readout to mean, sum, max or set2set"),
        (
            "class",
            {"task": GraphBinary(), "stopping": EarlyStopping(metric="roc_auc")},
            "task.name=graph_classification",
        ),
        ("class", {"dataset": Cora()}, "use dataset.name=folder or link_folder or graph_set_folder"),
    ],
)
def test_a_course_for_other_data_is_refused_by_name(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    hub = hub_of(scenario(name), tmp_path / "silos")
    with pytest.raises(CourseFailed) as caught:
        on_sites(course(name, **changes), hub, tmp_path / "run")
    assert reason in str(caught.value)
    assert all(silo._last is None for silo in hub.silos.values()), "nothing is left of a course that was refused"


def test_features_are_normalised_at_the_silos_when_the_course_says_so(tmp_path: Path) -> None:
    Folder.write(replace(toy_graph(), class_names=NAMES), tmp_path / "graph")
    service = SiloService("bank", tmp_path / "graph", tmp_path / "state", None, print)
    made = ist.Course(dataset=Folder(class_names=NAMES, normalize_features=True))
    x = service._read(made).data.x
    assert torch.allclose(x.to_dense().sum(dim=1), torch.ones(48), atol=1e-3)


@pytest.mark.parametrize("name", ["pairs", "binary"])
def test_a_rehearsal_writes_folders_that_the_silos_of_its_course_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario(name)
    monkeypatch.setattr(rehearsal_module, "load_scenario", lambda course, root: made)
    rehearsal = Rehearsal(course(name))
    try:
        for site, path in rehearsal.data.items():
            service = SiloService(site, path, tmp_path / site, None, print, SECRET)
            proposal = Proposal("0" * 16, course_to_yaml(rehearsal.course), ist.__version__, tuple(rehearsal.data))
            terms: Terms = decode(service.handle("propose", encode(proposal)), Terms)
            assert (terms.refusal, terms.output_dim) == ("", NUM_OUTPUTS[name])
            assert terms.holds == rehearsal.course.task.holds(made.parts[site])
    finally:
        rehearsal._scratch.cleanup()
