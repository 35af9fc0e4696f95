from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg, FedEx, FedProx, Scaffold
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedex import ArmState, ArmUpdate, TrainAsDrawn
from isthmus.config.load import course_digest, course_to_dict, load_course
from isthmus.core.exposure import exposure
from isthmus.core.folds import Median
from isthmus.core.random import torch_generator
from isthmus.learn.optimizers import SGD, read_params
from isthmus.privacy import GUARDS
from isthmus.runs.folder import load_checkpoint
from isthmus.runs.journal import read_journal
from isthmus.runs.simulated import run
from isthmus.testing import toy_client, toy_course, toy_scenario

from .reference import assert_close, assert_equal

INNER = FedAvg(local_steps=2, optimizer=SGD(lr=0.2, weight_decay=0.01))


def test_arms_are_all_combinations_of_rates_steps_and_decays() -> None:
    found = FedEx(inner=INNER, rates=(0.5, 1.0), steps=(1, 3), decays=(0.0, 0.1))
    arms = [found.arm(place) for place in range(found.num_arms)]
    told = [(arm.optimizer.lr, arm.local_steps, arm.optimizer.weight_decay) for arm in arms]
    assert told == [(lr, steps, decay) for lr in (0.1, 0.2) for steps in (1, 3) for decay in (0.0, 0.1)]
    assert FedEx(inner=INNER, rates=(1.0,)).arm(0) == INNER
    assert found.told(1) == "lr=0.1 local_steps=1 weight_decay=0.1"


def test_with_one_arm_it_is_the_method_that_it_is_around() -> None:
    scenario = toy_scenario(3)
    for inner in (INNER, FedProx(local_steps=2, mu=0.3)):
        ours, theirs = (run(toy_course(each), scenario=scenario) for each in (FedEx(inner=inner, rates=(1.0,)), inner))
        assert_equal(ours.params, theirs.params)
        assert ours.metrics == theirs.metrics


def test_a_client_trains_as_the_arm_says_that_it_draws_and_tells_its_loss() -> None:
    client, found = toy_client(), FedEx(inner=INNER, rates=(0.1, 1.0, 5.0))
    start = read_params(client.model)
    theta = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    reply = found.train(TrainAsDrawn(start, theta), client)
    drawn = int(reply.chosen.argmax())
    expected = replace(INNER, optimizer=SGD(lr=0.2 * (0.1, 1.0, 5.0)[drawn], weight_decay=0.01))
    assert_equal(reply.params, expected.train(TrainModel(start), client).params)
    metrics, counts = client.evaluate(reply.params, ("val",))
    assert float(reply.chosen[drawn]) == counts["val"] / reply.weight and reply.weight == client.num_examples
    assert float(reply.losses[drawn]) == pytest.approx(float(reply.chosen[drawn]) * metrics["val"]["loss"])
    assert int((reply.chosen != 0).sum()) == int((reply.losses != 0).sum()) == 1


def test_arms_are_drawn_by_their_probabilities() -> None:
    theta = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    client, found = toy_client(), FedEx(inner=replace(INNER, local_steps=1), rates=(0.5, 1.0, 2.0))
    start, counts = read_params(client.model), [0, 0, 0]
    for number in range(300):
        client.generator = lambda purpose, number=number: torch_generator(number, purpose)  # type: ignore[method-assign,misc]
        counts[int(found.train(TrainAsDrawn(start, theta), client).chosen.argmax())] += 1
    assert [count / 300 for count in counts] == pytest.approx([0.1, 0.2, 0.7], abs=0.08)


def by_hand(state: dict[str, Any], clients: list[tuple[int, float, float]], discount: float) -> dict[str, Any]:
    """Return theta after a round, by sums over clients (arm, validation examples, loss) as the paper has them."""
    theta, num_arms = state["theta"], len(state["theta"])
    total = sum(v for _, v, _ in clients)
    mean = sum(v * loss for _, v, loss in clients) / total
    past = state["past"]
    number = len(past)
    weights = [discount ** (number - 1 - place) for place in range(number)]
    baseline = sum(w * loss for w, loss in zip(weights, past, strict=True)) / sum(weights) if past else mean
    gradient = [
        sum(v * (loss - baseline) for arm, v, loss in clients if arm == j) / (theta[j] * total) for j in range(num_arms)
    ]
    squares = state["squares"] + max(abs(g) for g in gradient) ** 2
    eta = math.sqrt(2 * math.log(num_arms)) / math.sqrt(squares)
    raw = [t * math.exp(-eta * g) for t, g in zip(theta, gradient, strict=True)]
    return {"theta": [each / sum(raw) for each in raw], "squares": squares, "past": [*past, mean]}


