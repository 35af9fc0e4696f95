"""ProGAP's network: stages, each on noisy sums over what the stage before made. Sajadmanesh and Gatica-Perez (2024).

S. Sajadmanesh, D. Gatica-Perez, "ProGAP: progressive graph neural networks with differential privacy guarantees", WSDM
2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from isthmus.core.errors import refuse
from isthmus.models.dropout import dropout
from isthmus.models.gnn.gap import Blur, HeadOnRows, HeadOnRowsSpec, RowsAlone, unit_rows
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import Perceptron, require_count
from isthmus.models.products.sparse import Features

# Linear maps of all bases together: more are a mistake, or somebody else's wish to keep a silo busy.
MAX_MAPS = 2000


@dataclass(frozen=True, eq=False)
class StageRows(RowsAlone):
    """Features of nodes, and the sums over neighbours of the stages so far: so many stages there are, and one more.

    Fields:
        sums: [S_1 | ... | S_k], (nodes, k dim)
    """

    sums: Tensor | None = None

    def of_nodes(self, x: Features, nodes: list[int]) -> StageRows:
        """Return what some nodes read, whose features are these."""
        return StageRows(x, self.edge_index[:, :0], sums=None if self.sums is None else self.sums[nodes])


@dataclass(frozen=True)
class ProGAP(HeadOnRowsSpec):
    """Stages, each of which embeds the sums over neighbours of the embeddings before; a head reads all embeddings.

        H_0 = base_0(X),   S_k = u(A u(H_(k-1))),   H_k = base_k(S_k),   u(x) = x / |x| row by row
        stage k:  scores = head([u(H_0) | ... | u(H_k) | 0 ... 0])                               k = 0 ... hops

    with selu(dropout(.)) after each linear map of a base. Stage k is trained with S_1 to S_k as they were made: by the
    bases as the stages before left them, once, with what noise is put on the sums. All that is learned of them is as
    private as they are. The method `fedprogap` does that, one stage after the other, and guards say how much noise
    (edge_dp, node_dp). By itself the network is its last stage, and any method trains it on the edges as they are.

    The paper's bases have batch norm, which takes the scale of features, sums and noise away; but statistics of all
    nodes tell of each, so rows are made as long as one instead, as GAP does. Embeddings lie side by side, jumping
    knowledge by "cat", and one head reads them: with those of later stages left at zero it is the head of an earlier
    one.

    Fields:
        dim:         columns of each H_k and S_k: the fewer, the less noise in all
        base_layers: linear maps of each base
        hops:        K, how often neighbours are added up: there is one stage more
        hidden, layers, dropout, input_dropout: as in `HeadOnRowsSpec`
    """

    layers: int = 1
    dropout: float = 0.0
    base_layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("base_layers", self.base_layers)
        most = MAX_MAPS // (self.hops + 1)
        refuse(self.base_layers > most, self, "base_layers", f"with {self.hops} hops it must be at most {most}")

    def build(self, in_dim: int, out_dim: int) -> ProGAPStack:
        """Return the module."""
        return ProGAPStack(self, in_dim, out_dim)


class ProGAPStack(HeadOnRows):
    """The module of `ProGAP`; each base but the last makes one set of sums."""

    def __init__(self, spec: ProGAP, in_dim: int, out_dim: int) -> None:
        super().__init__(spec)
        self.dim = spec.dim
        inner = [spec.hidden] * (spec.base_layers - 1)
        self.bases = nn.ModuleList(
            Perceptron([in_dim if stage == 0 else spec.dim, *inner, spec.dim], spec.dropout)
            for stage in range(spec.hops + 1)
        )
        self.head = spec.head(out_dim)
        self.summed_by = tuple(f"bases.{stage}." for stage in range(spec.hops))

    def idle(self, num_sets: int) -> tuple[str, ...]:
        """Return the bases of later stages."""
        return tuple(f"bases.{stage}." for stage in range(num_sets + 1, len(self.bases)))

    def embedded(self, stage: int, given: Features, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return H_k of a stage, (nodes, dim), of its features or sums."""
        for layer in self.bases[stage].layers:  # type: ignore[union-attr]
            given = functional.selu(dropout(layer(graph, given, generator), self.dropout, generator))
        assert isinstance(given, Tensor)
        return given

    def with_sums(self, view: GraphInput, graph: GraphInput, blur: Blur) -> StageRows:
        """Return what nodes read in the next stage."""
        made = _made(view, self.dim) or ()
        below = self.embedded(len(made), made[-1] if made else view.x, view, None)
        sums = unit_rows(blur(_added_up(graph, below)))
        return StageRows(view.x, view.edge_index, sums=torch.cat([*made, sums], dim=1))

    def rows_of(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return what the head reads, (nodes, (hops + 1) dim), at the stage whose sums there are, or at the last."""
        made = _made(graph, self.dim)
        rows = [self.embedded(0, dropout(graph.x, self.input_dropout, generator), graph, generator)]
        for stage in range(1, len(self.bases) if made is None else len(made) + 1):
            sums = unit_rows(_added_up(graph, rows[-1])) if made is None else made[stage - 1]
            rows.append(self.embedded(stage, sums, graph, generator))
        return self.padded(torch.cat([unit_rows(row) for row in rows], dim=1))


def _added_up(graph: GraphInput, embeddings: Tensor) -> Tensor:
    """Return the sums over neighbours of rows in the embeddings' directions, (nodes, dim)."""
    return graph.operator("sum").matmul(unit_rows(embeddings))


def _made(graph: GraphInput, dim: int) -> tuple[Tensor, ...] | None:
    """Return S_1, S_2 ... as they were made; none of what sees no edges, and None of a graph with its edges."""
    if isinstance(graph, StageRows) and graph.sums is not None:
        return torch.split(graph.sums, dim, dim=1)
    return () if isinstance(graph, RowsAlone) else None
