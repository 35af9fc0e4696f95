"""Many clients at once: their graphs side by side, their weights stacked, one step for all.

What a `GraphCohort` does for its clients is what each would do alone, within rounding: the same batches, the same
random streams, losses and optimiser states of their own. Only clients that train on full batches, with a task, a model
and an optimiser that are known to allow it, are put together (`blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.core.record import Params
from isthmus.core.replies import Stacked, StackedTensor
from isthmus.learn.graph_client import GraphClient, gradients, load_params
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer, OptimizerState
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.layouts import (
    CompactRows,
    FullRows,
    Layout,
    Plain,
    Span,
    StackedFeatures,
    Start,
    drops_features,
    feature_weights,
    replaced,
)
from isthmus.models.parts import Streams
from isthmus.models.products.sparse import SparseMatrix

# What the model began with, in the form in which it takes its parameters; made when it is asked for.
Frozen: TypeAlias = Callable[[], Mapping[str, Any]]

# From the model, the data, the clients' random streams and what the model began with to each client's loss, (clients,).
StackedLoss: TypeAlias = Callable[[nn.Module, StackedData, Streams, Frozen], Tensor]

# Exact classes whose steps treat every number by itself, so that stacked numbers move as they would alone.
ELEMENTWISE: frozenset[type[Optimizer]] = frozenset({SGD, Adam, AdamW})


@dataclass(frozen=True)
class StackedFit:
    """What training together gives back.

    Fields:
        params:           each parameter of each client
        losses:           each client's mean over the steps, (clients,)
        steps:            steps that were taken
        optimizer_states: each client's, when they were asked for
        observed:         what `observe` returned; None for clients that had nothing to train on
    """

    params: dict[str, Stacked]
    losses: Tensor
    steps: int
    optimizer_states: tuple[OptimizerState, ...]
    observed: Any = None

    def member(self, position: int) -> Params:
        """Return one client's parameters, in memory of their own: a view would keep all clients' alive."""
        return {name: _own(stacked.member(position)) for name, stacked in self.params.items()}


class GraphCohort:
    """Some clients of a course that are simulated together; all have training examples, or none has.

    `clients` says who they are; `fit` and `evaluate` do for all what a `GraphClient`'s do for one.
    """

    def __init__(self, clients: Sequence[GraphClient]) -> None:
        self.clients = tuple(clients)
        self.task, self.model = clients[0].task, clients[0].model
        self._buffers = frozenset(name for name, _ in self.model.named_buffers())

    def __iter__(self) -> Iterator[GraphClient]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients' ids."""
        return tuple(client.id for client in self.clients)

    @cached_property
    def data(self) -> StackedData:
        """All clients' data side by side; rebuilt from theirs at any time."""
        return self.task.stack([client.prepared for client in self.clients])

    @cached_property
    def _features(self) -> StackedFeatures | None:
        x = self.data.graph.x
        return StackedFeatures(x, len(self)) if isinstance(x, SparseMatrix) else None

    # ---- training

    def fit(
        self,
        params: Params | Sequence[Params],
        *,
        steps: int,
        optimizer: Optimizer,
        step_unit: str = "batch",
        proximal: float = 0.0,
        optimizer_states: Sequence[OptimizerState | None] | None = None,
        loss: StackedLoss | None = None,
        drifts: Sequence[Params] | None = None,
        data: StackedData | None = None,
        observe: Callable[[nn.Module, StackedData], Any] | None = None,
        alters_features: bool = False,
    ) -> StackedFit:
        """Train all clients, from the same parameters or each from its own; missing ones are personal.

        Args:
            params:           the start, one for all or one for each
            steps:            optimiser steps; on full batches a batch is an epoch
            optimizer:        how a gradient becomes a step
            step_unit:        "batch" or "epoch", the same here
            proximal:         mu of a term mu/2 |w - start|^2 over the given parameters that joins each client's loss
            optimizer_states: each client's state to go on from (None: from nothing); without it, states are not kept
            loss:             each client's loss, (clients,); by default the task's
            drifts:           for each client, what is added to the gradients of these parameters at every step
            data:             takes the place of the clients' own: the same nodes with other edges or labels
            observe:          called after the last step with the trained model and the data; what it returns is kept
            alters_features:  whether the loss runs the model on other features than the clients' own
        """
        given = frozenset(params if isinstance(params, dict) else params[0])
        starts = self._in_order({**self._personal(given), **_starts(params)})
        if all(client.num_examples == 0 for client in self.clients):
            return self._sent(self._untrained(starts, optimizer, optimizer_states), given)
        states = self._states(optimizer, optimizer_states)
        features_shared = isinstance(params, dict) and given.issuperset(self._feature_weights)
        layouts, x = self._layouts(optimizer, features_shared, states, drifts is not None, alters_features)
        self._check(starts)
        weights = _Weights(starts, layouts, self._buffers)
        moved, terms = weights.moved, weights.terms(proximal, given, drifts or ())
        state = _stacked_state(optimizer, moved, states, weights.layouts)
        lr = optimizer.lr * optimizer.schedule.factor(max(self.clients[0].position.round, 1))
        streams = self._streams()
        data = (self.data if data is None else data).with_features(x)
        loss = self._task_loss if loss is None else loss
        losses: list[Tensor] = []
        with replaced(self.model, weights.installed()):
            for _ in range(steps):
                each = loss(self.model, data, streams, weights.frozen)  # (clients,)
                losses.append(each.detach())
                grads = gradients(each.sum(), moved)
                with torch.no_grad():
                    terms.join(grads, moved)
                    optimizer.step(moved, grads, state, lr)
            with torch.no_grad():
                observed = None if observe is None else observe(self.model, data)
        kept = _states_apart(state, states, len(self), weights.layouts, steps)
        fitted = StackedFit(weights.finished(), torch.stack(losses).mean(dim=0), steps, kept, observed)
        return self._sent(fitted, given)

    def _task_loss(self, model: nn.Module, data: StackedData, streams: Streams, frozen: Frozen) -> Tensor:
        return self.task.stacked_loss(model, data, streams)

    def _in_order(self, held: dict[str, Start]) -> dict[str, Start]:
        """Return parameters in the model's order, as a client alone would have it: moments are kept by place."""
        return {**{name: held[name] for name in self.model.state_dict() if name in held}, **held}

    @cached_property
    def _feature_weights(self) -> frozenset[str]:
        return frozenset(feature_weights(self.model) if self._features is not None else ())

    def _personal(self, given: frozenset[str]) -> dict[str, Start]:
        """Return each client's own values of the parameters that are not given."""
        if all(name in given for name in self.clients[0].own):
            return {}
        each = [client.complete({}) for client in self.clients]
        return {name: [own[name] for own in each] for name in each[0] if name not in given}

    def _sent(self, fitted: StackedFit, given: frozenset[str]) -> StackedFit:
        """Let every client keep its personal parameters; return the others."""
        personal = [name for name in fitted.params if name not in given]
        if not personal:
            return fitted
        for k, client in enumerate(self.clients):
            own = {name: _own(fitted.params[name].member(k)) for name in personal}
            client.state = {**client.state, "personal": own}
        return replace(fitted, params={name: value for name, value in fitted.params.items() if name in given})

    def _untrained(
        self, starts: dict[str, Start], optimizer: Optimizer, states: Sequence[OptimizerState | None] | None
    ) -> StackedFit:
        """Give everybody its start back: nobody has training examples."""
        params: dict[str, Stacked] = {}
        for name, start in starts.items():
            alike = isinstance(start, Tensor)
            params[name] = StackedTensor(start.expand(len(self), *start.shape) if alike else torch.stack(list(start)))  # type: ignore[union-attr]
        trained = [stacked for name, stacked in params.items() if name not in self._buffers]
        kept = tuple(
            state or optimizer.start([stacked.member(k) for stacked in trained])
            for k, state in enumerate(states if states is not None else ())
        )
        return StackedFit(params, torch.full((len(self),), float("nan")), 0, kept)

    def _states(
        self, optimizer: Optimizer, states: Sequence[OptimizerState | None] | None
    ) -> list[OptimizerState] | None:
        """Return each client's optimiser state, or None when they are not to be kept."""
        if type(optimizer) not in ELEMENTWISE:
            raise BadInput(f"{optimizer!r} is not known to treat every number by itself")
        if states is None:
            return None
        fresh = [state is None for state in states]
        if any(fresh) and not all(fresh):
            raise BadInput("some clients begin to train and others go on")
        return [state or {} for state in states]

    def _layouts(
        self,
        optimizer: Optimizer,
        shared: bool,
        states: list[OptimizerState] | None,
        drifting: bool,
        alters_features: bool,
    ) -> tuple[dict[str, Layout], Any]:
        """Return how each parameter is held, and the features in the form that goes with it."""
        plain = Plain(len(self))
        layouts: dict[str, Layout] = dict.fromkeys(self.model.state_dict(), plain)
        features = self._features
        if features is None:
            return layouts, self.data.graph.x
        # Only a state that is nothing but a count of steps can be kept beside weights that are not held whole, and a
        # drift may move every row.
        bare = not drifting and (states is None or _counts_steps_only(optimizer))
        # The span is that of the features as they are.
        linear = type(optimizer) is SGD and bare and not drops_features(self.model) and not alters_features
        layout = _feature_layout(features, linear, shared and bare)
        return layouts | dict.fromkeys(feature_weights(self.model), layout), layout.x

    def _check(self, starts: dict[str, Start]) -> None:
        slots = self.model.state_dict()
        if starts.keys() != slots.keys():
            raise BadInput("the parameters do not belong to this model")
        for name, start in starts.items():
            if any(tensor.shape != slots[name].shape for tensor in ([start] if isinstance(start, Tensor) else start)):
                raise BadInput(f"parameter {name!r} has another shape than this model's {tuple(slots[name].shape)}")

    def _streams(self) -> Streams:
        return Streams(
            lambda: [client.generator("fit") for client in self.clients],
            self.data.sizes,
            self.data.rows,
            self.data.entries,
        )

    # ---- evaluation

    def evaluate(
        self, models: Sequence[Params], splits: tuple[str, ...]
    ) -> list[tuple[dict[str, dict[str, float]], dict[str, int]]]:
        """Return metrics and example counts of each client's model on its own graph."""
        models = [client.complete(model) for client, model in zip(self.clients, models, strict=True)]
        if all(model is models[0] for model in models):
            load_params(self.model, models[0])
            return self.task.evaluate_stacked(self.model, self.data, splits)
        starts = {name: [model[name] for model in models] for name in models[0]}
        plain, features = Plain(len(self)), self._features
        layouts: dict[str, Layout] = dict.fromkeys(starts, plain)
        data = self.data
        if features is not None:
            rows = CompactRows(features)
            layouts |= dict.fromkeys(feature_weights(self.model), rows)
            data = data.with_features(rows.x)
        self._check(dict(starts))
        with replaced(self.model, {name: layouts[name].live(start) for name, start in starts.items()}):
            return self.task.evaluate_stacked(self.model, data, splits)


