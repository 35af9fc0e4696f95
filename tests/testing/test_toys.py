from __future__ import annotations

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario


def test_toy_graph_is_what_graphs_must_be() -> None:
    graph = toy_graph(40, unlabelled_fraction=0.2, weighted=True)
    source, target = graph.edge_index
    pairs = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(pairs) == graph.num_edges > 20
    assert all((t, s) in pairs and s != t for s, t in pairs)
    assert torch.equal(torch.argsort(source * graph.num_nodes + target), torch.arange(graph.num_edges))
    assert graph.edge_weight is not None
    weights = dict(zip(zip(source.tolist(), target.tolist(), strict=True), graph.edge_weight.tolist(), strict=True))
    assert all(weights[s, t] == weights[t, s] > 0 for s, t in pairs)
    assert sum(mask.long() for mask in graph.masks.values()).max() == 1  # type: ignore[union-attr]
    unlabelled = graph.y < 0
    assert 0 < int(unlabelled.sum()) < 20
    assert not any(bool((mask & unlabelled).any()) for mask in graph.masks.values())


def test_toy_graph_is_homophilous_and_depends_on_its_seed_alone() -> None:
    graph = toy_graph(200, homophily=0.9)
    same = graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]
    assert float(same.float().mean()) > 0.7
    torch.manual_seed(5)
    again = toy_graph(200, homophily=0.9)
    assert torch.equal(graph.x, again.x)
    assert torch.equal(graph.edge_index, again.edge_index)
    assert not torch.equal(graph.x, toy_graph(200, homophily=0.9, seed=1).x)


def test_toy_clients_are_ragged_and_have_every_split() -> None:
    scenario = toy_scenario(4, num_common=0)
    sizes = [part.num_nodes for part in scenario.parts.values()]
    assert sum(sizes) == scenario.whole.num_nodes
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4
    for part in scenario.parts.values():
        assert all(bool(part.mask(split).any()) for split in ("train", "val", "test"))
        assert part.num_edges > 0


def test_odd_clients_are_odd_and_the_others_are_not() -> None:
    plain = toy_scenario(4, num_common=0)
    odd = toy_scenario(
        4,
        num_common=0,
        client_without_training=True,
        client_with_one_training_node=True,
        client_without_edges=True,
    )
    trained = [int(part.mask("train").sum()) for part in odd.parts.values()]
    assert trained[3] == 0
    assert trained[2] == 1
    assert trained[:2] == [int(part.mask("train").sum()) for part in plain.parts.values()][:2]
    assert [part.num_edges == 0 for part in odd.parts.values()] == [False, True, False, False]
    assert int(odd.whole.mask("train").sum()) == sum(trained)
    for part in odd.parts.values():
        induced = odd.whole.subgraph(part.node_ids)
        assert torch.equal(induced.edge_index, part.edge_index)


def test_toy_scenario_refuses_what_it_cannot_make() -> None:
    with pytest.raises(ValueError, match="num_nodes is 8 for 3 clients"):
        toy_scenario(3, num_nodes=8)
    with pytest.raises(ValueError, match="2 odd clients"):
        toy_scenario(1, client_without_training=True, client_without_edges=True)


def test_toy_course_takes_other_fields() -> None:
    course = toy_course(FedAvg(local_steps=2), rounds=7)
    assert course.algorithm == FedAvg(local_steps=2)
    assert course.rounds == 7


def test_toy_client_starts_from_the_same_model_for_the_same_seed() -> None:
    first, second, third = toy_client(), toy_client(), toy_client(seed=1)
    name = "gnn.layers.0.weight"
    assert torch.equal(first.model.state_dict()[name], second.model.state_dict()[name])
    assert not torch.equal(first.model.state_dict()[name], third.model.state_dict()[name])
