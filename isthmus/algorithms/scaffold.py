"""SCAFFOLD: control variates take the drift out of local training.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (2020), "SCAFFOLD: stochastic controlled averaging for federated
learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Known, ModelState, Request, cohort, on, unlike
from isthmus.core.record import Params, Record
from isthmus.core.replies import Stack, StackedTensor
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import SGD, AdamW, Optimizer, OptimizerState
from isthmus.learn.together.stacked_clients import GraphCohort


@dataclass(frozen=True)
class ClientWeight(Record):
    """How much a client counts."""

    weight: float
    """The client's share in a mean: its number of training examples, or of nodes."""


@dataclass(frozen=True)
class ShareWeight(Request[ClientWeight]):
    """Asks how much a client counts, so that the server knows how much all of them do."""


@dataclass(frozen=True)
class CorrectedUpdate(Record):
    """A client's model after corrected training, and what became of its control variate."""

    params: Params
    """The client's parameters; the server asks for their mean."""
    variate_change: Params
    """How much the client's control variate changed: a difference of gradients; the server asks for its mean."""
    weight: float
    """The client's share in the mean."""


@dataclass(frozen=True)
class TrainCorrected(Request[CorrectedUpdate]):
    """Asks a client to train the global model with corrected gradients."""

    params: Params
    """The global model."""
    variate: Params
    """The server's control variate: the mean of all clients'."""

    def misfit(self, reply: CorrectedUpdate, known: Known) -> str:
        """Return how the model or the change of the variate differs from what was sent."""
        return super().misfit(reply, known) or unlike("variate_change", reply.variate_change, self.variate)


@dataclass(frozen=True)
class ScaffoldState(ModelState):
    """The global model and the server's control variate."""

    variate: Params
    """c, the weighted mean of all clients' control variates; buffers have none."""
    total: float
    """The weight of all clients together."""


@dataclass(frozen=True)
class Scaffold(LocalTraining[ScaffoldState]):
    """Clients correct every gradient by what they know of their own drift; the server averages.

        setup:  server -> client  ShareWeight()
                client -> server  ClientWeight(weight)                         the server sees only the sum
        round:  server -> client  TrainCorrected(params, variate)
                client -> server  CorrectedUpdate(params, variate_change, weight)
                                                                               the server sees only the weighted mean

    Client i starts at y = x, the received model, and takes K steps, each with its gradient g_i(y) corrected:

        y <- y - lr (g_i(y) - c_i + c)
        c_i+ = 1/K sum over the steps of g_i(y)

    The server, with weights n_i, S the clients that answered and N all of them:

        x <- x + server_lr (mean_S(y_i) - x)
        c <- c + (sum_S n_i / sum_N n_i) mean_S(c_i+ - c_i)

    so c stays the weighted mean of all c_i; a client that was not asked keeps its own. All variates start at 0, so
    that the first round is FedAvg's. The paper has equal weights (`weighting="uniform"`).

    For plain SGD the mean of gradients is the paper's option II, c_i+ = c_i - c + (x - y) / (K lr); weight decay is a
    part of the gradient there. With momentum or Adam x - y is no mean of gradients, so the gradients are added up, and
    the correction goes in before the optimiser's moments; weight decay counts as for SGD, but not AdamW's, which is
    no part of its gradient. Buffers (batch norm statistics) are averaged and have no variates.

    A client remembers `variate`, c_i. Many clients are simulated together with plain SGD only.

    Fields:
        server_lr: how far the server goes towards the mean
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    # The server's c holds the c_i that the client would have forgotten, and would hold it for ever.
    starts_anew: ClassVar[bool] = False

    server_lr: float = 1.0
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 < self.server_lr < float("inf"), self, "server_lr", "it must be positive")

    # ---- server

    def setup(self, fed: Federation) -> ScaffoldState:
        """Start from the course's initial model with c = 0."""
        total = fed.ask_folded(ShareWeight(), weighted_mean, clients=fed.all_clients).weight
        trained = {name: w for name, w in fed.initial_params.items() if name not in fed.buffers}
        return ScaffoldState(fed.initial_params, {n: torch.zeros_like(w) for n, w in trained.items()}, total)

    def round(self, state: ScaffoldState, fed: Federation) -> ScaffoldState:
        """Send model and variate out, move both by the clients' means."""
        mean = fed.ask_folded(TrainCorrected(state.params, state.variate), self.fold)
        total = max(state.total, mean.weight)  # a client that missed the setup counts from now on
        params, variate = dict(mean.params), {}
        for name, c in state.variate.items():
            # lerp, because it gives the mean itself for server_lr = 1.
            params[name] = torch.lerp(state.params[name], mean.params[name], self.server_lr)
            variate[name] = c + mean.weight / total * mean.variate_change[name]
        return ScaffoldState(params, variate, total)

    # ---- client

    @on(ShareWeight)
    def share_weight(self, request: ShareWeight, client: GraphClient) -> ClientWeight:
        """Say how much the client counts."""
        return ClientWeight(self.weight(client))

    @on(TrainCorrected)
    def train(self, request: TrainCorrected, client: GraphClient) -> CorrectedUpdate:
        """Train the received model with corrected gradients and remember the mean of those that were the client's."""
        _require_fitting(request.variate, client)
        before = _variate(client, request.variate)
        trained = [name for name, slot in client.model.named_parameters() if slot.requires_grad]
        drift = {name: c - before[name] for name, c in request.variate.items()}
        moments: OptimizerState | None = client.state.get("optimizer") if self.keep_moments else None
        fitted = client.fit(
            request.params,
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=corrected(self.optimizer, tuple(drift.get(name) for name in trained)),
            optimizer_state=None if moments is None else _summing(moments, client),
        )
        if self.keep_moments:
            kept = {key: value for key, value in fitted.optimizer_state.items() if key != "gradients"}
            client.state["optimizer"] = kept
        if fitted.steps == 0:
            return CorrectedUpdate(fitted.params, {n: torch.zeros_like(c) for n, c in before.items()}, 0.0)
        sums = dict(zip(trained, fitted.optimizer_state["gradients"], strict=True))
        after = {name: sums[name] / fitted.steps if name in sums else c for name, c in before.items()}
        client.state["variate"] = after
        change = {name: after[name] - c for name, c in before.items()}
        return CorrectedUpdate(fitted.params, change, self.weight(client))

    @cohort(TrainCorrected)
    def train_together(self, requests: Sequence[TrainCorrected], clients: GraphCohort) -> Stack:
        """Train the received model for many clients at once; their variates come of how far they went."""
        if type(self.optimizer) is not SGD or self.optimizer.momentum:
            raise BadInput(f"with {self.optimizer!r} the change of a model is no mean of gradients")
        request = requests[0]
        before = [_variate(client, request.variate) for client in clients]
        drifts = [{name: c - mine[name] for name, c in request.variate.items()} for mine in before]
        fitted = self.fit_together(request.params, clients, drifts=drifts)
        changes = [{name: torch.zeros_like(c) for name, c in mine.items()} for mine in before]
        for k, client in enumerate(clients if fitted.steps else ()):
            factor = self.optimizer.schedule.factor(max(client.position.round, 1))
            reach = fitted.steps * self.optimizer.lr * factor
            after = {n: (request.params[n] - fitted.params[n].member(k)) / reach - d for n, d in drifts[k].items()}
            client.state["variate"] = after
            changes[k] = {name: after[name] - c for name, c in before[k].items()}
        return Stack.of(
            clients.ids,
            CorrectedUpdate,
            params=fitted.params,
            variate_change={n: StackedTensor(torch.stack([each[n] for each in changes])) for n in request.variate},
            weight=self.weights(clients),
        )


