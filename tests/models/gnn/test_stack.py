from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.models import GNNS
from isthmus.models.dropout import dropout
from isthmus.models.gnn.gcn import GCN
from isthmus.models.parts import StackSpec

from ..toys import FEATURES, TOYS, assert_close, cotangent, randomise, sparse, toy

NAMES = sorted(GNNS)
WITHOUT_NORM = ("gap", "progap", "sgc")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spec(name: str) -> object:
    return GNNS[name](hidden=8, input_dropout=0.3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("wrap", [lambda graph: graph, sparse])
def test_forward_is_last_of_hidden(name: str, training: bool, wrap) -> None:
    graph, module = wrap(toy("mixed")), spec(name).build(FEATURES, 3)
    randomise(module)
    one, two = (generator(), generator()) if training else (None, None)
    h = module.hidden(graph, two)
    assert isinstance(h, Tensor) and len(h) == 7
    assert_close(module(graph, one), module.last(graph, h, two))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", TOYS)
def test_sparse_and_dense_features_agree(name: str, which: str) -> None:
    graph, module = toy(which), spec(name).build(FEATURES, 3)
    randomise(module)
    parameters = list(module.parameters())
    outs = [module(g, None) for g in (graph, sparse(graph))]
    assert_close(*outs)
    grads = [torch.autograd.grad(out, parameters, cotangent(out)) for out in outs]
    for dense_grad, sparse_grad in zip(*grads, strict=True):
        assert_close(dense_grad, sparse_grad)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_every_parameter_gets_a_gradient(name: str, batch_norm: bool) -> None:
    extra = {"batch_norm": True} if batch_norm and name not in WITHOUT_NORM else {}
    extra |= {"train_eps": True} if name == "gin" else {}
    module = GNNS[name](hidden=8, **extra).build(FEATURES, 3)
    graph = toy("mixed")
    # Shifting what batch normalisation will centre changes nothing: those biases alone may stay still.
    still = {f"layers.0.{key}" for key in ("bias", "second.bias")} if extra.get("batch_norm") else set()
    names, parameters = zip(*module.named_parameters(), strict=True)
    largest = dict.fromkeys(names, 0.0)
    # Several draws, since all scores of an attention may fall on one side of the leaky relu.
    for seed in range(4):
        randomise(module, seed)
        out = module(graph, generator(seed))
        for key, grad in zip(names, torch.autograd.grad(out, parameters, cotangent(out)), strict=True):
            largest[key] = max(largest[key], float(grad.abs().max()))
    assert not [key for key, value in largest.items() if value < 1e-4 and key not in still]


@pytest.mark.parametrize("name", NAMES)
def test_randomness_comes_from_the_generator_alone(name: str) -> None:
    graph, module = toy("mixed"), spec(name).build(FEATURES, 3)
    state = torch.random.get_rng_state()
    first, again, other = (module(graph, generator(seed)) for seed in (1, 1, 2))
    first.sum().backward()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(module.train()(graph, None), module.eval()(graph, None))
    assert torch.equal(module.train()(graph, generator(1)), module.eval()(graph, generator(1)))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_NORM])
def test_batch_norm_uses_the_batch_in_training_and_the_running_statistics_otherwise(name: str) -> None:
    graph = toy("mixed")
    module = GNNS[name](hidden=8, dropout=0.0, batch_norm=True).build(FEATURES, 3)
    randomise(module)
    before = module.norms[0].running_mean.clone()
    evaluated = module(graph, None)
    assert torch.equal(module.norms[0].running_mean, before)
    trained = module(graph, generator())
    assert not torch.allclose(evaluated, trained)
    assert not torch.equal(module.norms[0].running_mean, before)
    assert not torch.allclose(module(graph, None), evaluated)


@pytest.mark.parametrize("name", NAMES)
def test_one_node_survives_batch_norm_in_training(name: str) -> None:
    extra = {} if name in WITHOUT_NORM else {"batch_norm": True}
    module = GNNS[name](hidden=8, **extra).build(FEATURES, 3)
    out = module(toy("one_node"), generator())
    assert out.shape == (1, 3) and torch.isfinite(out).all()
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


def test_hidden_layers_are_normalised_dropped_and_rectified_in_this_order() -> None:
    graph = toy("mixed")
    module = GCN(hidden=8, batch_norm=True, dropout=0.5, input_dropout=0.3).build(FEATURES, 3)
    randomise(module)
    step = graph.operator("gcn").to_dense()
    draw = generator(4)
    x = dropout(graph.x, 0.3, draw)
    z = step @ x @ module.layers[0].weight + module.layers[0].bias
    z = (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt() * module.norms[0].weight + module.norms[0].bias
    assert_close(module.hidden(graph, generator(4)), dropout(z, 0.5, draw).relu())


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_number_of_layers_and_their_names(layers: int) -> None:
    module = GCN(hidden=8, layers=layers, batch_norm=True).build(FEATURES, 3)
    names = {f"layers.{i}.{kind}" for i in range(layers) for kind in ("weight", "bias")}
    names |= {f"norms.{i}.{kind}" for i in range(layers - 1) for kind in ("weight", "bias")}
    assert {name for name, _ in module.named_parameters()} == names
    assert module(toy("mixed"), generator()).shape == (7, 3)


def test_with_one_layer_hidden_is_the_features() -> None:
    graph = toy("mixed")
    module = GCN(layers=1).build(FEATURES, 3)
    assert torch.equal(module.hidden(sparse(graph), None), graph.x)


def test_initial_weights_are_glorot_and_biases_zero() -> None:
    module = GCN(hidden=50).build(100, 3)
    weight = module.layers[0].weight.detach()
    bound = (6 / 150) ** 0.5
    assert weight.shape == (100, 50)
    assert weight.abs().max() <= bound and weight.abs().max() > 0.95 * bound
    assert abs(float(weight.std()) - bound / 3**0.5) < 0.01
    assert not module.layers[0].bias.any()


def test_construction_is_reproducible_by_seeding_torch() -> None:
    built = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            built.append(GCN().build(FEATURES, 3).state_dict())
    assert all(torch.equal(value, built[1][name]) for name, value in built[0].items())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", 0),
        ("hidden", 2.5),
        ("hidden", True),
        ("layers", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", "half"),
        ("dropout", float("nan")),
        ("input_dropout", 2),
    ],
)
def test_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value!r}; it must be"):
        StackSpec(**{field: value})
    for name in set(NAMES) - {"sgc"}:
        with pytest.raises(ValueError, match=f"^{field} is"):
            GNNS[name](**{field: value})
