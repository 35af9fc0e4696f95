"""DGI: nodes are told apart from those of a corrupted graph, in the light of the whole. Velickovic et al. (2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.selfsup.objective import SelfSupervision
from isthmus.core.record import Params
from isthmus.data.graph import select_rows
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.parts import glorot
from isthmus.models.products.sparse import SparseMatrix


@dataclass(frozen=True)
class DGI(SelfSupervision):
    """-1/(2N) (sum_i log D(h_i, s) + sum_j log(1 - D(h~_j, s))), D(h, s) = sigmoid(h^T W s), s = sigmoid(mean of h).

    h are the encoder's representations of the graph, h~ those of the same graph with its rows of features shuffled.
    """

    def build(self, width: int) -> nn.Module:
        """Return W."""
        return Discriminator(width)

    def loss(
        self, model: Model, own: nn.Module, graph: GraphInput, memory: Params, generator: torch.Generator
    ) -> Tensor:
        """Return the loss."""
        assert isinstance(own, Discriminator)
        order = torch.randperm(graph.num_nodes, generator=generator)
        real = model.embed(graph, generator)
        false = model.embed(graph.replace(x=_rows(graph.x, order)), generator)
        summary = real.mean(dim=0).sigmoid()
        direction = own.weight @ summary  # (width,)
        return 0.5 * (F.softplus(-(real @ direction)).mean() + F.softplus(false @ direction).mean())


class Discriminator(nn.Module):
    """The W of D(h, s) = sigmoid(h^T W s)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = glorot(width, width)


def _rows(x: Tensor | SparseMatrix, order: Tensor) -> Tensor | SparseMatrix:
    if isinstance(x, SparseMatrix):
        return SparseMatrix.from_csr(select_rows(x.to_csr(), order))
    return x.index_select(0, order)
