"""Clients with features of their own: refused where what depends on them is shared, told what to declare, else run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, GPRGNN, GNNSpec, LinearEncoder, MLPEncoder, ModelSpec
from isthmus.models.model import names_by_features
from isthmus.runs.simulation import Scenario
from isthmus.testing.toys import toy_course, toy_scenario

ENCODED = ModelSpec(GCN(hidden=5, dropout=0.5), encoder=LinearEncoder(dim=4))
KEPT = ("*", "!encoder.*")


def with_fewer_features(scenario: Scenario, number: int = 4) -> Scenario:
    """Return the same clients, of which the last knows only the first features."""
    last = list(scenario.parts)[-1]
    parts = {n: replace(p, x=p.x[:, :number]) if n == last else p for n, p in scenario.parts.items()}
    return replace(scenario, parts=parts)


def course(**changes: Any) -> Any:
    return toy_course(FedAvg(local_steps=2, optimizer=SGD(lr=0.1)), **{"model": ENCODED, "shared": KEPT, **changes})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelSpec(GCN(hidden=5)), ("gnn.layers.0.weight",)),
        (ENCODED, ("encoder.layers.0.weight",)),
        (ModelSpec(GPRGNN(hidden=5), encoder=MLPEncoder(dim=3)), ("encoder.layers.0.weight",)),
    ],
)
def test_names_by_features_are_those_of_the_first_layer(model: ModelSpec, expected: tuple[str, ...]) -> None:
    before = torch.random.get_rng_state()
    assert names_by_features(model, 3) == expected
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_clients_may_have_features_of_their_own_where_the_encoder_stays(runtime: str) -> None:
    scenario = with_fewer_features(toy_scenario(4))
    found = run(course(runtime=runtime, num_clients=4), scenario=scenario)
    shapes = [params["encoder.layers.0.weight"].shape for params in found.client_params.values()]
    assert shapes == [(6, 4), (6, 4), (6, 4), (4, 4)] and "encoder.layers.0.weight" not in found.params
    assert set(found.metrics) == {"local_model/local_graph"} and len(found.client_scores) == 4
    assert found.client_models["client-3"].state_dict()["encoder.layers.0.weight"].shape == (4, 4)
    alike = run(course(runtime="loop", num_clients=4), scenario=scenario)
    for client, params in alike.client_params.items():
        for name, tensor in params.items():
            assert torch.allclose(tensor, found.client_params[client][name], atol=1e-5), (client, name)


@pytest.mark.parametrize("gnn", [GCN(hidden=5), GPRGNN(hidden=5)])
def test_a_shared_first_layer_is_refused_before_the_start_with_what_to_declare(gnn: GNNSpec) -> None:
    scenario = with_fewer_features(toy_scenario())
    facts = r"different features \(client-0: 6; client-1: 6; client-2: 4\), but they share 'gnn\.\S+'"
    with pytest.raises(BadInput, match=rf"{facts}.*model\.encoder\.name=linear.*\"!encoder\.\*\""):
        run(course(model=ModelSpec(gnn), shared=None), scenario=scenario)
    with pytest.raises(BadInput, match=r"they share 'encoder\.layers\.0\.weight'.*shared=\[\"\*\", \"!encoder\.\*\"\]"):
        run(course(shared=None), scenario=scenario)
    run(course(model=ModelSpec(gnn, encoder=LinearEncoder(dim=4)), rounds=1), scenario=scenario)


def test_a_first_layer_may_stay_itself() -> None:
    changes = {"model": ModelSpec(GCN(hidden=5)), "shared": ("*", "!gnn.layers.0.*")}
    found = run(course(**changes), scenario=with_fewer_features(toy_scenario()))
    assert found.client_params["client-2"]["gnn.layers.0.weight"].shape == (4, 5)


def test_clients_that_are_alike_but_unlike_the_whole_are_told_which_parameter_it_is() -> None:
    made = toy_scenario()
    parts = {name: replace(part, x=part.x[:, :4]) for name, part in made.parts.items()}
    with pytest.raises(BadInput, match=r"'encoder\.layers\.0\.weight' is shared, but in the model of client-0 it is"):
        run(course(shared=None), scenario=replace(made, parts=parts))
