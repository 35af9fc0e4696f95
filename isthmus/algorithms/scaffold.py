"""SCAFFOLD: control variates take the drift out of local training.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (2020), "SCAFFOLD: stochastic controlled averaging for federated
learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Known, ModelState, Request, on, unlike
from isthmus.core.record import LazyParams, Params, Record
from isthmus.learn.graph_client import GraphClient, LocalTraining


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
    """How much the client's control variate changed: a difference of gradients, and at first the gradients themselves,
    which tell words and how labels are shared whatever the optimiser; the server asks for its mean."""
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

    A client remembers `variate`, c_i.

    Fields:
        server_lr: how far the server goes towards the mean
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    # Of this very class: all that leaves a client but its scores is made of what `fit` gave (guard example_dp).
    tells_only_models: ClassVar[bool] = True

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
        drift = ((1.0, request.variate), (-1.0, before))
        fitted = self.fit(request.params, client, drift=drift, mean_gradients=True)
        if fitted.steps == 0 or fitted.gradients is None:
            return CorrectedUpdate(fitted.params, client.combined((0.0, before)), 0.0)
        client.state["variate"] = after = fitted.gradients
        return CorrectedUpdate(fitted.params, client.combined((1.0, after), (-1.0, before)), self.weight(client))


def _variate(client: GraphClient, like: Params) -> Params:
    """Return the client's control variate; zero for one that has not trained yet."""
    found: Params | None = client.state.get("variate")
    return {name: torch.zeros_like(c) for name, c in like.items()} if found is None else found


def _require_fitting(variate: Params, client: GraphClient) -> None:
    """Refuse a variate of other shapes than the model's: sums with it would be of any size."""
    mine: Params | None = client.state.get("variate")  # it has the shapes of the model's gradients
    if mine is None:
        mine = {name: slot.detach() for name, slot in client.model.named_parameters() if name in variate}
    elif isinstance(mine, LazyParams):
        mine = mine.outline()
    problem = unlike("variate", mine, variate)
    if problem:
        raise BadInput(f"the server's control variate does not belong to this model: {problem}")
