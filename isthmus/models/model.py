"""A whole model, put together from a spec, and which of its parameters are shared.

FedPer (Arivazhagan et al., 2019) shares all but the head, FedBN (Li et al., 2021) all but the normalisation: both are
FedAvg with another list of patterns of names. What is not shared never leaves a client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.models.decoders import DecoderSpec, LinkPart
from isthmus.models.dropout import Streams, of_items
from isthmus.models.encoders import EncoderSpec
from isthmus.models.gnn.gcn import GCN
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import GNN, BatchNorm, GNNSpec, LayerStack, Part, Perceptron, require_count
from isthmus.models.products.sparse import Features, dense
from isthmus.models.readouts import MeanPool, ReadoutSpec, SumPool


@dataclass(frozen=True)
class ModelSpec:
    """What a model is made of.

        features -> [encoder] -> gnn -> [readout] -> [decoder] -> scores

    Fields:
        gnn:     the graph network; without a decoder its last layer gives the scores, else `gnn.hidden` columns
        encoder: what is done to the features first, or None
        decoder: what gives the scores from the graph network's output, or None
        readout: what makes one row for each graph of its nodes' rows, or None; it needs a decoder after it
        activate: whether the graph network's output is a hidden layer like the others, with relu, and with batch norm
                 where the graph network has it; it needs a decoder after it
    """

    gnn: GNNSpec = GCN()
    encoder: EncoderSpec | None = None
    decoder: DecoderSpec | None = None
    readout: ReadoutSpec | None = None
    activate: bool = False

    def __post_init__(self) -> None:
        if self.readout is not None and self.decoder is None:
            raise ValueError(
                f"readout is {self.readout!r} and decoder is None; "
                "a readout needs a decoder after it: set model.decoder=mlp, or linear"
            )
        if self.activate and self.decoder is None:
            raise ValueError("activate is true and decoder is None; scores are no hidden layer: set decoder")

    def build(self, in_dim: int, out_dim: int) -> Model:
        """Return the module for `in_dim` features and `out_dim` scores.

        Parameters are drawn from torch's global generator: wrap the call in `isthmus.core.random.seeded`.
        """
        require_count("in_dim", in_dim)
        require_count("out_dim", out_dim)
        width = in_dim if self.encoder is None else self.encoder.dim
        read = self.gnn.hidden if self.readout is None else self.readout.out_dim(self.gnn.hidden)
        return Model(
            encoder=None if self.encoder is None else self.encoder.build(in_dim),
            gnn=self.gnn.build(width, out_dim if self.decoder is None else self.gnn.hidden),
            readout=None if self.readout is None else self.readout.build(self.gnn.hidden),
            decoder=None if self.decoder is None else self.decoder.build(read, out_dim),
            activation=Activation(self.gnn.hidden, getattr(self.gnn, "batch_norm", False)) if self.activate else None,
        )


class ModelFactory(Protocol):
    """What a course needs of a model: `ModelSpec`, or an object of one's own that builds a module.

    The module's `forward(graph, generator)` returns one row of scores for each example; `generator` is None in
    evaluation.
    """

    def build(self, in_dim: int, out_dim: int) -> nn.Module:
        """Return the module for `in_dim` features and `out_dim` scores."""


class Activation(Part):
    """relu(norm(H)): what makes the graph network's output a hidden layer."""

    def __init__(self, dim: int, batch_norm: bool) -> None:
        super().__init__()
        self.norm = BatchNorm(dim) if batch_norm else None

    def forward(self, graph: GraphInput, h: Features, generator: torch.Generator | None) -> Tensor:
        """Return (nodes, dim)."""
        rows = dense(h)
        return (rows if self.norm is None else self.norm(rows, generator)).relu()


