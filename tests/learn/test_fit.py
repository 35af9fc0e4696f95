from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.learn.batching import FullBatch, NeighborBatch
from isthmus.learn.graph_client import Fit, Fitted
from isthmus.learn.optimizers import SGD, Adam, Pull, load_params, read_params
from isthmus.models import GCN, ModelSpec
from isthmus.testing import toy_client, toy_scenario


def run(client: Any, params: Any = None, seed: int = 0, **options: Any) -> Fitted:
    fields: dict[str, Any] = {"steps": 3, "optimizer": SGD(lr=0.2), "lr": 0.2, "batching": FullBatch(), **options}
    params = read_params(client.model) if params is None else params
    draw = torch.Generator().manual_seed(seed)
    lr, batching = fields.pop("lr"), fields.pop("batching")
    return Fit(params, **fields).on(client.model, params, client.task, client.prepared, lr, batching, draw)


def test_fit_moves_every_parameter_and_lowers_the_loss() -> None:
    client = toy_client()
    start = read_params(client.model)
    first = run(client, start, steps=1)
    later = run(client, start, steps=40)
    assert all(not torch.equal(tensor, start[name]) for name, tensor in later.params.items())
    assert later.loss < first.loss
    assert (first.steps, later.steps) == (1, 40)


def test_loss_is_the_mean_over_the_steps_without_the_penalty() -> None:
    client = toy_client()
    start = read_params(client.model)
    each, params = [], start
    for _ in range(3):
        one = run(client, params, steps=1)
        each.append(one.loss)
        params = one.params
    assert run(client, start).loss == pytest.approx(sum(each) / 3, abs=1e-6)
    flat = run(client, start, steps=1, penalty=lambda live: torch.tensor(100.0))
    assert flat.loss == pytest.approx(each[0], abs=1e-6)


def test_penalty_moves_the_parameters() -> None:
    client = toy_client()
    start = read_params(client.model)
    plain = run(client, start, steps=1)
    pulled = run(client, start, steps=1, penalty=lambda live: sum(t.sum() for t in live.values()))
    for name in start:
        torch.testing.assert_close(pulled.params[name], plain.params[name] - 0.2, atol=1e-6, rtol=0.0)


def test_penalty_sees_the_trainable_parameters_alone() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, batch_norm=True)))
    seen: list[set[str]] = []

    def penalty(live: Mapping[str, Tensor]) -> Tensor:
        seen.append(set(live))
        return torch.tensor(0.0)

    run(client, steps=1, penalty=penalty)
    assert seen == [{name for name, _ in client.model.named_parameters()}]
    assert seen[0] < set(client.model.state_dict())


def test_a_client_without_training_examples_gives_its_parameters_back() -> None:
    client = toy_client(toy_scenario(client_without_training=True).parts["client-2"])
    start = read_params(client.model)
    for batching in (FullBatch(), NeighborBatch(4, (2,))):
        fitted = run(client, start, batching=batching, optimizer=Adam(lr=0.1))
        assert all(torch.equal(tensor, start[name]) for name, tensor in fitted.params.items())
        assert fitted.steps == 0
        assert math.isnan(fitted.loss)
        assert fitted.optimizer_state["step"] == 0


