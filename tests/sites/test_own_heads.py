"""Between sites, silos keep heads and classes of their own; no message holds them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch

import isthmus as ist
from isthmus.algorithms import FedGRL
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.selfsup import GAE
from isthmus.core.errors import BadInput
from isthmus.data.dividing import PublicSplit, RatioSplit
from isthmus.data.folders.graph_folder import read_graph_folder, write_graph_folder
from isthmus.data.graph import Graph
from isthmus.data.zoo import Folder
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, MLPDecoder, ModelSpec
from isthmus.runs.folder import load_model_file
from isthmus.runs.predicting import predictions
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.agreement import Freedom, agree
from isthmus.sites.courses.messages import Terms
from isthmus.sites.courses.site_course import Patience, SiteCourse
from tests.sites.in_process import CLASSES, FakeHub, fake_hub, scenario, site_course

HEADED = ModelSpec(GCN(hidden=5, dropout=0.5), decoder=MLPDecoder(hidden=4))
QUICK = FedGRL(downstream=Finetune(steps=4), optimizer=SGD(lr=0.05))


def other_classes() -> Scenario:
    """Three silos, of which the last has two classes that nobody else has."""
    made = scenario()
    last = list(made.parts)[-1]

    def own(part: Graph) -> Graph:
        return replace(part, y=torch.where(part.y == 2, 0, part.y), num_classes=2, class_names=("left", "right"))

    return replace(made, parts={n: own(p) if n == last else p for n, p in made.parts.items()})


def course(algorithm: Any, **changes: Any) -> ist.Course:
    fields = {"dataset": Folder(), "model": HEADED, "shared": ("gnn.*",), **changes}
    return site_course(algorithm, **fields)


def on_sites(made: ist.Course, hub: FakeHub, run_dir: Path) -> ist.Result:
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    return SiteCourse(made, hub, tuple(hub.silos), run_dir, patience=patience, say=lambda text: None).run()


@pytest.mark.parametrize(
    "algorithm",
    [ist.FedAvg(local_steps=2, keep_moments=True), QUICK, replace(QUICK, protocol="lp2")],
    ids=["fedavg", "lp1", "lp2"],
)
def test_silos_with_other_classes_end_with_the_scores_of_the_loop_and_models_of_their_own(
    algorithm: Any, tmp_path: Path
) -> None:
    hub = fake_hub(tmp_path / "silos", made=other_classes())
    sent: list[bytes] = []
    hub.hook = lambda site, kind, data: sent.append(data)
    result = on_sites(course(algorithm), hub, tmp_path / "run")
    # Without a list of classes in the course, every silo has those that its own labels name, in their order.
    held = {site: read_graph_folder(silo.data).graph for site, silo in hub.silos.items()}
    expected = ist.run(course(algorithm), scenario=replace(other_classes(), parts=held))
    assert result.client_scores == expected.client_scores
    assert all(torch.equal(tensor, expected.params[name]) for name, tensor in result.params.items())
    assert not any(b"decoder.layers" in message for message in sent)
    for site, silo in hub.silos.items():
        (path,) = (silo.state / "models").glob("*.safetensors")
        params, facts = load_model_file(path)
        own = expected.client_params[site]
        assert params.keys() == own.keys() and all(torch.equal(params[name], own[name]) for name in own)
        names = held[site].class_names
        assert json.loads(facts["class_names"]) == list(names) and facts["output_dim"] == str(len(names))
        (kept,) = (silo.state / "runs").iterdir()
        table = predictions(kept, str(silo.data), client=site)  # what `isthmus predict RUN --client SITE` writes
        assert len(table) == held[site].num_nodes and set(table["label"]) <= set(names)
    with pytest.raises(BadInput, match="each has its own in a folder of state/runs"):
        predictions(tmp_path / "run", str(silo.data), client=site)
    assert held[list(held)[-1]].class_names == ("left", "right") and held[next(iter(held))].num_classes == 3


def hub_with_bare_silos(folder: Path, *bare: str) -> FakeHub:
    """Three silos, of which some have neither labels nor splits in their folders."""
    hub = fake_hub(folder)
    for name in bare:
        file = hub.silos[name].data / "nodes.parquet"
        parquet.write_table(parquet.read_table(file).drop_columns(["label", "split"]), file)
    return hub


def failures(result: ist.Result) -> list[Any]:
    return [failure for event in result.events if event["event"] == "exchange" for failure in event["failures"]]


@pytest.mark.meet(1)
@pytest.mark.parametrize("named", [True, False], ids=["classes named", "no names"])
@pytest.mark.parametrize("masks", [RatioSplit(), PublicSplit()], ids=["ratio", "public"])
@pytest.mark.parametrize("bare", ["client-2", "client-0"])
@pytest.mark.parametrize(
    "algorithm",
    [QUICK, replace(QUICK, protocol="lp2"), replace(QUICK, objective=GAE())],
    ids=["lp1", "lp2", "gae"],
)
def test_a_silo_without_labels_takes_part_in_what_needs_none(
    algorithm: FedGRL, bare: str, masks: Any, named: bool, tmp_path: Path
) -> None:
    hub = hub_with_bare_silos(tmp_path / "silos", bare)
    made = course(algorithm, masks=masks, dataset=Folder(class_names=CLASSES if named else ()))
    result = on_sites(made, hub, tmp_path / "run")
    assert not failures(result) and not any("refused" in note for note in result.notes)
    assert result.num_rounds == made.rounds
    assert result.client_scores[bare] == {} and sum(map(bool, result.client_scores.values())) == 2
    held = {site: read_graph_folder(silo.data, CLASSES if named else ()).graph for site, silo in hub.silos.items()}
    whole = replace(scenario().whole, masks={})
    expected = ist.run(replace(made, masks=PublicSplit()), scenario=Scenario(whole, held))
    assert all(torch.equal(tensor, expected.params[name]) for name, tensor in result.params.items())
    assert result.client_scores == expected.client_scores
    without = ist.run(made, scenario=Scenario(whole, {s: part for s, part in held.items() if s != bare}))
    assert any(not torch.equal(tensor, without.params[name]) for name, tensor in result.params.items())
    (path,) = (hub.silos[bare].state / "models").glob("*.safetensors")
    assert load_model_file(path)[1]["output_dim"] == ("3" if named else "1")


def test_silos_of_which_none_has_labels_learn_an_encoder(tmp_path: Path) -> None:
    hub = hub_with_bare_silos(tmp_path / "silos", *scenario().parts)
    result = on_sites(course(QUICK), hub, tmp_path / "run")
    assert not failures(result) and not any(result.client_scores.values())
    assert result.metrics == {"local_model/local_graph": {}}


@pytest.mark.parametrize(
    ("algorithm", "masks", "why"),
    [
        (ist.FedAvg(), RatioSplit(), "has no labelled node among"),
        (replace(QUICK, protocol="lp2", strength=0.0), RatioSplit(), "has no labelled node among"),
        (ist.FedAvg(), PublicSplit(), "has no split of its own"),
    ],
    ids=["fedavg", "supervised only", "public"],
)
def test_a_silo_without_labels_is_refused_in_words_where_labels_are_needed(
    algorithm: Any, masks: Any, why: str, tmp_path: Path
) -> None:
    result = on_sites(
        course(algorithm, masks=masks), hub_with_bare_silos(tmp_path / "silos", "client-2"), tmp_path / "run"
    )
    assert set(result.client_scores) == {"client-0", "client-1"}
    assert any(note.startswith("client-2 is refused") and why in note for note in result.notes), result.notes


def test_a_silo_with_a_column_of_splits_but_no_class_is_refused_in_words(tmp_path: Path) -> None:
    hub = hub_with_bare_silos(tmp_path / "silos", "client-2")
    file = hub.silos["client-2"].data / "nodes.parquet"
    table = parquet.read_table(file)
    parquet.write_table(table.append_column("split", [[""] * table.num_rows]), file)
    result = on_sites(course(ist.FedAvg(), masks=PublicSplit()), hub, tmp_path / "run")
    assert any("client-2 has no label among" in note and "fedavg needs labels" in note for note in result.notes)
    assert set(result.client_scores) == {"client-0", "client-1"} and result.num_rounds == 3


def test_a_silo_with_other_classes_is_refused_where_the_head_is_shared(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos", made=other_classes())
    result = on_sites(course(ist.FedAvg(), shared=("*",)), hub, tmp_path / "run")
    assert len(result.client_scores) == 2 and any("it has the class 'left'" in note for note in result.notes)


def test_a_silo_that_comes_back_with_other_classes_than_it_had_is_refused(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos", made=other_classes())
    last = list(hub.silos)[-1]
    seen = 0

    def changed(site: str, kind: str, data: bytes) -> None:
        nonlocal seen
        seen += site == last and kind == "exchange"
        if site == last and kind == "exchange" and seen == 2:
            silo = hub.silos[last]
            part = replace(other_classes().parts[last], class_names=("up", "down"))
            for path in silo.data.iterdir():
                path.unlink()
            silo.data.rmdir()
            write_graph_folder(part, silo.data)
            hub.restart(last)

    hub.hook = changed
    result = on_sites(course(ist.FedAvg(), rounds=4), hub, tmp_path / "run")
    assert any("came back with another version, other features or other classes" in note for note in result.notes)


def test_settings_of_one_silo_reach_it_alone(tmp_path: Path) -> None:
    sites = list(scenario().parts)
    settings = {sites[1]: {"optimizer.lr": 0.9}}
    made = site_course(ist.FedAvg(local_steps=2), client_settings=settings)
    result = on_sites(made, fake_hub(tmp_path / "silos"), tmp_path / "run")
    expected = ist.run(made, scenario=scenario())
    plain = ist.run(replace(made, client_settings={}), scenario=scenario())
    name = "gnn.layers.0.weight"
    assert torch.equal(result.params[name], expected.params[name])
    assert not torch.equal(result.params[name], plain.params[name])


def test_classes_and_features_are_free_only_where_that_is_said() -> None:
    terms = {
        "a": Terms("", "1", 5, 2, ("x", "y"), "a few nodes"),
        "b": Terms("", "1", 5, 1, ("u",), "a few nodes"),
        "c": Terms("", "1", 6, 2, ("x", "y"), "a few nodes"),
    }
    free = agree(terms, "1", free=Freedom(classes=True))
    assert free.own == {"a": (2, ("x", "y")), "b": (1, ("u",))} and list(free.refused) == ["c"]
    assert list(agree(terms, "1").refused) == ["b", "c"] and not agree(terms, "1").own
    assert list(agree(terms, "1", ("x", "y"), Freedom(classes=True)).refused) == ["b", "c"]
    wide = agree(terms, "1", free=Freedom(features=True))
    assert wide.inputs == {"a": 5, "c": 6} and wide.input_dim == 5 and list(wide.refused) == ["b"]
    assert not agree(terms, "1", free=Freedom(classes=True, features=True)).refused
    own = agree(terms, "1", free=Freedom(models=frozenset({"c"})))
    assert list(own.refused) == ["b"] and own.inputs == {"c": 6} and own.own == {"c": (2, ("x", "y"))}
    alone = agree({"c": terms["c"]}, "1", free=Freedom(models=frozenset({"c"})))
    assert alone.input_dim == 6 and not alone.refused
