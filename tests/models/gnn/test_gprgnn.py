from __future__ import annotations

import pytest
import torch

from isthmus.models.dropout import dropout
from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.gprgnn import GPRGNN

from ..toys import FEATURES, TOYS, assert_close, cotangent, randomise, toy


@pytest.mark.parametrize("name", TOYS)
def test_equals_the_sum_of_powers_with_its_gradients(name: str) -> None:
    graph, ours = toy(name), GPRGNN(hidden=8, dropout=0.0, hops=4).build(FEATURES, 3)
    randomise(ours)
    parameters = dict(ours.named_parameters())
    first, second = ours.layers
    step = graph.operator("gcn").to_dense()
    z = (graph.x @ first.weight + first.bias).relu() @ second.weight + second.bias
    expected = sum(ours.gamma[k] * torch.linalg.matrix_power(step, k) @ z for k in range(5))
    out = ours(graph, None)
    assert_close(out, expected)
    g = cotangent(out)
    found = torch.autograd.grad(out, list(parameters.values()), g)
    for a, b in zip(found, torch.autograd.grad(expected, list(parameters.values()), g), strict=True):
        assert_close(a, b)


def test_starts_as_appnp() -> None:
    graph = toy("weighted")
    ours, other = GPRGNN(hidden=8, alpha=0.3).build(FEATURES, 3), APPNP(hidden=8, alpha=0.3).build(FEATURES, 3)
    other.load_state_dict({name: value for name, value in ours.state_dict().items() if name != "gamma"})
    assert_close(ours(graph, None), other(graph, None))


def test_gamma_starts_as_published() -> None:
    gamma = GPRGNN().build(FEATURES, 3).gamma
    assert gamma.requires_grad and gamma.shape == (11,)
    assert gamma.tolist() == pytest.approx([0.1 * 0.9**k for k in range(10)] + [0.9**10])


def test_what_the_perceptron_says_can_be_dropped_before_it_is_propagated_in_training_only() -> None:
    graph = toy("weighted")
    spec = GPRGNN(hidden=8, dropout=0.0, hops=4, propagation_dropout=0.5)
    ours, plain = spec.build(FEATURES, 3), GPRGNN(hidden=8, dropout=0.0, hops=4).build(FEATURES, 3)
    plain.load_state_dict(ours.state_dict())
    assert_close(ours(graph, None), plain(graph, None))
    first, second = ours.layers
    z = (graph.x @ first.weight + first.bias).relu() @ second.weight + second.bias
    z = dropout(z, 0.5, torch.Generator().manual_seed(3))
    step = graph.operator("gcn").to_dense()
    expected = sum(ours.gamma[k] * torch.linalg.matrix_power(step, k) @ z for k in range(5))
    assert_close(ours(graph, torch.Generator().manual_seed(3)), expected)
    assert not torch.allclose(expected, plain(graph, torch.Generator().manual_seed(3)))


def test_errors_and_repr() -> None:
    with pytest.raises(ValueError, match=r"hops is 1.5"):
        GPRGNN(hops=1.5)
    with pytest.raises(ValueError, match=r"alpha is -0.1"):
        GPRGNN(alpha=-0.1)
    with pytest.raises(ValueError, match=r"propagation_dropout is 1.0"):
        GPRGNN(propagation_dropout=1.0)
    spec = GPRGNN(hops=4, alpha=0.2, propagation_dropout=0.3)
    assert "hops=4, alpha=0.2, propagation_dropout=0.3" in repr(spec.build(5, 3))
