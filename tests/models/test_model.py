from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from isthmus.core.random import seeded
from isthmus.models import (
    GCN,
    GNNS,
    READOUTS,
    SGC,
    LinearDecoder,
    LinearEncoder,
    MLPDecoder,
    MLPEncoder,
    ModelSpec,
    SumReadout,
)

from .toys import FEATURES, assert_close, cotangent, randomise, sparse, toy

SPECS = [
    ModelSpec(),
    ModelSpec(GCN(hidden=8, batch_norm=True)),
    ModelSpec(GCN(hidden=8), encoder=LinearEncoder(6)),
    ModelSpec(GCN(hidden=8), decoder=MLPDecoder(hidden=4)),
    ModelSpec(GCN(hidden=8), encoder=MLPEncoder(6), decoder=LinearDecoder()),
    ModelSpec(SGC(hidden=8, input_dropout=0.2), encoder=MLPEncoder(6, dropout=0.3), decoder=MLPDecoder()),
    ModelSpec(GCN(hidden=8), decoder=MLPDecoder(4), activate=True),
    ModelSpec(GCN(hidden=8, batch_norm=True), LinearEncoder(6), LinearDecoder(), activate=True),
    *(ModelSpec(GNNS[name](hidden=8), decoder=MLPDecoder(4), readout=SumReadout()) for name in sorted(GNNS)),
]
BATCH = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("wrap", [lambda graph: graph, sparse])
def test_forward_is_classify_of_embed(spec: ModelSpec, training: bool, wrap) -> None:
    graph, model = wrap(toy("mixed").replace(batch=BATCH)), spec.build(FEATURES, 3)
    randomise(model)
    one, two = (generator(), generator()) if training else (None, None)
    whole = model(graph, one)
    h = model.embed(graph, two)
    assert_close(model.classify(graph, h, two), whole)
    assert whole.shape == (7 if spec.readout is None else 2, 3)
    assert h.shape == (7, spec.gnn.hidden)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_every_parameter_gets_a_gradient_and_the_global_generator_stays(spec: ModelSpec) -> None:
    graph, model = toy("mixed").replace(batch=BATCH), spec.build(FEATURES, 3)
    largest = dict.fromkeys(dict(model.named_parameters()), 0.0)
    state = torch.random.get_rng_state()
    for seed in range(6):
        randomise(model, seed)
        out = model(graph, generator(seed))
        grads = torch.autograd.grad(out, list(model.parameters()), cotangent(out))
        for name, grad in zip(largest, grads, strict=True):
            largest[name] = max(largest[name], float(grad.abs().max()))
    assert torch.equal(torch.random.get_rng_state(), state)
    still = {"gnn.layers.0.bias"} if getattr(spec.gnn, "batch_norm", False) else set()
    if still and spec.activate:
        still.add("gnn.layers.1.bias")
    assert not [name for name, value in largest.items() if value < 1e-4 and name not in still]


def test_a_whole_model_equals_its_dense_formula() -> None:
    graph = toy("weighted").replace(batch=BATCH)
    spec = ModelSpec(GCN(hidden=8), LinearEncoder(6), MLPDecoder(4), READOUTS["mean"]())
    model = spec.build(FEATURES, 3)
    randomise(model)
    p = dict(model.named_parameters())
    step = graph.operator("gcn").to_dense()

    def linear(h: torch.Tensor, name: str) -> torch.Tensor:
        return h @ p[f"{name}.weight"] + p[f"{name}.bias"]

    h = linear(graph.x, "encoder.layers.0")
    h = (step @ h @ p["gnn.layers.0.weight"] + p["gnn.layers.0.bias"]).relu()
    h = step @ h @ p["gnn.layers.1.weight"] + p["gnn.layers.1.bias"]
    assert_close(model.embed(graph, None), h)
    h = torch.stack([h[:3].mean(0), h[3:].mean(0)])
    assert_close(model(graph, None), linear(linear(h, "decoder.layers.0").relu(), "decoder.layers.1"))


