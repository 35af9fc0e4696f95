"""Many clients at once: their graphs side by side, their weights stacked, one step for all.

What a `GraphCohort` does for its clients is what each would do alone, within rounding: the same batches, the same
random streams, losses and optimiser states of their own. Only clients that train on full batches, with a task, a model
and an optimiser that are known to allow it, are put together (`blocks.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.core.errors import BadInput
from isthmus.core.record import Params
from isthmus.core.replies import Stacked, StackedParams, own_tensor
from isthmus.learn.graph_client import Fit, Fitted, GraphClient, Terms, common_names
from isthmus.learn.optimizers import (
    ELEMENTWISE,
    SGD,
    BothWays,
    Envelope,
    Optimizer,
    OptimizerState,
    Penalty,
    Pull,
    add_gradients,
    counts_steps_only,
    load_params,
    moving,
    step_gradients,
    steps_before,
)
from isthmus.learn.tasks.node_classification import NodeClassification
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.layouts import (
    OWN,
    AlikeRows,
    BeyondRows,
    CompactRows,
    FullRows,
    Layout,
    Plain,
    Span,
    Weights,
    is_compact,
    replaced,
    stacked_state,
    states_apart,
)
from isthmus.learn.together.stacked_features import (
    StackedFeatures,
    Start,
    drops_features,
    feature_weights,
    shapes_of,
    start_sum,
    starts_of,
    term_of,
)
from isthmus.models.dropout import Ahead, Streams
from isthmus.models.model import Model
from isthmus.models.products.chain import chained
from isthmus.models.products.sparse import SparseMatrix

# What the model began with, in the form in which it takes its parameters; made when it is asked for.
Frozen: TypeAlias = Callable[[], Mapping[str, Any]]

# From the model, the data, the clients' random streams and what the model began with to each client's loss, (clients,).
StackedLoss: TypeAlias = Callable[[nn.Module, StackedData, Streams, Frozen], Tensor]


# ---- what was asked of all


class Beside(ABC):
    """A second value of every parameter of each client, its own, that learns beside the first, step by step.

    Attributes:
        starts: what the own values begin with
    """

    starts: Mapping[str, Start]

    @abstractmethod
    def begin(self, order: Sequence[int]) -> None:
        """Be told which client is at each place of the stack."""

    @abstractmethod
    def losses(self, weights: Weights, run: Callable[[Mapping[str, Tensor]], Tensor]) -> Tensor:
        """Return losses whose slopes the own values follow, (clients,).

        `weights` are those of the clients that take the step. `run` gives each one's loss with other parameters, on
        the same batch and with the same draws.
        """

    @property
    def further(self) -> list[Tensor]:
        """What else the slope of this step's losses is wanted by."""
        return []

    def learn(self, slopes: Sequence[Tensor]) -> None:  # noqa: B027
        """Be told these slopes."""


@dataclass(frozen=True)
class StackedFit:
    """What training together gives back.

    Fields:
        params:      each parameter of each client
        losses:      each client's mean over the steps, (clients,)
        steps:       steps that were taken
        make_states: gives each client's optimiser state
        gradients:   the means of each client's gradients over its steps, where they were asked for
        observed:    what `observe` returned; None for clients that had nothing to train on
        centre:      where the centre of an envelope went, of the parameters that it is over
        steps_each:  steps of each client, where they are not the same for all
        beside:      the own values of parameters, where there were any
    """

    params: dict[str, Stacked]
    losses: Tensor
    steps: int
    make_states: Callable[[], tuple[OptimizerState, ...]]
    gradients: dict[str, Stacked] | None = None
    observed: Any = None
    centre: dict[str, Stacked] | None = None
    steps_each: tuple[int, ...] | None = None
    beside: dict[str, Stacked] | None = None

    @cached_property
    def optimizer_states(self) -> tuple[OptimizerState, ...]:
        """Each client's optimiser state at the end."""
        return self.make_states()

    def member(self, position: int) -> Params:
        """Return one client's parameters, in memory of their own: a view would keep all clients' alive."""
        return {name: own_tensor(stacked.member(position)) for name, stacked in self.params.items()}

    def members(self) -> list[Fitted]:
        """Return what each client has of it; parameters and optimiser states are made when they are looked at."""
        number = len(self.losses)
        centre = None if self.centre is None else {**self.params, **self.centre}
        params, sums, centres = (
            [None] * number if held is None else StackedParams(held, number).members()
            for held in (self.params, self.gradients, centre)
        )
        steps = self.steps_each or (self.steps,) * number
        states = [partial(lambda position: self.optimizer_states[position], position) for position in range(number)]
        each = zip(params, self.losses.tolist(), steps, states, sums, centres, strict=True)
        return [Fitted(*mine) for mine in each]


