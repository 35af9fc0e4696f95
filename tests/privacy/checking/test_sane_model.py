"""sane_model: units that are dead or alike, models that jump; who refuses says so by name, in every runtime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedGRL, Local
from isthmus.attacks.crafting.dead_model import DeadServer
from isthmus.attacks.crafting.read_rows import RowReadingServer
from isthmus.core.errors import RefusedRequest
from isthmus.core.guards.guard import AtClient, Guard
from isthmus.core.protocol import EvaluateModel, Position
from isthmus.core.record import Record
from isthmus.models import MLP, ModelSpec
from isthmus.privacy import Quantise, SaneModel, SecureSum
from isthmus.privacy.checking.sane_model import alike_units, dead_units, distance
from isthmus.sites.silo.required import check_required, problems_of_guards
from isthmus.testing import toy_client, toy_course, toy_scenario, toy_world, trace_course, trace_sites
from isthmus.testing.hostile.siege import known_here
from tests.privacy.checking.toys import Ask, ask, update

WRONG = ("client-1",)


# ---- units


def test_dead_units_are_zero_or_too_far_below() -> None:
    matrix = torch.tensor([[1.0, 0.0, 3.0, 3.0], [0.0, 0.0, 4.0, 4.0]])
    assert dead_units(matrix, None).tolist() == [False, True, False, False]
    bias = torch.tensor([-9.9, 5.0, -50.1, -49.9])
    assert dead_units(matrix, bias).tolist() == [False, True, True, False]
    assert dead_units(matrix, torch.zeros(3)).tolist() == [False, True, False, False]  # the bias of something else


def test_alike_units_lie_within_a_few_degrees_of_another_or_against_it() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 6, generator=draw)
    assert not alike_units(matrix).any()
    matrix[:, 3], matrix[:, 5] = 2.0 * matrix[:, 1], -0.1 * matrix[:, 2]
    assert alike_units(matrix).tolist() == [False, True, True, True, False, True]
    turned = matrix[:, :1] * math.cos(math.radians(4.0))
    side = torch.nn.functional.normalize(
        matrix[:, 4] - (matrix[:, 4] @ matrix[:, 0]) * matrix[:, 0] / matrix[:, 0].norm() ** 2, dim=0
    )
    turned = turned + math.sin(math.radians(4.0)) * matrix[:, 0].norm() * side.unsqueeze(1)
    assert not alike_units(torch.cat([matrix[:, :1], turned], dim=1)).any()
    assert not alike_units(matrix[:7]).any()  # few inputs: by chance


def asked(guard: SaneModel, *params: dict[str, torch.Tensor], own: float = 1.0) -> Any:
    """Ask a client to train some models in a row; it moves each by `own`."""
    client = toy_client()
    at = AtClient(client, "guard.0")
    for number, each in enumerate(params, start=1):
        client.position = Position(0, number, 0)
        request = Ask(each)
        guard.receive(request, at)
        moved = {name: tensor.clone() for name, tensor in each.items()}
        next(iter(moved.values())).reshape(-1)[0] += own
        guard.release(Ask(moved), request, at)
    return at


def model(shift: float = 0.0, seed: int = 0) -> dict[str, torch.Tensor]:
    params = {"a.weight": torch.randn(10, 4, generator=torch.Generator().manual_seed(seed)), "a.bias": torch.zeros(4)}
    params["a.weight"][3, 2] += shift
    return params


def test_a_share_of_dead_or_alike_units_is_refused_and_one_less_is_not() -> None:
    params = model()
    params["a.weight"][:, 0] = 0.0
    asked(SaneModel(dead=0.25), params)
    with pytest.raises(RefusedRequest, match=r"the model in Ask .* 25% of the units of a.weight are dead; at most 20%"):
        asked(SaneModel(dead=0.2), params)
    params = model()
    params["a.weight"][:, 0] = params["a.weight"][:, 1]
    asked(SaneModel(alike=0.5), params)
    with pytest.raises(RefusedRequest, match=r"50% of the units of a.weight are alike; at most 49%"):
        asked(SaneModel(alike=0.49), params)
    params = model()
    params["a.bias"] = torch.full((4,), -1e4)
    with pytest.raises(RefusedRequest, match=r"100% of the units of a.weight are dead"):
        asked(SaneModel(), params)


def test_a_model_may_move_so_many_times_as_far_as_ones_own_training_did() -> None:
    asked(SaneModel(times=3.0), model(), model(2.9), own=1.0)
    asked(SaneModel(times=3.0), model(), model(5.8), own=2.0)
    with pytest.raises(
        RefusedRequest, match=r"it is 3.1 from the one before, 1 rounds ago; its own training moved 1 at"
    ):
        asked(SaneModel(times=3.0), model(), model(3.1), own=1.0)
    asked(SaneModel(times=None), model(), model(1e6))
    asked(SaneModel(times=3.0), model(1e6))  # the first one has nothing to be compared with
    asked(SaneModel(times=3.0), model(), model(1e6), own=0.0)  # nor has who never trained


def test_rounds_in_which_a_client_was_not_asked_count() -> None:
    guard, client = SaneModel(times=2.0), toy_client()
    at = AtClient(client, "guard.0")
    client.position = Position(0, 1, 0)
    guard.release(update_of(model(), 1.0), Ask(model()), at)
    client.position = Position(0, 4, 0)
    guard.receive(Ask(model(5.9)), at)
    with pytest.raises(RefusedRequest, match="3 rounds ago"):
        guard.receive(Ask(model(6.1)), at)


def update_of(params: dict[str, torch.Tensor], own: float) -> Record:
    moved = {name: tensor.clone() for name, tensor in params.items()}
    moved["a.weight"][0, 0] += own
    return Ask(moved)


def test_the_longest_own_change_counts_and_distances_are_over_what_both_have() -> None:
    guard, client = SaneModel(times=1.0), toy_client()
    at = AtClient(client, "guard.0")
    for round, own in ((1, 4.0), (2, 1.0)):
        client.position = Position(0, round, 0)
        guard.release(update_of(model(), own), Ask(model()), at)
    client.position = Position(0, 3, 0)
    guard.receive(Ask(model(3.9)), at)
    assert (
        distance({"w": torch.tensor([3.0]), "x": torch.ones(2)}, {"w": torch.tensor([0.0]), "y": torch.ones(1)}) == 3.0
    )


def test_only_named_requests_are_looked_at() -> None:
    dead = {"a.weight": torch.zeros(9, 4)}
    asked(SaneModel(requests=("Other",)), dead)
    with pytest.raises(RefusedRequest):
        asked(SaneModel(requests=("Ask",)), dead)
    client = toy_client()
    request = EvaluateModel(dead, ("val",), "accuracy", False)
    with pytest.raises(RefusedRequest, match="the model in EvaluateModel"):
        SaneModel().receive(request, AtClient(client, "guard.0"))
    assert ask([1.0]) is not None and update([1.0]) is not None


# ---- in courses


def course(*guards: Guard, **changes: Any) -> Any:
    words = {"rounds": 3, "num_clients": 3, "model": ModelSpec(MLP(hidden=9)), "min_replies": 1, **changes}
    return toy_course(FedAvg(local_steps=1), guards=guards, **words)


CASES: dict[str, tuple[Guard, str, set[int]]] = {
    "a dead model": (DeadServer(clients=WRONG), "are dead", {1}),
    "a dead model, later": (DeadServer(clients=WRONG, from_round=2), "are dead", {2}),
    "bins": (RowReadingServer(clients=WRONG), "are alike", {1}),
    # What is odd is that the true model is so far from the first one that came.
    "traps": (RowReadingServer(clients=WRONG, kind="traps"), "from the one before", {2, 3}),
    "traps, later": (RowReadingServer(clients=WRONG, kind="traps", from_round=3), "from the one before", {3}),
}


@pytest.mark.parametrize("name", CASES)
def test_who_is_sent_a_crafted_model_refuses_it_in_every_runtime_and_between_sites(name: str, tmp_path: Path) -> None:
    server, part, rounds = CASES[name]
    world, reasons = toy_world(), {}
    wide = toy_scenario(3, sparse=True)
    for runtime in ("loop", "strict", "auto"):
        trace = trace_course(course(server, SaneModel(times=2.0), runtime=runtime), wide)
        assert trace.ended_by is None
        failures = [(r.position.round, r.request, f) for r in trace.exchanges for f in r.failures]
        assert {(f.client, f.kind) for _, _, f in failures} == {(WRONG[0], "refused")}
        trained = {round: f.reason for round, request, f in failures if request == "TrainModel"}
        assert set(trained) == rounds and all(part in reason for reason in trained.values()), trained
        reasons[runtime] = trained
    assert reasons["loop"] == reasons["strict"]
    if name != "a dead model":
        return
    with known_here(type(server)):
        made = world.course(FedAvg(local_steps=1), guards=(server, SaneModel()), rounds=2, min_replies=1)
        sites = trace_sites(made, world.silos(tmp_path), tmp_path / "run")
    assert sites.ended_by is None
    found = {(f.client, f.kind) for r in sites.exchanges if r.position.round == 1 for f in r.failures}
    assert found == {(WRONG[0], "refused")}
    # Why in full stays at the silo.
    told = [f.reason for r in sites.exchanges for f in r.failures if r.position.round == 1]
    assert all("does not believe what it was sent" in reason or "are dead" in reason for reason in told), told


def test_an_honest_course_is_never_refused_and_the_server_goes_on_from_where_it_was() -> None:
    scenario = toy_scenario(3)
    plain, guarded = trace_course(course(), scenario), trace_course(course(SaneModel()), scenario)
    assert not [f for r in guarded.exchanges for f in r.failures]
    state: Any = guarded.state
    assert all(torch.equal(tensor, state.params[name]) for name, tensor in plain.state.params.items())  # type: ignore[union-attr]


def test_what_has_no_model_to_look_at_or_only_bytes_is_refused_before_the_start() -> None:
    with pytest.raises(ValueError, match="the server of Local sends clients no model: leave it out"):
        toy_course(Local(), guards=(SaneModel(),))
    with pytest.raises(ValueError, match="Quantise stands before SaneModel and leaves no numbers"):
        course(Quantise(), SaneModel())
    with pytest.raises(ValueError, match="requests names 'TrainModle'"):
        course(SaneModel(requests=("TrainModle",)))
    assert course(SaneModel(), Quantise()).guards and course(SaneModel(), SecureSum()).guards
    assert FedGRL is not None


@pytest.mark.parametrize("change", [{"dead": 1.1}, {"alike": -0.1}, {"times": 0.0}, {"times": math.inf}])
def test_impossible_bounds_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        SaneModel(**change)


def test_a_policy_can_require_it_with_bounds() -> None:
    required = {"sane_model": {"times": 5.0, "dead": 0.5}}
    check_required(required)
    assert not list(problems_of_guards(required, (SaneModel(),)))
    (problem,) = problems_of_guards(required, ())
    assert (
        "requires the guard sane_model with times 5 or less and dead 0.5 or less, which the course does not" in problem
    )
    for weak in (SaneModel(times=6.0), SaneModel(times=None), SaneModel(dead=0.6)):
        assert list(problems_of_guards(required, (weak,)))
    assert list(problems_of_guards({"sane_model": {}}, (Quantise(), SaneModel())))
