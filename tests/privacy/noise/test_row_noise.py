"""Noise on what clients say of single nodes: lengths and noise by hand, the account, and the methods it is for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.algorithms import GFLAPPNP, FedAvg, FedGL, FedGNN
from isthmus.algorithms.fedgl.messages import Guidance, LocalView, TrainWithGuidance, View
from isthmus.algorithms.fedgnn.user_items import SharedUsers
from isthmus.algorithms.gfl_appnp.messages import HiddenShare
from isthmus.core.errors import BadInput
from isthmus.core.exposure import exposure, fields_with_rows
from isthmus.core.protocol import Position
from isthmus.core.random import Secret
from isthmus.core.record import Record, State
from isthmus.learn.tasks import NodeSamples
from isthmus.models import MLP, ModelSpec
from isthmus.privacy.accounting.gaussian import epsilon_of
from isthmus.privacy.noise.row_noise import RowNoise, as_shares, clipped_rows
from isthmus.testing import check_guard, toy_course, toy_graph, toy_scenario, trace_course
from tests.algorithms.fedgnn.test_fedgnn import course_of, link_scenario
from tests.algorithms.gfl_appnp.test_gfl_appnp import hosts

from .test_client_dp import half, release

VIEW = View(torch.tensor([[0.7, 0.3], [0.2, 0.8]]), torch.tensor([[3.0, 4.0, 0.0], [0.1, 0.0, 0.0]]))
REPLY = LocalView({"w": torch.ones(2)}, 2.0, VIEW)
ASKED = TrainWithGuidance(
    {"w": torch.ones(2)},
    Guidance(
        torch.full((2,), -1), torch.zeros(3, dtype=torch.int32), torch.empty(0, dtype=torch.int32), torch.empty(0)
    ),
)
LAPLACE = RowNoise(noise=4.0, kind="laplace")


# ---- the arithmetic


@pytest.mark.parametrize("order", [1.0, 2.0])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
def test_any_two_rows_are_no_further_apart_than_twice_the_clip(order: float, clip: float) -> None:
    points = [0.0, 1e-30, 1.0, -1.0, 7.5, -3e8, 1e30, math.inf, math.nan]
    rows = torch.tensor(list(itertools.product(points, repeat=3)), dtype=torch.float64)
    found = clipped_rows(rows, clip, order)
    assert float(torch.linalg.vector_norm(found, ord=order, dim=1).max()) <= clip
    apart = torch.cdist(found, found, p=order)
    assert 2 * clip * (1 - 1e-5) < float(apart.max()) <= 2 * clip


def test_rows_that_are_short_enough_stay_as_they_are() -> None:
    rows = torch.tensor([[0.3, -0.4], [3.0, 4.0]], dtype=torch.float64)
    assert clipped_rows(rows, 1.0, 2.0).tolist() == [[0.3, -0.4], pytest.approx([0.6, 0.8], abs=1e-5)]
    assert clipped_rows(rows, 1.0, 1.0)[1].tolist() == pytest.approx([3 / 7, 4 / 7], abs=1e-5)


@pytest.mark.parametrize(
    ("guard", "spread"), [(RowNoise(clip=0.5, noise=3.0), 1.5), (replace(LAPLACE, clip=0.5), 2.0 * math.sqrt(2.0))]
)
def test_the_noise_is_what_is_promised_on_each_number(guard: RowNoise, spread: float) -> None:
    rows = torch.zeros(3000, 4)
    found = release(guard, SharedUsers(rows, torch.arange(3000), torch.arange(3000))).embeddings
    assert float(found.std()) == pytest.approx(spread, rel=0.03)
    assert found.dtype == torch.float32 and len(torch.unique(found)) > 11_000


def test_probabilities_stay_probabilities_and_other_fields_as_they_are() -> None:
    found = release(RowNoise(noise=20.0), REPLY, ASKED)
    assert float(found.view.predictions.min()) >= 0.0
    assert found.view.predictions.sum(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert not torch.equal(found.view.embeddings, VIEW.embeddings)
    assert found.params is REPLY.params and found.weight == 2.0
    assert ASKED.problem(found) == ""


def test_rows_of_no_probability_at_all_are_even() -> None:
    assert as_shares(torch.tensor([[-1.0, -2.0], [3.0, 1.0]])).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_gradients_of_a_node_are_one_row_whatever_tensors_they_are_in() -> None:
    gradients = {"a": torch.full((2, 1, 2, 2), 3.0), "b": torch.full((2, 1, 1), 8.0)}
    found = release(RowNoise(clip=1.0, noise=0.0), HiddenShare(torch.zeros(2, 3), gradients))
    length = math.sqrt(4 * 9.0 + 64.0)
    for name, part in gradients.items():
        assert torch.allclose(found.gradients[name], part / length, atol=1e-4)
    assert release(RowNoise(), HiddenShare(torch.zeros(2, 3), {})).gradients == {}


def test_the_same_rows_have_the_same_noise_and_others_other() -> None:
    secret = Secret(b"k" * 32)
    reply = SharedUsers(torch.zeros(2, 3), torch.arange(2), torch.arange(2))
    other = replace(reply, embeddings=torch.full((2, 3), 1e-3))
    first, again, third = (release(RowNoise(), r, secret=secret).embeddings for r in (reply, reply, other))
    assert torch.equal(first, again) and float((first - third).abs().min()) > 1e-3


def test_without_a_clip_it_is_no_guard() -> None:
    assert release(RowNoise(clip=None, noise=0.0), REPLY, ASKED) is REPLY


def test_which_fields_have_rows_is_said_by_the_records() -> None:
    assert fields_with_rows(LocalView) == ("predictions", "embeddings")
    assert fields_with_rows(HiddenShare) == ("hidden", "gradients")
    assert fields_with_rows(SharedUsers) == ("embeddings",)


# ---- the account


def outcomes(shift: float, scale: float, edges: np.ndarray) -> np.ndarray:
    """Return the probability of each interval under Laplace(shift, scale), by its distribution function."""
    z = (edges - shift) / scale
    cdf = np.where(z < 0, 0.5 * np.exp(z), 1 - 0.5 * np.exp(-z))
    return np.diff(cdf)


def test_epsilon_of_laplace_noise_holds_for_every_outcome_of_the_two_farthest_rows() -> None:
    edges = np.linspace(-40, 40, 4001)
    one, other = outcomes(1.0, 4.0, edges), outcomes(-1.0, 4.0, edges)  # clip 1, scale 4
    worst = float(np.max(np.abs(np.log(one / other))))
    assert worst <= LAPLACE.epsilon_of(1) + 1e-8 and worst == pytest.approx(0.5)


def test_epsilon_is_that_of_as_many_rows_as_a_client_sent() -> None:
    assert RowNoise(noise=4.0).epsilon_of(3) == pytest.approx(epsilon_of(math.sqrt(3) * 2 / 4.0, 1e-5))
    assert LAPLACE.epsilon_of(1) == 0.5 and LAPLACE.epsilon_of(0) == 0.0
    assert 20.0 < LAPLACE.epsilon_of(200) < 60.0  # adding up would be 100
    assert RowNoise(noise=0.0).epsilon_of(1) == math.inf


def test_clients_are_charged_for_each_field_in_which_they_are_asked() -> None:
    memories: dict[str, State] = {}
    notes: list[str] = []
    guard = RowNoise(noise=8.0, epsilon=100.0)
    for number, asked in enumerate(("ab", "b"), start=1):
        half(guard, asked, memories=memories, notes=notes, at=Position(0, number, 0)).sent(dict.fromkeys(asked, ASKED))
    (memory,) = memories.values()
    assert memory["asked"] == {"a": 2, "b": 4} and memory["in_round"] == 2
    assert guard.spent(memory)["epsilon of rows"] == guard.epsilon_of(4)
    assert "predictions, embeddings" in notes[0] and "the params in the same LocalView have no noise" in notes[1]
    assert len(notes) == 2


def test_a_course_ends_when_its_budget_is_spent() -> None:
    guard = RowNoise(clip=1.0, noise=30.0, epsilon=1.0)
    trace = trace_course(toy_course(FedGL(local_steps=1), guards=(guard,), rounds=30), toy_scenario())
    assert trace.ended_by is None
    told = [report.spent["epsilon of rows"] for report in trace.rounds]
    assert told == pytest.approx([guard.epsilon_of(2 * t) for t in range(1, len(told) + 1)])
    assert told[-1] <= 1.0 < guard.epsilon_of(2 * len(told) + 2) and len(told) < 30


# ---- the methods it is for


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_neutral_it_is_no_guard_to_the_bit(runtime: str) -> None:
    plain, behind = (
        trace_course(toy_course(FedGL(local_steps=1), guards=guards, runtime=runtime), toy_scenario())
        for guards in ((), (RowNoise(clip=None, noise=0.0),))
    )
    mine, theirs = (trace.state.params for trace in (plain, behind))  # type: ignore[union-attr]
    for name in mine:
        assert torch.allclose(mine[name], theirs[name], atol=1e-6 if runtime == "auto" else 0.0)


def test_it_keeps_to_what_every_guard_must_keep_to() -> None:
    check_guard(RowNoise(noise=0.1), algorithms=(FedGL(local_steps=1),), skip=("stacked_equals_loop",))


def shared(trace: Any, kind: type[Record]) -> list[Any]:
    return [m.outcome.reply for m in trace.messages if isinstance(m.outcome.reply, kind)]


def test_fedgnn_s_users_and_gfl_appnp_s_nodes_get_it_too() -> None:
    guard = RowNoise(clip=1.0, noise=100.0)
    on_links = trace_course(
        course_of(FedGNN(clip=None, noise=0.0, pseudo_items=0, expand_every=1), guards=(guard,)), link_scenario()
    )
    assert on_links.ended_by is None and float(shared(on_links, SharedUsers)[0].embeddings.std()) > 50.0
    scenario = hosts(toy_graph(10, seed=1))
    made = toy_course(
        GFLAPPNP(), guards=(guard,), rounds=1, num_clients=10, task=NodeSamples(), model=ModelSpec(MLP(hidden=5))
    )
    on_nodes = trace_course(made, scenario)
    assert on_nodes.ended_by is None
    hidden = torch.cat([reply.hidden for reply in shared(on_nodes, HiddenShare)])
    assert float(hidden.std()) > 50.0


def test_who_sees_what_is_told() -> None:
    found = {exchange.request: exchange.wire_up for exchange in exposure(FedGL, (RowNoise(),))}
    assert found["TrainWithGuidance"].endswith("predictions and embeddings noisy")
    assert "noisy" not in found["ShareNodes"]


# ---- what is refused


def test_methods_that_say_nothing_of_nodes_and_budgets_of_less_than_a_round_are_refused() -> None:
    with pytest.raises(ValueError, match="FedAvg sends nothing of single nodes"):
        toy_course(FedAvg(), guards=(RowNoise(),))
    with pytest.raises(ValueError, match="the first answer would spend"):
        toy_course(FedGL(), guards=(RowNoise(epsilon=0.1),))


@pytest.mark.parametrize(
    "gradients",
    [{"a": torch.ones(2, 1, dtype=torch.int64)}, {"a": torch.ones(2)}, {"a": torch.ones(2, 1), "b": torch.ones(3, 1)}],
)
def test_what_has_no_rows_of_numbers_is_refused(gradients: dict[str, Tensor]) -> None:
    with pytest.raises(BadInput, match="gradients has"):
        release(RowNoise(), HiddenShare(torch.zeros(2, 3), gradients))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clip": 0.0}, "clip is 0.0; it must be positive, or null"),
        ({"clip": None}, "clip is null: what is not clipped"),
        ({"noise": -1.0}, "noise is -1.0; it must be at least 0"),
        ({"kind": "uniform"}, "kind is 'uniform'; choose from gaussian, laplace"),
        ({"delta": 0.0}, "delta is 0.0; it must be between 0 and 1"),
        ({"epsilon": -1.0}, "epsilon is -1.0; it must be positive, or null"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RowNoise(**fields)