def test_theta_moves_as_the_paper_s_sums_say() -> None:
    found = FedEx(inner=INNER, rates=(0.5, 1.0, 2.0), discount=0.7, settled=0.0)
    params = {"w": torch.zeros(2)}
    state = ArmState(params, torch.full((3,), 1 / 3, dtype=torch.float64), 0.0, 0.0, 0.0)
    slow: dict[str, Any] = {"theta": [1 / 3] * 3, "squares": 0.0, "past": []}
    rounds = [
        [(0, 4.0, 1.0, 10.0), (1, 2.0, 0.5, 30.0), (2, 6.0, 2.0, 20.0)],
        [(1, 4.0, 0.4, 10.0), (1, 2.0, 0.6, 30.0), (2, 6.0, 1.5, 20.0)],
        [(0, 4.0, 0.9, 10.0), (1, 2.0, 0.3, 30.0), (1, 6.0, 0.5, 20.0)],
    ]
    for clients in rounds:
        weight = sum(n for *_, n in clients)
        chosen, losses = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for arm, v, loss, n in clients:  # what a mean by n of v / n and v l / n comes to
            chosen[arm] += n * (v / n) / weight
            losses[arm] += n * (v / n) * loss / weight
        state = found.moved(state, ArmUpdate(params, chosen, losses, weight))
        slow = by_hand(slow, [(arm, v, loss) for arm, v, loss, _ in clients], 0.7)
        assert state.theta.tolist() == pytest.approx(slow["theta"])
    assert int(state.theta.argmax()) == 1 and float(state.theta.sum()) == pytest.approx(1.0)


def test_what_rounding_leaves_of_a_gradient_moves_nothing() -> None:
    """Steps are measured by the largest gradient so far: the last bit of a sum would be as large a step as any."""
    found, params = FedEx(inner=INNER, rates=(0.1, 0.5, 1.0)), {"w": torch.zeros(1)}
    theta = torch.full((3,), 1 / 3, dtype=torch.float64)
    state = ArmState(params, theta, 0.0, 0.0, 0.0)
    chosen = torch.tensor([0.0, 0.0, 0.5384614834418664], dtype=torch.float64)
    losses = chosen * 0.7  # all drew the same arm, of which nothing can be learned
    for wrong in (0.0, 1e-17, -3e-9):  # as sums in floats, and in the whole numbers of secure sums, have
        after = found.moved(state, ArmUpdate(params, chosen + wrong * torch.tensor([1, 1, 0]), losses + wrong, 1.0))
        assert torch.equal(after.theta, theta) and after.squares == 0.0
    two = torch.tensor([0.0, 0.3, 0.2], dtype=torch.float64)
    assert float(found.moved(state, ArmUpdate(params, two, two * torch.tensor([0, 0.5, 0.501]), 1.0)).theta[1]) > 0.4


def test_theta_settles_and_then_stays() -> None:
    found = FedEx(inner=INNER, rates=(0.5, 1.0), settled=0.5)
    params = {"w": torch.zeros(1)}
    state = ArmState(params, torch.tensor([0.5, 0.5], dtype=torch.float64), 0.0, 0.0, 0.0)
    good = ArmUpdate(params, torch.tensor([0.5, 0.5]).double(), torch.tensor([0.1, 5.0]).double(), 1.0)
    while float(state.theta.max()) < 1.0:
        state = found.moved(state, good)
    assert state.theta.tolist() == [1.0, 0.0]
    bad = ArmUpdate(params, torch.tensor([1.0, 0.0]).double(), torch.tensor([90.0, 0.0]).double(), 1.0)
    assert found.moved(state, bad).theta.tolist() == [1.0, 0.0]
    nothing = replace(bad, chosen=torch.zeros(2).double(), losses=torch.zeros(2).double())
    assert found.moved(state, nothing) == replace(state, params=params)


