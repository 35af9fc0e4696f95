"""What updates tell of clients' features and labels: exact where the answer is known, and nothing under a sum."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.algorithms import FedAvg, FedNova
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fednova import NormalizedChange, TrainNormalized
from isthmus.attacks.attack import Attack, Case, Message, NothingSeen, Seen
from isthmus.attacks.inputs.feature_span import FeatureSpan
from isthmus.attacks.inputs.label_shares import LabelShares, shares_of
from isthmus.attacks.inputs.layers import at_the_input, at_the_output, first_update, updates, weights_of
from isthmus.attacks.inputs.words import Vocabulary, _parting, moved_rows
from isthmus.attacks.listening import Overhearing
from isthmus.core.protocol import Evaluation, Position
from isthmus.core.training import run_course
from isthmus.data.graph import Graph
from isthmus.learn.batching import FullBatch, MiniBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer
from isthmus.models import GCN, LinearEncoder, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_scenario


def course(algorithm: Any = None, **changes: Any) -> isthmus.Course:
    return toy_course(algorithm or FedAvg(local_steps=1), **{"num_clients": 3, "rounds": 1, **changes})


def attacked(made: isthmus.Course, attack: Attack, scenario: Scenario) -> tuple[Any, Any, Any]:
    """Run a course and return the guess, the prior and the truth of an attack on it."""
    case, simulation = Case(made, scenario), Simulation(made, scenario)
    listening = Overhearing([attack])
    run_course(made.algorithm, simulation.runtime, made.plan(), simulation.initial, [], listener=listening)
    known = attack.known(case)
    seen = listening.seen(attack, case, simulation.initial.params, {})
    return attack.guess(seen, known), attack.prior(known, case.clients), attack.truth(case, known)


def words_of(scenario: Scenario, client: str) -> set[int]:
    x = scenario.parts[client].x.to_dense()
    return {column for column in range(x.shape[1]) if any(float(x[row, column]) != 0.0 for row in range(len(x)))}


def trained_on_everywhere(scenario: Scenario) -> Scenario:
    """Return the same with every node trained on, so that each word of a client is looked at."""
    none = torch.zeros(scenario.whole.num_nodes, dtype=torch.bool)
    whole = scenario.whole.with_masks({"train": ~none, "val": none, "test": none})
    parts = {
        c: part.with_masks({split: mask[part.node_ids] for split, mask in whole.masks.items()})
        for c, part in scenario.parts.items()
    }
    return Scenario(whole, parts)


# ---- vocabulary

OPTIMISERS = [
    SGD(lr=0.2),
    SGD(lr=0.2, weight_decay=5e-4),
    SGD(lr=0.2, weight_decay=5e-4, momentum=0.9),
    Adam(lr=0.01),
    AdamW(lr=0.01, weight_decay=0.01),
]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMISERS, ids=lambda one: f"{type(one).__name__} {one.weight_decay}")
def test_words_are_named_without_error_whatever_shrinks_the_others(optimizer: Optimizer, steps: int) -> None:
    scenario = trained_on_everywhere(toy_scenario(3, sparse=True))
    made = course(FedAvg(local_steps=steps, optimizer=optimizer), model=ModelSpec(gnn=GCN(hidden=8, dropout=0.0)))
    guess, prior, truth = attacked(made, Vocabulary(), scenario)
    for client in scenario.parts:
        assert set(truth[client].nonzero().flatten().tolist()) == words_of(scenario, client)
        found = set(guess[client].nonzero().flatten().tolist())
        assert found <= words_of(scenario, client) and len(found) >= 0.9 * len(words_of(scenario, client))
    assert 0.0 < float(torch.stack(list(prior.values())).float().mean()) < 1.0


def test_the_prior_names_what_a_client_of_average_size_more_likely_has_than_not() -> None:
    scenario = toy_scenario(3, sparse=True)
    attack = Vocabulary()
    known = attack.known(Case(course(), scenario))
    nodes = sum(part.num_nodes for part in scenario.parts.values()) / 3
    x = scenario.whole.x.to_dense()
    found = attack.prior(known, ["a", "b"])
    for column in range(x.shape[1]):
        share = sum(float(value) != 0.0 for value in x[:, column]) / len(x)
        assert bool(found["b"][column]) == (1 - (1 - share) ** nodes > 0.5)


def test_under_a_secure_sum_everybodys_words_are_named_for_each() -> None:
    scenario = toy_scenario(3, sparse=True)
    guess, _, truth = attacked(course(guards=(SecureSum(),)), Vocabulary(), scenario)
    first, *others = guess.values()
    assert all(torch.equal(first, other) for other in others)
    assert not all(torch.equal(first, truth[client]) for client in truth)


def test_rows_are_multiples_of_what_they_were_or_were_moved() -> None:
    draw = torch.Generator().manual_seed(0)
    before = torch.randn(6, 4, generator=draw).double()
    after = 0.97 * before
    after[2] += 0.01 * torch.randn(4, generator=draw)
    assert moved_rows(before, after).tolist() == [False, False, True, False, False, False]


def test_rows_that_a_sum_rounded_were_not_moved() -> None:
    draw, unit = torch.Generator().manual_seed(0), 2.0**-16
    before = torch.rand(40, 16, generator=draw).double()
    after = 0.97 * before
    after[:10] += 0.01 * torch.randn(10, 16, generator=draw).double()
    after[:-1] += unit * (torch.rand(39, 16, generator=draw).double() - 0.5)  # one comes out as it was
    error = unit / math.sqrt(12.0)
    assert moved_rows(before, after, error).tolist() == [True] * 10 + [False] * 30
    assert moved_rows(before, after).tolist() == [True] * 39 + [False]


def test_where_all_rows_are_noisy_they_are_parted_by_size() -> None:
    draw = torch.Generator().manual_seed(0)
    before = torch.randn(40, 16, generator=draw).double()
    after = before + 1e-3 * torch.randn(40, 16, generator=draw).double()
    after[:10] += 0.3 * torch.randn(10, 16, generator=draw).double()
    assert moved_rows(before, after).tolist() == [True] * 10 + [False] * 30


def test_the_threshold_leaves_least_variance_on_both_sides() -> None:
    values = torch.tensor([0.1, 0.2, 0.4, 2.0, 2.5, 2.6]).double()

    def left(threshold: float) -> float:
        sides = [[v for v in values.tolist() if v <= threshold], [v for v in values.tolist() if v > threshold]]
        return sum(sum((v - sum(side) / len(side)) ** 2 for v in side) for side in sides if side)

    best = min(values.tolist()[:-1], key=left)
    assert float(_parting(values)) == best == pytest.approx(0.4)


def test_adams_decay_is_refused() -> None:
    assert "Adam's weight decay" in Vocabulary().problem(course(FedAvg(optimizer=Adam(weight_decay=1e-4))))
    assert not Vocabulary().problem(course(FedAvg(optimizer=AdamW(weight_decay=1e-2))))


# ---- shares of labels


def biased(labels: Tensor, bias: Tensor, lr: float, decay: float, steps: int) -> Tensor:
    """Return a bias that was trained by hand: a model that says the same of all nodes."""
    shares = torch.bincount(labels, minlength=len(bias)).double() / len(labels)
    for _ in range(steps):
        bias = (1 - lr * decay) * bias - lr * (bias.softmax(dim=0) - shares)
    return bias


@pytest.mark.parametrize(("steps", "decay", "within"), [(1, 0.0, 1e-9), (1, 0.1, 1e-9), (4, 0.0, 2e-3)])
def test_shares_are_read_off_a_bias_alone(steps: int, decay: float, within: float) -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    before = torch.tensor([0.3, -0.1, 0.2]).double()
    after = biased(labels, before, 0.1, decay, steps)
    sent, back = ({"w": torch.zeros(5, 3).double(), "b": each} for each in (before, after))
    message = Message(Position(0, 1, 0), {"a": TrainModel(sent)}, ModelUpdate(back, 1.0))
    made = course(FedAvg(local_steps=steps, optimizer=SGD(lr=0.1, weight_decay=decay)))
    seen = Seen(made, ("a",), sent, {}, (message,))
    found = LabelShares().guess(seen, torch.ones(3).double() / 3)["a"]
    assert float((found - torch.tensor([3, 1, 2]).double() / 6).abs().sum()) / 2 <= within


def layered(x: Tensor, labels: Tensor, params: dict[str, Tensor], lr: float, steps: int) -> dict[str, Tensor]:
    """Return a last layer, matrices for each part of the input and a bias, that was trained on by autograd."""
    live = {name: each.clone().requires_grad_() for name, each in params.items()}
    for _ in range(steps):
        logits = live["l.bias"] + sum(x @ live[name] for name in params if name.endswith("weight"))
        grads = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), list(live.values()))
        with torch.no_grad():
            for slot, grad in zip(live.values(), grads, strict=True):
                slot -= lr * grad
    return {name: each.detach() for name, each in live.items()}


@pytest.mark.parametrize(("steps", "within"), [(1, 1e-9), (4, 5e-3)])
@pytest.mark.parametrize("names", [("l.weight",), ("l.own_weight", "l.neighbor_weight")])
def test_what_comes_into_the_last_layer_is_found_where_all_nodes_have_the_same(
    names: tuple[str, ...], steps: int, within: float
) -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    x = (3.0 * torch.rand(5, generator=draw).double()).expand(6, 5)
    sent = {name: torch.randn(5, 3, generator=draw).double() for name in names}
    sent = {"other.weight": torch.randn(5, 3, generator=draw).double(), **sent, "l.bias": torch.zeros(3).double()}
    back = {
        "other.weight": sent["other.weight"],
        **layered(x, labels, {n: sent[n] for n in (*names, "l.bias")}, 0.01, steps),
    }
    message = Message(Position(0, 1, 0), {"a": TrainModel(sent)}, ModelUpdate(back, 1.0))
    made = course(FedAvg(local_steps=steps, optimizer=SGD(lr=0.01)))
    found = LabelShares().guess(Seen(made, ("a",), sent, {}, (message,)), torch.ones(3).double() / 3)["a"]
    wanted = torch.tensor([3, 1, 2]).double() / 6
    assert float((found - wanted).abs().sum()) / 2 <= within
    # The bias alone would not do: what is predicted is far from its softmax.
    alone = (sent["l.bias"].softmax(dim=0) - (sent["l.bias"] - back["l.bias"]) / (0.01 * steps)).clamp_min(0.0)
    assert float((alone / alone.sum() - wanted).abs().sum()) / 2 > 0.05


def with_features(scenario: Scenario, x: Tensor) -> Scenario:
    parts = {client: replace(part, x=x[part.node_ids]) for client, part in scenario.parts.items()}
    return Scenario(replace(scenario.whole, x=x), parts)


def test_shares_of_a_course_are_near_and_the_prior_is_everybodys() -> None:
    # With features as small as these the model says nearly the same of all nodes.
    scenario = toy_scenario(3)
    scenario = with_features(scenario, 0.01 * scenario.whole.x)
    made = course(FedAvg(local_steps=1, optimizer=SGD(lr=0.1)), model=ModelSpec(gnn=GCN(hidden=8, dropout=0.0)))
    attack = LabelShares()
    guess, prior, truth = attacked(made, attack, scenario)
    whole = scenario.whole
    labels = [int(whole.y[node]) for node in range(48) if whole.masks["train"][node]]
    for client, part in scenario.parts.items():
        own = [int(part.y[node]) for node in range(part.num_nodes) if part.masks["train"][node]]
        assert truth[client].tolist() == pytest.approx([own.count(k) / len(own) for k in range(3)])
        assert prior[client].tolist() == pytest.approx([labels.count(k) / len(labels) for k in range(3)])
        assert float(guess[client].sum()) == pytest.approx(1.0)
    assert attack.scores(guess, truth)["distance"] < 0.005 < attack.scores(prior, truth)["distance"]


def test_who_trains_on_nothing_has_no_shares() -> None:
    scenario = toy_scenario(3, client_without_training=True)
    assert set(LabelShares().truth(Case(course(), scenario), torch.zeros(3))) == {"client-0", "client-1"}
    assert shares_of(scenario.parts["client-2"]).tolist() == [0.0, 0.0, 0.0]


def test_distances_are_half_of_all_differences() -> None:
    guess = {"a": torch.tensor([0.5, 0.5, 0.0]), "b": torch.tensor([0.0, 0.0, 1.0])}
    truth = {"a": torch.tensor([0.25, 0.25, 0.5]), "b": torch.tensor([0.0, 0.0, 1.0])}
    assert LabelShares().scores(guess, truth) == {"distance": 0.25, "largest right": 0.5}


# ---- the span of features


def spanning(**changes: Any) -> isthmus.Course:
    algorithm = FedAvg(local_steps=1, optimizer=SGD(lr=0.1, weight_decay=changes.pop("decay", 0.0)))
    return course(algorithm, model=ModelSpec(gnn=GCN(hidden=64, dropout=0.0)), **changes)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_nodes_that_the_loss_reaches_are_found_and_no_others(decay: float) -> None:
    # 200 features, so that the rows of all nodes are independent.
    scenario = with_features(toy_scenario(3), torch.randn(48, 200, generator=torch.Generator().manual_seed(0)))
    guess, prior, truth = attacked(spanning(decay=decay), FeatureSpan(rank=1e-5), scenario)
    for client, part in scenario.parts.items():
        assert set(truth[client].nonzero().flatten().tolist()) == set(part.node_ids.tolist())
        found = set(guess[client].nonzero().flatten().tolist())
        assert found <= reached(part) and len(found) >= 0.6 * len(reached(part))
        assert lonely(part) <= found
        assert not prior[client].any()


def test_nodes_that_share_their_features_are_not_named() -> None:
    x = torch.randn(48, 200, generator=torch.Generator().manual_seed(0))
    x[1::2] = x[::2]
    guess, _, _ = attacked(spanning(), FeatureSpan(rank=1e-5), with_features(toy_scenario(3), x))
    assert not any(bool(named.any()) for named in guess.values())


def test_features_lie_in_a_span_if_their_whole_length_does() -> None:
    # One client with one node: its gradient has the direction of its features, which are apart from all others'.
    x = torch.eye(4)[[0, 1, 2, 3]] + 0.2
    before = torch.zeros(4, 3)
    moved = (x[1:3].t() @ torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])).double()
    message = Message(Position(0, 1, 0), {"a": TrainModel({"w": before})}, ModelUpdate({"w": before + moved}, 1.0))
    made = course(FedAvg(local_steps=1, optimizer=SGD(lr=0.1)))
    seen = Seen(made, ("a",), {"w": before}, {}, (message,))
    known = torch.nn.functional.normalize(x.double())
    assert FeatureSpan().guess(seen, known)["a"].tolist() == [False, True, True, False]


def reached(part: Graph) -> set[int]:
    """Return the nodes that are at most two steps from one that is trained on, by their places in the whole."""
    near = set(part.masks["train"].nonzero().flatten().tolist())
    for _ in range(2):
        near |= {target for source, target in part.edge_index.t().tolist() if source in near}
    return set(part.node_ids[sorted(near)].tolist())


def lonely(part: Graph) -> set[int]:
    """Return the nodes without an edge that are trained on: nobody's gradient is mixed with theirs."""
    alone = set(range(part.num_nodes)) - set(part.edge_index.flatten().tolist())
    trained = set(part.masks["train"].nonzero().flatten().tolist())
    return set(part.node_ids[sorted(alone & trained)].tolist())


