"""Several own folders as the clients of a simulation: the rules and the bits of a course between sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.data.dividing import RatioSplit
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.folders.own_kinds import kind_for
from isthmus.data.joining import joined
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import Folder, Folders, LinkFolder
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, LinearEncoder, ModelSpec
from isthmus.runs.simulation import Simulation, load_scenario
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.service import SiloService
from isthmus.sites.up import Rehearsal
from isthmus.testing import toy_graph, toy_scenario
from tests.cli.command import call
from tests.sites.in_process import FakeHub
from tests.sites.test_own_kinds import course as course_of_kind
from tests.sites.test_own_kinds import scenario as scenario_of_kind

CLASSES = ("red", "green", "blue")
BANKS = ("bank-a", "bank-b", "bank-c")


def silos(root: Path, **changes: Any) -> list[str]:
    """Three folders of toy graphs; returns their paths."""
    for name, part in zip(BANKS, toy_scenario().parts.values(), strict=True):
        write_graph_folder(replace(part, class_names=CLASSES, **changes), root / name)
    return [str(root / name) for name in BANKS]


def course(paths: list[str], **changes: Any) -> ist.Course:
    fields: dict[str, Any] = {
        "dataset": Folders(paths=tuple(paths), each=Folder(class_names=CLASSES)),
        "model": ModelSpec(GCN(hidden=4, dropout=0.2)),
        "algorithm": ist.FedAvg(local_steps=2),
        "rounds": 3,
        "runtime": "loop",
    }
    return ist.Course(**{**fields, **changes})


def between_sites(made: ist.Course, run_dir: Path) -> ist.Result:
    """The same course on the same folders, with silos of the same names."""
    assert isinstance(made.dataset, Folders)
    hub = FakeHub(
        {
            name: SiloService(name, path, run_dir / name, None, lambda text: None)
            for name, path in made.dataset.places.items()
        }
    )
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    sites = replace(made, dataset=made.dataset.one)
    return SiteCourse(sites, hub, tuple(hub.silos), run_dir / "run", patience=patience, say=lambda text: None).run()


def same_bits(found: ist.Result, expected: ist.Result) -> None:
    assert found.client_scores == expected.client_scores and all(found.client_scores.values())
    assert found.params.keys() == expected.params.keys() and found.params
    assert all(torch.equal(found.params[name], tensor) for name, tensor in expected.params.items())


@pytest.mark.parametrize("masks", ["own", "drawn"])
def test_a_simulation_of_folders_has_the_bits_of_the_sites(masks: str, tmp_path: Path) -> None:
    paths = silos(tmp_path, **({"masks": {}} if masks == "drawn" else {}))
    made = course(paths, masks=RatioSplit(0.5, 0.25, 0.25))
    found, expected = ist.run(made), between_sites(made, tmp_path)
    same_bits(found, expected)
    assert list(found.client_scores) == list(BANKS) and found.course.num_clients == 3
    # With other names, other random numbers: what a page says of equal names is no empty word.
    renamed = replace(made, dataset=replace(made.dataset, names=("x", "y", "z")))
    other = ist.run(renamed)
    assert any(not torch.equal(other.params[name], tensor) for name, tensor in found.params.items())


@pytest.mark.parametrize("kind", ["classes", "pairs", "class", "value"])
def test_folders_of_links_and_of_graphs_have_the_bits_of_the_sites(kind: str, tmp_path: Path) -> None:
    parts = scenario_of_kind(kind).parts
    for name, part in zip(BANKS, parts.values(), strict=True):
        kind_for(type(part)).write(part, tmp_path / name)
    plain = course_of_kind(kind, rounds=1)
    paths = tuple(str(tmp_path / name) for name in BANKS)
    made = replace(plain, dataset=Folders(paths=paths, each=plain.dataset))
    same_bits(ist.run(made), between_sites(made, tmp_path))


def test_the_global_model_is_scored_on_all_folders_together(tmp_path: Path) -> None:
    paths = silos(tmp_path)
    result = ist.run(course(paths))
    scores = result.metrics["global_model/global_graph"]
    assert scores["accuracy"] == pytest.approx(result.metrics["global_model/local_graph"]["accuracy"])
    whole = load_scenario(course(paths), tmp_path).whole
    assert whole.num_nodes == sum(part.num_nodes for part in toy_scenario().parts.values())
    pooled = ist.run(course(paths, algorithm=ist.Pooled()))
    assert pooled.client_scores.keys() == set(BANKS) and "local_model/global_graph" in pooled.metrics


def test_nothing_is_between_the_folders_and_nothing_of_one_is_lost(tmp_path: Path) -> None:
    parts = list(toy_scenario().parts.values())
    whole = joined(parts, "all")
    start = 0
    for part in parts:
        inside = torch.arange(start, start + part.num_nodes)
        again = whole.subgraph(inside)
        assert torch.equal(again.x, part.x) and torch.equal(again.edge_index, part.edge_index)
        assert torch.equal(again.y, part.y) and torch.equal(again.mask("train"), part.mask("train"))
        start += part.num_nodes
    assert whole.num_edges == sum(part.num_edges for part in parts)
    mixed = joined([parts[0], replace(parts[1], x=parts[1].x.to_sparse_csr())], "mixed")
    assert torch.equal(mixed.x.to_dense(), torch.cat([parts[0].x, parts[1].x]))


def test_the_kind_of_folder_is_found_where_nobody_says_it(tmp_path: Path) -> None:
    paths = silos(tmp_path)
    assert Folders(paths=tuple(paths)).one == Folder()
    LinkFolder.write(scenario_of_kind("pairs").parts["client-0"], tmp_path / "links")
    assert isinstance(Folders(paths=(str(tmp_path / "links"),)).one, LinkFolder)
    code, text = call("run", "-q", "--json", "--out", str(tmp_path / "run"), "dataset.name=folders", "rounds=1",
                      f"dataset.paths=[{','.join(paths)}]")  # fmt: skip
    assert code == 0 and '"bank-b"' in text


def test_folders_that_would_be_refused_between_sites_are_refused_with_what_differs(tmp_path: Path) -> None:
    paths = silos(tmp_path)
    graph = toy_graph()
    other = replace(graph, feature_names=("age", *(f"x{i}" for i in range(1, 6))), class_names=CLASSES)
    write_graph_folder(other, tmp_path / "bank-d")
    with pytest.raises(BadInput, match=r"bank-d: its feature columns have other names.*column 'x0' is missing.*'age'"):
        load_scenario(course([*paths, str(tmp_path / "bank-d")]), tmp_path)
    write_graph_folder(replace(graph, class_names=("red", "green", "violet")), tmp_path / "bank-e")
    with pytest.raises(BadInput, match=r"(?s)bank-e .*'violet' is none of the class names"):
        load_scenario(course([*paths, str(tmp_path / "bank-e")]), tmp_path)
    plain = Folders(paths=(*paths, str(tmp_path / "bank-e")))
    with pytest.raises(BadInput, match="bank-e: it has the class 'violet', the others do not"):
        load_scenario(course(paths, dataset=plain), tmp_path)
    (tmp_path / "bank-a" / "edges.parquet").unlink()
    with pytest.raises(BadInput, match=r"(?s)bank-a .*edges"):
        load_scenario(course(paths), tmp_path)


def test_folders_may_differ_where_nothing_shared_depends_on_it_and_have_no_whole_then(tmp_path: Path) -> None:
    paths = silos(tmp_path)
    write_graph_folder(replace(toy_graph(num_features=4), class_names=CLASSES), tmp_path / "bank-d")
    made = course(
        [*paths, str(tmp_path / "bank-d")],
        model=ModelSpec(GCN(hidden=4), encoder=LinearEncoder(dim=4)),
        shared=("*", "!encoder.*"),
    )
    result = ist.run(made)
    assert list(result.metrics) == ["local_model/local_graph"] and len(result.client_scores) == 4
    with pytest.raises(BadInput, match="no whole to train on"):
        load_scenario(replace(made, algorithm=ist.Pooled()), tmp_path)


def test_a_splitter_and_another_number_of_clients_are_refused(tmp_path: Path) -> None:
    paths = silos(tmp_path)
    with pytest.raises(ValueError, match=r"splitter is RandomSplitter.*leave the splitter out"):
        course(paths, splitter=RandomSplitter())
    with pytest.raises(ValueError, match=r"num_clients is 7, but dataset.paths has 3 folders"):
        course(paths, num_clients=7)
    words = ["dataset.name=folders", f"dataset.paths=[{','.join(paths)}]"]
    with pytest.raises(BadInput, match=r"num_clients is 5, but dataset.paths has 3 folders"):
        load_course(None, [*words, "num_clients=5"])
    made = load_course(None, words)
    assert made.num_clients == 3


def test_a_run_of_folders_can_be_resumed(tmp_path: Path) -> None:
    made = course(silos(tmp_path), rounds=1, checkpoint_every=1)
    ist.run(made, run_dir=tmp_path / "run")
    again = ist.resume(tmp_path / "run", overrides=["rounds=3"])
    same_bits(again, ist.run(replace(made, rounds=3)))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"paths": ("a/x", "b/x")}, "two clients would be named 'x'"),
        ({"paths": ("a/x y",)}, "a client would be named 'x y'"),
        ({"paths": ("a", "b"), "names": ("one",)}, "names has 1 entries, paths 2"),
        ({"paths": ("a",), "each": Folders()}, "no folder of one's own"),
        ({"paths": ("a",), "normalize_features": True}, "each.normalize_features"),
    ],
)
def test_names_and_kinds_that_cannot_be_are_told(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Folders(**fields)


def test_no_folders_are_told_and_ids_in_common_are_noted(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"dataset\.paths is empty"):
        load_scenario(course([]), tmp_path)
    part = replace(toy_graph(), class_names=CLASSES)
    for name in "ab":
        write_graph_folder(part, tmp_path / name)
    found = load_scenario(course([str(tmp_path / "a"), str(tmp_path / "b")]), tmp_path)
    assert any("48 ids are in more than one folder" in note for note in found.notes)


@pytest.mark.parametrize("name", ["fedsage_plus", "gcfl_plus", "local", "scaffold"])
def test_other_algorithms_take_folders_too(name: str, tmp_path: Path) -> None:
    from tests.quick import quick

    made = course(silos(tmp_path), rounds=1, algorithm=quick(name), model=ModelSpec(GCN(hidden=4)))
    Simulation(made, load_scenario(made, tmp_path))
    assert name in ALGORITHMS


@pytest.mark.sites
@pytest.mark.slow
def test_the_real_engine_has_the_bits_of_a_simulation_of_the_same_folders(tmp_path: Path) -> None:
    made = course(silos(tmp_path), algorithm=ist.FedAvg(local_steps=2, optimizer=SGD(lr=0.1)))
    with Rehearsal(made, say=lambda text: None) as rehearsal:
        found = rehearsal.run(tmp_path / "run")
    same_bits(found, ist.run(made))


@pytest.mark.parametrize(("words", "number"), [([], 3), (["--sites", "2"], 2)])
def test_isthmus_up_starts_a_silo_for_each_folder(
    words: list[str], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[ist.Course] = []

    class Stop(Exception):
        pass

    def taken(course: ist.Course, *rest: Any, **more: Any) -> None:
        found.append(course)
        raise Stop

    monkeypatch.setattr("isthmus.sites.up.Rehearsal", taken)
    folders = ["dataset.name=folders", f"dataset.paths=[{','.join(silos(tmp_path))}]"]
    for given, expected in ((["rounds=1"], number), (folders, 3)):
        if given is folders and number != 3:
            code, text = call("up", *words, *folders)
            assert code == 2 and "num_clients is 2, but dataset.paths has 3 folders" in text
        else:
            with pytest.raises(Stop):
                call("up", *words, *given)
            assert found[-1].num_clients == expected
