"""Inside one client: how it trains between two messages, how much it counts, and how it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.client import Client, NotTogether, Work
from isthmus.core.errors import refuse
from isthmus.core.protocol import Algorithm, Holdings, StateT
from isthmus.core.record import CPU, Params
from isthmus.core.replies import Combination, Stacked, StackedParams, combined
from isthmus.data.conventions import SPLITS
from isthmus.learn.batching import Batching
from isthmus.learn.optimizers import (
    SGD,
    BothWays,
    Envelope,
    Loss,
    Optimizer,
    OptimizerState,
    Penalty,
    Pull,
    copied,
    load_params,
    read_params,
    step_gradients,
)
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import Predictions, Task

if TYPE_CHECKING:
    from isthmus.learn.together.stacked_clients import GraphCohort


Scores = dict[str, float]
# A sum of factor times parameters.
Terms: TypeAlias = tuple[tuple[float, Params], ...]
Gather: TypeAlias = "Callable[[Sequence[Client]], tuple[list[GraphCohort], list[Client]]]"


# ---- how models do, for one client or many


def one_by_one(clients: Sequence[Client]) -> tuple[list[GraphCohort], list[Client]]:
    """Put no clients together."""
    return [], list(clients)


def score_model(task: Task, model: nn.Module, params: Params, prepared: Any, split: str) -> tuple[Scores, int]:
    """Return the metrics of one model on one split of one graph, and the number of examples."""
    load_params(model, params)
    metrics, counts = task.evaluate(model, prepared, (split,))
    return metrics[split], counts[split]


def score_on_global_graph(
    task: Task, model: nn.Module, prepared: Any, models: Mapping[str, Params], split: str
) -> Scores:
    """Return the mean of each metric on the whole graph over the models that have it, all counting the same."""
    scores = [score_model(task, model, params, prepared, split)[0] for params in models.values()]
    names = dict.fromkeys(name for score in scores for name in score)
    having = {name: [score[name] for score in scores if name in score] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}


def score_on_local_graphs(
    task: Task,
    clients: Mapping[str, GraphClient],
    models: Mapping[str, Params],
    split: str,
    gather: Gather = one_by_one,
    data_of: Callable[[GraphClient], Any] = lambda client: client.prepared,
) -> tuple[Scores, dict[str, Scores]]:
    """Return the mean over clients, weighted by their examples, and each client's own metrics.

    `gather` says which clients can be looked at together; `data_of` what those that are looked at alone are scored on.
    """
    each: dict[str, Scores] = {name: {} for name in models}
    counts: dict[str, int] = {}
    blocks, alone = gather([clients[name] for name in models])
    left_over = list(alone)
    for block in blocks:
        try:
            results = block.evaluate([models[client.id] for client in block], (split,))
        except NotTogether:
            left_over += block
            continue
        for client, (metrics, found) in zip(block, results, strict=True):
            each[client.id], counts[client.id] = metrics[split], found[split]
    for left in left_over:
        client = clients[left.id]
        each[left.id], counts[left.id] = score_model(task, client.model, models[left.id], data_of(client), split)
    return weighted(each, counts), each


def weighted(each: Mapping[str, Scores], counts: Mapping[str, int]) -> Scores:
    """Return the mean of each metric over the clients that have it, weighted by their examples."""
    names = sorted({name for scores in each.values() for name in scores})
    result: Scores = {}
    for name in names:
        having = [client for client in each if name in each[client] and counts[client]]
        total = sum(counts[client] for client in having)
        if total:
            result[name] = sum(counts[client] * each[client][name] for client in having) / total
    return result


# ---- what handlers pause for, so that it is done for many clients at once


@dataclass(frozen=True)
class Fitted:
    """What local training gives back.

    Fields:
        params:     the trained parameters
        loss:       mean over the steps, without the penalty; NaN when nothing was trained
        steps:      steps that were taken
        make_state: gives the optimiser's state at the end; of many clients' it is made only for those that want it
        gradients:  the mean over the steps of the loss's gradients, with decay that is part of them, where asked for
        centre:     where the centre of an envelope went, with buffers as in `params`, where there is one
    """

    params: Params
    loss: float
    steps: int
    make_state: Callable[[], OptimizerState]
    gradients: Params | None = None
    centre: Params | None = None

    @cached_property
    def optimizer_state(self) -> OptimizerState:
        """The optimiser's state at the end."""
        return self.make_state()


