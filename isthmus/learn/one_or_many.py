"""One client's graph, or those of many side by side, in one form: what is written for it serves both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.learn.augment import Augmentation, views_together
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks.task import StackedData
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput


@dataclass(frozen=True, eq=False)
class Graphs:
    """What a model runs on, and which rows are whose.

    Fields:
        whole:     the graph that models see
        own:       each client's own graph
        generator: what models draw from: a generator, or the clients' `Streams`
        data:      the clients' data side by side; None of one client
    """

    whole: GraphInput
    own: Sequence[GraphInput]
    generator: Any
    data: StackedData | None = None

    @staticmethod
    def of_one(graph: GraphInput, generator: torch.Generator) -> Graphs:
        """Return one client's graph."""
        return Graphs(graph, (graph,), generator)

    @staticmethod
    def of_many(clients: Iterable[GraphClient], data: StackedData, streams: Streams) -> Graphs:
        """Return the graphs of clients side by side; each draws what it would draw alone."""
        return Graphs(data.graph, [client.prepared.graph for client in clients], streams, data)

    @property
    def draws(self) -> Sequence[torch.Generator]:
        """Each client's own generator."""
        return (self.generator,) if self.data is None else self.generator.generators

    @property
    def rows(self) -> int:
        """Rows that each client takes up, of which the first are its nodes."""
        return self.whole.num_nodes if self.data is None else self.data.rows

    def view(self, rule: Augmentation) -> GraphInput:
        """Return another view of the graph that models see."""
        if self.data is None:
            return rule.view(self.whole, self.generator)
        return views_together(rule, self.own, self.data, self.generator)

    def apart(self, each: Tensor) -> list[Tensor]:
        """Return the rows of each client's nodes."""
        blocks = torch.split(each, self.rows)
        return [block[: graph.num_nodes] for block, graph in zip(blocks, self.own, strict=True)]

    def means(self, each: Tensor) -> Tensor:
        """Return each client's mean of a number for each row, (clients,)."""
        return each.mean().view(1) if self.data is None else means_of_rows(each, self.data.sizes)


def means_of_rows(each: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return each client's mean of a number for each row, (clients,); rows beyond its nodes do not count."""
    counts = torch.tensor(sizes, device=each.device).view(-1, 1)
    by_client = each.view(len(sizes), -1)
    real = torch.arange(by_client.shape[1], device=each.device) < counts
    return torch.where(real, by_client, 0.0).sum(dim=1) / counts.squeeze(1)
