from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus.models.norm import BatchNorm


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