@pytest.mark.parametrize("readout", [None, READOUTS["mean"]()], ids=["nodes", "graphs"])
@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_an_activated_output_is_a_hidden_layer_like_the_others(training: bool, batch_norm: bool, readout) -> None:
    """relu(norm(H)) of what the graph network gives without it, by the nodes' own statistics in training."""
    graph = toy("weighted").replace(batch=BATCH)
    gnn = GCN(hidden=8, dropout=0.0, batch_norm=batch_norm)
    spec = ModelSpec(gnn, decoder=LinearDecoder(), readout=readout)
    model, plain = (each.build(FEATURES, 3) for each in (replace(spec, activate=True), spec))
    randomise(model)
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("activation.")})
    h = plain.embed(graph, generator() if training else None)
    assert bool((h < 0).any())
    if batch_norm:
        norm = model.activation.norm
        mean, var = norm.running_mean.clone(), norm.running_var.clone()
        if training:
            mean, var = h.mean(0), h.var(0, correction=0)
        h = (h - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    found = model.embed(graph, generator() if training else None)
    assert_close(found, h.relu())
    rows = h.relu() if readout is None else torch.stack([h.relu()[:3].mean(0), h.relu()[3:].mean(0)])
    scores = rows @ model.decoder.layers[0].weight + model.decoder.layers[0].bias
    assert_close(model(graph, generator() if training else None), scores)


def test_names_of_an_activation_are_those_of_its_norm_and_without_a_norm_there_are_none() -> None:
    def names(batch_norm: bool, activate: bool) -> list[str]:
        spec = ModelSpec(GCN(hidden=8, batch_norm=batch_norm), decoder=LinearDecoder(), activate=activate)
        return list(spec.build(FEATURES, 3).state_dict())

    assert names(False, True) == names(False, False)
    added = [f"activation.norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
    assert [name for name in names(True, True) if name not in names(True, False)] == added


def test_a_graph_network_that_knows_no_batch_norm_is_activated_by_relu_alone() -> None:
    graph, model = toy("mixed"), ModelSpec(SGC(hidden=8), decoder=LinearDecoder(), activate=True).build(FEATURES, 3)
    randomise(model)
    assert model.activation.norm is None
    assert_close(model.embed(graph, None), model.gnn(graph, None).relu())


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(GCN(hidden=8, dropout=0.0), encoder=MLPEncoder(6, dropout=0.5)),
        ModelSpec(GCN(hidden=8, dropout=0.5), decoder=LinearDecoder()),
        ModelSpec(GCN(hidden=8, dropout=0.0), decoder=MLPDecoder(8, dropout=0.5)),
    ],
    ids=["encoder", "gnn", "decoder"],
)
def test_the_generator_reaches_each_part(spec: ModelSpec) -> None:
    graph, model = toy("mixed"), spec.build(FEATURES, 3)
    randomise(model)
    assert torch.equal(model(graph, generator(1)), model(graph, generator(1)))
    assert not torch.allclose(model(graph, generator(1)), model(graph, generator(2)))
    assert not torch.allclose(model(graph, generator(1)), model(graph, None))


def test_an_encoder_does_not_rebuild_the_operators() -> None:
    graph, model = toy("mixed"), ModelSpec(encoder=LinearEncoder(6)).build(FEATURES, 3)
    model(graph, None)
    operator = graph._built["gcn"]
    model(graph, None)
    assert graph._built["gcn"] is operator


def test_names_of_parameters_are_stable() -> None:
    spec = ModelSpec(GCN(hidden=8, batch_norm=True), LinearEncoder(6), MLPDecoder(4), SumReadout())
    assert list(spec.build(FEATURES, 3).state_dict()) == [
        "encoder.layers.0.weight",
        "encoder.layers.0.bias",
        "gnn.layers.0.weight",
        "gnn.layers.0.bias",
        "gnn.layers.1.weight",
        "gnn.layers.1.bias",
        "gnn.norms.0.weight",
        "gnn.norms.0.bias",
        "gnn.norms.0.running_mean",
        "gnn.norms.0.running_var",
        "decoder.layers.0.weight",
        "decoder.layers.0.bias",
        "decoder.layers.1.weight",
        "decoder.layers.1.bias",
    ]


def test_building_in_a_seeded_block_is_reproducible() -> None:
    def build(seed: int) -> torch.Tensor:
        with seeded(seed, "init"):
            return ModelSpec().build(FEATURES, 3).gnn.layers[0].weight.detach()

    assert torch.equal(build(1), build(1)) and not torch.equal(build(1), build(2))


def test_a_copied_model_gives_the_same_scores() -> None:
    graph = toy("mixed")
    for name in GNNS:
        model = ModelSpec(GNNS[name](hidden=8)).build(FEATURES, 3)
        assert torch.equal(copy.deepcopy(model)(graph, generator()), model(graph, generator()))


def test_parameters_given_from_outside_are_the_ones_used() -> None:
    graph, model = toy("mixed"), ModelSpec(GCN(hidden=8)).build(FEATURES, 3)
    other = ModelSpec(GCN(hidden=8)).build(FEATURES, 3)
    given = {name: value.detach().clone().requires_grad_() for name, value in other.named_parameters()}
    out = torch.func.functional_call(model, given, (graph, None))
    assert torch.equal(out, other(graph, None))
    assert all(grad.any() for grad in torch.autograd.grad(out, list(given.values()), cotangent(out)))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"readout is SumReadout\(\) and decoder is None; a readout needs a decoder"):
        ModelSpec(readout=SumReadout())
    with pytest.raises(ValueError, match=r"activate is true and decoder is None; .*set decoder"):
        ModelSpec(activate=True)
    with pytest.raises(ValueError, match="in_dim is 0"):
        ModelSpec().build(0, 3)
    with pytest.raises(ValueError, match="out_dim is -1"):
        ModelSpec().build(3, -1)


def test_repr_tells_models_apart() -> None:
    assert len({repr(spec) for spec in SPECS}) == len(SPECS)
    assert len({repr(spec.build(FEATURES, 3)) for spec in SPECS}) == len(SPECS)
