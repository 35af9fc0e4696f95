"""Generators graded by many clients at once: sums are those of what each finds by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedsage import FedSagePlus, foreign_gradients, grading
from isthmus.algorithms.fedsage.grading import Grades
from isthmus.algorithms.fedsage.messages import GeneratorView
from isthmus.algorithms.fedsage.neighbor_generation import FeatureGenerator
from isthmus.core.client import NotTogether
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.testing import toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_close, trace_course

LATENT, HIDDEN, SLOTS = 5, 4, 3


def clients_of(number: int, sparse: bool = False) -> list[GraphClient]:
    """Return clients of different sizes."""
    return [toy_client(data, id=name) for name, data in toy_scenario(number, sparse=sparse).parts.items()]


def views_of(clients: list[GraphClient], strangers: int = 0) -> dict[str, GeneratorView]:
    """Return a view of each client, and of others that are not among those who grade."""
    found = {}
    for k, name in enumerate([*(client.id for client in clients), *(f"other-{i}" for i in range(strangers))]):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            model = FeatureGenerator(LATENT, HIDDEN, SLOTS, clients[0].data.num_features)
            inputs, counts = torch.randn(6 + k, LATENT), torch.randint(1, SLOTS + 1, (6 + k,))
        params = {name: 2.0 * slot.detach() + 0.1 for name, slot in model.named_parameters()}
        found[name] = GeneratorView(params, inputs, counts)
    return found


def alone(views: dict[str, GeneratorView], client: GraphClient) -> dict[str, Params]:
    """Return what a client finds by itself, peer by peer."""
    return {
        peer: {name: torch.zeros_like(tensor) for name, tensor in view.params.items()}
        if peer == client.id
        else foreign_gradients(view, client)
        for peer, view in views.items()
    }


def grades_of(clients: list[GraphClient], views: dict[str, GeneratorView]) -> Grades:
    return Grades(views, clients, lambda k: alone(views, clients[k]))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("strangers", [0, 1])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 0.0, 2.0), (0.0, 0.0, 0.0)])
def test_sums_are_those_of_what_each_client_finds(weights: tuple[float, ...], strangers: int, sparse: bool) -> None:
    clients = clients_of(3, sparse)
    views = views_of(clients, strangers)
    stacked = grades_of(clients, views).stacked()
    each = [alone(views, client) for client in clients]
    for peer, grades in stacked.items():
        for name, grade in grades.items():
            wanted = sum(w * mine[peer][name].double() for w, mine in zip(weights, each, strict=True))
            found = grade.weighted_sum(torch.tensor(weights, dtype=torch.float64))
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
            found.zero_()  # who asked may change it
            again = grade.weighted_sum(torch.tensor(weights, dtype=torch.float64))
            torch.testing.assert_close(again, wanted, rtol=1e-5, atol=1e-4)


def test_a_member_is_what_its_client_finds_and_no_number_is_above_the_bound() -> None:
    clients = clients_of(3)
    views = views_of(clients)
    for peer, grades in grades_of(clients, views).stacked().items():
        for name, grade in grades.items():
            for k, client in enumerate(clients):
                assert torch.equal(grade.member(k), alone(views, client)[peer][name])
                assert float(grade.member(k).abs().max()) <= float(grade.bound()[k])


def test_numbers_that_are_none_are_seen_in_the_bound() -> None:
    clients = clients_of(2)
    views = views_of(clients)
    next(iter(views.values())).inputs[0, 0] = torch.nan
    grade = grades_of(clients, views).stacked()[clients[0].id]["slot_bias"]
    assert not bool((grade.bound() <= 1e18).any())


def test_more_neighbours_than_are_held_at_once_are_graded_by_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = clients_of(2)
    monkeypatch.setattr(grading, "MOST_NUMBERS", 10)
    with pytest.raises(NotTogether, match="more neighbours"):
        grades_of(clients, views_of(clients))


@pytest.mark.parametrize("clients", [2, 4])
def test_a_course_grades_together_and_ends_as_it_does_one_by_one(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []
    sums = Grades.summed

    def noted(grades: Grades, weights: Tensor) -> dict[str, Params]:
        summed.append(len(weights))
        return sums(grades, weights)

    monkeypatch.setattr(Grades, "summed", noted)
    monkeypatch.setattr(Grades, "of_client", lambda grades, position: pytest.fail("a client's own was made"))
    algorithm = FedSagePlus(num_generated=2, latent=4, hidden=5, pretrain_steps=3, cross_rounds=2)
    found: dict[str, Any] = {}
    for runtime in ("auto", "loop"):
        summed.clear()
        found[runtime] = trace_course(
            toy_course(algorithm, num_clients=clients, runtime=runtime), toy_scenario(clients)
        )
        assert found[runtime].ended_by is None
        assert set(summed) == ({clients} if runtime == "auto" else set())
    mine, theirs = (found[runtime].everything(sizes=False) for runtime in ("auto", "loop"))
    require_close(mine, theirs, "graded together")
