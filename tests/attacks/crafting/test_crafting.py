"""Malicious servers: what they send, what they read off replies by hand, and that the course goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks import DeadModel, ReadRows
from isthmus.attacks.attack import Case, NothingSeen
from isthmus.attacks.crafting.crafting_server import trains
from isthmus.attacks.crafting.dead_model import DeadServer, shares_that_lead_to
from isthmus.attacks.crafting.read_rows import RowReadingServer, Rows, first_layer
from isthmus.attacks.inputs.label_shares import shares_of
from isthmus.attacks.poisoning import run_poisoned
from isthmus.core.errors import BadInput
from isthmus.core.protocol import EvaluateModel, KeepBest, Position
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, MLP, SAGE, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.testing import toy_course, toy_scenario
from isthmus.testing.attacks import attacked

AT = Position(0, 1, 0)


def course(steps: int = 1, **changes: Any) -> isthmus.Course:
    words = {"rounds": 2, "model": ModelSpec(MLP(hidden=64, dropout=0.0)), **changes}
    return toy_course(FedAvg(local_steps=steps, optimizer=SGD(lr=0.2, weight_decay=1e-3)), **words)


# ---- labels


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("gnn", [GCN(hidden=5, dropout=0.5), SAGE(hidden=5), MLP(hidden=5)], ids=repr)
def test_a_dead_model_tells_label_shares_exactly_whatever_the_network(gnn: Any, steps: int) -> None:
    made = attacked(DeadModel(), course(steps, model=ModelSpec(gnn)), toy_scenario(3))
    guess = made.attack.guess(made.seen, made.known)
    for client, part in made.case.scenario.parts.items():
        assert torch.allclose(guess[client], shares_of(part), atol=1e-5), client


def test_shares_lead_to_the_bias_step_by_step() -> None:
    shares, bias = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for _ in range(4):
        bias = bias + 0.3 * (shares - torch.exp(bias) / torch.exp(bias).sum() - 0.01 * bias)
    assert torch.allclose(shares_that_lead_to(bias, lr=0.3, decay=0.01, steps=4), shares, atol=1e-9)
    assert not torch.allclose(shares_that_lead_to(bias, lr=0.3, decay=0.01, steps=3), shares, atol=1e-2)


# ---- rows


@pytest.mark.parametrize("kind", ["bins", "traps"])
@pytest.mark.parametrize("gnn", [MLP(hidden=400, dropout=0.0), SAGE(hidden=400, dropout=0.0)], ids=repr)
def test_rows_of_training_nodes_are_read_as_they_are(gnn: Any, kind: str) -> None:
    made = attacked(ReadRows(kind=kind), course(model=ModelSpec(gnn)), toy_scenario(3, num_nodes=24))
    found = made.attack.scores(made.attack.guess(made.seen, made.known), made.truth)
    assert found["read"] > (0.9 if kind == "bins" else 0.5)
    assert found["right"] > 0.3


def test_what_a_gcn_reads_is_the_mean_over_the_neighbourhood() -> None:
    scenario = toy_scenario(3, num_nodes=24)
    made = attacked(ReadRows(), course(model=ModelSpec(GCN(hidden=400, dropout=0.0))), scenario)
    assert made.attack.scores(made.attack.guess(made.seen, made.known), made.truth)["read"] > 0.8
    part = scenario.parts["client-2"]
    dense = torch.eye(part.num_nodes, dtype=torch.float64)
    dense[part.edge_index[0], part.edge_index[1]] = 1.0
    half = dense.sum(dim=1).rsqrt()
    expected = (half.unsqueeze(1) * dense * half) @ part.x.double()
    assert torch.allclose(made.truth["client-2"].x, expected, atol=1e-5)


def test_bins_have_one_direction_and_ascending_thresholds_and_traps_one_each() -> None:
    params = {
        "a.weight": torch.randn(6, 5),
        "a.bias": torch.zeros(5),
        "b.weight": torch.randn(5, 3),
        "b.bias": torch.ones(3),
    }
    bins = RowReadingServer(middle=1.0, spread=2.0).crafted(params, AT)
    assert (bins["a.weight"] == bins["a.weight"][:, :1]).all() and (bins["b.weight"] == bins["b.weight"][:1]).all()
    quantiles = torch.distributions.Normal(1.0, 2.0).icdf(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))
    length = bins["a.weight"][:, 0].norm()
    assert torch.allclose((-bins["a.bias"] / length).float(), quantiles, atol=1e-5) and not bins["b.bias"].any()
    traps = RowReadingServer(kind="traps", among_nodes=4).crafted(params, AT)
    assert torch.linalg.matrix_rank(traps["a.weight"]) == 5
    lengths = traps["a.weight"].norm(dim=0)
    assert torch.allclose(lengths, lengths[0].expand(5))
    assert torch.equal(traps["b.weight"].float(), params["b.weight"])
    assert torch.allclose(
        traps["a.bias"] / lengths[0], torch.tensor(-0.67449, dtype=torch.float64), atol=1e-4
    )  # a quarter is above
    other = RowReadingServer().crafted(params, Position(0, 2, 0))
    assert not torch.allclose(other["a.weight"], RowReadingServer().crafted(params, AT)["a.weight"])


def test_the_first_layer_is_the_first_matrix_with_a_bias_and_neighbours_are_left_out() -> None:
    sage = {"l.neighbor_weight": torch.ones(4, 2), "l.own_weight": torch.ones(4, 2), "l.bias": torch.zeros(2)}
    assert first_layer({**sage, "m.weight": torch.ones(2, 2), "m.bias": torch.zeros(2)}) == (
        "l.own_weight",
        "l.bias",
        ["m.weight"],
    )
    with pytest.raises(NothingSeen, match="no first layer with a bias"):
        first_layer({"w": torch.ones(3, 3)})


def test_what_is_read_is_counted_among_training_nodes_and_rows_that_are_none_are_wrong() -> None:
    rows = Rows(torch.eye(4).double(), torch.tensor([True, True, False, False]), 0.01)
    read = torch.tensor([[1.0, 0.001, 0, 0], [0, 0, 1, 0], [0.5, 0.5, 0, 0]]).double()
    assert rows.found_in(read) == {"read": 0.5, "right": pytest.approx(2 / 3)}
    assert rows.found_in(rows) == {"read": 1.0, "right": 1.0}
    assert rows.found_in(torch.zeros(0, 0))["read"] == 0.0


# ---- the course


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_the_model_after_a_crafted_round_is_the_one_before_and_the_journal_says_so(runtime: str) -> None:
    scenario = toy_scenario(3)
    made = course(rounds=1, runtime=runtime)
    wrong = run_poisoned(made, DeadServer(), scenario=scenario)
    start = run_poisoned(replace(made, rounds=1), scenario=scenario)
    initial = attacked(DeadModel(), made, scenario).seen.initial
    assert all(torch.equal(tensor, wrong.params[name]) for name, tensor in initial.items())
    assert any(not torch.equal(tensor, start.params[name]) for name, tensor in initial.items())
    assert any(note.startswith("models crafted by the server: DeadServer(") for note in wrong.notes)
    assert any("DeadServer" in str(guard) for guard in wrong.events[0]["course"]["guards"])


def test_only_requests_to_train_are_crafted_for_those_that_are_named_in_those_rounds() -> None:
    from isthmus.algorithms.fedavg import TrainModel

    assert trains(TrainModel) and not trains(EvaluateModel) and not trains(KeepBest)
    server = DeadServer(from_round=2, rounds=2)
    assert [server.acts(Position(0, round, 0)) for round in range(5)] == [False, False, True, True, False]
    with pytest.raises(BadInput, match=r"DeadServer.clients has 'client-9'; known: client-0"):
        run_poisoned(course(), DeadServer(clients=("client-9",)), scenario=toy_scenario(3))


def test_behind_a_secure_sum_single_clients_are_not_seen() -> None:
    case = Case(course(guards=(SecureSum(),)), toy_scenario(3))
    made = attacked(DeadModel(), case.course, case.scenario)
    guess = made.attack.guess(made.seen, made.known)
    assert torch.equal(guess["client-0"], guess["client-1"])  # all that is seen is the sum


@pytest.mark.parametrize(
    ("made", "changes", "told"),
    [
        (ReadRows(), {"model": ModelSpec(MLP(dropout=0.5))}, "dropout takes numbers away at random"),
        (ReadRows(kind="traps"), {"model": ModelSpec(MLP(dropout=0.5, input_dropout=0.1))}, "dropout takes numbers"),
        (ReadRows(), {"model": ModelSpec(MLP(dropout=0.0, batch_norm=True))}, "batch norm mixes nodes"),
        (ReadRows(from_round=9), {}, "from_round is 9, and the course has 2 rounds"),
        (DeadModel(at_round=9), {}, "at_round is 9, and the course has 2 rounds"),
        (DeadModel(), {"algorithm": FedAvg(optimizer=Adam())}, "only algorithm.optimizer.name=sgd"),
        (ReadRows(), {"algorithm": FedAvg(local_steps=2)}, "it needs updates of 1 step, here are 2"),
    ],
)
def test_what_cannot_be_read_is_told(made: Any, changes: dict[str, Any], told: str) -> None:
    assert told in made.problem(replace(course(), **changes))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ReadRows(kind="holes"), "kind"),
        (lambda: ReadRows(rounds=0), "rounds"),
        (lambda: DeadModel(at_round=0), "at_round"),
        (lambda: DeadServer(from_round=0), "from_round"),
    ],
)
def test_impossible_settings_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
