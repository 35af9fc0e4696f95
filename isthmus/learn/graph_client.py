"""Inside one client: how it trains between two messages, how much it counts, and how it is scored.

Scores come in four modes: {global, local model} x {global graph, local graph}. The modes on local graphs are also what
real silos can do. Those on the global graph exist in simulation only, where somebody holds the whole graph; local
models are scored there by their mean, each on all test nodes (FS-G, 7.1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from isthmus.core.client import Client, NotTogether, Work
from isthmus.core.device import CPU
from isthmus.core.errors import BadInput, refuse
from isthmus.core.protocol import Algorithm, Holdings, StateT
from isthmus.core.record import Params
from isthmus.core.replies import Stacked
from isthmus.core.stacked_params import Combination, StackedParams, combined
from isthmus.data.conventions import SPLITS
from isthmus.learn.batching import Batching
from isthmus.learn.optimizers import SGD, AdamW, Optimizer, OptimizerState
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import Predictions, Task

if TYPE_CHECKING:  # which imports this file
    from isthmus.learn.together.stacked_clients import GraphCohort

# From the live parameters to a term that is added to the loss.
Penalty: TypeAlias = Callable[[Mapping[str, Tensor]], Tensor]

# From the model, a batch and a random stream to the loss of the batch.
Loss: TypeAlias = Callable[[nn.Module, Any, torch.Generator], Tensor]


@dataclass(frozen=True)
class Fitted:
    """What local training gives back.

    Fields:
        params:     the trained parameters
        loss:       mean over the steps, without the penalty; NaN when nothing was trained
        steps:      steps that were taken
        make_state: gives the optimiser's state at the end; of many clients' it is made only for those that want it
        gradients:  the sum over the steps of the loss's gradients, decay that is part of them included, where asked for
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


def load_params(model: nn.Module, params: Params) -> None:
    """Copy parameters and buffers into a model; every one must be there, in the right shape, and no other."""
    slots = model.state_dict(keep_vars=True)
    if slots.keys() != params.keys():
        odd = sorted(slots.keys() ^ params.keys())
        raise BadInput(f"the parameters do not belong to this model: {odd[:5]} are on one side only")
    for name, slot in slots.items():
        if slot.shape != params[name].shape:
            raise BadInput(
                f"parameter {name!r} has shape {tuple(params[name].shape)}, this model's has {tuple(slot.shape)}"
            )
    with torch.no_grad():
        for name, slot in slots.items():
            slot.copy_(params[name])


def read_params(model: nn.Module) -> Params:
    """Return copies of a model's parameters and buffers."""
    return {name: slot.detach().clone() for name, slot in model.state_dict().items()}


def step_gradients(
    loss: Tensor, penalty: Tensor | None, live: list[Tensor], sums: list[Tensor] | None, optimizer: Optimizer
) -> list[Tensor]:
    """Return the gradients of a loss, or of the sum of many clients', and of a penalty.

    Those of the loss alone are added to `sums`, where there are any. The decay of weights is added too, where the
    optimiser takes it for a part of the gradients.
    """
    if sums is None:
        return gradients(loss if penalty is None else loss.sum() + penalty, live)
    grads = gradients(loss, live)
    with torch.no_grad():
        torch._foreach_add_(sums, grads)
        if optimizer.weight_decay and type(optimizer) is not AdamW:
            torch._foreach_add_(sums, live, alpha=optimizer.weight_decay)
        return grads if penalty is None else list(torch._foreach_add(grads, gradients(penalty, live)))


def take_step(live: list[Tensor], loss: Tensor, optimizer: Optimizer, state: OptimizerState, lr: float) -> None:
    """Take one optimiser step down a loss; parameters and state are changed in place."""
    grads = gradients(loss, live)
    with torch.no_grad():
        optimizer.step(live, grads, state, lr)


