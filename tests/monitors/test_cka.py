from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import isthmus as ist
from isthmus.monitors.cka import CKA, outputs_of
from isthmus.monitors.similarity import pairwise_cka
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_scenario

from .views import toy_view


def models(seeds: tuple[int, ...] = (1, 2, 3)) -> dict[str, ist.Params]:
    """Return a model with its own random parameters for each client."""
    found = {}
    for i, seed in enumerate(seeds):
        module = toy_course(ist.FedAvg()).model.build(6, 3)
        draw = torch.Generator().manual_seed(seed)
        found[f"client-{i}"] = {
            name: torch.randn(slot.shape, generator=draw) for name, slot in module.state_dict().items()
        }
    return found


def test_models_are_compared_by_their_outputs_for_the_test_nodes_of_the_whole_graph() -> None:
    view = toy_view(models())
    measured = CKA().measure(view)
    graph = view.whole
    outputs = []
    for params in view.models.values():
        module = toy_course(ist.FedAvg()).model.build(6, 3)
        module.load_state_dict(params)
        outputs.append(module(view.task.prepare(graph).graph, None)[graph.mask("test")])
    assert measured.clients == ("client-0", "client-1", "client-2") and measured.absent == ()
    for i in range(3):
        for j in range(3):
            assert measured.values[i, j] == pytest.approx(
                float(pairwise_cka([outputs[i], outputs[j]])[0, 1]), abs=1e-12
            )
    assert 0.0 < measured.values[0, 1] < 0.999


def test_equal_models_are_alike_and_a_model_without_an_opinion_is_like_nothing() -> None:
    chosen = models((1, 1, 2))
    chosen["client-2"] = {name: torch.zeros_like(tensor) for name, tensor in chosen["client-2"].items()}
    values = CKA().measure(toy_view(chosen)).values
    assert values.tolist() == [
        [1.0, pytest.approx(1.0, abs=1e-12), 0.0],
        [pytest.approx(1.0, abs=1e-12), 1.0, 0.0],
        [0.0] * 3,
    ]


def test_clients_without_a_model_or_with_outputs_that_are_not_finite_are_absent() -> None:
    chosen = models()
    del chosen["client-0"]
    chosen["client-2"] = {name: torch.full_like(tensor, 3e38) for name, tensor in chosen["client-2"].items()}
    measured = CKA().measure(toy_view(chosen))
    assert (measured.clients, measured.absent) == (("client-1",), ("client-0", "client-2"))
    assert measured.values.tolist() == [[1.0]]
    assert not torch.isfinite(outputs_of(toy_view({}), chosen["client-2"])).all()


def test_without_test_nodes_it_is_refused_before_the_course() -> None:
    made = toy_scenario()
    blind = made.whole.with_masks({**made.whole.masks, "test": torch.zeros(48, dtype=torch.bool)})
    view = toy_view({}, Scenario(blind, made.parts))
    assert CKA().problem(view) == "the global graph has no test nodes to compare outputs on"
    assert CKA().problem(toy_view({})) == ""
    assert "has none" in CKA().problem(replace(view, prepared=object()))
