"""How parameters of many clients are held while they train together: a layout for each, and all of them as `Weights`.

Plain        (clients, ...): a copy for each
WideRows     sparse features: (clients * features, out), a copy for each, for columns that are each client's own
FullRows     the same, multiplied by a block-diagonal matrix that serves every step
CompactRows  sparse features and a common start: for each client only the rows of the features that occur at it,
             and once for all what becomes of a row that no data touches
AlikeRows    the same, where nothing but gradients moves them: what training added, one row for all features that
             occur at the same nodes (`models/products/affine.py`)
BeyondRows   the rows of CompactRows, less those of what pulls them: the pull is an optimiser's weight decay
Span         sparse features, few nodes and a linear optimiser: what training added, one row for each node
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether
from isthmus.core.replies import Combination, Stacked, StackedTensor, own_tensor
from isthmus.learn.optimizers import (
    Optimizer,
    OptimizerState,
    common_step,
)
from isthmus.learn.together.stacked_features import (
    AlikeStack,
    CompactStack,
    Rows,
    SpanStack,
    StackedFeatures,
    Start,
    features_of,
    shapes_of,
    term_of,
)
from isthmus.models.products.affine import AlikeFeatures, HeldFeatures, HeldWeight
from isthmus.models.products.sparse import SparseMatrix


class Layout(ABC):
    """How a parameter is held; `live` is the tensor that the optimiser moves.

    Attributes:
        adds: whether that is what was added to the start, so that a pull to the start is one to zero
    """

    adds: ClassVar[bool] = False

    @abstractmethod
    def live(self, start: Start) -> Tensor:
        """Return the tensor to train, a fresh one."""

    def installed(self, live: Tensor, start: Start) -> Any:
        """Return what the model finds in the parameter's place."""
        return live

    @abstractmethod
    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return what became of each client's parameter."""

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return what became of each client's gradients or moments, which are held like the parameter."""
        return self.finished(live, start)

    def constant(self, drift: Start) -> Tensor:
        """Return what is added to the gradient of the live tensor where `drift` is added to each client's."""
        return self.live(drift)

    def drifting(self, grad: Tensor) -> Tensor:
        """Return the part of a gradient of the live tensor, in the same memory, to which that is added."""
        return grad

    def stepped(self) -> None:  # noqa: B027
        """Be told that a step is about to be taken."""

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return a number for each client, (clients,), so that it multiplies each client's part of `live`."""
        raise NotTogether(f"{type(self).__name__} does not hold every client's parameters apart")

    def part(self, live: Tensor, position: int) -> Tensor:
        """Return one client's part of the tensor that is trained, where every client's is held whole."""
        return self.some(live, position, position + 1)

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return the part of some clients in a row, in the same memory, where every client's is held whole."""
        raise NotTogether(f"{type(self).__name__} does not hold every client's parameters whole")


class Plain(Layout):
    """A copy for each client."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def live(self, start: Start) -> Tensor:
        """Return (clients, ...)."""
        if isinstance(start, Tensor):
            return start.expand(self.num_clients, *start.shape).clone()
        return start.values.clone() if isinstance(start, Rows) else torch.stack(list(start))

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows."""
        return StackedTensor(live)

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (clients, 1, ...)."""
        return by_client.view(-1, *[1] * (live.ndim - 1))

    def part(self, live: Tensor, position: int) -> Tensor:
        """Return a row."""
        return live[position]

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return rows."""
        return live[start:stop]


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

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (clients * features, 1)."""
        return by_client.repeat_interleave(self.num_features).unsqueeze(1)

    def some(self, live: Tensor, start: int, stop: int) -> Tensor:
        """Return the copies of some clients."""
        return live[start * self.num_features : stop * self.num_features]


class FullRows(WideRows):
    """The same for features that are known beforehand; `x` is what the model is fed in their place."""

    def __init__(self, features: StackedFeatures) -> None:
        super().__init__(features.num_clients, features.num_features)
        self.features = features

    @property
    def x(self) -> SparseMatrix:
        """The block-diagonal features."""
        return self.features.full


class CompactRows(Layout):
    """The rows of the features that occur at a client; the others move alike at all clients and are held once.

    Where nothing moves those (no decay, no drift), they stand `still` and are not held at all.
    """

    def __init__(self, features: StackedFeatures, still: bool = False) -> None:
        self.features, self.still = features, still

    @property
    def x(self) -> SparseMatrix:
        """The features with compact columns."""
        return self.features.touched if self.still else self.features.compact

    def live(self, start: Start) -> Tensor:
        """Return (used + features, out), or (used, out) where the others stand still."""
        features = self.features
        used = start.index_select(0, features.feature) if isinstance(start, Tensor) else features.gathered(start)
        if self.still:
            return used.clone() if isinstance(start, Rows) else used  # a stack's own rows are not to be changed
        return torch.cat([used, rest_of(start) if is_compact(start) else used.new_zeros(start[0].shape)])

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (used + features, 1), or (used, 1); nothing is multiplied by a row that no data touches."""
        used = by_client.index_select(0, self.features.owner)
        return torch.cat([used, used.new_zeros(len(live) - len(used))]).unsqueeze(1)

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows."""
        used, rest = len(self.features.used), rest_of(start)
        return CompactStack(live[:used], rest if self.still else live[used:], self.features)

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows; what stands still has no gradient and no moments."""
        return self.finished(live, torch.zeros_like(rest_of(start)) if self.still else start)