def test_a_useless_rate_is_found_out() -> None:
    # Of a rate of a millionth and a sensible one, the sensible one.
    found = FedEx(inner=FedAvg(local_steps=4, optimizer=SGD(lr=0.2)), rates=(1e-6, 1.0), settled=0.0)
    course = toy_course(found, rounds=30, runtime="auto")
    result = run(course, scenario=toy_scenario(3))
    notes = [event["text"] for event in result.events if event["event"] == "note" and "likeliest" in event["text"]]
    assert notes and "lr=0.2 " in notes[-1]


def test_secure_sums_serve_it() -> None:
    course = toy_course(FedEx(inner=INNER, rates=(0.5, 1.0)), rounds=2, runtime="auto")
    plain, summed = (
        run(each, scenario=toy_scenario(3)) for each in (course, replace(course, guards=(GUARDS["secure_sum"](),)))
    )
    assert_close(summed.params, plain.params, 1e-4)


def test_what_arms_are_likely_is_the_same_under_secure_sums_which_show_nobody_s_arm(tmp_path: Path) -> None:
    course = toy_course(FedEx(inner=INNER, rates=(0.1, 0.5, 1.0)), rounds=3, runtime="auto")
    states, asked = [], []
    for number, guards in enumerate(((), (GUARDS["secure_sum"](),))):
        guarded = replace(course, guards=guards)
        path = tmp_path / str(number)
        run(guarded, scenario=toy_scenario(3), run_dir=path)
        loaded = load_course(path / "course.yaml")
        standing, _ = load_checkpoint(path / "checkpoint.isth", course_digest(loaded), loaded.algorithm)
        assert isinstance(standing.state, ArmState)
        states.append(standing.state)
        asked.append({e["request"] for e in read_journal(path / "journal.jsonl") if e["event"] == "exchange"})
    plain, summed = states
    assert_close({"theta": summed.theta}, {"theta": plain.theta}, 1e-4)
    assert float((plain.theta - 1 / 3).abs().max()) > 0.01 and "TrainAsDrawn" in asked[1] - (asked[0] - asked[1])
    (exchange,) = [each for each in exposure(FedEx) if each.request == "TrainAsDrawn"]
    assert exchange.server_sees != "each client's"


def test_what_one_client_cannot_say_is_refused() -> None:
    params, theta = {"w": torch.zeros(1)}, torch.tensor([0.5, 0.5], dtype=torch.float64)
    request, known = TrainAsDrawn(params, theta), None
    reply = ArmUpdate(params, torch.tensor([0.5, 0.0]).double(), torch.tensor([0.2, 0.0]).double(), 1.0)
    assert request.problem(reply) == request.misfit(reply, known) == ""  # type: ignore[arg-type]
    two = replace(reply, chosen=torch.tensor([0.5, 0.5]).double())
    hidden = replace(reply, losses=torch.tensor([0.2, 0.1]).double())
    assert "more than one arm" in request.problem(two) and "more than one arm" in request.problem(hidden)
    assert "negative" in request.problem(replace(reply, chosen=-reply.chosen))
    odd = replace(reply, chosen=torch.zeros(3).double())
    assert "chosen has shape (3,)" in request.misfit(odd, known)  # type: ignore[arg-type]


def test_settings_that_cannot_be_are_refused_and_files_say_all_of_them() -> None:
    with pytest.raises(ValueError, match="inner is Scaffold, whose round is another than FedAvg's"):
        FedEx(inner=Scaffold())
    with pytest.raises(ValueError, match="what is known of arms are sums"):
        FedEx(inner=FedAvg(fold=Median()))
    with pytest.raises(ValueError, match="lr"):
        FedEx(rates=(-1.0,))
    with pytest.raises(ValueError, match="rates is"):
        FedEx(rates=())
    with pytest.raises(ValueError, match="make 2048 arms"):
        FedEx(rates=tuple(1.0 + i for i in range(64)), steps=tuple(range(1, 33)))
    course = load_course({"algorithm": {"name": "fedex", "inner": {"name": "fedprox", "mu": 0.2}, "steps": [1, 4]}})
    assert course.algorithm == FedEx(inner=FedProx(mu=0.2), steps=(1, 4))
    assert load_course(course_to_dict(course)).algorithm == course.algorithm
