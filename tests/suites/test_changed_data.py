"""Courses on one folder, of which the content changed in between: never compared without a word, never gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.data.dividing import fingerprint
from isthmus.data.features import from_scipy, scipy_rows
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.graph import Graph
from isthmus.suites.comparison import Comparison
from isthmus.suites.runner import run_suite
from isthmus.suites.spec import Suite, load_suite
from isthmus.testing import toy_graph


def folder(path: Path, graph: Graph) -> Path:
    write_graph_folder(graph, path, ids=tuple(f"n{number}" for number in range(graph.num_nodes)))
    return path


def other_values(graph: Graph) -> Graph:
    """Return as many nodes, edges, labels and features, of other values."""
    return replace(graph, x=graph.x.to_dense() + 1.0)


def suite_of(path: Path, data: Path, methods: tuple[str, ...] = ("fedavg", "fedprox")) -> Suite:
    base = {"rounds": 1, "model": {"gnn": {"hidden": 4}}, "dataset": {"name": "folder", "path": str(data)}}
    axes = {"method": {name: {"algorithm.name": name} for name in methods}}
    path.write_text(yaml.safe_dump({"seeds": 1, "base": {**base, "num_clients": 2}, "axes": axes}))
    return load_suite(path)


def change(data: Path, graph: Graph) -> None:
    data.rename(data.with_name("before"))
    folder(data, graph)


def test_rows_of_a_suite_on_data_that_changed_in_between_are_named(tmp_path: Path) -> None:
    data, out = folder(tmp_path / "data", toy_graph()), tmp_path / "out"
    run_suite(suite_of(tmp_path / "first.yaml", data, ("fedavg",)), out, workers=1)
    whole = suite_of(tmp_path / "suite.yaml", data)
    assert not [note for note in Comparison(whole, run_suite(whole, out, workers=1)).notes if "data changed" in note]
    change(data, other_values(toy_graph()))
    more = suite_of(tmp_path / "more.yaml", data, ("fedavg", "fedprox", "local"))
    (told,) = [note for note in Comparison(more, run_suite(more, out, workers=1)).notes if "data changed" in note]
    assert told.startswith("the data changed between fedavg seed=0, fedprox seed=0 and local seed=0")
    Comparison(more, run_suite(more, out, workers=1)).write(out)
    (tmp_path / "moved").mkdir()  # the rows know it too, where the folders are elsewhere
    (tmp_path / "moved" / "runs.csv").write_bytes((out / "runs.csv").read_bytes())
    assert told in Comparison(more, run_suite(more, tmp_path / "moved", workers=1)).notes


def test_a_run_on_data_that_changed_without_changing_its_size_is_not_resumed(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", toy_graph())
    course = ist.load_course({"dataset": {"name": "folder", "path": str(data)}, "num_clients": 2, "rounds": 1})
    ist.run(course, run_dir=tmp_path / "run")
    change(data, other_values(toy_graph()))
    before = {file: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with pytest.raises(BadInput, match=r"the data changed since the run started.*Put the data back, or start it anew"):
        ist.resume(tmp_path / "run", overrides=["rounds=2"])
    assert {file: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before
    (tmp_path / "data").rename(tmp_path / "other")
    (tmp_path / "before").rename(data)
    assert ist.resume(tmp_path / "run", overrides=["rounds=2"]).num_rounds == 2


def test_a_run_of_before_there_were_fingerprints_is_resumed(tmp_path: Path) -> None:
    course = ist.Course(rounds=1, model=ist.ModelSpec())
    ist.run(course, run_dir=tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert events[0].pop("data")
    journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert ist.resume(tmp_path / "run", overrides=["rounds=2"]).num_rounds == 2


def test_folders_of_ones_own_count_each_where_they_have_no_whole(tmp_path: Path) -> None:
    """Clients with classes of their own: the whole stands for the first folder alone, and another one changes."""
    names = dict(zip("ab", (("red", "green", "blue"), ("high", "middle", "low")), strict=True))
    paths = [str(folder(tmp_path / name, replace(toy_graph(), class_names=names[name]))) for name in names]
    own_heads = {"model": {"decoder": "linear"}, "shared": ["*", "!decoder.*"]}
    course = ist.load_course({"dataset": {"name": "folders", "paths": paths}, "rounds": 1, **own_heads})
    ist.run(course, run_dir=tmp_path / "run")
    change(Path(paths[1]), other_values(replace(toy_graph(), class_names=names["b"])))
    with pytest.raises(BadInput, match="the data changed since the run started"):
        ist.resume(tmp_path / "run", overrides=["rounds=2"])


def test_a_fingerprint_is_that_of_all_that_a_client_holds() -> None:
    graph = toy_graph()
    found = fingerprint(graph)
    assert found == fingerprint(replace(graph)) and len(found) == 16
    label, edges = graph.y.clone(), graph.edge_index.clone()
    label[0], edges[1, 0] = 1 - label[0], edges[0, 0]
    sparse = replace(graph, x=from_scipy(scipy_rows(graph.x)))
    others = [
        other_values(graph),
        replace(graph, y=label),
        replace(graph, edge_index=edges),
        replace(graph, masks={split: ~mask for split, mask in graph.masks.items()} or {"train": label > 0}),
        replace(graph, class_names=("red", "green", "black")),
        replace(graph, attributes={"place": torch.arange(graph.num_nodes)}),
        sparse,
        replace(sparse, x=from_scipy(2 * scipy_rows(graph.x))),
    ]
    assert len({found, *map(fingerprint, others)}) == 1 + len(others)
    assert fingerprint(graph, graph) != found
