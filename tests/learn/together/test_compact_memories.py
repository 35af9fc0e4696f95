"""What clients remember of sparse models stays one stack from round to round, and a resume goes on with its bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import MOON, Ditto, FedDyn, PFedMe, Scaffold
from isthmus.core.federation import ExchangeRules, Federation
from isthmus.core.replies import MemberParams
from isthmus.learn.optimizers import SGD, Adam
from isthmus.learn.together.stacked_features import CompactStack, Rows, StackedFeatures
from isthmus.models import GCN, ModelSpec
from isthmus.models.products.sparse import SparseMatrix
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.runtime.loop import StackedRuntime
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_graph

WEIGHT = "gnn.layers.0.weight"
SGD_ = SGD(lr=0.3, weight_decay=0.01)
MOMENTUM = SGD(lr=0.3, momentum=0.5)
ADAM = Adam(lr=0.02, eps=1e-3)  # far above rounding, which would become a step of full length
METHODS: dict[str, tuple[Any, str]] = {
    "scaffold": (Scaffold(optimizer=SGD_), "variate"),
    "scaffold, momentum": (Scaffold(optimizer=MOMENTUM), "variate"),
    "scaffold, adam": (Scaffold(optimizer=ADAM), "variate"),
    "feddyn": (FedDyn(optimizer=SGD_, alpha=0.5), "linear"),
    "feddyn, adam": (FedDyn(optimizer=ADAM, alpha=0.5), "linear"),
    "ditto": (Ditto(optimizer=SGD_, strength=0.4), "model"),
    "ditto, adam": (Ditto(optimizer=ADAM, strength=0.4, personal_steps=2), "model"),
    "pfedme": (PFedMe(optimizer=SGD_, inner_steps=3), "model"),
    "pfedme, momentum": (PFedMe(optimizer=MOMENTUM, strength=0.5), "model"),
    "pfedme, adam": (PFedMe(optimizer=ADAM, inner_steps=3), "model"),
    "moon": (MOON(optimizer=SGD_), "previous"),
    "moon, adam": (MOON(optimizer=ADAM), "previous"),
}


def simulation(algorithm: Any, runtime: str = "auto") -> Simulation:
    """Return clients of which each has a third of the features in use."""
    parts = {}
    for k in range(6):
        graph = toy_graph(12 + k // 3, num_features=60, seed=k)
        kept = torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(k)) < 0.03
        parts[f"client-{k}"] = replace(graph, x=(graph.x * kept).to_sparse_csr())
    course = toy_course(algorithm, model=ModelSpec(GCN(hidden=5)), num_clients=6, runtime=runtime)
    return Simulation(course, Scenario(parts["client-0"], parts))


def played(of: Simulation, state: Any, rounds: range) -> Any:
    for number in rounds:
        fed = Federation(
            of.runtime,
            seed=0,
            round=number,
            cohort=of.runtime.clients,
            model=of.initial,
            rules=ExchangeRules(min_replies=len(of.clients)),
            report=lambda report: None,
        )
        state = of.course.algorithm.round(state, fed) if number else of.course.algorithm.setup(fed)
        of.runtime.mark(number)
    return state


def memories(of: Simulation, key: str) -> list[dict[str, Tensor]]:
    return [dict(client.state[key]) for client in of.clients.values()]


@pytest.mark.parametrize("name", METHODS)
def test_a_memory_is_one_stack_that_holds_rows_of_occurring_features_alone(name: str) -> None:
    algorithm, key = METHODS[name]
    of, alone = simulation(algorithm), simulation(algorithm, "loop")
    state, expected = played(of, None, range(4)), played(alone, None, range(4))
    assert isinstance(of.runtime, StackedRuntime) and not of.runtime.notes
    stacks = set()
    for client in of.clients.values():
        remembered = client.state[key]
        assert isinstance(remembered, MemberParams) and remembered.stack is not None
        assert isinstance(remembered.stack.each[WEIGHT], CompactStack)
        stacks.add(id(remembered.stack))
    assert len(stacks) <= 2  # as many as blocks
    of.runtime.save_clients()  # and a checkpoint leaves it one
    assert all(client.state[key].stack is not None for client in of.clients.values())
    for mine, theirs in zip(memories(of, key), memories(alone, key), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.params, expected.params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("before", [1, 2])
def test_a_resume_goes_on_with_the_same_bits(name: str, before: int) -> None:
    algorithm, key = METHODS[name]
    of = simulation(algorithm)
    half = played(of, None, range(before + 1))
    saved = of.runtime.save_clients()
    whole = played(of, half, range(before + 1, 5))
    again = simulation(algorithm)
    again.runtime.load_clients(saved)
    resumed = played(again, half, range(before + 1, 5))
    for tensor, other in zip(whole.params.values(), resumed.params.values(), strict=True):
        assert torch.equal(tensor, other)
    for mine, theirs in zip(memories(of, key), memories(again, key), strict=True):
        assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert of.runtime.save_clients() == again.runtime.save_clients()


# ---- what is known of rows that no data touches


def features() -> StackedFeatures:
    """Return three clients with two nodes each: feature 0 occurs at all, 1 at the first two, 4 at nobody."""
    x = torch.tensor(
        [[1, 1, 0, 0, 0], [1, 0, 2, 0, 0], [1, 0, 0, 0, 0], [0, 3, 0, 0, 0], [2, 0, 0, 1, 0], [1, 0, 0, 0, 0]]
    )
    return StackedFeatures(SparseMatrix.from_csr(x.float().to_sparse_csr()), 3)


def compact() -> tuple[StackedFeatures, Tensor]:
    """Return weights, (clients, features, out), that differ in rows of occurring features alone."""
    of = features()
    values = torch.arange(10.0).view(5, 2).repeat(3, 1)
    values[of.used] += torch.arange(len(of.used)).unsqueeze(1) + 0.5
    return of, values.view(3, 5, 2)


def test_rows_that_are_the_same_wherever_no_data_touches_them_are_held_once() -> None:
    of, values = compact()
    assert of.everywhere.tolist() == [True, False, False, False, False]
    for start in (Rows(values), list(values)):
        found = of.compacted(start)
        assert isinstance(found, Rows) and isinstance(found.stacked, CompactStack)
        assert torch.equal(found.stacked.whole(), values)
        assert all(torch.equal(found.stacked.member(k), values[k]) for k in range(3))
        assert len(found.stacked.values) == len(of.used)


@pytest.mark.parametrize(("client", "feature"), [(0, 3), (0, 4), (1, 4), (2, 4), (2, 2), (1, 3)])
def test_one_number_that_differs_is_seen(client: int, feature: int) -> None:
    of, values = compact()
    changed = values.clone()
    changed[client, feature, 1] += 1e-4
    found = of.compacted(list(changed))
    assert isinstance(found, Rows) and not isinstance(found.stacked, CompactStack)
    assert torch.equal(found.values, changed)


def test_what_stands_in_the_rest_of_a_feature_that_occurs_everywhere_counts_nowhere() -> None:
    x = torch.tensor([[1.0, 0.0]]).repeat(50, 1).to_sparse_csr()
    of, values = StackedFeatures(SparseMatrix.from_csr(x), 50), torch.ones(50, 2)
    weights = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # no order adds up alike
    one, other = (CompactStack(values, torch.tensor([[rest] * 2, [1.0] * 2]), of) for rest in (0.0, 1e30))
    assert torch.equal(one.weighted_sum(weights), other.weighted_sum(weights))
    assert torch.equal(one.whole(), other.whole())
