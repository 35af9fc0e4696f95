"""Batches of graphs of many clients side by side, for tasks whose examples are graphs.

Batches are cut from the graphs of all (`joined_graphs.py`), each client's as it drew them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus.data.graph import spans
from isthmus.learn.batching import Batching
from isthmus.learn.metrics.classification import Examples, losses_of_clients
from isthmus.learn.tasks.graph_batches import BLOCK_ROWS
from isthmus.learn.tasks.joined_graphs import JoinedGraphs
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated, StackedBatch
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model

if TYPE_CHECKING:  # which imports this file
    from isthmus.learn.tasks.graph_task import GraphTask, PreparedGraphs


def scores_of(model: nn.Module, blocks: Iterator[GraphInput] | Sequence[GraphInput]) -> Tensor:
    """Return the model's scores for the graphs of all blocks, (graphs, outputs)."""
    # Not inference_mode: what the model keeps on the graphs here must serve training later.
    with torch.no_grad():
        return torch.cat([model(block, None) for block in blocks])


class GraphStack(BatchStack):
    """The sets of graphs of some clients."""

    task: GraphTask
    prepared: Sequence[PreparedGraphs]

    def __init__(self, task: GraphTask, prepared: Sequence[PreparedGraphs], batching: Batching) -> None:
        super().__init__(task, prepared, batching)
        self.joined = JoinedGraphs([each.pile for each in prepared])
        self.labels = torch.cat([each.data.y for each in prepared])
        self._stacks: dict[str, list[StackedBatch]] = {}

    @property
    def is_sparse(self) -> bool:
        """Whether features are sparse."""
        return self.joined.is_sparse

    # ---- training

    def draws(self, owner: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the positions of the graphs of each batch."""
        return self.task.draws(self.prepared[owner], self.batching, generator)

    def batch(self, owners: Sequence[int], drawn: Sequence[Tensor]) -> StackedBatch:
        """Return the graphs side by side.

        Batches of all training graphs of every client are cut once, in the order of the data: in whichever order they
        were drawn they mean the same, and random bits are put into the order of the data where there are any.
        """
        train = [self.prepared[owner].index["train"] for owner in owners]
        if self.joined.is_sparse or any(len(mine) != len(every) for mine, every in zip(drawn, train, strict=True)):
            return self._cut(owners, drawn)
        found: StackedBatch = self.kept(tuple(owners), lambda: self._cut(owners, train))
        in_order = all(mine is every for mine, every in zip(drawn, train, strict=True))
        return found if in_order else self._redrawn(found, owners, drawn)

    def _cut(self, owners: Sequence[int], chosen: Sequence[Tensor]) -> StackedBatch:
        merges = (
            isinstance(self.model, Model) and self.model.encoder is None and getattr(self.model.gnn, "merges", False)
        )
        found = self.joined.cut(owners, chosen, tiled=True, merges=merges)
        index = [self.joined.first[owner] + mine.numpy() for owner, mine in zip(owners, chosen, strict=True)]
        assert found.items is not None
        first = found.items.bounds
        into = np.concatenate([first[k] + np.arange(len(mine)) for k, mine in enumerate(chosen)])
        labels = self.labels[torch.from_numpy(np.concatenate(index))]
        target = self.task.stacked_target(
            labels, torch.from_numpy(into), [len(mine) for mine in chosen], int(first[-1])
        )
        return replace(found, target=target)

    def _redrawn(self, batch: StackedBatch, owners: Sequence[int], drawn: Sequence[Tensor]) -> StackedBatch:
        """Return a batch whose graphs were drawn in another order than they lie in."""
        assert batch.items is not None
        bounds = batch.items.bounds
        items = replace(batch.items, order=lambda: _order(self._ranks(owners, drawn), bounds))
        nodes = replace(batch.nodes, order=partial(self._node_order, batch, owners, drawn))
        return replace(batch, nodes=nodes, items=items)

    def _ranks(self, owners: Sequence[int], drawn: Sequence[Tensor]) -> list[Tensor]:
        """Return the place among the drawn graphs of each client's training graphs."""
        return [_ranks(mine, self.prepared[owner].index["train"]) for owner, mine in zip(owners, drawn, strict=True)]

    def _node_order(self, batch: StackedBatch, owners: Sequence[int], drawn: Sequence[Tensor]) -> Tensor:
        """Return which row each row's bits are drawn for: that of the same node, graphs lying as they were drawn."""
        local = []
        for owner, mine, rank in zip(owners, drawn, self._ranks(owners, drawn), strict=True):
            sizes = self.joined.sizes[self.joined.first[owner] + mine.numpy()]
            first = (np.cumsum(sizes) - sizes)[rank.numpy()]
            local.append(torch.from_numpy(spans(first, sizes[rank.numpy()])))
        return _order(local, batch.nodes.bounds)

    def losses(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> Tensor:
        """Return each client's mean loss over the known labels of its batch, (clients,)."""
        scores: Tensor = model(batch.graph, streams)
        if isinstance(batch.target, Examples):
            return losses_of_clients(scores, batch.target)
        each, known = self.task.each_loss(scores, batch.target)
        assert batch.items is not None
        return batch.items.sums(each) / batch.items.sums(known)

    def is_chain(self, model: nn.Module, batch: StackedBatch, streams: Streams) -> bool:
        """Whether the loss is one step, and the model says that its scores are steps too."""
        if not isinstance(batch.target, Examples) or not isinstance(model, Model):
            return False
        return model.pools_as_chain(batch.graph, streams)

    # ---- evaluation

    def evaluate(self, model: nn.Module, splits: tuple[str, ...], stacked: bool) -> list[Evaluated]:
        """Run the model, or every client's, over the graphs of every split, block by block, and measure it."""
        clients = range(len(self.prepared))
        counts = {split: [len(each.index[split]) for each in self.prepared] for split in splits}
        found = {}
        for split in splits:
            scores = self._stacked_scores(model, split) if stacked else self._scores(model, split)
            index = [self.joined.first[k] + each.index[split].numpy() for k, each in enumerate(self.prepared)]
            labels = self.labels[torch.from_numpy(np.concatenate(index))]
            found[split] = self.task.measure_each(scores, labels, counts[split])
        return [({split: found[split][k] for split in splits}, {s: counts[s][k] for s in splits}) for k in clients]

    def _scores(self, model: nn.Module, split: str) -> Tensor:
        """Return one model's scores for the graphs of all clients, (graphs, outputs)."""
        blocks = [block for each in self.prepared for block in each.split_blocks(split)]
        return scores_of(model, blocks) if blocks else torch.zeros(0, 1)

    def _stacked_scores(self, model: nn.Module, split: str) -> Tensor:
        """Return the scores of each client's model for its own graphs, (graphs, outputs), client after client."""
        if split not in self._stacks:
            self._stacks[split] = self._blocks(split)
        parts: list[list[Tensor]] = [[] for _ in self.prepared]
        with torch.no_grad():
            for block in self._stacks[split]:
                assert block.items is not None
                scores = model(block.graph, None).view(len(parts), block.items.rows, -1)
                for k, count in enumerate(block.items.sizes):
                    parts[k].append(scores[k, :count])
        return torch.cat([part for mine in parts for part in mine] or [torch.zeros(0, 1)])

    def _blocks(self, split: str) -> list[StackedBatch]:
        """Return the graphs of a split in blocks of about `BLOCK_ROWS` nodes and edges in all."""
        owners = range(len(self.prepared))
        most = max(BLOCK_ROWS // len(self.prepared), 1)
        cuts = [each.pile.cut(each.index[split], most) for each in self.prepared]
        nothing = torch.zeros(0, dtype=torch.int64)
        found = []
        for number in range(max(map(len, cuts))):
            chosen = [mine[number] if number < len(mine) else nothing for mine in cuts]
            found.append(self.joined.cut(owners, chosen, tiled=False))
        return found


def _ranks(drawn: Tensor, train: Tensor) -> Tensor:
    """Return the place among the drawn graphs of each training graph; those are ascending."""
    place = torch.searchsorted(train, drawn)
    return torch.empty_like(place).index_copy_(0, place, torch.arange(len(place)))


def _order(local: Sequence[Tensor], bounds: NDArray[np.int64]) -> Tensor:
    """Return numbers within each client's rows as numbers of all rows; padding stays where it is."""
    order = torch.arange(int(bounds[-1]))
    for mine, first in zip(local, bounds.tolist(), strict=False):
        order[first : first + len(mine)] = mine + first
    return order