@dataclass(frozen=True, eq=False)
class Fit(Work):
    """Training; fields as in `GraphClient.fit`."""

    params: Params
    steps: int
    optimizer: Optimizer
    step_unit: str = "batch"
    penalty: Penalty | None = None
    optimizer_state: OptimizerState | None = None
    loss: Loss | None = None
    prepared: Any = None
    drift: Terms | None = None
    mean_gradients: bool = False
    purpose: str = "fit"
    envelope: Envelope | None = None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are trained together."""
        pull = self.penalty.strength if isinstance(self.penalty, Pull) else None
        loss = self.loss.many if isinstance(self.loss, BothWays) else type(self.loss)
        drift = None if self.drift is None else tuple(factor for factor, _ in self.drift)
        each_has = (type(self.penalty), pull, loss, self.optimizer_state is None, drift)
        same = (self.steps, self.step_unit, self.optimizer, self.mean_gradients, self.purpose, self.envelope)
        return (type(self), tuple(self.params), _features_kind(self.prepared), each_has, same)

    def on(
        self,
        model: nn.Module,
        params: Params,
        task: Task,
        prepared: Any,
        lr: float,
        batching: Batching,
        generator: torch.Generator,
    ) -> Fitted:
        """Train from all parameters of a model, which a client without training examples gives back."""
        per_epoch = task.batches_per_epoch(prepared, batching) if self.step_unit == "epoch" else 1
        load_params(model, params)
        optimizer, envelope, shared = self.optimizer, self.envelope, self.params
        named = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
        live: list[Tensor] = list(named.values())
        state = optimizer.start(live) if self.optimizer_state is None else copied(self.optimizer_state)
        sums = [torch.zeros_like(slot) for slot in live] if self.mean_gradients else None
        drift = self.added_drift()
        losses: list[Tensor] = []
        centre = {} if envelope is None else {n: slot.detach().clone() for n, slot in named.items() if n in shared}
        penalty = self.penalty if envelope is None else Pull(envelope.strength, centre)
        for _, batch in zip(range(self.steps * per_epoch), task.batches(prepared, batching, generator), strict=False):
            if envelope is not None:
                with torch.no_grad():
                    for name, w in centre.items():
                        named[name].copy_(w)
                state = optimizer.start(live)
            for _ in range(1 if envelope is None else envelope.steps):
                found = (self.loss or task.loss)(model, batch, generator)
                losses.append(found.detach())
                grads = step_gradients(found, None if penalty is None else penalty(named), live, sums, optimizer)
                with torch.no_grad():
                    optimizer.step(live, with_drift(grads, named, drift), state, lr)
            if envelope is not None:
                for name, w in centre.items():
                    w.lerp_(named[name].detach(), envelope.rate)
        means = mean_of_steps(named, sums, len(losses), shared)
        mean = float(torch.stack(losses).mean()) if losses else float("nan")
        return Fitted(read_params(model), mean, len(losses), lambda: state, means, centre if envelope else None)

    def added_drift(self) -> Params:
        """Return what is added to the gradients at every step."""
        names = common_names(self.drift) if self.drift else ()
        return {name: combined([(factor, params[name]) for factor, params in self.drift or ()]) for name in names}

    def alone(self, client: GraphClient) -> Fitted:
        """Train one client."""
        fitted = self.on(
            client.model,
            client.complete(self.params),
            client.task,
            client.prepared if self.prepared is None else self.prepared,
            self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1)),
            client.batching,
            client.generator(self.purpose),
        )
        params = client.keep_personal(fitted.params, self.params)
        return replace(fitted, params=params, centre=None if fitted.centre is None else {**params, **fitted.centre})

    @staticmethod
    def together(clients: Any, works: Sequence[Fit]) -> Sequence[Fitted]:
        """Train many clients as one."""
        found: Sequence[Fitted] = clients.fit_all(works)
        return found


@dataclass(frozen=True, eq=False)
class Evaluate(Work):
    """Evaluation of a model on a client's own graph; fields as in `GraphClient.evaluate`."""

    params: Params
    splits: tuple[str, ...]
    prepared: Any = None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are evaluated together."""
        return (type(self), self.splits, frozenset(self.params), _features_kind(self.prepared))

    def alone(self, client: GraphClient) -> Evaluated:
        """Evaluate one client's model."""
        load_params(client.model, client.complete(self.params))
        prepared = client.prepared if self.prepared is None else self.prepared
        return client.task.evaluate(client.model, prepared, self.splits)

    @staticmethod
    def together(clients: Any, works: Sequence[Evaluate]) -> Sequence[Any]:
        """Evaluate many clients' models as one."""
        first = works[0]
        prepared = None if first.prepared is None else [work.prepared for work in works]
        found: Sequence[Any] = clients.evaluate([work.params for work in works], first.splits, prepared)
        return found