def test_under_a_secure_sum_the_span_is_everybodys() -> None:
    scenario = toy_scenario(3, sparse=True)
    guess, _, _ = attacked(spanning(guards=(SecureSum(),)), FeatureSpan(), scenario)
    first, *others = guess.values()
    assert all(torch.equal(first, other) for other in others)


# ---- what cannot be read


@pytest.mark.parametrize(
    ("algorithm", "batching", "told"),
    [
        (FedAvg(local_steps=1, optimizer=Adam()), FullBatch(), "only algorithm.optimizer.name=sgd without momentum"),
        (FedAvg(local_steps=1, optimizer=SGD(momentum=0.9)), FullBatch(), "without momentum"),
        (FedAvg(local_steps=1), MiniBatch(batch_size=8), "how many steps lie in an update"),
        (FedAvg(local_steps=3), FullBatch(), "it needs updates of 1 step, here are 3"),
    ],
)
def test_updates_that_are_no_single_gradient_are_refused(algorithm: Any, batching: Any, told: str) -> None:
    assert told in FeatureSpan().problem(course(algorithm, batching=batching))
    assert bool(LabelShares().problem(course(algorithm, batching=batching))) == (algorithm.local_steps == 1)


def test_what_is_held_back_is_said_so() -> None:
    seen = Seen(course(), ("a",), {}, {}, (Message(Position(0, 1, 0), {"a": TrainModel({})}, Evaluation({}, {})),))
    with pytest.raises(NothingSeen, match="held back, or hold no parameters"):
        LabelShares().guess(seen, torch.ones(3))


