from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isthmus.learn.together.blocks import stackable
from isthmus.learn.together.layouts import replaced
from isthmus.learn.together.stacked_features import drops_features, feature_weights
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GNNS,
    GPRGNN,
    MLP,
    SAGE,
    SGC,
    LinearDecoder,
    LinearEncoder,
    MaxReadout,
    MeanReadout,
    MLPDecoder,
    MLPEncoder,
    Model,
    ModelSpec,
    Set2SetReadout,
    SumReadout,
)
from isthmus.models.gnn.gcn import GCNLayer
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import BatchNorm, LayerStack, Linear, Perceptron

IN, HIDDEN, CLASSES = 11, 8, 3  # no other width is 11


def built(**fields: Any) -> Model:
    return ModelSpec(**fields).build(IN, CLASSES)


# What these networks read may be sums that were made once, which a stack would make anew.
ALONE = {"gap", "progap"}
MODELS = {
    **{name: {"gnn": kind(hidden=HIDDEN)} for name, kind in GNNS.items() if name not in ALONE},  # type: ignore[call-arg]
    "batch norm": {"gnn": SAGE(hidden=HIDDEN, batch_norm=True)},
    "learnt eps": {"gnn": GIN(hidden=HIDDEN, train_eps=True)},
    "one layer": {"gnn": GCN(hidden=HIDDEN, layers=1)},
    "encoder": {"gnn": GCN(hidden=HIDDEN), "encoder": LinearEncoder(dim=HIDDEN)},
    "mlp encoder and decoder": {"gnn": GAT(hidden=HIDDEN), "encoder": MLPEncoder(dim=HIDDEN), "decoder": MLPDecoder()},
    "features of edges": {"gnn": GIN(hidden=HIDDEN, edge_dim=2), "encoder": LinearEncoder(dim=HIDDEN)},
    "decoder": {"gnn": SGC(hidden=HIDDEN), "decoder": LinearDecoder()},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_tables_can_run_for_many_clients(name: str) -> None:
    assert stackable(built(**MODELS[name]))


@pytest.mark.parametrize("name", sorted(ALONE))
def test_some_cannot(name: str) -> None:
    assert not stackable(built(gnn=GNNS[name](hidden=HIDDEN)))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", MODELS)
def test_the_feature_weights_are_those_with_a_row_for_each_feature(name: str) -> None:
    model = built(**MODELS[name])
    tall = [key for key, tensor in model.state_dict().items() if tensor.ndim == 2 and len(tensor) == IN]
    assert sorted(feature_weights(model)) == sorted(tall) and tall


def test_features_are_dropped_where_the_spec_says_so() -> None:
    for gnn in (GCN, SAGE, GAT, GIN, GPRGNN, APPNP, SGC, MLP):
        assert drops_features(built(gnn=gnn(hidden=HIDDEN, input_dropout=0.1)))
        assert not drops_features(built(gnn=gnn(hidden=HIDDEN)))


# ---- what is not known by its exact class


class OwnModel(Model):
    pass


class OwnStack(LayerStack):
    pass


class OwnLayer(GCNLayer):
    pass


class OwnNorm(BatchNorm):
    pass


class OwnLinear(Linear):
    pass


class OwnPerceptron(Perceptron):
    pass


class OwnList(nn.ModuleList):
    pass


def with_part(model: Model, place: str, part: nn.Module) -> Model:
    parent, _, name = place.rpartition(".")
    setattr(model.get_submodule(parent), name, part)
    return model


def test_a_subclass_or_a_part_of_ones_own_is_not_known_to_run_for_many() -> None:
    spec = GCN(hidden=HIDDEN, batch_norm=True)
    plain = built(gnn=spec)
    assert stackable(plain)
    others: list[nn.Module] = [
        OwnModel(None, plain.gnn, None, None),
        with_part(built(gnn=spec), "gnn", OwnStack(spec, spec.all_layers(IN, CLASSES))),
        with_part(built(gnn=spec), "gnn.layers.1", OwnLayer(HIDDEN, CLASSES)),
        with_part(built(gnn=spec), "gnn.norms.0", OwnNorm(HIDDEN)),
        with_part(built(gnn=spec), "gnn.norms.0", nn.BatchNorm1d(HIDDEN)),
        with_part(built(gnn=spec), "gnn.norms", OwnList([BatchNorm(HIDDEN)])),
        with_part(built(gnn=MLP(hidden=HIDDEN)), "gnn.layers.0", OwnLinear(IN, HIDDEN)),
        with_part(built(gnn=MLP(hidden=HIDDEN)), "gnn.layers.0", nn.Linear(IN, HIDDEN)),
        with_part(built(gnn=spec, decoder=LinearDecoder()), "decoder", OwnPerceptron([HIDDEN, CLASSES])),
        with_part(built(gnn=spec, decoder=LinearDecoder()), "decoder", nn.Identity()),
        plain.gnn,
        nn.Linear(IN, CLASSES),
        nn.Sequential(plain),
    ]
    assert [type(model).__name__ for model in others if stackable(model)] == []


def test_attention_dropout_is_not_for_many() -> None:
    assert not stackable(built(gnn=GAT(hidden=HIDDEN, attention_dropout=0.1)))
    assert stackable(built(gnn=GAT(hidden=HIDDEN, attention_dropout=0.0)))


@pytest.mark.parametrize("readout", [MeanReadout(), SumReadout(), MaxReadout(), Set2SetReadout()])
def test_every_readout_can_run_for_many_clients(readout: Any) -> None:
    assert stackable(built(gnn=GCN(hidden=HIDDEN), readout=readout, decoder=LinearDecoder()))


# ---- other values in the place of parameters


def names_of(model: nn.Module) -> list[str]:
    return list(model.state_dict())


def overlaid(model: nn.Module) -> list[str]:
    """Return what lies on modules in front of registered parameters and buffers."""
    return [
        f"{place}.{name}"
        for place, module in model.named_modules()
        for name in (*module._parameters, *module._buffers)
        if name in module.__dict__
    ]


def test_other_values_are_found_while_they_stand_in_and_the_model_is_itself_afterwards() -> None:
    model = built(gnn=GCN(hidden=HIDDEN, batch_norm=True))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layer, norm = model.get_submodule("gnn.layers.0"), model.get_submodule("gnn.norms.0")
    weight = layer.weight
    strange = object()
    with replaced(model, {"gnn.layers.0.weight": strange, "gnn.norms.0.running_mean": torch.ones(4, HIDDEN)}):
        assert layer.weight is strange and norm.running_mean.shape == (4, HIDDEN)
        assert norm.running_var.shape == (HIDDEN,)  # nobody replaced it
        assert sorted(overlaid(model)) == ["gnn.layers.0.weight", "gnn.norms.0.running_mean"]
    assert layer.weight is weight and overlaid(model) == []
    assert names_of(model) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_model_is_itself_also_after_an_error() -> None:
    model = built(gnn=GCN(hidden=HIDDEN))
    values: dict[str, Tensor] = {name: torch.zeros(2, *t.shape) for name, t in model.state_dict().items()}
    with pytest.raises(ZeroDivisionError), replaced(model, values):
        raise ZeroDivisionError
    assert overlaid(model) == []


def test_the_model_is_itself_also_after_an_unknown_name() -> None:
    model = built(gnn=GCN(hidden=HIDDEN))
    with pytest.raises(AttributeError), replaced(model, {"gnn.layers.0.weight": 1, "gnn.nothing.weight": 2}):
        pass
    assert overlaid(model) == []


def test_within_another_such_context_the_outer_values_come_back_also_after_an_error() -> None:
    model = built(gnn=GCN(hidden=HIDDEN, batch_norm=True))
    layer, norm = model.get_submodule("gnn.layers.0"), model.get_submodule("gnn.norms.0")
    registered = layer.weight, layer.bias, norm.running_mean
    outer = {"gnn.layers.0.weight": "outer", "gnn.norms.0.running_mean": None}
    inner = {"gnn.layers.0.weight": "inner", "gnn.layers.0.bias": "inner", "gnn.norms.0.running_mean": "inner"}
    with replaced(model, outer):
        for _ in range(2):
            with replaced(model, inner):
                assert (layer.weight, layer.bias, norm.running_mean) == ("inner",) * 3
                with replaced(model, {"gnn.layers.0.weight": "innermost"}):
                    assert (layer.weight, layer.bias) == ("innermost", "inner")
                assert (layer.weight, layer.bias) == ("inner", "inner")
            # None is a value like any other: what the outer context put there comes back.
            assert layer.weight == "outer" and norm.running_mean is None and layer.bias is registered[1]
            assert sorted(overlaid(model)) == sorted(outer)
            with pytest.raises(ZeroDivisionError), replaced(model, inner):
                raise ZeroDivisionError
            assert layer.weight == "outer" and norm.running_mean is None and layer.bias is registered[1]
            with pytest.raises(AttributeError), replaced(model, {**inner, "gnn.nothing.weight": 2}):
                pass
            assert layer.weight == "outer" and norm.running_mean is None and layer.bias is registered[1]
    assert (layer.weight, layer.bias, norm.running_mean) == registered and overlaid(model) == []


def test_values_that_stand_in_get_the_gradient_and_the_parameters_behind_them_none() -> None:
    model = built(gnn=GCN(hidden=HIDDEN))
    graph = GraphInput(torch.ones(2, IN), torch.tensor([[0, 1], [1, 0]]))
    other = {name: (tensor + 0.1).requires_grad_() for name, tensor in model.state_dict().items()}
    with replaced(model, other):
        out = model(graph, None).sum()
    found = torch.autograd.grad(out, [*other.values(), *model.parameters()], allow_unused=True)
    assert all(slope is not None for slope in found[: len(other)])
    assert all(slope is None for slope in found[len(other) :])


def test_a_module_that_stands_in_two_places_is_itself_afterwards() -> None:
    """Both names lead to one place: what was there before the first must be what comes back last."""
    model = nn.Module()
    model.first = model.second = nn.Linear(2, 2)
    weight = model.first.weight
    assert names_of(model) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    with replaced(model, {name: name for name in names_of(model)}):
        assert model.first.weight == "second.weight"
    assert overlaid(model) == [] and model.first.weight is model.second.weight is weight
