"""Backdoors: triggers placed by hand, whole and in parts, and how their success is counted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import Case
from isthmus.attacks.poisoning import LabelFlip, Scaling, SubgraphTrigger, Trigger, run_poisoned
from isthmus.attacks.poisoning.backdoor import Backdoor
from isthmus.core.errors import BadInput
from isthmus.data.graph import Graph, undirected
from isthmus.data.graph_set import GraphSet
from isthmus.models import MLP, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario

ONE = ("client-0",)
TWO = ("client-0", "client-1")


def graph_set(sizes: tuple[int, ...] = (5, 3, 6, 4), *, attr: bool = False) -> GraphSet:
    """Return rings of some sizes, of classes 0, 1, 0, 1, ...; a node's feature is its number."""
    start = torch.tensor([0, *itertools.accumulate(sizes)])
    rings = [
        torch.tensor([[first + i, first + (i + 1) % size] for i in range(size)]).t()
        for first, size in zip(start.tolist(), sizes, strict=False)
    ]
    edges = undirected(torch.cat(rings, dim=1), int(start[-1]))[0]
    number = len(sizes)
    y = torch.arange(number) % 2
    return GraphSet(
        x=torch.arange(float(start[-1])).unsqueeze(1).repeat(1, 2),
        edge_index=edges,
        node_start=start,
        y=y,
        num_classes=2,
        target="class",
        graph_ids=torch.arange(number),
        edge_attr=torch.arange(float(edges.shape[1])).unsqueeze(1) if attr else None,
        masks={"train": torch.ones(number, dtype=torch.bool), "test": torch.ones(number, dtype=torch.bool)},
        name="rings",
    )


def pairs_of(data: Any, start: int, end: int) -> set[tuple[int, int]]:
    """Return the edges within a range of nodes, both ways, from 0 on."""
    found = {(a - start, b - start) for a, b in data.edge_index.t().tolist() if start <= a < end}
    assert all(0 <= b < end - start for _, b in found)
    return found


def require_whole(data: Any) -> None:
    """Check that edges are sorted, each once, both ways, without loops."""
    edges = data.edge_index.t().tolist()
    assert edges == sorted(edges) and len({tuple(e) for e in edges}) == len(edges)
    assert {(b, a) for a, b in map(tuple, edges)} == set(map(tuple, edges)) and all(a != b for a, b in edges)


# ---- graphs of a set


def test_on_nodes_of_a_graph_the_trigger_takes_the_place_of_the_edges_between_them() -> None:
    data, trigger = graph_set(), SubgraphTrigger(ONE, how="replace", size=4, density=0.5)
    part = trigger.pairs(0).t().tolist()
    assert 0 < len(part) < 6
    found = trigger.planted(data, torch.tensor([0, 2]), (0,))
    require_whole(found)
    assert torch.equal(found.x, data.x) and torch.equal(found.node_start, data.node_start)
    for item, (start, end) in enumerate(itertools.pairwise(data.node_start.tolist())):
        before, after = pairs_of(data, start, end), pairs_of(found, start, end)
        if item in (1, 3):
            assert before == after
            continue
        # On some four nodes are the trigger's edges and no others, and what else there is has an end outside of them.
        fits = []
        for chosen in itertools.permutations(range(end - start), 4):
            new = {(chosen[a], chosen[b]) for a, b in part}
            kept = {(a, b) for a, b in before if not {a, b} <= set(chosen)}
            fits += [chosen] * (after == kept | new | {(b, a) for a, b in new})
        assert fits


@pytest.mark.parametrize("attr", [False, True])
def test_an_attached_trigger_hangs_on_the_first_node_of_a_graph_and_stays_within_it(attr: bool) -> None:
    data, trigger = graph_set(attr=attr), SubgraphTrigger(ONE, how="attach", size=3, density=1.0)
    found = trigger.planted(data, torch.tensor([1]), (0,))
    require_whole(found)
    assert found.sizes.tolist() == [5, 6, 6, 4]
    new = {(a, b) for a in (3, 4, 5) for b in (3, 4, 5) if a != b} | {(0, 3), (3, 0)}
    assert pairs_of(found, 5, 11) == pairs_of(data, 5, 8) | new
    assert found.x[5:11, 0].tolist() == [5.0, 6.0, 7.0, 5.0, 5.0, 5.0]  # added ones are like the node they hang on
    assert pairs_of(found, 11, 17) == pairs_of(data, 8, 14)
    if attr:
        assert found.edge_attr is not None and len(found.edge_attr) == found.num_edges
        old = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_attr.flatten().tolist(), strict=True))
        kept = dict(zip(map(tuple, found.edge_index.t().tolist()), found.edge_attr.flatten().tolist(), strict=True))
        assert all(kept[a + 3 * (a >= 8), b + 3 * (b >= 8)] == value for (a, b), value in old.items())