@dataclass(frozen=True, eq=False, kw_only=True)
class Together:
    """How many clients are trained.

    Fields:
        steps:            optimiser steps; on full batches a batch is an epoch
        optimizer:        how a gradient becomes a step
        step_unit:        "batch" or "epoch"
        proximal:         mu of a term mu/2 |w - start|^2 that joins each client's loss
        pulled:           the parameters that it is over
        optimizer_states: each client's state to go on from; None to begin from nothing
        loss:             each client's loss, (clients,); by default the task's
        drifts:           what is added to the gradients of these parameters at every step, for all or for each
        anchors:          where a pull draws these parameters; `drifts` has what that adds to one to their beginning
        penalties:        each client's own term, which may be any function of its parameters
        mean_gradients:   whether the mean of the gradients is wanted, without drifts and pulls
        purpose:          names the clients' random streams
        data:             takes the place of the clients' own
        observe:          called after the last step with the trained model and the data; what it returns is kept
        alters_features:  whether the loss runs the model on other features than the clients' own
        envelope:         its centre is what is trained, over the given parameters, in the place of a pull
        beside:           further values of all parameters that learn too; their moments come after those of the first
    """

    steps: int
    optimizer: Optimizer
    step_unit: str = "batch"
    proximal: float = 0.0
    pulled: Container[str] = ()
    optimizer_states: Sequence[OptimizerState | None] | None = None
    loss: Any = None
    drifts: Mapping[str, Start] | None = None
    anchors: Mapping[str, Start] | None = None
    penalties: Sequence[Penalty] = ()
    mean_gradients: bool = False
    purpose: str = "fit"
    data: Any = None
    observe: Callable[[nn.Module, Any], Any] | None = None
    alters_features: bool = False
    envelope: Envelope | None = None
    beside: Beside | None = None

    @property
    def repeats(self) -> int:
        """How many gradients are taken of full batches."""
        return self.steps * (1 if self.envelope is None else self.envelope.steps)

    @property
    def steps_are_gradients(self) -> bool:
        """Whether a step is the gradient, with decay and drift, times -lr, and nothing else."""
        pulled = self.proximal or self.penalties or self.envelope is not None
        return type(self.optimizer) is SGD and not self.optimizer.momentum and not pulled


# The learning rate times the number of steps from which gradients are told by the difference of weights: it is rounded
# by 6e-8 of a weight, and divided by this.
LONG_WAY = 0.1