@dataclass(frozen=True, eq=False)
class Combine(Work):
    """A linear combination of parameters."""

    terms: tuple[tuple[float, Params], ...]
    names: tuple[str, ...]

    def kind(self) -> Hashable:
        """Return what is the same for all clients whose parameters are combined together."""
        return (type(self), self.names, tuple(factor for factor, _ in self.terms))

    def alone(self, client: GraphClient | None) -> Params:
        """Combine one client's parameters."""
        return {name: combined([(factor, params[name]) for factor, params in self.terms]) for name in self.names}

    @staticmethod
    def together(clients: Any, works: Sequence[Combine]) -> Sequence[Params]:
        """Combine many clients' parameters without taking them apart."""
        factors = [factor for factor, _ in works[0].terms]
        each = [clients.terms_of([work.terms[place][1] for work in works]) for place in range(len(factors))]
        terms: list[tuple[float, Mapping[str, Any]]] = list(zip(factors, each, strict=True))
        if not any(isinstance(params[name], Stacked) for _, params in terms for name in works[0].names):
            return [works[0].alone(None)] * len(works)  # the same for all
        found = {name: Combination([(factor, params[name]) for factor, params in terms]) for name in works[0].names}
        return StackedParams(found, len(works)).members()


def common_names(terms: Terms) -> tuple[str, ...]:
    """Return the names that all parameters of a sum have, in the order of the first."""
    names = tuple(terms[0][1].keys())
    for _, params in terms[1:]:
        keys = params.keys()
        if not all(map(keys.__contains__, names)):
            names = tuple(name for name in names if name in keys)
    return names


def with_drift(grads: list[Tensor], named: Iterable[str], drift: Params) -> list[Tensor]:
    """Return gradients with the drift added to those that have one."""
    return [g + drift[name] if name in drift else g for name, g in zip(named, grads, strict=True)] if drift else grads


def mean_of_steps(named: Iterable[str], sums: Sequence[Tensor] | None, steps: int, given: Params) -> Params | None:
    """Return what gradients of given parameters, added up in so many steps, are for one; None where they were not."""
    if sums is None:
        return None
    return {n: each * (1.0 / max(steps, 1)) for n, each in zip(named, sums, strict=True) if n in given}


def _features_kind(prepared: Any) -> type | None:
    """Return whether the features of other data than the client's own are sparse or dense; sets of graphs say it."""
    return None if prepared is None else type(prepared.graph.x if hasattr(prepared, "graph") else prepared)


