"""Edges of node datasets as links."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.data.zoo import DATASETS, Cora
from isthmus.data.zoo.csbm import CSBM
from isthmus.data.zoo.links_of import LinksOf
from isthmus.runs.simulation import Simulation, load_scenario
from tests.cli.command import call

WORDS = ["dataset.name=links_of", "task.name=link_prediction", "model.decoder.name=dot", "splitter.name=random"]


def test_every_edge_is_a_link_once_and_nodes_stay(tmp_path: Path) -> None:
    graph, links = Cora().load(tmp_path), LinksOf().load(tmp_path)
    pairs = {frozenset(pair) for pair in graph.edge_index.t().tolist()}
    assert links.num_items == len(pairs) == 5278 and links.undirected
    assert {frozenset(pair) for pair in links.links.t().tolist()} == pairs
    assert bool((links.links[0] < links.links[1]).all()), "no loop, and one direction"
    assert torch.equal(links.x.to_dense(), graph.x.to_dense()) and torch.equal(links.node_ids, graph.node_ids)
    assert links.num_classes == 1 and not bool(links.label.any()) and not links.masks
    assert links.name == "links of cora"


def test_the_dataset_keeps_its_own_fields_and_attributes(tmp_path: Path) -> None:
    inner = DATASETS["fedcsbm"]()
    found = LinksOf(dataset=inner).load(tmp_path)
    expected = inner.load(tmp_path)
    assert found.node_attributes.keys() == expected.attributes.keys()  # type: ignore[attr-defined]
    assert found.node_attribute_names == expected.attribute_names != {}  # type: ignore[attr-defined]
    sums = LinksOf(dataset=replace(Cora(), normalize_features=True)).load(tmp_path).x.to_dense().sum(dim=1)
    assert torch.allclose(sums, torch.ones(2708))
    assert torch.allclose(LinksOf(normalize_features=True).load(tmp_path).x.to_dense().sum(dim=1), torch.ones(2708))


def test_the_command_line_names_it_and_its_dataset() -> None:
    assert DATASETS["links_of"] is LinksOf
    made = load_course(None, [*WORDS, "dataset.dataset.name=csbm", "dataset.dataset.graph_seed=3"])
    assert made.dataset == LinksOf(dataset=CSBM(graph_seed=3))
    assert load_course(None, [*WORDS, "dataset.dataset=csbm"]).dataset == LinksOf(dataset=CSBM())
    assert LinksOf().present(Path()) and not LinksOf(dataset=DATASETS["citeseer"]()).present(Path("/nowhere"))


def test_a_dataset_that_has_no_nodes_to_classify_is_refused() -> None:
    with pytest.raises(ValueError, match="dataset is CSR, a dataset of links; name one of nodes, such as cora"):
        LinksOf(dataset=DATASETS["csr"]())
    with pytest.raises(BadInput, match=r"dataset: dataset is MUTAG"):
        load_course(None, [*WORDS, "dataset.dataset=mutag"])


def test_no_held_out_link_is_read(tmp_path: Path) -> None:
    course = load_course(None, [*WORDS, "dataset.dataset=csbm", "num_clients=2"])
    simulation = Simulation(course, load_scenario(course, tmp_path))
    for client in simulation.clients.values():
        data, graph = client.data, client.prepared.graph
        read = {frozenset(pair) for pair in graph.edge_index.t().tolist()}
        held = {frozenset(pair) for pair in data.links[:, data.mask("val") | data.mask("test")].t().tolist()}
        assert read and held and not read & held


def test_link_prediction_on_cora_runs_with_nothing_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["stopping.metric=auc", "num_clients=2", "rounds=15", "algorithm.local_steps=4", "model.gnn.hidden=16"]
    code, output = call("run", *WORDS, *words, "algorithm.optimizer.lr=1.0", "model.gnn.dropout=0.2", "--json")
    assert code == 0, output
    scores = [float(found) for found in re.findall(r'"auc": ([0-9.]+)', output)]
    assert scores and min(scores) > 0.6, output