class _Weights:
    """The parameters of all clients while they train: where they began, how they are held, what is moved."""

    def __init__(self, starts: dict[str, Start], layouts: dict[str, Layout], buffers: frozenset[str]) -> None:
        self._starts, self._layouts = starts, layouts
        self._live = {name: layouts[name].live(start) for name, start in starts.items()}
        self._trained = [name for name in starts if name not in buffers]
        self.moved = [self._live[name].requires_grad_() for name in self._trained]
        self.layouts = [layouts[name] for name in self._trained]

    def terms(self, proximal: float, given: Container[str], drifts: Sequence[Params]) -> _Terms:
        """Return what joins the gradients: a pull to where the given parameters are now, and each client's drift."""
        near: Container[str] = given if proximal else ()
        steady: Container[str] = drifts[0] if drifts else ()
        anchors = {i: self.moved[i].detach().clone() for i, name in enumerate(self._trained) if name in near}
        drifting = {i: name for i, name in enumerate(self._trained) if name in steady}
        constant = {i: self.layouts[i].live([drift[name] for drift in drifts]) for i, name in drifting.items()}
        return _Terms(proximal, anchors, constant)

    def installed(self) -> dict[str, Any]:
        """Return what the model finds in the parameters' places."""
        return {n: self._layouts[n].installed(self._live[n], start) for n, start in self._starts.items()}

    def frozen(self) -> Mapping[str, Any]:
        """Return what the model began with, the same whenever it is asked for."""
        return self._frozen

    @cached_property
    def _frozen(self) -> Mapping[str, Any]:
        layouts = self._layouts
        return {n: layouts[n].installed(layouts[n].live(start), start) for n, start in self._starts.items()}

    def finished(self) -> dict[str, Stacked]:
        """Return what became of each parameter of each client."""
        return {n: self._layouts[n].finished(live.detach(), self._starts[n]) for n, live in self._live.items()}