def rest_of(start: Start) -> Tensor:
    """Return the rows that no data touches, of a start that has them in common."""
    if isinstance(start, Rows) and start.compact is not None:
        return start.compact.rest
    if not isinstance(start, Tensor):
        raise TypeError("compact rows need a common start: the rows that no data touches are held once")
    return start


def is_compact(start: Start) -> bool:
    """Whether rows that no data touches are known to be the same for all clients."""
    return isinstance(start, Tensor) or (isinstance(start, Rows) and features_of(start.stacked) is not None)


class Held(Layout):
    """Weights of sparse features as coordinates of what training added to the start."""

    def __init__(self, features: StackedFeatures) -> None:
        self.features = features
        self._begun: Tensor | None = None  # what was last made to train, until a step is taken
        self._installed: list[HeldWeight] = []  # of that

    @property
    @abstractmethod
    def x(self) -> HeldFeatures:
        """The features, for weights that are held so."""

    def installed(self, live: Tensor, start: Start) -> HeldWeight:
        """Return the coordinates with what they start from."""
        found = HeldWeight(live, *map(self._seen, self._origins(start)))
        if self._begun is not None and self._begun.data_ptr() == live.data_ptr():
            found.nothing_added = True
            self._installed.append(found)
        return found

    def _origins(self, start: Start) -> list[Start]:
        return [start]

    def _seen(self, origin: Start) -> Tensor:
        """Return X times the weights of all clients, or of each, (clients * rows, out)."""
        if is_compact(origin):
            return self.features.seen(term_of(origin))
        return self.features.touched.matmul(CompactRows(self.features, still=True).live(origin))

    def stepped(self) -> None:
        """Be told that something is added now."""
        self._begun = None
        while self._installed:
            self._installed.pop().nothing_added = False


class AlikeRows(Held):
    """What training added to a common start, one row for all features of a client that occur at the same nodes.

    Rows that no data touches stand still.
    """

    adds = True

    @property
    def x(self) -> AlikeFeatures:
        """The features with their sums over those that are alike."""
        return self.features.alike

    def live(self, start: Start) -> Tensor:
        """Return (sets, out): zeros."""
        rows = self.features.alike.sums.shape[1]
        self._begun = self.features.matrix.values.new_zeros(rows, next(shapes_of(start))[1])
        return self._begun

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (sets, 1)."""
        return by_client.index_select(0, self.features.alike_owner).unsqueeze(1)

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return what was added, and the start."""
        return Combination([(1.0, AlikeStack(live, self.features)), (1.0, term_of(start))])

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows; what stands still has no gradient and no moments."""
        return AlikeStack(live, self.features)


class BeyondRows(Held):
    """How far the rows of `CompactRows` are from what pulls them, which is the same for all clients.

    A pull is then one to zero, as weight decay is, and costs no pass over memory by itself.
    """

    adds = True

    def __init__(self, features: StackedFeatures, anchor: Tensor) -> None:
        super().__init__(features)
        self.anchor = anchor

    @property
    def x(self) -> AlikeFeatures:
        """The features with compact columns, for weights that are told from another origin."""
        return self.features.beyond

    def live(self, start: Start) -> Tensor:
        """Return (used + features, out): the start less the anchor."""
        features, (number, width) = self.features, self.anchor.shape
        used = len(features.used)
        rows = self.anchor.new_empty(used + number, width)
        begun = start.index_select(0, features.feature) if isinstance(start, Tensor) else features.gathered(start)
        torch.index_select(self.anchor, 0, features.feature, out=rows[:used])
        torch.sub(begun, rows[:used], out=rows[:used])
        torch.sub(rest_of(start), self.anchor, out=rows[used:])
        return rows

    def spread(self, by_client: Tensor, live: Tensor) -> Tensor:
        """Return (used + features, 1)."""
        return CompactRows(self.features).spread(by_client, live)

    def _origins(self, start: Start) -> list[Start]:
        return [self.anchor]

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows, and the anchor."""
        return Combination([(1.0, self.beside(live, start)), (1.0, self.anchor)])

    def beside(self, live: Tensor, start: Start) -> Stacked:
        """Return the rows; a gradient or a moment is that of the weights themselves."""
        used = len(self.features.used)
        return CompactStack(live[:used], live[used:], self.features)