class FullSteps:
    """Training on full batches.

    Attributes:
        weights: the parameters, which move
        state:   the optimiser's
        losses:  each client's in every step, (clients,)
        sums:    the gradients added up, where they are asked for
        seen:    what is observed of the trained model, where somebody wants to
        chained: whether the losses are a chain of steps, of nothing but the parameters that move
    """

    def __init__(
        self,
        model: nn.Module,
        asked: Together,
        weights: Weights,
        state: OptimizerState,
        lr: float,
        data: StackedData,
        loss: StackedLoss,
        streams: Callable[[], Streams],
        chained: bool = False,
    ) -> None:
        self.model, self.asked, self.weights, self.state, self.lr = model, asked, weights, state, lr
        self.losses: list[Tensor] = []
        self.rate = lr * asked.steps
        # Of long ways the mean gradient is told by where they led; of short ones, differences would be rounded away.
        self.told = asked.steps_are_gradients and self.rate >= LONG_WAY
        summed = asked.mean_gradients and not self.told
        self.sums = [torch.zeros_like(each) for each in weights.values] if summed else None
        self.chained = chained
        self.seen: Any = None
        self._data, self._loss, self._first = data, loss, streams()
        # The same draws once more, for own values beside the first ones.
        self._again = None if asked.beside is None else streams()

    def run(self) -> None:
        """Take all steps."""
        asked, weights, envelope = self.asked, self.weights, self.asked.envelope
        with replaced(self.model, weights.installed()):
            for _ in range(asked.steps):
                if envelope is None:
                    self._step()
                    continue
                weights.begin()
                self.state = asked.optimizer.start(weights.values)
                for _ in range(envelope.steps):
                    self._step()
                weights.follow(envelope.rate)
            with torch.no_grad():
                self.seen = None if asked.observe is None else asked.observe(self.model, self._data)

    def mean_gradients(self, finished: Mapping[str, Stacked]) -> dict[str, Stacked]:
        """Return the means of the clients' gradients over the steps, which have led to these parameters."""
        if self.sums is None:
            return self.weights.mean_gradients(finished, self.rate)
        return self.weights.named([each.div_(len(self.losses)) for each in self.sums])

    def _step(self) -> None:
        asked, weights = self.asked, self.weights
        grads = self._chained_slopes() if self.chained else self._slopes()
        weights.join(grads)
        if any(weights.pulls):
            asked.optimizer.pulled_step(weights.values, grads, self.state, self.lr, weights.pulls)
        else:
            asked.optimizer.step(weights.values, grads, self.state, self.lr)

    def _chained_slopes(self) -> list[Tensor]:
        """Return the gradients of the losses where these are a chain of steps, without autograd."""
        with chained() as chain:
            self.losses.append(self._losses(self._first))
            grads = chain.slopes(self.weights.moved)
            if self.sums is not None:
                add_gradients(self.sums, grads, self.weights.values, self.asked.optimizer)
        return grads

    def _slopes(self) -> list[Tensor]:
        """Return the gradients of the losses and of what was asked for beside them."""
        asked, weights, beside = self.asked, self.weights, self.asked.beside
        each = self._losses(self._first)  # (clients,)
        self.losses.append(each.detach())
        extra = [penalty(weights.of(k)) for k, penalty in enumerate(asked.penalties)]
        total = torch.stack(extra).sum() if extra else None
        further: list[Tensor] = []
        if beside is not None:
            each = each + beside.losses(weights, self._of_others)
            further = beside.further
        grads = step_gradients(each, total, [*weights.moved, *further], self.sums, asked.optimizer)
        if beside is not None:
            grads, slopes = grads[: len(weights.moved)], grads[len(weights.moved) :]
            beside.learn(slopes)
        return grads

    def _losses(self, streams: Streams | None) -> Tensor:
        assert streams is not None
        return self._loss(self.model, self._data, streams, lambda: self.weights.frozen)

    def _of_others(self, others: Mapping[str, Tensor]) -> Tensor:
        with replaced(self.model, self.weights.installed(others)):
            return self._losses(self._again)


# ---- the clients


def _common_anchor(pulls: Sequence[Pull]) -> Params | None:
    """Return where all clients are drawn, if that is one place and pulls are all that a drift is made of."""
    if not pulls or any(pull.anchor is not pulls[0].anchor or pull.linear is not None for pull in pulls):
        return None
    return pulls[0].anchor


