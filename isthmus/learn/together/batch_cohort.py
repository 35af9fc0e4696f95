"""Many clients at once where every step sees other batches: graphs, links, sampled neighbourhoods.

Each client draws its own batches from its own stream; what is drawn for a step lies side by side. Clients take
different numbers of steps: they are ordered by them, so that those that have a further batch are the first of the
stack, and the others' weights, moments and running statistics are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.core.record import Params
from isthmus.core.replies import Stacked, StackedTensor
from isthmus.learn.optimizers import (
    Optimizer,
    OptimizerState,
    add_gradients,
    load_params,
    step_gradients,
    steps_before,
)
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated, StackedBatch
from isthmus.learn.together.layouts import OWN, Layout, Plain, Weights, WideRows, replaced, stacked_state, states_apart
from isthmus.learn.together.stacked_clients import GraphCohort, StackedFit, Together
from isthmus.learn.together.stacked_features import Rows, Start, feature_weights, rows_of, starts_of
from isthmus.models.products.chain import chained


@dataclass(frozen=True, eq=False)
class SeenThrough:
    """A loss of batches that is the task's, of another model that is made of the clients'.

    Fields:
        seen: makes it of the model, the batches side by side, and which clients' they are
    """

    seen: Callable[[nn.Module, StackedBatch, Sequence[int]], nn.Module]


class BatchCohort(GraphCohort):
    """Some clients that are simulated together and draw batches of their own; all have examples, or none has."""

    @cached_property
    def stack(self) -> BatchStack:
        """What the clients' batches are cut from; rebuilt from their data at any time."""
        return self._stack_of([client.prepared for client in self.clients])

    def _stack_of(self, prepared: Sequence[Any]) -> BatchStack:
        found: BatchStack = self.task.stack_batches(prepared, self.clients[0].batching)
        found.model = self.model
        return found

    def train(self, params: Params | Sequence[Params], asked: Together) -> StackedFit:
        """Train all clients, as `fit` does."""
        if not (asked.loss is None or isinstance(asked.loss, SeenThrough)) or asked.observe is not None:
            raise NotTogether("a loss of its own is taken together on full batches of nodes alone")
        if asked.envelope is not None:
            raise NotTogether("several steps on one batch are taken together on full batches of nodes alone")
        return super().train(params, asked)

    def _trained(self, starts: dict[str, Start], given: frozenset[str], asked: Together) -> StackedFit:
        stack: BatchStack = self.stack if asked.data is None else asked.data
        before, optimizer = self._states(asked), asked.optimizer
        per_epoch = [stack.per_epoch(k) if asked.step_unit == "epoch" else 1 for k in range(len(self))]
        order = _Order(tuple(asked.steps * each for each in per_epoch), tuple(steps_before(before, len(self))))
        held, drifts, own = (
            {name: order.placed(start) for name, start in (each or {}).items()}
            for each in (starts, asked.drifts, self._own_starts(asked))
        )
        weights = Weights(held, self._layouts_of(stack), self._buffers, own)
        weights.hold(asked.proximal, asked.pulled, drifts)
        alike = None if before is None else [{**before[k], "step": 0} for k in order.clients]
        state = stacked_state(optimizer, weights.moved, alike, weights.layouts)
        sums = [torch.zeros_like(each) for each in weights.moved] if asked.mean_gradients else None
        generators = [self.clients[k].generator(asked.purpose) for k in order.clients]
        draws = [stack.draws(k, generator) for k, generator in zip(order.clients, generators, strict=True)]
        losses, lr = torch.zeros(len(self)), self._rate(optimizer)
        if asked.beside is not None:
            asked.beside.begin(order.clients)
        for active, taken, number in order.runs():
            groups = [_Group(optimizer, weights, state, *group) for group in order.groups(active, taken)]
            run = _Run(self, stack, asked, weights.some(0, active), order.clients[:active], generators[:active])
            some_sums = None if sums is None else weights.cut(sums, 0, active)
            for step in range(number):
                first = step == taken == 0
                grads = run.step(losses, [next(drawn) for drawn in draws[:active]], some_sums, first)
                with torch.no_grad():
                    for group in groups:
                        group.step(grads, lr)
        counts = [count + taken for count, taken in zip(order.counts, order.begun, strict=True)]
        return StackedFit(
            order.all_replaced(weights.finished()),
            order.back(losses) / torch.tensor(order.counts),
            max(order.counts),
            partial(states_apart, optimizer, state, counts, weights, order.replaced),
            None if sums is None else order.all_replaced(weights.named(order.for_one_step(weights, sums))),
            steps_each=order.counts,
            beside=order.all_replaced(weights.finished(OWN)) if own else None,
        )

    def _layouts_of(self, stack: BatchStack) -> dict[str, Layout]:
        """Return how each parameter is held."""
        slots = self.model.state_dict()
        layouts: dict[str, Layout] = dict.fromkeys(slots, Plain(len(self)))
        if stack.is_sparse:
            if not feature_weights(self.model):
                raise NotTogether("its first layer reads features as they are, and they are sparse")
            layouts |= {name: WideRows(len(self), len(slots[name])) for name in feature_weights(self.model)}
        return layouts

    def evaluate(
        self, models: Sequence[Params], splits: tuple[str, ...], prepared: list[Any] | None = None
    ) -> list[Evaluated]:
        """Return metrics and example counts of each client's model on its own data, or what takes its place."""
        stack: BatchStack = self.stack if prepared is None else self._data_of(prepared)
        if not self.clients[0].own and all(model is models[0] for model in models):
            load_params(self.model, models[0])
            return stack.evaluate(self.model, splits, stacked=False)
        starts = {**self._personal(frozenset(models[0])), **starts_of(models)}
        self._check(starts)
        layouts = self._layouts_of(stack)
        with replaced(self.model, {name: layouts[name].live(start) for name, start in starts.items()}):
            return stack.evaluate(self.model, splits, stacked=True)


