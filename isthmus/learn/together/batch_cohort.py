"""Many clients at once where every step sees other batches: graphs, links, sampled neighbourhoods.

Each client draws its own batches from its own stream; what is drawn for a step lies side by side. Clients take
different numbers of steps: they are ordered by them, so that those that have a further batch are the first of the
stack, and the others' weights, moments and running statistics are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.core.record import Params
from isthmus.core.replies import Stacked, StackedTensor
from isthmus.core.stacked_params import own_tensor
from isthmus.learn.graph_client import Envelope, Penalty, load_params, step_gradients
from isthmus.learn.optimizers import Only, Optimizer, OptimizerState
from isthmus.learn.tasks.stacked_batches import BatchStack, Evaluated, StackedBatch
from isthmus.learn.together.layouts import (
    Layout,
    Plain,
    Rows,
    Start,
    feature_weights,
    replaced,
    rows_of,
)
from isthmus.learn.together.stacked_clients import GraphCohort, StackedFit, StackedLoss
from isthmus.learn.together.weights import Weights, stacked_state, starts_of


@dataclass(frozen=True, eq=False)
class SeenThrough:
    """A loss of batches that is the task's, of another model that is made of the clients'.

    Fields:
        seen: makes it of the model, the batches side by side, and which clients' they are
    """

    seen: Callable[[nn.Module, StackedBatch, Sequence[int]], nn.Module]


class WideRows(Layout):
    """A copy for each client, one below the other: for features whose columns are each client's own."""

    def __init__(self, num_clients: int, num_features: int) -> None:
        self.num_clients, self.num_features = num_clients, num_features

    def live(self, start: Start) -> Tensor:
        """Return (clients * features, out)."""
        return Plain(self.num_clients).live(start).flatten(0, 1)

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the copies."""
        return StackedTensor(live.view(-1, self.num_features, live.shape[1]))

    def part(self, live: Tensor, position: int) -> Tensor:
        """Return a copy."""
        return self.some(live, position, position + 1)

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return the copies of some clients."""
        return live[start * self.num_features : stop * self.num_features]


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

    def _data_of(self, prepared: list[Any]) -> Any:
        """Return other data than the clients' own; the last one is kept."""
        known: Any = self._other_data
        if known is None or any(one is not other for one, other in zip(known[0], prepared, strict=True)):
            known = self._other_data = (prepared, self._stack_of(prepared))  # type: ignore[assignment]
        return known[1]

    def fit(
        self,
        params: Params | Sequence[Params],
        *,
        steps: int,
        optimizer: Optimizer,
        step_unit: str = "batch",
        proximal: float = 0.0,
        pulled: Container[str] = (),
        optimizer_states: Sequence[OptimizerState | None] | None = None,
        loss: StackedLoss | SeenThrough | None = None,
        drifts: Mapping[str, Start] | None = None,
        penalties: Sequence[Penalty] = (),
        sum_gradients: bool = False,
        purpose: str = "fit",
        data: Any = None,
        observe: Callable[[nn.Module, Any], Any] | None = None,
        alters_features: bool = False,
        envelope: Envelope | None = None,
    ) -> StackedFit:
        """Train all clients; what is asked for is as in `GraphCohort.fit`."""
        if not (loss is None or isinstance(loss, SeenThrough)) or observe is not None:
            raise NotTogether("a loss of its own is taken together on full batches of nodes alone")
        if envelope is not None:
            raise NotTogether("several steps on one batch are taken together on full batches of nodes alone")
        given_each = [params] if isinstance(params, dict) else params
        given = frozenset(given_each[0])
        starts = self._in_order({**self._personal(given), **starts_of(given_each)})
        if all(client.num_examples == 0 for client in self.clients):
            return self._sent(self._untrained(starts, optimizer, optimizer_states), given)
        self._check(starts)
        stack: BatchStack = self.stack if data is None else data
        before = self._states(optimizer, optimizer_states)
        begun = [0] * len(self) if before is None else [int(state["step"]) for state in before]
        per_epoch = [stack.per_epoch(k) if step_unit == "epoch" else 1 for k in range(len(self))]
        order = _Order(tuple(steps * each for each in per_epoch), tuple(begun))
        layouts = self._layouts_of(stack)
        weights = Weights({name: order.placed(start) for name, start in starts.items()}, layouts, self._buffers)
        terms = weights.terms(proximal, pulled, {name: order.placed(start) for name, start in (drifts or {}).items()})
        alike = None if before is None else [{**before[k], "step": 0} for k in order.clients]
        state = stacked_state(optimizer, weights.moved, alike, weights.layouts)
        sums = [torch.zeros_like(each) for each in weights.moved] if sum_gradients else None
        generators = [self.clients[k].generator(purpose) for k in order.clients]
        draws = [stack.draws(k, generator) for k, generator in zip(order.clients, generators, strict=True)]
        losses = torch.zeros(len(self))
        lr = optimizer.lr * optimizer.schedule.factor(max(self.clients[0].position.round, 1))
        for active, taken, number in order.runs():
            part, mine = weights.some(0, active), terms.some(weights.layouts, active)
            groups = [_Group(optimizer, weights.layouts, state, *group) for group in order.groups(active, taken)]
            some_sums = None if sums is None else [y.some(each, 0, active) for y, each in weights.with_layouts(sums)]
            owners = order.clients[:active]
            for _ in range(number):
                batch = stack.batch(owners, [next(drawn) for drawn in draws[:active]])
                with replaced(self.model, self._spread(part.installed(), layouts, batch.nodes.owner)):
                    model = self.model if loss is None else loss.seen(self.model, batch, owners)
                    each = stack.losses(model, batch, batch.streams(generators[:active]))  # (active,)
                losses[:active] += each.detach()
                extra = [penalties[k](part.of(place)) for place, k in enumerate(owners)] if penalties else []
                total = torch.stack(extra).sum() if extra else None
                grads = step_gradients(each.sum(), total, part.moved, some_sums, optimizer)
                with torch.no_grad():
                    mine.join(grads, part.moved)
                    for group in groups:
                        group.step(part.moved, grads, lr)
        kept = partial(self._kept, optimizer, state, weights, order)
        fitted = StackedFit(
            {name: order.replaced(each) for name, each in weights.finished().items()},
            order.back(losses) / torch.tensor(order.counts),
            max(order.counts),
            kept,
            None if sums is None else {name: order.replaced(each) for name, each in weights.named(sums).items()},
            steps_each=order.counts,
        )
        return self._sent(fitted, given)

    def _layouts_of(self, stack: BatchStack) -> dict[str, Layout]:
        """Return how each parameter is held."""
        slots = self.model.state_dict()
        layouts: dict[str, Layout] = dict.fromkeys(slots, Plain(len(self)))
        if stack.is_sparse:
            layouts |= {name: WideRows(len(self), len(slots[name])) for name in feature_weights(self.model)}
        return layouts

    def _spread(self, installed: dict[str, Any], layouts: Mapping[str, Layout], owner: Tensor | None) -> dict[str, Any]:
        """Return what the model finds in the parameters' places: each tile of a batch has its client's weights."""
        if owner is None:
            return installed
        return {
            name: held.index_select(0, owner) if type(layouts[name]) is Plain and name not in self._buffers else held
            for name, held in installed.items()
        }

    def _kept(
        self, optimizer: Optimizer, state: OptimizerState, weights: Weights, order: _Order
    ) -> tuple[OptimizerState, ...]:
        """Return each client's optimiser state at the end."""
        names = weights.chosen(optimizer)
        slots = {
            key: [order.replaced(each) for each in weights.named(value, names).values()]
            for key, value in state.items()
            if isinstance(value, tuple)
        }
        return tuple(
            {
                "step": order.begun[k] + order.counts[k],
                **{key: tuple(own_tensor(slot.member(k)) for slot in value) for key, value in slots.items()},
            }
            for k in range(len(self))
        )

    def evaluate(self, models: Sequence[Params], splits: tuple[str, ...]) -> list[Evaluated]:
        """Return metrics and example counts of each client's model on its own data."""
        if not self.clients[0].own and all(model is models[0] for model in models):
            load_params(self.model, models[0])
            return self.stack.evaluate(self.model, splits, stacked=False)
        starts = {**self._personal(frozenset(models[0])), **starts_of(models)}
        self._check(starts)
        layouts = self._layouts_of(self.stack)
        with replaced(self.model, {name: layouts[name].live(start) for name, start in starts.items()}):
            return self.stack.evaluate(self.model, splits, stacked=True)


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


class _Group:
    """Some clients in a row whose states count the same number of steps."""

    def __init__(
        self, optimizer: Optimizer, layouts: Sequence[Layout], state: OptimizerState, start: int, stop: int, taken: int
    ) -> None:
        self.optimizer, self.layouts = optimizer, layouts
        self.start, self.stop = start, stop
        held = optimizer.chosen(layouts) if isinstance(optimizer, Only) else layouts
        self.state: OptimizerState = {
            key: tuple(layout.some(each, start, stop) for layout, each in zip(held, value, strict=True))
            if isinstance(value, tuple)
            else taken
            for key, value in state.items()
        }

    def step(self, moved: Sequence[Tensor], grads: Sequence[Tensor], lr: float) -> None:
        """Take one step of these clients."""
        self.optimizer.step(self._mine(moved), self._mine(grads), self.state, lr)

    def _mine(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [y.some(each.detach(), self.start, self.stop) for y, each in zip(self.layouts, tensors, strict=True)]