class GraphCohort:
    """Some clients of a course that are simulated together; all have training examples, or none has.

    `clients` says who they are; `fit` and `evaluate` do for all what a `GraphClient`'s do for one.
    """

    def __init__(self, clients: Sequence[GraphClient]) -> None:
        self.clients = tuple(clients)
        self.task, self.model = clients[0].task, clients[0].model
        self._buffers = frozenset(name for name, _ in self.model.named_buffers())
        self._shapes = {name: slot.shape for name, slot in self.model.state_dict().items()}
        self._part: GraphCohort | None = None
        self._other_data: tuple[list[Any], Any] | None = None
        self._other_features: tuple[Any, StackedFeatures | None] | None = None
        self._ahead = Ahead()

    def __iter__(self) -> Iterator[GraphClient]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients' ids."""
        return tuple(client.id for client in self.clients)

    def of(self, clients: Sequence[GraphClient]) -> GraphCohort:
        """Return some of the clients; itself for all. The last others are kept, for they are asked for again."""
        if len(clients) == len(self):
            return self
        key = tuple(client.id for client in clients)
        if self._part is None or self._part.ids != key:
            self._part = type(self)(clients)
        return self._part

    @cached_property
    def _feature_weights(self) -> tuple[str, ...]:
        return feature_weights(self.model)

    @cached_property
    def data(self) -> StackedData:
        """All clients' data side by side; rebuilt from theirs at any time."""
        return self.task.stack([client.prepared for client in self.clients])

    @cached_property
    def _features(self) -> StackedFeatures | None:
        return self._stacked_features(self.data)

    def _stacked_features(self, data: StackedData) -> StackedFeatures | None:
        x = data.graph.x
        return StackedFeatures(x, len(self)) if isinstance(x, SparseMatrix) else None

    def _features_of(self, data: StackedData) -> StackedFeatures | None:
        """Return the features of the clients' own data, or of what takes its place; the last ones are kept."""
        if data.graph.x is self.data.graph.x:
            return self._features
        if self._other_features is None or self._other_features[0] is not data.graph.x:
            self._other_features = (data.graph.x, self._stacked_features(data))
        return self._other_features[1]

    def held(
        self, form: Callable[[StackedFeatures], FullRows | CompactRows], data: StackedData | None = None
    ) -> tuple[dict[str, Layout], StackedData]:
        """Return how parameters are held, those of sparse features in this form, and the data in the form for that."""
        data = self.data if data is None else data
        layouts: dict[str, Layout] = dict.fromkeys(self._shapes, Plain(len(self)))
        features = self._features_of(data)
        if features is None:
            return layouts, data
        rows = form(features)
        return layouts | dict.fromkeys(self._feature_weights, rows), data.with_features(rows.x)

    # ---- training

    def fit_all(self, works: Sequence[Fit]) -> list[Fitted]:
        """Train all clients as their handlers ask; what they ask for is of one kind (`Fit.kind`)."""
        first = works[0]
        starts = [work.params for work in works]
        penalties = [work.penalty for work in works]
        pulls = [penalty for penalty in penalties if isinstance(penalty, Pull)]
        own = [penalty for penalty in penalties if penalty is not None and not isinstance(penalty, Pull)]
        data = None if first.prepared is None else self._data_of([work.prepared for work in works])
        asked = Together(
            steps=first.steps,
            step_unit=first.step_unit,
            optimizer=first.optimizer,
            proximal=pulls[0].strength if pulls else 0.0,
            pulled=pulls[0].anchor if pulls else (),
            drifts=self._drifts(pulls, starts, [work.drift or () for work in works], data),
            anchors=_common_anchor(pulls),
            mean_gradients=first.mean_gradients,
            purpose=first.purpose,
            penalties=own,
            optimizer_states=None if first.optimizer_state is None else [work.optimizer_state for work in works],
            loss=self._loss_of([work.loss for work in works]),
            data=data,
            alters_features=getattr(first.loss, "alters_features", False),
            envelope=first.envelope,
        )
        return self.train(starts[0] if all(start is starts[0] for start in starts) else starts, asked).members()

    def terms_of(self, params: Sequence[Params]) -> dict[str, Tensor | Stacked]:
        """Return each parameter of the clients as it can be a part of a sum."""
        return {name: term_of(start) for name, start in self._compacted(starts_of(params), None).items()}

    def _loss_of(self, losses: Sequence[Any]) -> StackedLoss | None:
        first = losses[0]
        if first is None:
            return None
        if not isinstance(first, BothWays):
            raise NotTogether("its loss is a function for one client; isthmus.BothWays tells that for many too")
        found: StackedLoss = first.many(self, [loss.about for loss in losses])
        return found

    def _stack_of(self, prepared: Sequence[Any]) -> Any:
        """Return clients' data side by side."""
        return self.task.stack(prepared)

    def _data_of(self, prepared: list[Any]) -> Any:
        """Return other data than the clients' own side by side; the last one is kept."""
        known = self._other_data
        if known is None or any(one is not other for one, other in zip(known[0], prepared, strict=True)):
            known = self._other_data = (prepared, self._stack_of(prepared))
        return known[1]

    def _drifts(
        self,
        pulls: Sequence[Pull],
        starts: Sequence[Params],
        drifts: Sequence[Terms],
        data: StackedData | None,
    ) -> dict[str, Start] | None:
        """Return what is added to the gradients at every step: the handlers' own drifts, or what pulls add."""
        offsets = self._offsets(pulls, starts, data)
        if not drifts[0]:
            return offsets
        if offsets is not None:
            raise NotTogether("it has a drift and a pull")
        parts = [[terms[place][1] for terms in drifts] for place in range(len(drifts[0]))]
        each = [self._compacted(starts_of(params), data) for params in parts]
        factors = [factor for factor, _ in drifts[0]]
        return {
            name: start_sum([(factor, term_of(held[name])) for factor, held in zip(factors, each, strict=True)])
            for name in common_names(drifts[0])
        }

    def _offsets(
        self, pulls: Sequence[Pull], starts: Sequence[Params], data: StackedData | None
    ) -> dict[str, Start] | None:
        """Return what pulls add to the gradients beyond strength (w - start): strength (start - anchor) + linear."""
        if not pulls or all(p.anchor is start and p.linear is None for p, start in zip(pulls, starts, strict=True)):
            return None
        begun, anchor, linear = (
            self._compacted(starts_of(each), data)
            for each in (starts, [pull.anchor for pull in pulls], [pull.linear or {} for pull in pulls])
        )
        strength = pulls[0].strength
        found: dict[str, Start] = {}
        for name in anchor:
            if name not in self._buffers and name in begun:
                near = [] if begun[name] is anchor[name] else [(strength, begun[name]), (-strength, anchor[name])]
                terms = [*near, *([(1.0, linear[name])] if name in linear else [])]
                if terms:
                    found[name] = start_sum([(factor, term_of(each)) for factor, each in terms])
        return found

    def fit(self, params: Params | Sequence[Params], **asked: Any) -> StackedFit:
        """Train all clients, from the same parameters or each from its own; missing ones are personal.

        What is `asked` for are the fields of `Together`.
        """
        return self.train(params, Together(**asked))

    def train(self, params: Params | Sequence[Params], asked: Together) -> StackedFit:
        """Train all clients, as `fit` does."""
        given_each = [params] if isinstance(params, dict) else params
        given = frozenset(given_each[0])
        held = {**self._personal(given), **starts_of(given_each)}
        # In the model's order, as a client alone would have it: moments are kept by place.
        starts = {**{name: held[name] for name in self._shapes if name in held}, **held}
        if all(client.num_examples == 0 for client in self.clients):
            return self._sent(self._untrained(starts, asked), given)
        self._check(starts)
        return self._sent(self._trained(starts, given, asked), given)

    def _trained(self, starts: dict[str, Start], given: frozenset[str], asked: Together) -> StackedFit:
        states, optimizer, envelope = self._states(asked), asked.optimizer, asked.envelope
        data = self.data if asked.data is None else asked.data
        starts, drifts = self._compacted(starts, data), self._compacted(asked.drifts or {}, data)
        own = self._compacted(self._own_starts(asked), data)
        layouts, x = self._layouts(data, starts, states, replace(asked, drifts=drifts), own)
        # What is told from where it is pulled has no drift by beginning elsewhere.
        drifts = {name: each for name, each in drifts.items() if not isinstance(layouts[name], BeyondRows)}
        weights = Weights(starts, layouts, self._buffers, own)
        by_decay = envelope is None and optimizer.takes_pulls
        pull = (asked.proximal, asked.pulled) if envelope is None else (envelope.strength, given)
        weights.hold(*pull, drifts, follows=envelope is not None, by_decay=by_decay)
        state = stacked_state(optimizer, weights.values, states, weights.layouts)
        loss = asked.loss or (lambda model, data, streams, frozen: self.task.stacked_loss(model, data, streams))
        if asked.beside is not None:
            asked.beside.begin(range(len(self)))
        chain = self._is_chain(asked)
        repeats = asked.repeats if chain and getattr(self.model, "draws_once", False) else 1
        taken = FullSteps(
            self.model,
            asked,
            weights,
            state,
            self._rate(optimizer),
            data.with_features(x),
            loss,
            partial(self._streams, asked.purpose, data, repeats),
            chain,
        )
        taken.run()
        counts = [before + asked.steps for before in steps_before(states, len(self))]
        finished = weights.finished()
        return StackedFit(
            finished,
            torch.stack(taken.losses).mean(dim=0),
            len(taken.losses),
            partial(states_apart, optimizer, taken.state, counts, weights),
            taken.mean_gradients(finished) if asked.mean_gradients else None,
            taken.seen,
            None if envelope is None else weights.centre(),
            beside=weights.finished(OWN) if own else None,
        )

    def _is_chain(self, asked: Together) -> bool:
        """Whether losses are a chain of steps (`models/products/chain.py`), and all that gradients are made of."""
        alone = asked.loss is None and not asked.penalties and asked.beside is None
        known = type(self.task).stacked_loss is NodeClassification.stacked_loss
        return alone and known and isinstance(self.model, Model) and self.model.is_chain

    def _own_starts(self, asked: Together) -> dict[str, Start]:
        """Return what second values of the parameters begin with, in the model's order, if there are any."""
        if asked.beside is None:
            return {}
        found = {name: asked.beside.starts[name] for name in self._shapes if name in asked.beside.starts}
        self._check(found)
        return found

    def _rate(self, optimizer: Optimizer) -> float:
        """Return the learning rate of this round."""
        return optimizer.lr * optimizer.schedule.factor(max(self.clients[0].position.round, 1))

    def _personal(self, given: frozenset[str]) -> dict[str, Start]:
        """Return each client's own values of the parameters that are not given."""
        if all(name in given for name in self.clients[0].own):
            return {}
        personal = starts_of([client.state.get("personal", client.own) for client in self.clients])
        return {name: start for name, start in personal.items() if name not in given}

    def _sent(self, fitted: StackedFit, given: frozenset[str]) -> StackedFit:
        """Let every client keep its personal parameters; return the others."""
        personal = [name for name in fitted.params if name not in given]
        if not personal:
            return fitted
        kept = StackedParams({name: fitted.params[name] for name in personal}, len(self)).members()
        for client, own in zip(self.clients, kept, strict=True):
            client.state = {**client.state, "personal": own}
        params, means = (
            None if held is None else {name: value for name, value in held.items() if name in given}
            for held in (fitted.params, fitted.gradients)
        )
        return replace(fitted, params=params or {}, gradients=means)

    def _untrained(self, starts: dict[str, Start], asked: Together) -> StackedFit:
        """Give everybody its start back: nobody has training examples."""
        weights = Weights(starts, dict.fromkeys(starts, Plain(len(self))), self._buffers)
        given = asked.optimizer_states or [None] * len(self)

        def kept() -> tuple[OptimizerState, ...]:
            start = asked.optimizer.start
            return tuple(state or start([each[k] for each in weights.values]) for k, state in enumerate(given))

        zeros = weights.named([torch.zeros_like(each) for each in weights.values])
        return StackedFit(weights.finished(), torch.full((len(self),), float("nan")), 0, kept, zeros)

    def _states(self, asked: Together) -> list[OptimizerState] | None:
        """Return each client's optimiser state to go on from, or None when all begin."""
        states = asked.optimizer_states
        if type(moving(asked.optimizer)) not in ELEMENTWISE:
            raise NotTogether(f"{asked.optimizer!r} is not known to treat every number by itself")
        if states is None:
            return None
        fresh = [state is None for state in states]
        if any(fresh) and not all(fresh):
            raise NotTogether("some clients begin to train and others go on")
        return None if all(fresh) else [state or {} for state in states]

    def _layouts(
        self,
        data: StackedData,
        starts: Mapping[str, Start],
        states: list[OptimizerState] | None,
        asked: Together,
        own: Mapping[str, Start] | None = None,
    ) -> tuple[dict[str, Layout], Any]:
        """Return how each parameter is held, and the features in the form that goes with it."""
        layouts: dict[str, Layout] = dict.fromkeys(self._shapes, Plain(len(self)))
        features = self._features_of(data)
        if features is None:
            return layouts, data.graph.x
        names, optimizer, of_each = self._feature_weights, asked.optimizer, asked.drifts or {}
        # Only a state that is nothing but a count of steps can be gone on from beside weights that are not held whole,
        # and any function of the weights may ask for all of them.
        bare = not asked.penalties and (states is None or counts_steps_only(optimizer))
        # The span is that of the features as they are, and of one set of weights.
        as_they_are = not drops_features(self.model) and not asked.alters_features and not own
        linear = type(moving(optimizer)) is SGD and as_they_are
        if linear and bare and features.span_pays:
            spans = {name: Span(features, of_each.get(name)) for name in names}
            return layouts | spans, features.span
        # A drift that is each client's own may move every row.
        drifts = [of_each[name] for name in names if name in of_each]
        begun = [held[name] for held in (starts, own) if held for name in names]
        compact = bare and all(map(is_compact, [*drifts, *begun]))
        still = not drifts and not moving(optimizer).weight_decay
        if compact and still and as_they_are and all(isinstance(start, Tensor) for start in begun):
            # One for each, for each knows whether something was added.
            return layouts | {name: AlikeRows(features) for name in names}, features.alike
        anchors = {name: (asked.anchors or {}).get(name) for name in names}
        if compact and as_they_are and asked.proximal and optimizer.takes_pulls:
            held = {name: BeyondRows(features, each) for name, each in anchors.items() if isinstance(each, Tensor)}
            if len(held) == len(names) and all(name in asked.pulled for name in names):
                return layouts | held, features.beyond
        layout = CompactRows(features, still) if compact else FullRows(features)
        return layouts | dict.fromkeys(names, layout), layout.x

    def _compacted(self, starts: Mapping[str, Start], data: StackedData | None) -> dict[str, Start]:
        """Return the same, and of weights that multiply sparse features what clients have in common only once."""
        # Batches do not see all of a client's features.
        features = self._features_of(self.data if data is None else data) if type(self) is GraphCohort else None
        if features is None:
            return dict(starts)
        names = self._feature_weights
        return {name: features.compacted(start) if name in names else start for name, start in starts.items()}

    def _check(self, starts: dict[str, Start]) -> None:
        if starts.keys() != self._shapes.keys():
            raise BadInput("the parameters do not belong to this model")
        for name, start in starts.items():
            if any(shape != self._shapes[name] for shape in shapes_of(start)):
                raise BadInput(f"parameter {name!r} has another shape than this model's {tuple(self._shapes[name])}")

    def _streams(self, purpose: str, data: StackedData, repeats: int = 1) -> Streams:
        def begun() -> list[torch.Generator]:
            return [client.generator(purpose) for client in self.clients]

        # A handler that trains twice draws the same twice.
        ahead = self._ahead.begin((self.clients[0].position, purpose, repeats, data.sizes))
        return Streams(begun, data.sizes, data.rows, data.entries, repeats=repeats, ahead=ahead)

    # ---- evaluation

    def evaluate(
        self, models: Sequence[Params], splits: tuple[str, ...], prepared: list[Any] | None = None
    ) -> list[Evaluated]:
        """Return metrics and example counts of each client's model on its own graph, or what takes its place."""
        with self.holding(models, None if prepared is None else self._data_of(prepared)) as data:
            return self.task.evaluate_stacked(self.model, data, splits)

    @contextmanager
    def holding(self, models: Sequence[Params], data: StackedData | None = None) -> Iterator[StackedData]:
        """Let the module be each client's model, to look at and not to train; yield the data that it is to run on."""
        if not self.clients[0].own and all(model is models[0] for model in models):
            load_params(self.model, models[0])
            yield self.data if data is None else data
            return
        starts = {**self._personal(frozenset(models[0])), **starts_of(models)}
        layouts, data = self.held(partial(CompactRows, still=True), data)
        self._check(dict(starts))
        with replaced(self.model, {name: layouts[name].live(start) for name, start in starts.items()}):
            yield data