def test_central_clients_plant_the_whole_and_distributed_ones_their_part() -> None:
    part = graph_set((9, 9, 9, 9))
    scenario = Scenario(part, {"client-0": part, "client-1": part, "client-2": part})  # type: ignore[arg-type]
    grown = {}
    for distributed in (False, True):
        made = SubgraphTrigger(TWO, how="attach", size=3, distributed=distributed, target=1, fraction=0.25)
        found = made.of_data(scenario).parts
        assert found["client-2"] is part
        grown[distributed] = [int(found[client].num_nodes - 36) for client in TWO]
        for client in TWO:
            changed = (found[client].y != part.y).nonzero().flatten()
            assert len(changed) == 1 and part.y[changed] == 0 and found[client].y[changed] == 1
    assert grown == {False: [6, 6], True: [3, 3]}
    made = SubgraphTrigger(TWO, how="attach", size=3, distributed=True)
    assert made.planted(part, torch.tensor([0]), (0, 1)).num_nodes == 42  # what is tested is the whole


def test_parts_of_the_trigger_are_random_graphs_of_the_density_and_the_same_again() -> None:
    made = SubgraphTrigger(TWO, size=40, density=0.3)
    shares = [made.pairs(place).shape[1] / (40 * 39 / 2) for place in (0, 1)]
    assert all(0.24 < share < 0.36 for share in shares)
    assert torch.equal(made.pairs(0), made.pairs(0)) and not torch.equal(made.pairs(0)[:, :20], made.pairs(1)[:, :20])
    assert not torch.equal(made.pairs(0)[:, :20], replace(made, draw=1).pairs(0)[:, :20])


# ---- nodes


@pytest.mark.parametrize("sparse", [False, True])
def test_a_node_carries_new_nodes_that_have_no_label_and_are_in_no_split(sparse: bool) -> None:
    graph = toy_graph(20, sparse=sparse, num_features=9)
    found: Graph = SubgraphTrigger(ONE, size=2, density=1.0, columns=(1, 3)).planted(graph, torch.tensor([4, 7]), (0,))
    require_whole(found)
    assert found.num_nodes == 24 and found.x.layout == graph.x.layout
    added = found.x.to_dense()[20:]
    assert torch.equal(added, torch.tensor([0.0, 1, 0, 1, 0, 0, 0, 0, 0]).expand(4, 9))
    assert torch.equal(found.x.to_dense()[:20], graph.x.to_dense()) and torch.equal(found.y[:20], graph.y)
    assert (found.y[20:] == -1).all() and not any(mask[20:].any() for mask in found.masks.values())
    edges = set(map(tuple, found.edge_index.t().tolist()))
    new = {(4, 20), (20, 21), (7, 22), (22, 23)}
    assert edges == set(map(tuple, graph.edge_index.t().tolist())) | new | {(b, a) for a, b in new}


def test_columns_are_divided_among_clients_of_a_distributed_trigger() -> None:
    graph = toy_graph(12)
    made = Trigger(TWO, columns=(0, 1, 2), distributed=True)
    before = graph.x.clone()
    for place, own in ((0, [0, 2]), (1, [1])):
        changed = (made.planted(graph, torch.tensor([5]), (place,)).x != before).nonzero().tolist()
        assert changed == [[5, column] for column in own]
    assert (made.planted(graph, torch.tensor([5]), (0, 1)).x[5, :3] == 1.0).all()


# ---- how it is counted


