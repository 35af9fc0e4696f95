"""A whole model, put together from a spec: encoder, graph network, readout and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from isthmus.models.checks import require_count
from isthmus.models.decoders import DecoderSpec
from isthmus.models.encoders import EncoderSpec
from isthmus.models.gnn.gcn import GCN
from isthmus.models.gnn.layers import GNN, GNNSpec
from isthmus.models.inputs import GraphInput
from isthmus.models.link_decoders import LinkPart
from isthmus.models.norm import BatchNorm
from isthmus.models.parts import Part
from isthmus.models.products.sparse import Features, dense
from isthmus.models.readouts import ReadoutSpec


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
        graph = self._encoded(graph, generator)
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
        return self.decoder(graph, h, generator)

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return `classify` of `embed`, by the graph network's own shorter way where it has one."""
        if self.decoder is None:
            return self.gnn(self._encoded(graph, generator), generator)
        return self.classify(graph, self.embed(graph, generator), generator)

    def _encoded(self, graph: GraphInput, generator: torch.Generator | None) -> GraphInput:
        if self.encoder is None:
            return graph
        return graph.replace(x=self.encoder(graph, graph.x, generator))