class Model(nn.Module):
    """The module of `ModelSpec`; `forward` is `classify` of `embed`.

    With a decoder of links there are no scores of nodes: tasks give rows of `embed` to `decoder`, for heads and tails.
    """

    if TYPE_CHECKING:

        def __call__(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor: ...  # noqa: D102

    def __init__(
        self,
        encoder: Part | None,
        gnn: GNN,
        readout: Part | None,
        decoder: Part | LinkPart | None,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.gnn = gnn
        self.activation = activation
        self.readout = readout
        self.decoder = decoder

    def embed(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the nodes' representations that the classifier sees, (nodes, width).

        Without a decoder that is the graph network's hidden layer, with one the graph network's output.
        """
        graph = self._encoded(graph if graph.reach is None else graph.replace(reach=None), generator)
        if self.decoder is None:
            return self.gnn.hidden(graph, generator)
        h = self.gnn(graph, generator)
        return h if self.activation is None else self.activation(graph, h, generator)

    def classify(self, graph: GraphInput, h: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return scores for representations such as `embed` gives, (nodes, out), or (graphs, out) after a readout."""
        if self.decoder is None:
            return self.gnn.last(graph, h, generator)
        if isinstance(self.decoder, LinkPart):
            raise TypeError(f"the decoder {type(self.decoder).__name__} scores pairs of nodes: call it with their rows")
        if self.readout is not None:
            h = self.readout(graph, h, generator)
            generator = of_items(generator)  # type: ignore[assignment]
        return self.decoder(graph, h, generator)

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `classify` of `embed`, by the graph network's own shorter way where it has one."""
        if self.decoder is None:
            return self.gnn(self._encoded(graph, generator), generator)
        if isinstance(self.decoder, Part) and isinstance(self.gnn, LayerStack) and self._pools_last_layer():
            mean = type(self.readout) is MeanPool
            pooled = self.gnn.pooled(self._encoded(graph, generator), generator, mean)
            return self.decoder(graph, pooled, of_items(generator))  # type: ignore[arg-type]
        return self.classify(graph, self.embed(graph, generator), generator)

    @property
    def is_chain(self) -> bool:
        """Whether, in training, it is a chain of steps each of which takes what the last one gave and parameters."""
        bare = self.encoder is None and self.decoder is None and self.activation is None and self.readout is None
        return bare and type(self) is Model and type(self.gnn) is LayerStack and self.gnn.is_chain

    def pools_as_chain(self, graph: GraphInput, streams: Streams) -> bool:
        """Whether, in training, scores of these graphs are a chain of such steps."""
        if type(self) is not Model or type(self.decoder) is not Perceptron or type(self.gnn) is not LayerStack:
            return False
        return self.encoder is None and self._pools_last_layer() and self.gnn.pools_in_parts(graph, streams)

    @property
    def draws_once(self) -> bool:
        """Whether a training step draws once, and in nothing else than hidden rows."""
        return self.is_chain and isinstance(self.gnn, LayerStack) and self.gnn.draws_once

    def _pools_last_layer(self) -> bool:
        """Whether nothing comes between the last layer and sums or means; where a class does otherwise, it may."""
        plain = type(self.gnn).forward is LayerStack.forward and type(self.gnn).last is LayerStack.last
        return plain and self.activation is None and type(self.readout) in (SumPool, MeanPool)

    def _encoded(self, graph: GraphInput, generator: torch.Generator | None) -> GraphInput:
        if self.encoder is None:
            return graph
        return graph.replace(x=self.encoder(graph, graph.x, generator))


# ---- which parameters are shared, by patterns of their names

EVERYTHING = ("*",)
ALL_BUT_HEADS = ("*", "!decoder.*")


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError unless there are patterns, each with something in it besides the mark of an exception."""
    if not patterns:
        raise ValueError('shared is empty; name what clients share, such as "gnn.*", or use algorithm.name=local')
    for pattern in patterns:
        if not pattern.removeprefix("!"):
            raise ValueError(f"shared has {pattern!r}; write a parameter's name, * standing for anything")
    if patterns[0].startswith("!"):
        raise ValueError(f'shared begins with the exception {patterns[0]!r}; write what it is taken from first: "*"')


def shared_names(patterns: Sequence[str], names: Iterable[str], known: Iterable[str] | None = None) -> frozenset[str]:
    """Return which of the names are shared.

    Each pattern adds the names it matches, one that begins with ! takes them away again; the last that matches decides.
    A pattern that matches nothing is an error that lists the names. Where clients have models of their own, `known` are
    the names of all of them: then a pattern has to match one of those.
    """
    mine = tuple(names)
    everywhere = mine if known is None else tuple(dict.fromkeys((*mine, *known)))
    shared: set[str] = set()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        found = {name for name in everywhere if fnmatchcase(name, plain)}
        if not found:
            raise BadInput(f"shared has {pattern!r}, which matches no parameter of the model: {', '.join(everywhere)}")
        shared = shared - found if pattern.startswith("!") else shared | found
    shared.intersection_update(mine)
    if not shared:
        raise BadInput(f"shared is {list(patterns)}, which leaves nothing to share of {', '.join(mine)}")
    return frozenset(shared)


def names_by_classes(model: ModelFactory, input_dim: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of classes."""
    return _unlike(model, (input_dim, 2), (input_dim, 3))


def names_by_features(model: ModelFactory, output_dim: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of features."""
    return _unlike(model, (2, output_dim), (3, output_dim))


def _unlike(model: ModelFactory, *sizes: tuple[int, int]) -> tuple[str, ...]:
    with torch.random.fork_rng(devices=[]):
        first, second = (model.build(*size).state_dict() for size in sizes)
    return tuple(name for name in second if name not in first or first[name].shape != second[name].shape)


def require_own_heads(model: ModelFactory, input_dim: int, shared: frozenset[str], classes: Sequence[str]) -> None:
    """Raise BadInput unless all that depends on the classes is personal; `classes` says who has how many."""
    without = 'give the model a head (model.decoder.name=linear) and keep it: shared=["*", "!decoder.*"]'
    _require_own(names_by_classes(model, input_dim), shared, "classes", classes, without)


def require_own_inputs(model: ModelFactory, output_dim: int, shared: frozenset[str], features: Sequence[str]) -> None:
    """Raise BadInput unless all that depends on the features is personal; `features` says who has how many."""
    without = 'give the model an encoder (model.encoder.name=linear) and keep it: shared=["*", "!encoder.*"]'
    _require_own(names_by_features(model, output_dim), shared, "features", features, without)


def _require_own(names: Sequence[str], shared: frozenset[str], what: str, numbers: Sequence[str], without: str) -> None:
    tied = [name for name in names if name in shared]
    if not tied:
        return
    parts = sorted({name.split(".")[0] for name in tied})
    wanted = ", ".join(f'"!{part}.*"' for part in parts)
    hint = without if "gnn" in parts else f'shared=["*", {wanted}]'
    raise BadInput(
        f"clients have different {what} ({'; '.join(numbers)}), but they share {tied[0]!r}, whose shape depends "
        f"on their number; let each keep its own: {hint}"
    )


def require_same_shared(
    patterns: Sequence[str], ours: Mapping[str, Tensor], client: str, theirs: Mapping[str, Tensor]
) -> None:
    """Raise BadInput unless what is shared has the same names and shapes in the course's model and in a client's."""
    shapes = {
        name: [str(tuple(held[name].shape)) if name in held else "missing" for held in (ours, theirs)]
        for name in dict.fromkeys((*ours, *theirs))
    }
    odd = [name for name, (here, there) in shapes.items() if here != there]
    if not odd:
        return
    here, there = shapes[odd[0]]
    raise BadInput(
        f"the parameter {odd[0]!r} is shared, but in the model of {client} it is {there}, in the course's model "
        f"{here}; give both the same shape (client_settings.{client}), or {_remedy(patterns, odd, shapes)}"
    )


def _remedy(patterns: Sequence[str], odd: Iterable[str], names: Iterable[str]) -> str:
    """Return what to do about shared parameters of which the odd ones differ."""
    places = dict.fromkeys(_place(name) for name in odd)
    if all(_place(name) in places for name in names):
        return "let everybody learn alone (algorithm.name=local): nothing that is shared fits both"
    return f"let clients keep their own: shared={json.dumps([*patterns, *(f'!{place}' for place in places)])}"


def _place(name: str) -> str:
    """Return the pattern of the part that a parameter belongs to: a layer of the graph network, or all of another."""
    part, _, rest = name.partition(".")
    return f"{part}.*" if part != "gnn" else f"gnn.{rest.rpartition('.')[0] or rest}.*"