@dataclass(frozen=True)
class _Order:
    """In which order clients are stacked: those with most steps first, and those that have taken as many together.

    Fields:
        counts: how many steps each client takes
        begun:  how many it has taken before, with the state that it goes on from
    """

    counts: tuple[int, ...]
    begun: tuple[int, ...]

    @cached_property
    def clients(self) -> list[int]:
        """Which client is at each place."""
        return sorted(range(len(self.counts)), key=lambda k: (-self.counts[k], self.begun[k]))

    @cached_property
    def is_own(self) -> bool:
        """Whether every client is at the place that it has by itself."""
        return self.clients == list(range(len(self.counts)))

    def placed(self, start: Start) -> Start:
        """Return clients' tensors in this order; what is the same for all stays."""
        if self.is_own or isinstance(start, Tensor):
            return start
        return Rows(rows_of(start)[self.clients])

    def back(self, rows: Tensor) -> Tensor:
        """Return rows in this order in the clients' own."""
        return rows if self.is_own else torch.empty_like(rows).index_copy_(0, torch.tensor(self.clients), rows)

    def replaced(self, stacked: Stacked) -> Stacked:
        """Return what is held in this order in the clients' own."""
        return stacked if self.is_own else StackedTensor(self.back(stacked.whole()))

    def all_replaced(self, stacked: Mapping[str, Stacked]) -> dict[str, Stacked]:
        """Return what is held in this order, by name, in the clients' own."""
        return {name: self.replaced(each) for name, each in stacked.items()}

    def for_one_step(self, weights: Weights, sums: Sequence[Tensor]) -> list[Tensor]:
        """Return what was added up over the steps of each client, times one by their number."""
        one = 1.0 / torch.tensor([self.counts[k] for k in self.clients]).clamp(min=1)
        return [each.mul_(layout.spread(one, each)) for layout, each in zip(weights.layouts, sums, strict=True)]

    def runs(self) -> list[tuple[int, int, int]]:
        """Return runs of steps, until no client has any left: of how many clients, after how many steps, how many."""
        found, taken = [], 0
        for number in sorted(set(self.counts) - {0}):
            found.append((sum(count >= number for count in self.counts), taken, number - taken))
            taken = number
        return found

    def groups(self, active: int, taken: int) -> list[tuple[int, int, int]]:
        """Return runs of the first clients whose states count the same: begin, end, and how many steps by now."""
        found, start = [], 0
        for begun, members in groupby(self.clients[:active], key=lambda k: self.begun[k]):
            stop = start + len(list(members))
            found.append((start, stop, begun + taken))
            start = stop
        return found