# ---- a client


class ForeignEdges(NamedTuple):
    """Edges from a client's nodes to nodes that others host.

    Fields:
        node:   (edges,), int64; a node of the client
        key:    (edges,), int64; the key of the other end, as the `node_keys` of its host
        weight: (edges,), float32; None where all are one
    """

    node: Tensor
    key: Tensor
    weight: Tensor | None


class GraphClient(Client):
    """One silo's data and the means to learn from it.

    The module is scratch: parameters are loaded before each use, and a use ends where the client is asked for heavy
    work (`fit`, `evaluate`, `combined`), which others may share.

    Attributes:
        node_keys: the name under which other clients know the same node, (nodes,), int64, all different; None where
                   this client cannot say. In simulation these are the data's `node_ids`. Between sites, where those
                   are row numbers that mean nothing to others, the silo puts its own here: keys made of ids and a
                   secret (`isthmus.sites.silo.identities`), or None
        foreign:   edges to nodes of others by their keys, where a silo's folder has a table of them; else None
        own:       what its personal parameters begin with: those that no message holds (`Course.shared`). Later ones
                   are in `state["personal"]`
    """

    def __init__(
        self,
        id: str,
        data: Any,
        task: Task,
        model: nn.Module,
        batching: Batching,
        own: Params | None = None,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(id)
        self.device = device
        self.data = data if device == CPU else data.to(device)
        self.task = task
        self.model = model if device == CPU else model.to(device)
        self.batching = batching
        self.own: Params = {name: tensor.to(device) for name, tensor in (own or {}).items()}
        self.node_keys: Tensor | None = getattr(self.data, "node_ids", None)  # a set of graphs has none
        self.foreign: ForeignEdges | None = None

    @cached_property
    def prepared(self) -> Any:
        """The data as the task works on it; rebuilt from the data after a restart."""
        return self.task.prepare(self.data)

    @cached_property
    def num_examples(self) -> int:
        """Number of training examples."""
        return self.task.count(self.data, "train")

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the client's graph, labelled or not."""
        return int(self.data.num_nodes)

    @cached_property
    def holdings(self) -> Holdings:
        """How much data the client has, which bounds what it may count for."""
        return Holdings(self.num_nodes, {split: self.task.count(self.data, split) for split in SPLITS})

    def complete(self, params: Params) -> Params:
        """Return parameters together with the client's personal ones, where they are not among them."""
        if not self.own:
            return params
        personal: Params = self.state.get("personal", self.own)
        return {**personal, **params}

    def keep_personal(self, trained: Params, given: Params) -> Params:
        """Keep what was trained beyond the given parameters as the client's personal ones; return the others."""
        if trained.keys() == given.keys():
            return trained
        self.state = {**self.state, "personal": {name: trained[name] for name in trained if name not in given}}
        return {name: trained[name] for name in given}

    def fit(
        self,
        params: Params,
        *,
        steps: int,
        optimizer: Optimizer,
        step_unit: str = "batch",
        penalty: Penalty | None = None,
        optimizer_state: OptimizerState | None = None,
        loss: Loss | None = None,
        prepared: Any = None,
        drift: Params | Terms | None = None,
        mean_gradients: bool = False,
        purpose: str = "fit",
        envelope: Envelope | None = None,
    ) -> Fitted:
        """Train from `params` on the client's own graph; the learning rate is the schedule's for this round.

        A step is one batch, or one pass over the training examples; on a full batch they are the same. `loss` takes
        the place of the task's, `penalty` is added to either. `prepared` takes the place of the client's own data:
        the same with other edges or labels. Parameters that are missing in `params` are the client's personal ones:
        they are trained with the others and stay in its memory.

        `drift` is added to the gradients of these parameters at every step: parameters, or what `combined` makes a sum
        of, which is not made for each client. With `mean_gradients` the mean of the gradients by `params` without it,
        and without those of a penalty, comes back. `purpose` names the random stream. With an `envelope`, in the place
        of a penalty, `params` is the centre, and what comes back are the last theta and the centre.
        """
        drifts = ((1.0, drift),) if isinstance(drift, dict) else drift
        other = None if prepared is self.prepared else prepared
        asked = (step_unit, penalty, optimizer_state, loss, other, drifts, mean_gradients, purpose, envelope)
        work = Fit(params, steps, optimizer, *asked)
        private = None if self.guards is None else self.guards.private_steps
        if private is not None:
            from isthmus.learn.private_fit import PrivateFit  # seldom needed, and it stands on this file

            return self.do(PrivateFit(work, private))  # type: ignore[no-any-return]
        fitted: Fitted = self.do(work)
        return fitted

    def evaluate(self, params: Params, splits: tuple[str, ...], prepared: Any = None) -> Evaluated:
        """Return metrics and example counts per split of a model on the client's own graph, or what takes its place."""
        found: Evaluated = self.do(Evaluate(params, splits, None if prepared is self.prepared else prepared))
        return found

    def combined(self, *terms: tuple[float, Params], names: Collection[str] | None = None) -> Params:
        """Return the sum of factor times parameters, over the names that all have, or over some of them.

        The same as a line of arithmetic for each; but parameters that this client has in common with others in a
        simulation are not taken apart for it.
        """
        common = common_names(terms)
        if names is not None:
            common = tuple(name for name in names if name in common)
        found: Params = self.do(Combine(terms, common))
        return found

    def predict(self, params: Params) -> Predictions:
        """Return a model's probabilities for every example of the client."""
        load_params(self.model, self.complete(params))
        return self.task.predict(self.model, self.prepared)


STEP_UNITS = ("batch", "epoch")


# ---- what algorithms have that train inside clients


def check_local_steps(local_steps: int, step_unit: str) -> None:
    """Raise ValueError unless the amount of local training makes sense."""
    if local_steps < 1:
        raise ValueError(f"local_steps is {local_steps!r}; it must be at least 1")
    if step_unit not in STEP_UNITS:
        raise ValueError(f"step_unit is {step_unit!r}; choose from {', '.join(STEP_UNITS)}")


WEIGHTINGS = ("examples", "nodes", "uniform")


@dataclass(frozen=True)
class LocalTraining(Algorithm[StateT]):
    """An algorithm whose clients train a model for some steps; which messages go to and fro is each algorithm's own.

    Fields: see FedAvg, the simplest one.
    """

    local_steps: int = 4
    step_unit: str = "batch"
    optimizer: Optimizer = SGD(lr=0.25, weight_decay=5e-4)
    weighting: str = "examples"
    keep_moments: bool = False

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)
        refuse(self.weighting not in WEIGHTINGS, self, "weighting", f"choose from {', '.join(WEIGHTINGS)}")

    def fit(self, params: Params, client: GraphClient, *, moments: str = "optimizer", **asked: Any) -> Fitted:
        """Train from `params`; what is `asked`, as in `GraphClient.fit`, takes the place of the algorithm's own.

        Kept moments are in the client's memory under `moments`.
        """
        own: dict[str, Any] = {
            "steps": self.local_steps,
            "step_unit": self.step_unit,
            "optimizer": self.optimizer,
            "optimizer_state": client.state.get(moments) if self.keep_moments else None,
            "prepared": self.data_of(client),
        }
        given = {name: value for name, value in asked.items() if value is not None}
        fitted = client.fit(params, **{**own, **given})
        if self.keep_moments:
            client.state[moments] = fitted.optimizer_state
        return fitted

    def weight(self, client: GraphClient) -> float:
        """Return n_k; zero for a client that has nothing to train on."""
        sizes = {"examples": client.num_examples, "nodes": client.num_nodes, "uniform": 1}
        return float(sizes[self.weighting]) if client.num_examples else 0.0