def _variate(client: GraphClient, like: Params) -> Params:
    """Return the client's control variate; zero for one that has not trained yet."""
    found: Params | None = client.state.get("variate")
    return {name: torch.zeros_like(c) for name, c in like.items()} if found is None else found


def _require_fitting(variate: Params, client: GraphClient) -> None:
    """Refuse a variate of other shapes than the model's: sums with it would be of any size."""
    mine = {name: slot.detach() for name, slot in client.model.named_parameters() if name in variate}
    problem = unlike("variate", mine, variate)
    if problem:
        raise BadInput(f"the server's control variate does not belong to this model: {problem}")


def _summing(moments: OptimizerState, client: GraphClient) -> OptimizerState:
    """Return an inner optimiser's kept state as `Corrected` goes on from it, with a sum of nothing."""
    live = [slot for slot in client.model.parameters() if slot.requires_grad]
    return {**moments, "gradients": tuple(torch.zeros_like(slot) for slot in live)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Corrected(Optimizer):
    """Another optimiser whose gradients have a constant added; `gradients` in its state is their sum without it."""

    inner: Optimizer
    drift: tuple[Tensor | None, ...]  # one for each parameter; None adds nothing

    def start(self, params: Sequence[Tensor]) -> OptimizerState:
        """Return the inner optimiser's state and a sum of nothing."""
        return {**self.inner.start(params), "gradients": tuple(torch.zeros_like(p) for p in params)}

    def step(self, params: list[Tensor], grads: list[Tensor], state: OptimizerState, lr: float) -> None:
        """Add the gradients up, then take the inner optimiser's step with the corrected ones."""
        sums = list(state["gradients"])
        torch._foreach_add_(sums, grads)
        if self.weight_decay and not isinstance(self.inner, AdamW):
            torch._foreach_add_(sums, params, alpha=self.weight_decay)
        moved = [g if d is None else g + d for g, d in zip(grads, self.drift, strict=True)]
        self.inner.step(params, moved, state, lr)


def corrected(inner: Optimizer, drift: tuple[Tensor | None, ...]) -> Corrected:
    """Return an optimiser with its gradients corrected."""
    return Corrected(inner.lr, inner.weight_decay, inner.schedule, inner=inner, drift=drift)
