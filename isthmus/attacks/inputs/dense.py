"""GCNs written out on small dense graphs, so that a gradient of theirs can be differentiated again.

The models' own sparse products have no second derivative, and graphs that are guessed have no list of edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.config.course import Course
from isthmus.core.record import Params
from isthmus.models.decoders import LinearDecoder, MLPDecoder
from isthmus.models.gnn.gcn import GCN
from isthmus.models.model import ModelSpec
from isthmus.models.readouts import MeanReadout, SumReadout

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class DenseGCN:
    """The model of a course: H' = relu(S H W + b), layer by layer, then a readout and a decoder where there are any.

    Fields:
        layers:   how many layers the graph network has
        maps:     how many linear maps the decoder has
        pooled:   "mean", "sum", or empty where nodes have scores
        activate: whether the last layer's output is hidden, with relu
    """

    layers: int
    maps: int
    pooled: str
    activate: bool

    @staticmethod
    def of(course: Course) -> DenseGCN:
        """Return the model of a course that has no `model_problem`."""
        spec = course.model
        assert isinstance(spec, ModelSpec) and isinstance(spec.gnn, GCN)
        pooled = {MeanReadout: "mean", SumReadout: "sum"}.get(type(spec.readout), "")  # type: ignore[arg-type]
        maps = 0 if spec.decoder is None else getattr(spec.decoder, "layers", 1)
        return DenseGCN(spec.gnn.layers, maps, pooled, spec.activate)

    def first(self) -> str:
        """Return the name of the first layer's weight."""
        return weight(0)

    def hidden(self, params: Named, mix: Tensor, x: Tensor) -> Tensor:
        """Return the nodes' rows after the last layer, (nodes, width)."""
        h = x
        for depth in range(self.layers):
            h = mix @ (h @ params[weight(depth)]) + params[bias(depth)]
            h = h.relu() if depth < self.layers - 1 or self.activate else h
        return h

    def scores(self, params: Named, mix: Tensor, x: Tensor) -> Tensor:
        """Return (nodes, out), or (1, out) of a graph; `mix` is S, (nodes, nodes)."""
        h = self.hidden(params, mix, x)
        if self.pooled:
            h = h.sum(dim=0, keepdim=True) / (len(h) if self.pooled == "mean" else 1)
        for depth in range(self.maps):
            h = h @ params[f"decoder.layers.{depth}.weight"] + params[f"decoder.layers.{depth}.bias"]
            h = h.relu() if depth < self.maps - 1 else h
        return h

    def gradient(
        self, params: Named, mix: Tensor, x: Tensor, loss: Callable[[Tensor], Tensor], again: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradient of a loss of the scores; with `again` it can itself be differentiated."""
        own = {name: each.detach().requires_grad_() for name, each in params.items()}
        found = torch.autograd.grad(loss(self.scores(own, mix, x)), list(own.values()), create_graph=again)
        return dict(zip(own, found, strict=True))


def weight(depth: int) -> str:
    """Return the name of a layer's weight."""
    return f"gnn.layers.{depth}.weight"


def bias(depth: int) -> str:
    """Return the name of a layer's bias."""
    return f"gnn.layers.{depth}.bias"


def mixing(adjacency: Tensor) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2 of a symmetric (nodes, nodes) matrix of weights, without loops."""
    looped = adjacency + torch.eye(len(adjacency), dtype=adjacency.dtype)
    scale = looped.sum(dim=1).rsqrt()
    return scale.unsqueeze(1) * looped * scale


def adjacency_of(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return A, (nodes, nodes), in double precision."""
    found = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    found[edge_index[1], edge_index[0]] = 1.0
    return found


def model_problem(course: Course) -> str:
    """Return why the model's gradient is not that of a GCN without random zeros or norms; empty if it is."""
    spec = course.model
    if not isinstance(spec, ModelSpec) or type(spec.gnn) is not GCN or spec.encoder is not None:
        return "it writes the model's gradient out, which it can for model.gnn.name=gcn without an encoder"
    dropout = [spec.gnn.dropout, spec.gnn.input_dropout]
    if isinstance(spec.decoder, MLPDecoder) and spec.decoder.layers > 1:
        dropout.append(spec.decoder.dropout)
    if any(dropout):
        return "dropout makes gradients random; it needs model.gnn.dropout=0, and model.decoder.dropout=0"
    if spec.gnn.batch_norm:
        return "batch norm mixes nodes in a way that it does not undo; it needs model.gnn.batch_norm=false"
    if type(spec.readout) not in (type(None), MeanReadout, SumReadout):
        return f"it cannot undo the readout {type(spec.readout).__name__}; it needs model.readout=mean or sum"
    if type(spec.decoder) not in (type(None), LinearDecoder, MLPDecoder):
        return f"it cannot undo the decoder {type(spec.decoder).__name__}; it needs model.decoder=linear or mlp"
    return ""


def in_double(params: Params) -> dict[str, Tensor]:
    """Return parameters in double precision."""
    return {name: each.double() for name, each in params.items()}
