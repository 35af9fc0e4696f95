"""Which models give each of many clients the same numbers when they run for all at once, and how one is made to.

A part of a model that may be stacked is named here by its exact class: a subclass may do something else, and would be
simulated as its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from isthmus.models.decoders import Bilinear, DistMult, Dot, HadamardMLP
from isthmus.models.encoders import EmbeddingSum
from isthmus.models.gnn.appnp import APPNPStack
from isthmus.models.gnn.gat import GATLayer
from isthmus.models.gnn.gcn import GCNLayer
from isthmus.models.gnn.gin import GINELayer, GINLayer
from isthmus.models.gnn.gprgnn import GPRGNNStack
from isthmus.models.gnn.sage import SAGELayer
from isthmus.models.gnn.sgc import SGCStack
from isthmus.models.layer_stack import LayerStack
from isthmus.models.model import Activation, Model
from isthmus.models.parts import BatchNorm, BiasFreeLinear, Linear, Perceptron
from isthmus.models.readouts import MaxPool, MeanPool, Set2Set, SumPool

# Layers, with the parameters that multiply what goes in.
LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    Linear: ("weight",),
    BiasFreeLinear: ("weight",),
    GCNLayer: ("weight",),
    SAGELayer: ("neighbor_weight", "own_weight"),
    GATLayer: ("weight",),
    GINLayer: ("weight",),
    EmbeddingSum: ("weight",),
    GINELayer: (),  # which reads features as they are, and multiplies sums of them
}
OTHERS: frozenset[type[nn.Module]] = frozenset(
    {
        Model,
        Activation,
        Perceptron,
        LayerStack,
        GPRGNNStack,
        APPNPStack,
        SGCStack,
        BatchNorm,
        Bilinear,
        Dot,
        DistMult,
        HadamardMLP,
        MeanPool,
        SumPool,
        MaxPool,
        Set2Set,
        nn.LSTMCell,
        nn.ModuleList,
    }
)


def stackable(model: nn.Module) -> bool:
    """Whether a model gives each client the same numbers when it runs for many of them at once."""
    if type(model) is not Model:
        return False
    named = list(model.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named) or not all(p.requires_grad for _, p in named):
        return False  # tied or frozen
    return all(
        (type(part) in LAYERS or type(part) in OTHERS) and not getattr(part, "attention_dropout", 0.0)
        for part in model.modules()
    )


def feature_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that multiply the features."""
    assert isinstance(model, Model)
    place = "gnn.layers.0" if model.encoder is None else "encoder.layers.0"
    if isinstance(model.encoder, EmbeddingSum):
        place = "encoder"
    return tuple(f"{place}.{name}" for name in LAYERS[type(model.get_submodule(place))])


def drops_features(model: nn.Module) -> bool:
    """Whether the model drops entries of the features in training."""
    return any(getattr(part, "input_dropout", 0.0) for part in model.modules())


@contextmanager
def replaced(model: nn.Module, values: Mapping[str, Any]) -> Iterator[None]:
    """Run a model with other values in the place of parameters and buffers, of whatever shape or type.

    Within another such context, it ends by putting that one's values back.
    """
    places: list[tuple[nn.Module, str, bool, Any]] = []
    try:
        for name, value in values.items():
            path, _, attribute = name.rpartition(".")
            module = model.get_submodule(path)
            places.append((module, attribute, attribute in module.__dict__, module.__dict__.get(attribute)))
            module.__dict__[attribute] = value  # found before the registered parameter of the same name
        yield
    finally:
        for module, attribute, had, before in reversed(places):
            if had:
                module.__dict__[attribute] = before
            else:
                del module.__dict__[attribute]