class _Run:
    """Steps of the clients that have a further batch."""

    def __init__(
        self,
        clients: BatchCohort,
        stack: BatchStack,
        asked: Together,
        weights: Weights,
        owners: Sequence[int],
        generators: Sequence[torch.Generator],
    ) -> None:
        self.model, self.stack, self.asked, self.weights = clients.model, stack, asked, weights
        self.owners, self.generators = owners, generators

    def step(self, losses: Tensor, drawn: Sequence[Any], sums: list[Tensor] | None, first: bool) -> list[Tensor]:
        """Add each client's loss on its batch to `losses`; return the gradients, with what joins them."""
        asked, beside = self.asked, self.asked.beside
        weights = self.weights.alike() if first and beside is None else self.weights
        batch = self.stack.batch(self.owners, drawn)
        if self._is_chain(batch):
            return self._chained(batch, weights, losses, sums)
        # The same draws once more, for own values beside the first ones.
        again = () if beside is None else [torch.Generator().set_state(each.get_state()) for each in self.generators]
        each = self._losses(batch, weights.installed(), self.generators)  # (active,)
        losses[: len(each)] += each.detach()
        extra = [asked.penalties[k](weights.of(at)) for at, k in enumerate(self.owners)] if asked.penalties else []
        total = torch.stack(extra).sum() if extra else None
        further: list[Tensor] = []
        if beside is not None:
            own = beside.losses(weights, lambda others: self._losses(batch, weights.installed(others), again))
            each, further = each + own, beside.further
        grads = step_gradients(each.sum(), total, [*weights.moved, *further], sums, asked.optimizer)
        if beside is not None:
            beside.learn(grads[len(weights.moved) :])
        with torch.no_grad():
            grads = grads[: len(weights.moved)]
            weights.join(grads)
        return grads

    def _is_chain(self, batch: StackedBatch) -> bool:
        asked = self.asked
        alone = asked.loss is None and not asked.penalties and asked.beside is None and batch.nodes.owner is None
        return alone and self.stack.is_chain(self.model, batch, batch.streams(self.generators))

    def _chained(
        self, batch: StackedBatch, weights: Weights, losses: Tensor, sums: list[Tensor] | None
    ) -> list[Tensor]:
        """Do the same of losses that are a chain of steps, without autograd."""
        with chained() as chain:
            each = self._losses(batch, weights.installed(), self.generators)
            losses[: len(each)] += each
            grads = chain.slopes(weights.moved)
            if sums is not None:
                add_gradients(sums, grads, weights.moved, self.asked.optimizer)
            weights.join(grads)
        return grads

    def _losses(self, batch: StackedBatch, installed: dict[str, Any], generators: Sequence[torch.Generator]) -> Tensor:
        seen = self.asked.loss
        with replaced(self.model, self._spread(installed, batch.nodes.owner)):
            model = self.model if seen is None else seen.seen(self.model, batch, self.owners)
            return self.stack.losses(model, batch, batch.streams(generators))

    def _spread(self, installed: dict[str, Any], owner: Tensor | None) -> dict[str, Any]:
        """Return what the model finds in the parameters' places: each tile of a batch has its client's weights."""
        if owner is None:
            return installed
        return {
            name: held.index_select(0, owner) if self.weights.is_plain(name) else held
            for name, held in installed.items()
        }


class _Group:
    """Some clients in a row whose states count the same number of steps."""

    def __init__(
        self, optimizer: Optimizer, weights: Weights, state: OptimizerState, start: int, stop: int, taken: int
    ) -> None:
        self.optimizer, self.weights, self.bounds = optimizer, weights, (start, stop)
        self.values = weights.cut(weights.values, start, stop)
        held = optimizer.chosen(weights.layouts)
        self.state: OptimizerState = {
            key: tuple(layout.some(each, start, stop) for layout, each in zip(held, value, strict=True))
            if isinstance(value, tuple)
            else taken
            for key, value in state.items()
        }

    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """Take one step of these clients."""
        self.optimizer.step(self.values, self.weights.cut(grads, *self.bounds), self.state, lr)