def gradients(loss: Tensor, live: list[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss, or of a sum of losses, by each parameter; zero where it does not depend on it."""
    grads = torch.autograd.grad(loss, live, torch.ones_like(loss), allow_unused=True)
    return [g if g is not None else torch.zeros_like(p) for p, g in zip(live, grads, strict=True)]


def copied(state: OptimizerState) -> OptimizerState:
    """Return a copy of an optimiser's state: it may lie in a client's memory, which is never changed in place."""
    return {
        key: tuple(tensor.clone() for tensor in value) if isinstance(value, tuple) else value
        for key, value in state.items()
    }


@dataclass(frozen=True, eq=False)
class BothWays:
    """A loss for one client that is also known for many at once.

    Fields:
        alone:           the loss for one
        many:            makes the loss for many (`StackedLoss`) of the clients and of what is known `about` each
        about:           what `many` is told of this client
        alters_features: whether the loss runs the model on other features than the client's own
    """

    alone: Loss
    many: Callable[[Any, Sequence[Any]], Any]
    about: Any = None
    alters_features: bool = False

    def __call__(self, model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
        """Return the loss for one."""
        return self.alone(model, batch, generator)


@dataclass(frozen=True, eq=False)
class Pull:
    """strength/2 |w - anchor|^2 + <linear, w> over the trained parameters that are in `anchor`: a penalty.

    Clients whose penalties are pulls can be trained together.
    """

    strength: float
    anchor: Params
    linear: Params | None = None

    def __call__(self, live: Mapping[str, Tensor]) -> Tensor:
        """Return the term."""
        near = {name: (w - self.anchor[name]).square().sum() for name, w in live.items() if name in self.anchor}
        if self.linear is None:
            return 0.5 * self.strength * torch.stack(list(near.values())).sum()
        terms = []
        for name, square in near.items():
            slope = (self.linear[name] * live[name]).sum() if name in self.linear else 0.0
            terms.append(0.5 * self.strength * square + slope)
        return torch.stack(terms).sum()


def proximal(strength: float, anchor: Params) -> Pull | None:
    """Return strength/2 |w - anchor|^2 over the trained parameters that are in `anchor`; None without strength."""
    return None if strength == 0 else Pull(strength, anchor)


@dataclass(frozen=True)
class Envelope:
    """Descent on the Moreau envelope  G(w) = min over theta of F(theta) + strength/2 |theta - w|^2  of a loss F.

    A step of w, the centre, is `steps` of the optimiser on one batch, begun anew at w and drawn to it, and then
    w <- w + rate (theta - w)  with theta where they led; G'(w) = strength (w - theta) at the minimum's place.
    """

    strength: float
    steps: int
    rate: float


STEP_UNITS = ("batch", "epoch")


def check_local_steps(local_steps: int, step_unit: str) -> None:
    """Raise ValueError unless the amount of local training makes sense."""
    if local_steps < 1:
        raise ValueError(f"local_steps is {local_steps!r}; it must be at least 1")
    if step_unit not in STEP_UNITS:
        raise ValueError(f"step_unit is {step_unit!r}; choose from {', '.join(STEP_UNITS)}")


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
        drift: Params | None = None,
        sum_gradients: bool = False,
        purpose: str = "fit",
        envelope: Envelope | None = None,
    ) -> Fitted:
        """Train from `params` on the client's own graph; the learning rate is the schedule's for this round.

        A step is one batch, or one pass over the training examples; on a full batch they are the same. `loss` takes
        the place of the task's, `penalty` is added to either. `prepared` takes the place of the client's own data:
        the same with other edges or labels. Parameters that are missing in `params` are the client's personal ones:
        they are trained with the others and stay in its memory.

        `drift` is added to the gradients of these parameters at every step; with `sum_gradients` the gradients without
        it, and without those of a penalty, come back added up. `purpose` names the random stream. With an `envelope`,
        in the place of a penalty, `params` is the centre, and what comes back are the last theta and the centre.
        """
        work = Fit(
            params,
            steps,
            optimizer,
            step_unit,
            penalty,
            optimizer_state,
            loss,
            None if prepared is self.prepared else prepared,
            drift,
            sum_gradients,
            purpose,
            envelope,
        )
        private = None if self.guards is None else self.guards.private_steps
        if private is not None:
            from isthmus.learn.private_fit import PrivateFit  # seldom needed, and it stands on this file

            return self.do(PrivateFit(work, private))  # type: ignore[no-any-return]
        fitted: Fitted = self.do(work)
        return fitted

    def evaluate(self, params: Params, splits: tuple[str, ...]) -> Evaluated:
        """Return metrics and example counts per split of a model on the client's own graph."""
        found: Evaluated = self.do(Evaluate(params, splits))
        return found

    def combined(self, *terms: tuple[float, Params], names: Collection[str] | None = None) -> Params:
        """Return the sum of factor times parameters, over the names that all have, or over some of them.

        The same as a line of arithmetic for each; but parameters that this client has in common with others in a
        simulation are not taken apart for it.
        """
        named = [params.keys() for _, params in terms]
        common = tuple(n for n in (named[0] if names is None else names) if all(n in keys for keys in named))
        found: Params = self.do(Combine(terms, common))
        return found

    def predict(self, params: Params) -> Predictions:
        """Return a model's probabilities for every example of the client."""
        load_params(self.model, self.complete(params))
        return self.task.predict(self.model, self.prepared)


# ---- heavy work


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
    drift: Params | None = None
    sum_gradients: bool = False
    purpose: str = "fit"
    envelope: Envelope | None = None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are trained together."""
        pull = self.penalty.strength if isinstance(self.penalty, Pull) else None
        loss = self.loss.many if isinstance(self.loss, BothWays) else type(self.loss)
        each_has = (type(self.penalty), pull, loss, self.optimizer_state is None, self.drift is None)
        same = (self.steps, self.step_unit, self.optimizer, self.sum_gradients, self.purpose, self.envelope)
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
        """Train from all parameters of a model; a client without training examples gives them back.

        With an envelope, over what is in `self.params`, each step is as many as it says.
        """
        per_epoch = task.batches_per_epoch(prepared, batching) if self.step_unit == "epoch" else 1
        load_params(model, params)
        optimizer, envelope, drift, shared = self.optimizer, self.envelope, self.drift, self.params
        named = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
        live: list[Tensor] = list(named.values())
        state = optimizer.start(live) if self.optimizer_state is None else copied(self.optimizer_state)
        sums = [torch.zeros_like(slot) for slot in live] if self.sum_gradients else None
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
                    if drift is not None:
                        grads = [g + drift[name] if name in drift else g for name, g in zip(named, grads, strict=True)]
                    optimizer.step(live, grads, state, lr)
            if envelope is not None:
                for name, w in centre.items():
                    w.lerp_(named[name].detach(), envelope.rate)
        mean = float(torch.stack(losses).mean()) if losses else float("nan")
        summed = None if sums is None else dict(zip(named, sums, strict=True))
        return Fitted(
            read_params(model), mean, len(losses), lambda: state, summed, None if envelope is None else centre
        )

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

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are evaluated together."""
        return (type(self), self.splits, frozenset(self.params))

    def alone(self, client: GraphClient) -> Evaluated:
        """Evaluate one client's model."""
        load_params(client.model, client.complete(self.params))
        return client.task.evaluate(client.model, client.prepared, self.splits)

    @staticmethod
    def together(clients: Any, works: Sequence[Evaluate]) -> Sequence[Any]:
        """Evaluate many clients' models as one."""
        found: Sequence[Any] = clients.evaluate([work.params for work in works], works[0].splits)
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


def _features_kind(prepared: Any) -> type | None:
    """Return whether the features of other data than the client's own are sparse or dense; sets of graphs say it."""
    return None if prepared is None else type(prepared.graph.x if hasattr(prepared, "graph") else prepared)


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


Scores = dict[str, float]
Gather: TypeAlias = "Callable[[Sequence[Client]], tuple[list[GraphCohort], list[Client]]]"


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
