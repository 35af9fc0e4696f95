"""Node samples: every node has samples of its own, one or many, and each sample is an example.

The tasks of GFL-APPNP (Wu et al., 2022): one sample for a node (deterministic node classification), many with the
node's label (stochastic), many with a label each (supervised).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.graph import Graph
from isthmus.learn.tasks.node_classification import NodeClassification, PreparedNodes
from isthmus.models.inputs import GraphInput


@dataclass
class PreparedSamples(PreparedNodes):
    """Samples as rows of a graph without edges; `owner` says whose they are.

    Fields: those of `PreparedNodes`, whose nodes are the samples here, and
        owner: (samples,), int64; the node that each sample belongs to, ascending
    """

    owner: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


@dataclass(frozen=True)
class NodeSamples(NodeClassification):
    """Every sample of every node has a class; a model sees samples one by one, and no edges.

    The attribute "samples" of a graph has the samples, (nodes, samples, features); without it, each node has one, its
    features. Their labels are the attribute "sample_labels", (nodes, samples), or else the node's own; they are for
    training, validation or test by the attribute "sample_split", (nodes, samples), 0, 1 or 2, or else as the node is.
    A sample without a label (-1) is in no split.
    """

    known_metrics: ClassVar[tuple[str, ...]] = NodeClassification.known_metrics

    def count(self, data: Graph, split: str) -> int:
        """Return the number of labelled samples in a split."""
        return int((_in_split(data, split) & (_labels(data) >= 0)).sum())

    def holds(self, data: Graph) -> str:
        """Return the numbers of nodes, samples and examples."""
        examples = "/".join(str(self.count(data, split)) for split in SPLITS)
        return f"{data.num_nodes} nodes, {data.num_nodes * num_samples(data)} samples, {examples} train/val/test"

    def prepare(self, data: Graph) -> PreparedSamples:
        """Return the samples as models take them."""
        rows = as_rows(data)
        index = {split: (rows.mask(split) & (rows.y >= 0)).nonzero().flatten() for split in SPLITS}
        labels = {split: rows.y[chosen] for split, chosen in index.items()}
        graph = GraphInput(x=rows.x, edge_index=rows.edge_index)
        return PreparedSamples(rows, graph, index, labels, owner=_owner(data))

    def evaluate_groups(
        self, model: nn.Module, prepared: PreparedNodes, split: str, groups: Sequence[Tensor]
    ) -> list[dict[str, float]]:
        """Measure each group of nodes on its samples of the split."""
        assert isinstance(prepared, PreparedSamples)
        rows = [torch.isin(prepared.owner, nodes).nonzero().flatten() for nodes in groups]
        return super().evaluate_groups(model, prepared, split, rows)

    # What may be done for many clients at once is looked for in the very class of a task; all is as for nodes.
    stack = NodeClassification.stack
    stacked_loss = NodeClassification.stacked_loss
    evaluate_stacked = NodeClassification.evaluate_stacked


def num_samples(data: Graph) -> int:
    """Return how many samples each node has."""
    return int(data.attributes["samples"].shape[1]) if "samples" in data.attributes else 1


def as_rows(data: Graph) -> Graph:
    """Return the samples of a graph's nodes as nodes of a graph without edges, node after node."""
    samples = data.attributes.get("samples")
    if samples is not None and (samples.ndim != 3 or samples.shape[2] != data.num_features):
        raise BadInput(
            f"the attribute 'samples' of {data.name!r} has shape {tuple(samples.shape)}; it must be (nodes, samples, "
            f"features) with the {data.num_features} features of the nodes"
        )
    return replace(
        data,
        x=data.x if samples is None else samples.flatten(0, 1),
        edge_index=data.edge_index[:, :0],
        edge_weight=None,
        y=_labels(data).flatten(),
        node_ids=data.node_ids[_owner(data)],
        masks={split: _in_split(data, split).flatten() for split in SPLITS},
        attributes={},
        attribute_names={},
    )


def _owner(data: Graph) -> Tensor:
    return torch.arange(data.num_nodes, device=data.y.device).repeat_interleave(num_samples(data))


def _labels(data: Graph) -> Tensor:
    """Return the label of each sample, (nodes, samples)."""
    if "sample_labels" in data.attributes:
        return data.attributes["sample_labels"]
    return data.y[:, None].expand(-1, num_samples(data))


def _in_split(data: Graph, split: str) -> Tensor:
    """Return which samples are in a split, (nodes, samples)."""
    if "sample_split" in data.attributes:
        return data.attributes["sample_split"] == SPLITS.index(split)
    return data.mask(split)[:, None].expand(-1, num_samples(data))
