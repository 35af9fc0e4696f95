from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgrl.selfsup import BGRL
from isthmus.core.random import seeded
from isthmus.core.record import Params
from isthmus.learn.augment import Augmentation
from isthmus.models import GraphInput

from .dense import (
    GRAPHS,
    NORMED,
    SPECS,
    build,
    cosine,
    doubled,
    encoded,
    encoder_of,
    noisy,
    perceptron,
    require_same_slopes,
    ring,
    stream,
)

NO_VIEW = Augmentation(0.0, 0.0)
VIEWS: dict[str, dict[str, Augmentation]] = {
    "defaults": {},
    "no views": {"first": NO_VIEW, "second": NO_VIEW},
    "very different": {"first": Augmentation(0.6, 0.0), "second": Augmentation(0.0, 0.4)},
}


def one_way(first: GraphInput, second: GraphInput, p: Params, s: Params, target: Params) -> Tensor:
    """Equation 5, node by node."""
    z = perceptron(encoded(first, p), s, "predictor")
    h = encoded(second, target)
    total = torch.zeros((), dtype=torch.float64)
    for node in range(first.num_nodes):
        total = total + cosine(z[node], h[node])
    return -2.0 / first.num_nodes * total


@pytest.mark.meet(2)
@pytest.mark.parametrize("symmetric", [False, True], ids=["one way", "symmetric"])
@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_loss_and_its_gradient_are_those_of_the_paper(spec: str, graph: str, views: str, symmetric: bool) -> None:
    """With the target as a constant: no gradient flows into it, from either side."""
    objective = BGRL(**VIEWS[views], hidden=7, symmetric=symmetric)
    data, (model, own) = GRAPHS[graph](), build(SPECS[spec], objective)
    p, s = doubled(encoder_of(model)), doubled(own.state_dict())
    memory = noisy(model, 8)
    memory = {name: memory[name] for name in encoder_of(model)}
    target = doubled(memory, live=False)
    draw = stream(2)
    first, second = objective.first.view(data, draw), objective.second.view(data, draw)
    wanted = one_way(first, second, p, s, target)
    if symmetric:
        wanted = 0.5 * (wanted + one_way(second, first, p, s, target))
    found = objective.loss(model, own, data, memory, stream(2))
    require_same_slopes(found, model, own, wanted, p, s)


def test_the_target_gets_no_gradient_and_is_not_moved_by_the_loss() -> None:
    objective = BGRL(hidden=7, symmetric=True)
    model, own = build(SPECS["plain"], objective)
    memory = {n: t.clone().requires_grad_() for n, t in objective.memory(model).items()}
    found = objective.loss(model, own, ring(), memory, stream())
    assert torch.autograd.grad(found, list(memory.values()), allow_unused=True) == (None,) * len(memory)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in memory.items())


def test_the_target_begins_as_a_copy_of_the_encoder_without_the_head() -> None:
    model, _ = build(NORMED, BGRL())
    memory = BGRL().memory(model)
    assert memory.keys() == {name for name in model.state_dict() if not name.startswith("decoder.")}
    assert "gnn.norms.0.running_mean" in memory and "activation.norm.running_var" in memory
    for name, tensor in memory.items():
        slot = model.state_dict()[name]
        assert torch.equal(tensor, slot) and tensor.data_ptr() != slot.data_ptr() and not tensor.requires_grad