class Span(Held):
    """What training added to the start, one row for each node, how much of the start is left, and of a drift."""

    def __init__(self, features: StackedFeatures, drift: Start | None = None) -> None:
        super().__init__(features)
        self.drift = drift

    @property
    def x(self) -> HeldFeatures:
        """The features with their Gram matrix."""
        return self.features.span

    def live(self, start: Start) -> Tensor:
        """Return (clients * rows + origins, out): zeros, and ones in the row of the start."""
        rows = self.features.matrix.shape[0]
        coordinates = self._nothing(start)
        coordinates[rows] = 1.0
        self._begun = coordinates
        return coordinates

    def constant(self, drift: Start) -> Tensor:
        """Return the drift itself in coordinates: ones in its row."""
        return self._nothing(drift)[-1:].fill_(1.0)

    def drifting(self, grad: Tensor) -> Tensor:
        """Return the drift's row."""
        return grad[-1:]

    def _nothing(self, like: Start) -> Tensor:
        rows = self.features.matrix.shape[0] + (1 if self.drift is None else 2)
        return self.features.matrix.values.new_zeros(rows, next(shapes_of(like))[1])

    def _origins(self, start: Start) -> list[Start]:
        return [origin for origin in (start, self.drift) if origin is not None]

    def finished(self, live: Tensor, start: Start) -> Stacked:
        """Return what was added, plus the start and the drift as far as they are in it."""
        rows = self.features.matrix.shape[0]
        terms: list[tuple[float, Stacked | Tensor]] = [(1.0, SpanStack(live[:rows], self.features))]
        shares = live[rows:, 0].tolist()
        return Combination([*terms, *zip(shares, map(term_of, self._origins(start)), strict=True)])


# A second value of a parameter, each client's own, lies under its name behind this.
OWN = "own:"


# ---- all parameters