@dataclass(frozen=True)
class _Terms:
    """What joins the gradients, by the place of the parameter: g + mu (w - anchor) + drift."""

    proximal: float
    anchors: dict[int, Tensor]
    drifts: dict[int, Tensor]

    def join(self, grads: list[Tensor], moved: list[Tensor]) -> None:
        for i, anchor in self.anchors.items():
            grads[i] = grads[i].add(moved[i] - anchor, alpha=self.proximal)
        for i, drift in self.drifts.items():
            grads[i] = grads[i] + drift


def _own(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _starts(params: Params | Sequence[Params]) -> dict[str, Start]:
    if isinstance(params, dict):
        return dict(params)
    return {name: [each[name] for each in params] for name in params[0]}


def _counts_steps_only(optimizer: Optimizer) -> bool:
    return type(optimizer) is SGD and not optimizer.momentum


def _feature_layout(features: StackedFeatures, linear: bool, compact: bool) -> Span | CompactRows | FullRows:
    if linear and features.span_pays:
        return Span(features)
    return CompactRows(features) if compact else FullRows(features)


def _stacked_state(
    optimizer: Optimizer, moved: list[Tensor], states: list[OptimizerState] | None, layouts: Sequence[Layout]
) -> OptimizerState:
    """Return the state of the stacked parameters."""
    if not states or not states[0]:
        return optimizer.start(moved)
    slots = [key for key, value in states[0].items() if isinstance(value, tuple)]
    stacked: OptimizerState = {"step": _steps_taken(states, counted=bool(slots) and type(optimizer) is not SGD)}
    for key in slots:
        stacked[key] = tuple(layouts[i].live([state[key][i] for state in states]) for i in range(len(moved)))
    return stacked


def _steps_taken(states: list[OptimizerState], counted: bool) -> int:
    """Return how many steps clients have taken, which must be the same for all where the optimiser counts them."""
    steps: set[int] = {state["step"] for state in states}
    if counted and len(steps) > 1:
        raise BadInput("clients have taken different numbers of steps, which this optimiser counts")
    return min(steps)


def _states_apart(
    state: OptimizerState, before: list[OptimizerState] | None, num_clients: int, layouts: Sequence[Layout], steps: int
) -> tuple[OptimizerState, ...]:
    """Return each client's state after training; none when they are not kept."""
    if before is None:
        return ()
    slots = {
        key: [layout.finished(tensor, []) for layout, tensor in zip(layouts, value, strict=True)]
        for key, value in state.items()
        if isinstance(value, tuple)
    }
    return tuple(
        {
            "step": before[k].get("step", 0) + steps,
            **{key: tuple(_own(slot.member(k)) for slot in value) for key, value in slots.items()},
        }
        for k in range(num_clients)
    )