@pytest.mark.parametrize("symmetric", [False, True], ids=["one way", "symmetric"])
def test_each_encoder_has_running_statistics_of_its_own(symmetric: bool) -> None:
    """A tenth of the statistics of what each has seen comes in: the first view's online, the second's in the target."""
    objective = BGRL(hidden=7, symmetric=symmetric)
    data, (model, own) = ring(), build(NORMED, objective)
    online = {n: t.clone() for n, t in encoder_of(model).items()}
    memory = {name: tensor for name, tensor in noisy(model, 8).items() if name in online}
    before = {name: tensor.clone() for name, tensor in memory.items()}
    objective.loss(model, own, data, memory, stream(2))
    draw = stream(2)
    first, second = objective.first.view(data, draw), objective.second.view(data, draw)
    seen = [first, second] if symmetric else [first]
    for start, found, views in (
        (online, encoder_of(model), seen),
        (before, memory, [second, first][: len(seen)]),
    ):
        mean, var = start["gnn.norms.0.running_mean"], start["gnn.norms.0.running_var"]
        for view in views:
            out = view.operator("gcn").to_dense() @ view.x @ start["gnn.layers.0.weight"] + start["gnn.layers.0.bias"]  # type: ignore[operator]
            mean, var = 0.9 * mean + 0.1 * out.mean(dim=0), 0.9 * var + 0.1 * out.var(dim=0)
        torch.testing.assert_close(found["gnn.norms.0.running_mean"], mean)
        torch.testing.assert_close(found["gnn.norms.0.running_var"], var)
        assert not torch.equal(found["activation.norm.running_mean"], start["activation.norm.running_mean"])
    learned = [name for name in online if "running" not in name]
    assert all(torch.equal(memory[name], before[name]) for name in learned)
    assert not any("weight" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("round", [1, 25, 50, 99, 100, 130])
def test_the_target_moves_by_the_average_alone(round: int) -> None:
    objective = BGRL(decay=0.6, rounds=100)
    model, _ = build(NORMED, objective)
    before = {name: tensor for name, tensor in noisy(model, 8).items() if not name.startswith("decoder.")}
    kept = {name: tensor.clone() for name, tensor in before.items()}
    after = objective.remember(before, dict(model.named_parameters()), round)
    share = 1.0 - 0.4 * 0.5 * (1.0 + math.cos(math.pi * min(round, 100) / 100))
    for name, tensor in after.items():
        slot = model.state_dict()[name]
        wanted = tensor if "running" in name else share * kept[name] + (1.0 - share) * slot
        torch.testing.assert_close(tensor, wanted)
        assert torch.equal(before[name], kept[name]) and not tensor.requires_grad
        if "running" in name:
            assert torch.equal(tensor, kept[name])
    assert after.keys() == before.keys()
    if round >= 100:
        assert all(torch.equal(after[name], kept[name]) for name in after)


def test_decay_rises_from_its_start_to_one_as_half_a_cosine() -> None:
    objective = BGRL(decay=0.99, rounds=1000)
    wanted = {0: 0.99, 250: 1.0 - 0.01 * (2.0 + math.sqrt(2.0)) / 4.0, 500: 0.995, 1000: 1.0, 5000: 1.0}
    assert {round: objective.decay_at(round) for round in wanted} == pytest.approx(wanted, abs=1e-12)
    rising = [objective.decay_at(round) for round in range(0, 1001, 50)]
    assert rising == sorted(rising) and len(set(rising)) == len(rising)


def test_decay_one_holds_the_target_and_decay_zero_at_the_start_gives_the_encoder() -> None:
    model, _ = build(SPECS["plain"], BGRL())
    memory = {name: tensor for name, tensor in noisy(model, 8).items() if not name.startswith("decoder.")}
    still = BGRL(decay=1.0).remember(memory, dict(model.named_parameters()), 1)
    assert all(torch.equal(still[name], tensor) for name, tensor in memory.items())
    led = BGRL(decay=0.0, rounds=10**9).remember(memory, dict(model.named_parameters()), 1)
    for name, tensor in led.items():
        torch.testing.assert_close(tensor, model.state_dict()[name])


def test_the_predictor_is_a_perceptron_with_one_hidden_layer() -> None:
    shapes = {name: tuple(slot.shape) for name, slot in BGRL(hidden=512).build(64).state_dict().items()}
    assert shapes == {
        "predictor.layers.0.weight": (64, 512),
        "predictor.layers.0.bias": (512,),
        "predictor.layers.1.weight": (512, 64),
        "predictor.layers.1.bias": (64,),
    }


def test_views_are_drawn_from_the_given_stream_anew_each_time() -> None:
    objective = BGRL(hidden=7)
    model, own = build(SPECS["plain"], objective)
    memory, draw = objective.memory(model), stream(1)
    before = torch.random.get_rng_state()
    values = [float(objective.loss(model, own, ring(30), memory, draw).detach()) for _ in range(3)]
    assert len(set(values)) == 3 and torch.equal(before, torch.random.get_rng_state())
    assert float(objective.loss(model, own, ring(30), memory, stream(1)).detach()) == values[0]


def blank_node() -> tuple[GraphInput, Any, Any]:
    """A fresh model, whose biases are 0, and a node without edges whose one feature the first view masks."""
    graph = ring()
    x = graph.x.clone()
    x[-1] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    x[:-1, 0] = 0.0
    objective = BGRL(hidden=7, first=Augmentation(0.0, 0.5), second=NO_VIEW)
    with seeded(0, "fresh"):
        return graph.replace(x=x), SPECS["plain"].build(4, 3), objective


def test_a_node_that_a_view_leaves_blank_does_not_throw_a_fresh_model_off() -> None:
    graph, model, objective = blank_node()
    with seeded(0, "fresh"):
        own = objective.build(5)
    seed = next(n for n in range(99) if not bool(objective.first.draw(graph, stream(n))[1][0]))
    found = objective.loss(model, own, graph, objective.memory(model), stream(seed))
    grads = torch.autograd.grad(found, [*model.gnn.parameters(), *own.parameters()])
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)
    assert max(float(grad.abs().max()) for grad in grads) < 100.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decay": 1.5}, r"decay is 1.5; it must be in \[0, 1\]"),
        ({"decay": -0.1}, r"decay is -0.1"),
        ({"decay": float("nan")}, r"decay is nan"),
        ({"hidden": 0}, r"hidden is 0"),
        ({"rounds": 0}, r"rounds is 0"),
    ],
    ids=str,
)
def test_fields_outside_their_range_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BGRL(**fields)