def test_ends_of_a_model_are_found_by_their_sizes() -> None:
    made = course(model=ModelSpec(encoder=LinearEncoder(dim=5), gnn=GCN(hidden=8)))
    params = Simulation(made, toy_scenario(3)).initial.params
    assert params[at_the_input(params, 6)].shape in ((5, 6), (6, 5))
    assert at_the_output(params, 3) == [name for name, each in params.items() if each.shape == (3,)][-1]
    with pytest.raises(NothingSeen, match="a row for each of the 77 features"):
        at_the_input(params, 77)
    with pytest.raises(NothingSeen, match="a number for each of the 77 classes"):
        at_the_output(params, 77)


def test_changes_in_each_step_say_what_the_model_says() -> None:
    scenario = toy_scenario(3, sparse=True)
    for attack in (Vocabulary(), LabelShares()):
        plain, *_ = attacked(course(FedAvg(local_steps=4)), attack, scenario)
        changes, *_ = attacked(course(FedNova(local_steps=4)), attack, scenario)
        assert all(torch.allclose(plain[c].double(), changes[c].double(), atol=1e-4) for c in plain)


def test_changes_add_up_to_what_came_back() -> None:
    sent = {"w": torch.tensor([1.0, 2.0]), "kept": torch.tensor([3.0])}
    reply = NormalizedChange({"w": torch.tensor([0.5, -0.5])}, {}, 4.0, 1.0)
    seen = Seen(course(), ("a",), sent, {}, (Message(Position(0, 1, 0), {"a": TrainNormalized(sent)}, reply),))
    assert {name: each.tolist() for name, each in first_update(seen, "a")[1].items()} == {"w": [3.0, 0.0]}
    assert [message.reply for message, _, _ in updates(seen, "a")] == [reply]


def test_weights_of_a_layer_are_those_beside_its_bias() -> None:
    shapes = {
        "a.weight": (4, 3),
        "b.weight": (5, 3),
        "b.own_weight": (3, 3),
        "b.attention": (1, 3),
        "b.weight_of": (2, 4),
    }
    params = {name: torch.zeros(shape) for name, shape in shapes.items()}
    assert weights_of({**params, "b.bias": torch.zeros(3)}, "b.bias") == ["b.weight", "b.own_weight"]
