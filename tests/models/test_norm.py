from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.learn.together.layouts import replaced
from isthmus.models.dropout import Streams
from isthmus.models.parts import BatchNorm


def pair() -> tuple[BatchNorm, nn.BatchNorm1d]:
    ours, theirs = BatchNorm(4), nn.BatchNorm1d(4)
    with torch.no_grad():
        for module in (ours, theirs):
            module.weight.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
            module.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
    return ours, theirs


def test_equals_torch_in_training_and_in_evaluation() -> None:
    ours, theirs = pair()
    for seed in range(3):
        h = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) * 3 + 1
        torch.testing.assert_close(ours(h, torch.Generator()), theirs(h))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    theirs.eval()
    h = torch.randn(6, 4)
    before = ours.running_mean.clone()
    torch.testing.assert_close(ours(h, None), theirs(h))
    assert torch.equal(ours.running_mean, before)


@pytest.mark.parametrize("nodes", [0, 1])
def test_too_few_nodes_for_statistics_use_the_running_ones(nodes: int) -> None:
    ours, _ = pair()
    h = torch.randn(nodes, 4)
    assert torch.equal(ours(h, torch.Generator()), ours(h, None))
    assert torch.equal(ours.running_var, torch.ones(4))
    assert torch.isfinite(ours(h, torch.Generator())).all()


def test_the_mode_is_the_generator_not_the_flag() -> None:
    ours, _ = pair()
    h = torch.randn(5, 4) * 4 + 2
    assert torch.equal(ours.train()(h, None), ours.eval()(h, None))
    assert not torch.allclose(ours.eval()(h, torch.Generator()), ours(h, None))


def test_state_holds_floats_only() -> None:
    state = BatchNorm(4).state_dict()
    assert set(state) == {"weight", "bias", "running_mean", "running_var"}
    assert all(value.dtype == torch.float32 for value in state.values())


def test_repr() -> None:
    assert repr(BatchNorm(4)) == "BatchNorm(4, eps=1e-05, momentum=0.1)"


# ---- many clients at once


SIZES = (5, 1, 9, 2, 9)


def many(dim: int = 3) -> tuple[BatchNorm, dict[str, Tensor], Tensor]:
    """Return a norm, parameters and statistics for each client, and rows padded with what must not count."""
    draw = torch.Generator().manual_seed(0)
    values = {
        "weight": torch.randn(len(SIZES), dim, generator=draw),
        "bias": torch.randn(len(SIZES), dim, generator=draw),
        "running_mean": torch.randn(len(SIZES), dim, generator=draw),
        "running_var": torch.rand(len(SIZES), dim, generator=draw) + 0.5,
    }
    h = torch.randn(len(SIZES), max(SIZES), dim, generator=draw) * 2 + 3
    for k, size in enumerate(SIZES):
        h[k, size:] = 1e3  # padding
    return BatchNorm(dim), values, h


def alone(values: dict[str, Tensor], h: Tensor, k: int, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what torch's own function makes of one client's rows, and its statistics afterwards."""
    mine = {name: tensor[k].clone() for name, tensor in values.items()}
    for name in ("weight", "bias"):
        mine[name].requires_grad_()
    rows = h[k, : SIZES[k]]
    out = functional.batch_norm(
        rows, mine["running_mean"], mine["running_var"], mine["weight"], mine["bias"], training and len(rows) > 1
    )
    return out, mine


@pytest.mark.parametrize("training", [False, True])
def test_each_client_is_normalised_by_its_own_rows(training: bool) -> None:
    norm, values, h = many()
    live = {name: tensor.clone() for name, tensor in values.items()}
    streams = Streams(lambda: [], SIZES, max(SIZES), ())
    for step in range(3):
        with replaced(norm, live):
            out = norm(h.flatten(0, 1), streams if training else None).view(h.shape)
        for k, size in enumerate(SIZES):
            expected, after = alone(values, h, k, training)
            torch.testing.assert_close(out[k, :size], expected.detach(), rtol=1e-5, atol=1e-5)
            for name in ("running_mean", "running_var"):
                torch.testing.assert_close(live[name][k], after[name], rtol=1e-5, atol=1e-5)
                assert torch.equal(live[name][k], values[name][k]) == (not training or size == 1)
        values, h = {name: tensor.clone() for name, tensor in live.items()}, h + 0.1 * step


def test_each_clients_gradients_are_those_it_has_alone() -> None:
    norm, values, h = many()
    live = {name: tensor.clone() for name, tensor in values.items()}
    cotangent = torch.randn(h.shape, generator=torch.Generator().manual_seed(3))
    for k, size in enumerate(SIZES):
        cotangent[k, size:] = 0.0  # no loss comes from padding
    x, weight, bias = h.clone().requires_grad_(), live["weight"].requires_grad_(), live["bias"].requires_grad_()
    with replaced(norm, live):
        out = norm(x.flatten(0, 1), Streams(lambda: [], SIZES, max(SIZES), ()))
    found = torch.autograd.grad(out, [x, weight, bias], cotangent.flatten(0, 1))
    for k, size in enumerate(SIZES):
        rows = h.clone().requires_grad_()
        expected, mine = alone(values, rows, k, training=True)
        wanted = torch.autograd.grad(expected, [rows, mine["weight"], mine["bias"]], cotangent[k, :size])
        torch.testing.assert_close(found[0][k], wanted[0][k], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1][k], wanted[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[2][k], wanted[2], rtol=1e-4, atol=1e-5)