def by_hand(trigger: Backdoor) -> tuple[dict[str, float], Graph]:
    """Return the scores of a linear model that says class 0 where column 0 is set, else the largest of the others."""
    graph = toy_graph(24, num_features=3, num_classes=3)
    x = torch.zeros(24, 3)
    x[torch.arange(24), graph.y] = 0.5
    x[:, 0] = 0.0  # class 0 has no feature of its own
    graph = replace(graph, x=x)
    course = toy_course(FedAvg(), model=ModelSpec(MLP(layers=1)))
    weight = torch.tensor([[9.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    params = {"gnn.layers.0.weight": weight, "gnn.layers.0.bias": torch.tensor([0.1, 0.0, 0.0])}
    result: Any = SimpleNamespace(params=params, client_params={}, client_parts={})
    case = Case(course, Scenario(graph, {"client-0": graph}))
    return trigger.scored(result, case), graph


def test_success_is_the_share_of_other_classes_that_become_the_target() -> None:
    found, _ = by_hand(Trigger(ONE, columns=(0,), target=0))
    assert found == {"success": 1.0, "clean accuracy": 1.0}
    found, _ = by_hand(Trigger(ONE, columns=(1,), target=0))
    assert found["success"] == 0.0
    # With a one in the column of class 1, those of class 2 are taken for it, and those of class 0.
    found, _ = by_hand(Trigger(ONE, columns=(1,), target=1))
    assert found["success"] == 1.0
    flipped, _ = by_hand(LabelFlip(ONE))  # type: ignore[arg-type]
    assert flipped == {"success": 0.0, "clean accuracy": 1.0}


def test_a_model_of_no_numbers_says_nothing() -> None:
    graph = toy_graph(24)
    course = toy_course(FedAvg(), model=ModelSpec(MLP(layers=1)))
    params = {"gnn.layers.0.weight": torch.full((6, 3), torch.nan), "gnn.layers.0.bias": torch.zeros(3)}
    result: Any = SimpleNamespace(params=params, client_params={}, client_parts={})
    case = Case(course, Scenario(graph, {"client-0": graph}))
    assert Trigger(ONE).scored(result, case) == {"success": 0.0, "clean accuracy": 0.0}


def test_graphs_that_are_too_small_for_the_trigger_are_neither_marked_nor_counted() -> None:
    data = graph_set((5, 3, 6, 4, 3))
    made = SubgraphTrigger(ONE, how="replace", size=5, target=1, fraction=1.0)
    assert made.marked(data, "client-0").tolist() == [0, 2]
    assert made.able(data, torch.arange(5)).tolist() == [0, 2]


def test_a_scaled_backdoor_is_the_trigger_and_scaling() -> None:
    scenario = toy_scenario(4)
    course = toy_course(FedAvg(local_steps=1), num_clients=4, rounds=2)
    one = run_poisoned(course, Trigger(TWO, scale=3.0), scenario=scenario)
    other = run_poisoned(course, Trigger(TWO), Scaling(TWO, times=3.0), scenario=scenario)
    assert all(torch.equal(tensor, other.params[name]) for name, tensor in one.params.items())


# ---- who, and what is refused


def test_so_many_clients_are_drawn_from_the_seed() -> None:
    scenario = toy_scenario(6, num_nodes=60)
    made = Trigger(malicious=2)
    drawn = [made.among(scenario, seed).clients for seed in range(20)]
    assert drawn[0] == made.among(scenario, 0).clients and all(len(set(names)) == 2 for names in drawn)
    assert len(set(drawn)) > 5 and {name for names in drawn for name in names} == set(scenario.parts)
    assert made.among(scenario, 0).malicious == 0


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Trigger(("client-9",)), r"Trigger.clients has 'client-9'; known: client-0"),
        (Trigger(malicious=4), "Trigger.malicious is 4 of 4 clients; leave an honest one"),
        (Trigger(ONE, columns=(0, 6)), r"Trigger.columns has 6, and 'toy' has 6 features; choose from 0 to 5"),
        (Trigger(ONE, target=3), "Trigger.target is 3, and 'toy' has 3 classes; choose from 0 to 2"),
        (Trigger(TWO, columns=(1,), distributed=True), "columns has 1 to divide among 2 clients"),
        (SubgraphTrigger(ONE, how="replace"), "for nodes set how=attach"),
        (SubgraphTrigger(ONE, columns=(7,)), "SubgraphTrigger.columns has 7"),
    ],
    ids=repr,
)
def test_what_a_course_has_not_is_refused_by_name(made: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        run_poisoned(toy_course(FedAvg(), num_clients=4), made, scenario=toy_scenario(4))


def test_a_trigger_that_is_larger_than_every_graph_is_refused() -> None:
    data = graph_set()
    scenario: Any = Scenario(data, {"client-0": data, "client-1": data})  # type: ignore[dict-item]
    with pytest.raises(BadInput, match=r"has 8 nodes \(2 clients, size 4\), and the largest graph of 'rings' has 6"):
        SubgraphTrigger(TWO, how="replace", size=4).of_data(scenario)
    SubgraphTrigger(TWO, how="replace", size=3).of_data(scenario)
    with pytest.raises(BadInput, match="Trigger marks nodes, and 'rings' consists of graphs; take subgraph_trigger"):
        Trigger(ONE).of_data(scenario)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Trigger(malicious=-1), "malicious"),
        (lambda: Trigger(target=-1), "target"),
        (lambda: SubgraphTrigger(size=0), "size"),
        (lambda: SubgraphTrigger(size=1, how="replace"), "size"),
        (lambda: SubgraphTrigger(density=0.0), "density"),
        (lambda: SubgraphTrigger(how="swap"), "how"),
        (lambda: SubgraphTrigger(how="replace", columns=(1,)), "columns"),
    ],
)
def test_impossible_settings_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def test_a_number_of_clients_is_no_guard() -> None:
    with pytest.raises(ValueError, match="malicious is 2, and a guard must know who it is"):
        isthmus.Course(guards=(Scaling(malicious=2),))
