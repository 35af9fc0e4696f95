"""Inputs by matching gradients: found where the answer is known, and nothing where nothing moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.attacks.attack import Attack, Case, Message, NothingSeen, Seen
from isthmus.attacks.inputs.edges_by_matching import EdgesByMatching
from isthmus.attacks.inputs.matching import FeaturesByMatching, apart, correlation, descended
from isthmus.attacks.listening import Overhearing
from isthmus.core.protocol import Position
from isthmus.core.training import run_course
from isthmus.data.graph import Graph
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import ClientDP
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course


def course(**changes: Any) -> isthmus.Course:
    algorithm = changes.pop("algorithm", FedAvg(local_steps=1, optimizer=SGD(lr=0.1)))
    model = ModelSpec(GCN(hidden=32, dropout=0.0))
    return toy_course(algorithm, **{"num_clients": 1, "rounds": 1, "model": model, **changes})


def attacked(made: isthmus.Course, attack: Attack, scenario: Scenario) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of an attack and of its prior."""
    case, simulation = Case(made, scenario), Simulation(made, scenario)
    listening = Overhearing([attack])
    run_course(made.algorithm, simulation.runtime, made.plan(), simulation.initial, [], listener=listening)
    known = attack.known(case)
    truth = attack.truth(case, known)
    guess = attack.guess(listening.seen(attack, case, simulation.initial.params, {}), known)
    return attack.scores(guess, truth), attack.scores(attack.prior(known, case.clients), truth)


def words(nodes: int, features: int) -> Tensor:
    return (torch.rand(nodes, features, generator=torch.Generator().manual_seed(1)) < 0.3).float()


def small(nodes: int, edges: list[tuple[int, int]], features: int = 12) -> Scenario:
    """Return one client that holds a small graph whose nodes are all trained on, beside nodes that nobody holds."""
    pairs = sorted(edges + [(b, a) for a, b in edges])
    edge_index = torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()
    x = words(nodes + 20, features)
    train = torch.arange(nodes + 20) < nodes
    whole = Graph(
        x=x,
        edge_index=edge_index,
        y=torch.arange(nodes + 20) % 3,
        num_classes=3,
        node_ids=torch.arange(nodes + 20),
        masks={"train": train, "val": ~train, "test": torch.zeros_like(train)},
    )
    return Scenario(whole, {"client-0": whole.subgraph(torch.arange(nodes))})


def test_the_features_of_one_node_are_found() -> None:
    # The gradient of the first layer is x times what reaches the node: its direction is the features'.
    found, prior = attacked(course(), FeaturesByMatching(steps=300, rate=0.1), small(1, []))
    assert found["auc"] == 1.0 and found["correlation"] > 0.95
    assert prior["auc"] < 0.9


def test_the_features_of_a_few_nodes_are_found_better_than_the_mean_says() -> None:
    found, prior = attacked(course(), FeaturesByMatching(steps=200, rate=0.1), small(4, [(0, 1), (1, 2)]))
    assert found["auc"] > 0.9 > prior["auc"] + 0.15


def test_edges_are_found_better_than_features_say() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 4)]
    found, prior = attacked(course(), EdgesByMatching(steps=200), small(6, edges))
    assert found["auc"] == 1.0 > prior["auc"] + 0.1


def test_noise_on_updates_hides_features() -> None:
    attack, scenario = FeaturesByMatching(steps=200, rate=0.1), small(4, [(0, 1), (1, 2)])
    plain, _ = attacked(course(), attack, scenario)
    fedavg = FedAvg(local_steps=1, optimizer=SGD(lr=0.1), weighting="uniform")
    noise = ClientDP(clip=0.1, noise=5.0, mode="local")
    noisy, prior = attacked(course(algorithm=fedavg, guards=(noise,)), attack, scenario)
    assert noisy["auc"] < prior["auc"] + 0.1 < plain["auc"]


@pytest.mark.parametrize("attack", [FeaturesByMatching(), EdgesByMatching()])
def test_an_update_that_moved_nothing_tells_nothing(attack: Attack) -> None:
    made, scenario = course(), small(3, [(0, 1)])
    params = Simulation(made, scenario).initial.params
    message = Message(Position(0, 1, 0), {"client-0": TrainModel(params)}, ModelUpdate(params, 1.0))
    seen = Seen(made, ("client-0",), params, {}, (message,))
    with pytest.raises(NothingSeen, match="moved nothing"):
        attack.guess(seen, attack.known(Case(made, scenario)))


def test_gradients_are_apart_by_one_less_their_cosine() -> None:
    one = {"a": torch.tensor([3.0, 0.0]).double(), "b": torch.tensor([4.0]).double()}
    other = {"a": torch.tensor([0.0, 5.0]).double(), "b": torch.tensor([12.0]).double()}
    assert float(apart(one, other)) == pytest.approx(1.0 - 48.0 / (5.0 * 13.0))
    assert float(apart(one, {name: 2.0 * each for name, each in one.items()})) == pytest.approx(0.0, abs=1e-12)


def test_descent_is_adam_with_a_rate_that_falls_to_nothing() -> None:
    def off(x: Tensor) -> Tensor:
        return (x - 3.0).pow(4).sum()

    start = [1.0, -2.0, 0.5]
    found = descended(torch.tensor(start).double(), off, 20, 0.1)
    for value, end in zip(start, found.tolist(), strict=True):
        mean = square = 0.0
        for step in range(1, 21):
            slope = 4.0 * (value - 3.0) ** 3
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            move = (mean / (1 - 0.9**step)) / (square / (1 - 0.999**step)) ** 0.5
            value -= 0.1 * (21 - step) / 20 * move
        assert end == pytest.approx(value, abs=1e-9)


def test_correlation_is_that_of_numpy() -> None:
    one, other = torch.randn(2, 9, generator=torch.Generator().manual_seed(0)).double()
    assert correlation(one, other) == pytest.approx(float(torch.corrcoef(torch.stack([one, other]))[0, 1]))
    assert correlation(one, torch.ones(9).double()) == 0.0


def test_courses_without_one_gradient_are_refused() -> None:
    several = course(algorithm=FedAvg(local_steps=3, optimizer=SGD(lr=0.1)))
    dropped = replace(course(), model=ModelSpec(GCN(dropout=0.5)))
    for attack in (FeaturesByMatching(), EdgesByMatching()):
        assert "it needs updates of 1 step, here are 3" in attack.problem(several)
        assert "dropout makes gradients random" in attack.problem(dropped)
        assert not attack.problem(course())