class Weights:
    """The parameters of all clients while they train: where they began, how they are held, what is moved.

    Args:
        starts:  where they begin, by name
        layouts: how they are held
        buffers: those that no step moves
        own:     where second values begin, each client's own (`Beside`)
    """

    def __init__(
        self,
        starts: dict[str, Start],
        layouts: dict[str, Layout],
        buffers: frozenset[str],
        own: Mapping[str, Start] | None = None,
    ) -> None:
        self.names, self.buffers = tuple(starts), buffers
        second = {OWN + name: start for name, start in (own or {}).items()}
        self._starts = {**starts, **second}
        self.number: int | None = None  # of clients that take a step; None for all
        self._layouts = {**layouts, **{name: layouts[name.removeprefix(OWN)] for name in second}}
        self._live = {name: self._layouts[name].live(start) for name, start in self._starts.items()}
        self._trained = [name for name in self._starts if name.removeprefix(OWN) not in buffers]
        self.layouts = [self._layouts[name] for name in self._trained]
        self._steps: list[int] = []  # since the parameters were where they are pulled, for all parts of these
        self._track()

    def _track(self) -> None:
        self.moved = [self._live[name].requires_grad_() for name in self._trained]
        self.values = [each.detach() for each in self.moved]  # the same memory

    def hold(
        self,
        strength: float,
        pulled: Container[str],
        drifts: Mapping[str, Start],
        follows: bool = False,
        by_decay: bool = False,
    ) -> None:
        """Let g + mu (w - anchor) + drift take the place of g: a pull to where some parameters are now, and a drift.

        Where it `follows` the parameters, what pulls them is another tensor than their beginning. With `by_decay` the
        optimiser pulls those of which what was added is held (`pulls`).
        """
        near: Container[str] = pulled if strength else ()
        drifting = {i: drifts[name] for i, name in enumerate(self._trained) if name in drifts}
        self._drifting = dict(drifts)
        self._strength = strength
        places = [i for i, name in enumerate(self._trained) if name in near]
        # What was added is how far they are from their beginning, as it is.
        self._added = [i for i in places if self.layouts[i].adds and not follows]
        self._anchors = {i: self.values[i].clone() for i in places if i not in self._added}
        self.pulls = [strength * (i in self._added) for i in range(len(self.values))] if by_decay else []
        if by_decay:
            self._added = []
        self._drifts = {i: self.layouts[i].constant(drift) for i, drift in drifting.items()}
        self._apart = {i: torch.empty_like(anchor) for i, anchor in self._anchors.items()}
        self._steps.clear()

    def begin(self) -> None:
        """Put the parameters to where they are pulled."""
        for i, anchor in self._anchors.items():
            self.values[i].copy_(anchor)
        self._steps.clear()

    def follow(self, rate: float) -> None:
        """Let what pulls the parameters go some of the way to them."""
        for i, anchor in self._anchors.items():
            anchor.lerp_(self.values[i], rate)

    def join(self, grads: list[Tensor]) -> None:
        """Add the pull and the drift to the gradients, which are nobody else's; where it began nothing is pulled."""
        places = [grad.data_ptr() for grad in grads]
        for layout in self.layouts:
            layout.stepped()
        for i, anchor in self._anchors.items() if self._steps else ():
            apart = torch.sub(self.values[i], anchor, out=self._apart[i])
            grads[i] = _own(grads[i], places).add_(apart, alpha=self._strength)
        for i in self._added if self._steps else ():
            grads[i] = _own(grads[i], places).add_(self.values[i], alpha=self._strength)
        for i in self._drifts:
            grads[i] = _own(grads[i], places)
        if self._drifts:
            parts = [self.layouts[i].drifting(grads[i]) for i in self._drifts]
            torch._foreach_add_(parts, list(self._drifts.values()))
        self._steps.append(len(grads))

    def centre(self) -> dict[str, Stacked]:
        """Return where the parameters are pulled."""
        named = {self._trained[i]: anchor for i, anchor in self._anchors.items()}
        return {name: self._layouts[name].finished(anchor, self._starts[name]) for name, anchor in named.items()}

    def of(self, position: int) -> dict[str, Tensor]:
        """Return one client's parameters that are trained, as parts of what the optimiser moves."""
        return {n: self._layouts[n].part(self._live[n], position) for n in self._trained}

    def some(self, start: int, stop: int) -> Weights:
        """Return the parameters of some clients in a row, in the same memory."""
        part = copy(self)
        part.number = stop - start
        part._live = {n: self._layouts[n].some(live.detach(), start, stop) for n, live in self._live.items()}
        part._track()
        part._anchors = {i: self.layouts[i].some(anchor, start, stop) for i, anchor in self._anchors.items()}
        part._drifts = {i: self.layouts[i].some(drift, start, stop) for i, drift in self._drifts.items()}
        part._apart = {i: self.layouts[i].some(room, start, stop) for i, room in self._apart.items()}
        return part

    def alike(self) -> Weights:
        """Return these before the first step: where clients begin with the same, it is one tensor that stands for all.

        Slopes by it are each client's own; it is not what is moved.
        """
        found = copy(self)
        found._live = {n: self._unmoved(n, live) for n, live in self._live.items()}
        found.moved = [found._live[name] for name in self._trained]
        return found

    def _unmoved(self, name: str, live: Tensor) -> Tensor:
        start = self._starts[name]
        if not isinstance(start, Tensor) or not self.is_plain(name):
            return live
        return start.detach().expand(live.shape).requires_grad_()

    def cut(self, tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
        """Return some clients' part of tensors that are held like the trained parameters, in the same memory."""
        return [layout.some(each, start, stop) for layout, each in zip(self.layouts, tensors, strict=True)]

    def named(self, tensors: Sequence[Tensor], optimizer: Optimizer | None = None) -> dict[str, Stacked]:
        """Return gradients of the trained parameters by name and client, or moments of those an optimiser moves."""
        pairs = zip(self._trained if optimizer is None else optimizer.chosen(self._trained), tensors, strict=True)
        return {name: self._layouts[name].beside(tensor, self._starts[name]) for name, tensor in pairs}

    def mean_gradients(self, finished: Mapping[str, Stacked], rate: float) -> dict[str, Stacked]:
        """Return the means of the gradients of steps that were nothing but these, with decay and drift, times -lr.

        `rate` is lr times the number of steps, and `finished` what became of the parameters.
        """
        found: dict[str, Stacked] = {}
        for name in self._trained:
            terms = [(1.0 / rate, term_of(self._starts[name])), (-1.0 / rate, finished[name])]
            drift = [(-1.0, term_of(self._drifting[name]))] if name in self._drifting else []
            found[name] = Combination([*terms, *drift])
        return found

    def is_plain(self, name: str) -> bool:
        """Whether there is a row for each client of a parameter that is trained."""
        return type(self._layouts[name]) is Plain and name not in self.buffers

    def installed(self, others: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return what the model finds in the parameters' places: these, or others that are held like them."""
        live = self._live if others is None else others
        return {n: self._layouts[n].installed(live[n], self._starts[n]) for n in self.names}

    def mixed(self, shares: Tensor) -> dict[str, Tensor]:
        """Return (1 - share) w + share v of each client, (clients,), with v its own value of a parameter w.

        Slopes go to v and to the share. Buffers are v's.
        """
        found = {}
        for name in self.names:
            own = self._live[OWN + name]
            if name not in self.buffers:
                own = torch.lerp(self._live[name].detach(), own, self._layouts[name].spread(shares, own))
            found[name] = own
        return found

    @cached_property
    def frozen(self) -> Mapping[str, Any]:
        """What the model began with."""
        layouts, starts = self._layouts, self._starts
        return {n: layouts[n].installed(layouts[n].live(starts[n]), starts[n]) for n in self.names}

    def finished(self, prefix: str = "") -> dict[str, Stacked]:
        """Return what became of each parameter of each client; with `OWN`, of its own value."""
        places = {name: prefix + name for name in self.names}
        return {
            name: self._layouts[place].finished(self._live[place].detach(), self._starts[place])
            for name, place in places.items()
        }


def _own(grad: Tensor, places: list[int]) -> Tensor:
    """Return a gradient that can be added to: a copy where it is the same memory as another, or as itself."""
    alone = grad.is_contiguous() and places.count(grad.data_ptr()) == 1
    return grad if alone else grad.clone(memory_format=torch.contiguous_format)


def stacked_state(
    optimizer: Optimizer, moved: list[Tensor], states: list[OptimizerState] | None, layouts: Sequence[Layout]
) -> OptimizerState:
    """Return the state of the stacked parameters."""
    if not states or not states[0]:
        return optimizer.start(moved)
    slots = [key for key, value in states[0].items() if isinstance(value, tuple)]
    stacked: OptimizerState = {"step": common_step(optimizer, states)}
    for key in slots:
        held = enumerate(optimizer.chosen(layouts))
        stacked[key] = tuple(layout.live([state[key][i] for state in states]) for i, layout in held)
    return stacked


def states_apart(
    optimizer: Optimizer,
    state: OptimizerState,
    counts: Sequence[int],
    weights: Weights,
    placed: Callable[[Stacked], Stacked] = lambda each: each,
) -> tuple[OptimizerState, ...]:
    """Return each client's state after so many steps in all; `placed` puts clients into their order."""
    slots = {
        key: [placed(each) for each in weights.named(value, optimizer).values()]
        for key, value in state.items()
        if isinstance(value, tuple)
    }
    return tuple(
        {"step": count, **{key: tuple(own_tensor(slot.member(k)) for slot in value) for key, value in slots.items()}}
        for k, count in enumerate(counts)
    )


@contextmanager
def replaced(model: nn.Module, values: Mapping[str, Any]) -> Iterator[None]:
    """Run a model with other values in the place of parameters and buffers, of whatever shape or type.

    Within another such context, it ends by putting that one's values back.
    """
    places: list[tuple[nn.Module, str, bool, Any]] = []
    try:
        for name, value in values.items():
            path, _, attribute = name.rpartition(".")
            module = model.get_submodule(path)
            places.append((module, attribute, attribute in module.__dict__, module.__dict__.get(attribute)))
            module.__dict__[attribute] = value  # found before the registered parameter of the same name
        yield
    finally:
        for module, attribute, had, before in reversed(places):
            if had:
                module.__dict__[attribute] = before
            else:
                del module.__dict__[attribute]
