"""Silos that hold nodes of one graph and name each other's: GFL-APPNP between sites is the simulated course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import isthmus as ist
from isthmus.algorithms import GFLAPPNP
from isthmus.algorithms.gfl_appnp import ReceiveAggregates, ShareNeighbors
from isthmus.data.splitters import NodeHostsSplitter
from isthmus.learn.graph_client import ForeignEdges
from isthmus.learn.optimizers import SGD
from isthmus.models import MLP, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.identities import neighbor_keys, node_keys
from isthmus.testing import toy_client, toy_graph
from tests.sites.in_process import CLASSES, SECRET, FakeHub, fake_hub, site_course

Heard = list[tuple[str, Tensor]]


def hosts(num_nodes: int, weighted: bool = False) -> Scenario:
    """One graph whose nodes two silos hold; of two nodes, each silo has one."""
    whole = replace(toy_graph(num_nodes, weighted=weighted, seed=4), class_names=CLASSES)
    if num_nodes == 2:
        whole = replace(whole, edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=None)
        yes = torch.ones(2, dtype=torch.bool)
        whole = whole.with_masks({"train": yes, "val": ~yes, "test": ~yes})
    parts = NodeHostsSplitter().split(whole, 2, np.random.default_rng(0))
    return Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})


def course() -> ist.Course:
    algorithm = GFLAPPNP(local_steps=3, optimizer=SGD(lr=0.2), min_sources=1)
    return replace(site_course(algorithm), model=ModelSpec(MLP(hidden=5, dropout=0.0)), num_clients=2, rounds=3)


def on_sites(hub: FakeHub, run_dir: Path) -> ist.Result:
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    return SiteCourse(course(), hub, tuple(hub.silos), run_dir, patience=patience, say=lambda text: None).run()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """Every C that a client was given, in order."""
    found: Heard = []
    plain = GFLAPPNP.receive

    @wraps(plain)
    def receive(self: GFLAPPNP, request: ReceiveAggregates, client: Any) -> Any:
        found.append((client.id, request.aggregate))
        return plain(self, request, client)

    monkeypatch.setattr(GFLAPPNP, "receive", receive)
    yield found


@pytest.mark.parametrize(("num_nodes", "weighted"), [(2, False), (12, False), (12, True)])
def test_two_silos_that_name_each_others_nodes_are_the_course_on_the_whole_graph(
    num_nodes: int, weighted: bool, tmp_path: Path, heard: Heard
) -> None:
    made = hosts(num_nodes, weighted)
    hub = fake_hub(tmp_path / "silos", made=made)
    assert all(len(list(silo.data.glob("neighbors.*"))) == 1 for silo in hub.silos.values())
    found = on_sites(hub, tmp_path / "run")
    between = sorted(heard, key=lambda item: item[0])
    heard.clear()
    simulated = ist.run(course(), scenario=made)
    within = sorted(heard, key=lambda item: item[0])
    assert len(between) == len(within) == 2 * 4
    for (site, here), (client, there) in zip(between, within, strict=True):
        assert site == client and float(here.abs().max()) > 1e-3
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    for name, tensor in simulated.params.items():
        torch.testing.assert_close(found.params[name], tensor, rtol=1e-4, atol=1e-5)


def test_without_the_table_silos_of_one_node_do_not_mix(tmp_path: Path, heard: Heard) -> None:
    hub = fake_hub(tmp_path / "silos", made=hosts(2))
    for silo in hub.silos.values():
        for path in silo.data.glob("neighbors.*"):
            path.unlink()
    on_sites(hub, tmp_path / "run")
    assert heard and all(float(aggregate.abs().max()) == 0.0 for _, aggregate in heard)


def test_an_edge_that_one_silo_does_not_name_is_left_out_with_both_names(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos", made=hosts(2))
    next((hub.silos["client-1"].data).glob("neighbors.*")).unlink()
    notes = " ".join(on_sites(hub, tmp_path / "run").notes)
    assert "edges that one side names only are left out: client-0 names an edge" in notes
    assert "and client-1, which hosts that node, does not name it back" in notes


def test_no_id_of_a_neighbour_crosses(tmp_path: Path) -> None:
    made = hosts(2)
    hub = fake_hub(tmp_path / "silos", made=made)
    for site, own, other in (("client-0", "Ann Noether", "Bob Galois"), ("client-1", "Bob Galois", "Ann Noether")):
        data = hub.silos[site].data
        for path in data.iterdir():
            path.unlink()
        part = made.parts[site]
        names = [f"f{k}" for k in range(part.num_features)]
        values = ",".join(str(value) for value in part.x[0].tolist())
        label = CLASSES[int(part.y[0])]
        (data / "nodes.csv").write_text(f"id,label,split,{','.join(names)}\n{own},{label},train,{values}\n")
        (data / "edges.csv").write_text("source,target\n")
        (data / "neighbors.csv").write_text(f"id,neighbor\n{own},{other}\n")
    sent: list[bytes] = []
    answer = hub.ask

    def listening(kind: str, messages: Any, timeout_seconds: float) -> Any:
        sent.extend(messages.values())
        for site, back in answer(kind, messages, timeout_seconds):
            sent.append(back if isinstance(back, bytes) else b"")
            yield site, back

    hub.ask = listening  # type: ignore[method-assign]
    on_sites(hub, tmp_path / "run")
    assert sent and not any(name in message for message in sent for name in (b"Noether", b"Galois"))


def test_keys_of_neighbours_are_those_of_their_hosts_and_may_repeat() -> None:
    ids = ("ann", "c\u00e9")
    assert torch.equal(neighbor_keys(("ce\u0301", "ann", "ann"), SECRET), node_keys(ids, SECRET)[[1, 0, 0]])


@pytest.mark.parametrize(("own", "other"), [(False, True), (True, False), (True, True), (False, False)])
def test_edges_within_and_to_others_are_named_with_the_weights_that_there_are(own: bool, other: bool) -> None:
    client = toy_client(toy_graph(6, weighted=own, seed=1), model=ModelSpec(MLP(hidden=5)))
    weight = torch.tensor([3.0, 4.0]) if other else None
    client.foreign = ForeignEdges(torch.tensor([5, 0]), torch.tensor([77, 78]), weight)
    reply = GFLAPPNP().name_neighbors(ShareNeighbors(), client)
    assert ShareNeighbors().problem(reply) == ""
    assert reply.source[-2:].tolist() == [5, 0] and reply.target[-2:].tolist() == [77, 78]
    assert len(reply.source) == client.data.num_edges + 2
    if not own and not other:
        assert len(reply.weight) == 0
    else:
        assert reply.weight[-2:].tolist() == ([3.0, 4.0] if other else [1.0, 1.0])
        expected = client.data.edge_weight if own else torch.ones(client.data.num_edges)
        assert torch.equal(reply.weight[:-2], expected)
