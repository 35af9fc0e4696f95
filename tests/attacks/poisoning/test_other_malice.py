"""Wrong edges, free riders, and clients that turn the others' generators: worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedsage.messages import GeneratorGradients, GeneratorView, GradeGenerators
from isthmus.attacks.poisoning import FreeRider, WrongEdges, WrongGradients, run_poisoned
from isthmus.core.errors import BadInput
from isthmus.core.guards.guard import AtClient
from isthmus.data.graph import count_pairs
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario
from tests.attacks.poisoning.test_backdoors import graph_set, require_whole
from tests.attacks.poisoning.test_poisoning import traced
from tests.quick import quick

ONE = ("client-0",)


# ---- edges


def edges_of(graph: Any) -> set[tuple[int, int]]:
    return set(map(tuple, graph.edge_index.t().tolist()))


def test_nodes_of_other_classes_are_connected_and_nothing_is_lost() -> None:
    graph = toy_graph(60, unlabelled_fraction=0.2, weighted=True)
    found = WrongEdges(ONE, share=0.5).of_data(Scenario(graph, {"client-0": graph})).parts["client-0"]
    require_whole(found)
    new = edges_of(found) - edges_of(graph)
    assert edges_of(graph) < edges_of(found)
    assert all(graph.y[a] != graph.y[b] and graph.y[a] >= 0 and graph.y[b] >= 0 for a, b in new)
    assert 0.6 * 0.5 * count_pairs(graph) < len(new) / 2 <= 0.5 * count_pairs(graph)  # some were there before
    assert found.edge_weight is not None and len(found.edge_weight) == found.num_edges


def test_edges_within_a_class_are_removed_both_ways_and_no_others() -> None:
    graph = toy_graph(60)
    within = {(a, b) for a, b in edges_of(graph) if graph.y[a] == graph.y[b]}
    every = WrongEdges(ONE, how="remove", share=1.0).of_data(Scenario(graph, {"client-0": graph})).parts["client-0"]
    assert edges_of(every) == edges_of(graph) - within
    some = WrongEdges(ONE, how="remove", share=0.25).of_data(Scenario(graph, {"client-0": graph})).parts["client-0"]
    require_whole(some)
    gone = edges_of(graph) - edges_of(some)
    assert gone < within and len(gone) == 2 * round(0.25 * count_pairs(graph))


def test_random_pairs_are_of_any_classes() -> None:
    graph = toy_graph(60, homophily=1.0)
    found = WrongEdges(ONE, how="random", share=3.0).of_data(Scenario(graph, {"client-0": graph})).parts["client-0"]
    new = edges_of(found) - edges_of(graph)
    assert {bool(graph.y[a] == graph.y[b]) for a, b in new} == {True, False}


def test_edges_of_graphs_without_classes_of_nodes_are_refused() -> None:
    data: Any = graph_set()
    with pytest.raises(BadInput, match="WrongEdges connects nodes with a class, and 'rings' consists of graphs"):
        WrongEdges(ONE).of_data(Scenario(data, {"client-0": data}))


# ---- free riders


def test_a_free_rider_sends_back_what_it_was_sent() -> None:
    found = traced(FreeRider(("client-1",), disguised=False))
    for round in (1, 2, 3):
        assert all(not change.any() for change in found.sent("client-1", round).values())
        assert any(change.any() for change in found.sent("client-2", round).values())


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_a_disguised_one_adds_noise_as_large_as_the_servers_last_change(runtime: str) -> None:
    found = traced(FreeRider(("client-1",), times=2.0), runtime=runtime)
    assert all(not change.any() for change in found.sent("client-1", 1).values())
    asked = [request.params for request, _ in found.replies("client-1")]
    for round in (2, 3):
        moved = {name: asked[round - 1][name].double() - asked[round - 2][name] for name in asked[0]}
        ratios = []
        for name, noise in found.sent("client-1", round).items():
            if noise.numel() >= 15:
                ratios.append(float(noise.square().mean().sqrt() / moved[name].square().mean().sqrt()))
        assert ratios and all(1.3 < ratio < 2.8 for ratio in ratios)


# ---- generators


def view_of(graph: Any, seed: int) -> GeneratorView:
    draw = torch.Generator().manual_seed(seed)
    params = {
        "hidden_weight": torch.randn(4, 3, generator=draw),
        "hidden_bias": torch.zeros(3),
        "slot_weight": torch.randn(2, 3, graph.num_features, generator=draw),
        "slot_bias": torch.zeros(2, graph.num_features),
    }
    return GeneratorView(params, torch.randn(5, 4, generator=draw), torch.tensor([1, 2, 1, 2, 2]))


def generated(view: GeneratorView, params: Any) -> list[torch.Tensor]:
    """Return the rows of fGen, one after the other: the formula of the paper."""
    rows = []
    for node, count in zip(view.inputs, view.counts.tolist(), strict=True):
        hidden = (node @ params["hidden_weight"] + params["hidden_bias"]).clamp(min=0)
        rows += [hidden @ params["slot_weight"][slot] + params["slot_bias"][slot] for slot in range(count)]
    return rows


def test_what_is_answered_of_a_peers_generator_leads_to_the_wanted_row_and_ones_own_is_left() -> None:
    client = toy_client()
    graph = client.data
    attack = WrongGradients(ONE, target=1, columns=(2,), times=3.0)
    wanted = graph.x[graph.mask("train") & (graph.y == 1)].mean(dim=0)
    wanted[2] = 1.0
    assert torch.allclose(attack.wanted(graph), wanted)
    views = {"client-0": view_of(graph, 0), "client-1": view_of(graph, 1)}
    honest = GeneratorGradients(
        {c: {n: torch.ones_like(t) for n, t in v.params.items()} for c, v in views.items()}, 1.0
    )
    reply: Any = attack.release(honest, GradeGenerators(views), AtClient(client, "guard.0"))
    assert reply.gradients["client-0"] is honest.gradients["client-0"] and reply.weight == 1.0
    params = {name: tensor.clone().requires_grad_() for name, tensor in views["client-1"].params.items()}
    loss = 3.0 * sum((row - wanted).square().sum() for row in generated(views["client-1"], params))
    for name, gradient in zip(params, torch.autograd.grad(loss, list(params.values())), strict=True):
        assert torch.allclose(reply.gradients["client-1"][name], gradient, rtol=1e-4, atol=1e-4), name


def test_generators_of_honest_clients_come_nearer_to_the_wanted_row() -> None:
    scenario = toy_scenario(3)
    course = toy_course(replace(quick("fedsage_plus"), cross_rounds=4), rounds=1)
    attack = WrongGradients(ONE, times=1000.0)
    wanted = attack.wanted(scenario.parts["client-0"])
    near = {}
    for name, made in (("honest", ()), ("wrong", (attack,))):
        result = run_poisoned(course, *made, scenario=scenario)
        bias = result.client_parts["client-1"]["features.slot_bias"]
        near[name] = float((bias - wanted).norm())
    assert near["wrong"] < near["honest"]


def test_without_generators_it_cannot_be_tried() -> None:
    assert "FedAvg has no generators that clients train across" in WrongGradients(ONE).problem(toy_course(FedAvg()))
    assert not WrongGradients(ONE).problem(toy_course(quick("fedsage_plus")))
    with pytest.raises(BadInput, match=r"WrongGradients.target is 7, and 'toy' has 3 classes"):
        WrongGradients(ONE, target=7).of_data(toy_scenario(3))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: WrongEdges(how="swap"), "how"),
        (lambda: WrongEdges(share=0.0), "share"),
        (lambda: WrongGradients(target=-1), "target"),
    ],
)
def test_impossible_settings_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def test_the_python_of_the_page_on_malicious_parties_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "attacks" / "malicious.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "docs/attacks/malicious.md", "exec"), {"__name__": "malicious"})