def test_the_parameters_given_are_not_changed_and_those_returned_are_copies() -> None:
    client = toy_client()
    start = read_params(client.model)
    kept = copy.deepcopy(start)
    first = run(client, start)
    after = copy.deepcopy(first.params)
    run(client, first.params)
    assert all(torch.equal(start[name], kept[name]) for name in start)
    assert all(torch.equal(first.params[name], after[name]) for name in start)
    assert not any(tensor.requires_grad for tensor in first.params.values())


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_the_optimizer_state_given_is_never_changed_in_place(optimizer: Any) -> None:
    client = toy_client()
    before = run(client, optimizer=optimizer, lr=0.1)
    kept = copy.deepcopy(before.optimizer_state)
    after = run(client, before.params, optimizer=optimizer, lr=0.1, optimizer_state=before.optimizer_state)
    assert before.optimizer_state["step"] == kept["step"] == 3
    assert after.optimizer_state["step"] == 6
    for slot in set(kept) - {"step"}:
        pairs = zip(before.optimizer_state[slot], kept[slot], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        moved = zip(after.optimizer_state[slot], kept[slot], strict=True)
        assert not any(torch.equal(a, b) for a, b in moved)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_going_on_with_the_optimizer_state_is_not_stopping_at_all(optimizer: Any) -> None:
    client = toy_client()
    start = read_params(client.model)
    whole = run(client, start, steps=4, optimizer=optimizer, lr=0.1)
    half = run(client, start, steps=2, optimizer=optimizer, lr=0.1)
    rest = run(client, half.params, steps=2, optimizer=optimizer, lr=0.1, optimizer_state=half.optimizer_state)
    anew = run(client, half.params, steps=2, optimizer=optimizer, lr=0.1)
    assert all(torch.equal(whole.params[name], rest.params[name]) for name in start)
    assert any(not torch.equal(whole.params[name], anew.params[name]) for name in start)


def test_batch_norm_statistics_are_carried() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, batch_norm=True, dropout=0.0)))
    start = read_params(client.model)
    mean, var = "gnn.norms.0.running_mean", "gnn.norms.0.running_var"
    one = run(client, start, steps=1)
    assert not torch.equal(one.params[mean], start[mean])
    two = run(client, one.params, steps=1)
    both = run(client, start, steps=2)
    assert torch.equal(two.params[mean], both.params[mean])
    assert torch.equal(two.params[var], both.params[var])
    # In evaluation they serve and stay.
    client.evaluate(two.params, ("val",))
    assert torch.equal(read_params(client.model)[mean], two.params[mean])


def test_the_module_carries_nothing_from_one_fit_to_the_next() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, batch_norm=True)))
    start = read_params(client.model)
    first = run(client, start)
    run(client, {name: tensor + 1.0 for name, tensor in start.items()}, seed=4)
    again = run(client, start)
    assert all(torch.equal(first.params[name], again.params[name]) for name in start)


def test_the_generator_decides_the_dropout() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=0.5)))
    start = read_params(client.model)
    first, again, other = (run(client, start, seed=seed).params["gnn.layers.0.weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_frozen_parameters_stay() -> None:
    client = toy_client()
    start = read_params(client.model)
    client.model.get_parameter("gnn.layers.1.bias").requires_grad_(False)
    fitted = run(client, start, optimizer=SGD(lr=0.2, weight_decay=0.1))
    moved = {name for name in start if not torch.equal(start[name], fitted.params[name])}
    assert moved == set(start) - {"gnn.layers.1.bias"}


def test_parameters_of_another_model_are_refused_by_name() -> None:
    client = toy_client()
    start = read_params(client.model)
    short = {name: tensor for name, tensor in start.items() if name != "gnn.layers.0.bias"}
    with pytest.raises(BadInput, match=r"do not belong to this model: \['gnn.layers.0.bias'\]"):
        load_params(client.model, short)
    with pytest.raises(BadInput, match=r"\['stranger'\]"):
        load_params(client.model, {**start, "stranger": torch.zeros(1)})
    with pytest.raises(BadInput, match=r"'gnn.layers.0.bias' has shape \(7,\), this model's has \(5,\)"):
        load_params(client.model, {**start, "gnn.layers.0.bias": torch.zeros(7)})


def test_a_refused_load_leaves_the_model_as_it_was() -> None:
    client = toy_client()
    start = read_params(client.model)
    wrong = {name: tensor + 1.0 for name, tensor in start.items()}
    wrong["gnn.layers.1.bias"] = torch.zeros(9)
    with pytest.raises(BadInput):
        load_params(client.model, wrong)
    assert all(torch.equal(tensor, start[name]) for name, tensor in read_params(client.model).items())


def test_a_pull_is_half_a_square_and_a_slope_over_what_each_of_them_names() -> None:
    anchor = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.5])}
    live = {"a": torch.tensor([2.0, 0.0]), "b": torch.tensor([1.5]), "c": torch.tensor([9.0])}
    squares = 0.5 * 3.0 * ((1.0 + 4.0) + 1.0)
    assert float(Pull(3.0, anchor)(live)) == pytest.approx(squares)
    assert float(Pull(3.0, anchor, {"a": torch.tensor([0.5, 7.0])})(live)) == pytest.approx(squares + 1.0)
    assert float(Pull(0.0, anchor, {"b": torch.tensor([2.0])})(live)) == pytest.approx(3.0)
