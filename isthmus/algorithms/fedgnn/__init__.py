"""FedGNN: recommendation from user-item graphs that stay with the clients, which learn of each other's users.

Wu, Wu, Cao, Lyu, Huang and Xie (2021), "FedGNN: Federated graph neural network for privacy-preserving recommendation".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.algorithms.fedgnn.perturbation import perturbed, privacy_bound
from isthmus.algorithms.fedgnn.user_items import (
    ExpandedModel,
    SharedUsers,
    embedded,
    expanded,
    expanded_together,
    interactions,
    located,
    matched,
    table_rows,
    tokens,
)
from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.protocol import EvaluateModel, Evaluation, Kept, ModelState, Request, on
from isthmus.core.record import Params, State
from isthmus.learn.able import require_keys
from isthmus.learn.batching import FullBatch, LinkBatch
from isthmus.learn.graph_client import Fitted, GraphClient
from isthmus.learn.optimizers import SGD, BothWays, Optimizer, load_params
from isthmus.learn.together.batch_cohort import SeenThrough
from isthmus.learn.together.stacked_clients import GraphCohort

TABLE = "encoder.weight"


# ---- what crosses


@dataclass(frozen=True)
class ShareUsers(Request[SharedUsers]):
    """Asks a client for its users, to find those of other clients that have items in common with them."""

    params: Params
    """The global model, whose encoder makes the embeddings."""

    def problem(self, reply: SharedUsers) -> str:
        """Return what is wrong with the shapes of a client's users."""
        rows = reply.embeddings
        if rows.ndim != 2 or not rows.is_floating_point():
            return f"embeddings has shape {tuple(rows.shape)} of {rows.dtype}, expected (users, width) of floats"
        for name in ("user", "item"):
            found = getattr(reply, name)
            if found.ndim != 1 or found.dtype != torch.int64 or len(found) != len(reply.item):
                return f"{name} has shape {tuple(found.shape)} of {found.dtype}, expected (pairs,) of torch.int64"
        if len(reply.user) and not 0 <= int(reply.user.min()) <= int(reply.user.max()) < len(rows):
            return f"user names rows {int(reply.user.min())} to {int(reply.user.max())} of {len(rows)} embeddings"
        if len(rows) > len(reply.user):
            return f"embeddings has {len(rows)} rows for {len(reply.user)} pairs; every user has rated something"
        return ""

    def num_nodes(self, reply: SharedUsers) -> int:
        """Return how many users there are: nodes of the client's graph."""
        return len(reply.embeddings)

    def common(self, reply: SharedUsers) -> tuple[int, str] | None:
        """Return the width of the embeddings and their type; a client without users has no say."""
        rows = reply.embeddings
        return (rows.shape[1], str(rows.dtype)) if len(rows) else None


@dataclass(frozen=True)
class UseNeighbors(Request[Kept]):
    """Gives a client the users of others that have items in common with it; they replace those it had."""

    embeddings: Tensor
    """(users, width), in a random order: users of other clients, without a word of who or whose they are."""
    user: Tensor
    """(pairs,), int64: a row of `embeddings`."""
    item: Tensor
    """(pairs,), int64: keyed hashes of the client's own items that this user rated; no other item is named."""


# ---- the algorithm


@dataclass(frozen=True)
class FedGNN(FedAvg):
    """FedAvg with perturbed updates, pseudo-interacted items, and local graphs expanded by other clients' users.

        round 1 and every `expand_every` rounds after it (counted after `warmup_rounds`):
                server -> client  ShareUsers(params)                          to all clients
                client -> server  SharedUsers(embeddings, user, item)         the server sees each client's
                server -> client  UseNeighbors(embeddings, user, item)        of the client's own items
                client -> server  Kept()
        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)                 the server sees only the weighted mean

    A client holds users, items and ratings: one user, as in the paper, or a silo of many. Its model is that of any
    link task: encoder, graph network over the training ratings, decoder of a user's and an item's representation. With
    w the received model, w_k the trained one and lr the learning rate of the round, the client uploads

        w - lr g~,   g~ = clip(g, delta) + Laplace(0, lambda),   g = (w - w_k) / lr

    number by number. For one step of plain SGD, g is the gradient, as in the paper; for other steps it is what they
    amount to. Each number of an answer is epsilon-differentially private with epsilon = 2 delta / lambda, the bound
    that the paper states; it is noted in the journal. What it says, and what not: it is about one number of one answer,
    and the budgets of several numbers and answers add up, so a whole model over a course has none to speak of. It is
    about the values, not about which rows of a table moved. It is that of real numbers; floats are rounded, and no
    proof is made for that. It holds towards those who cannot draw the noise again: between sites everybody but the
    silo, which draws it from its own secret (`client.protecting`); in a simulation nobody, for there all derives from
    the seed.

    Pseudo-interacted items. A table of embeddings has a row for each item, and rows that move tell which items a client
    has. So the rows of `pseudo_items` further items, drawn evenly in each round from those that the client does not
    have, get updates from the Gaussian with the mean and covariance of the real ones, before clipping and noise. Rows
    of neither kind stay as they are. Who sees a client's updates of several rounds can tell the rows that moved in all.
    The table is the encoder "categorical" (`encoder.weight`) over features that say which user or item a node is, such
    as the dataset "hashed_ids" makes: buckets of ids, as many as a field says, so that the table stays small however
    many items there are. Any row that no rated item and no rating user of the client has can be drawn. Datasets with
    features of other kinds have no such rows, and need no pseudo items.

    Expansion. The server stands for the paper's third party: it sees keyed hashes of items, and users' embeddings with
    the hashes of what they rated. It sends each client the embeddings of other clients' users who rated items of its
    own. They become nodes of the client's message graph, joined to these items, with the embeddings in the place of
    what the encoder gives, and no gradient. Hashes are HMAC-SHA256 of `client.node_keys`. Between sites these are
    hashes already, by a secret that the silos share and the server does not have; in simulation they are row numbers,
    and the course's seed stands for the secret. In the paper the third party does not have the model; this server does,
    and can test guesses about users' features by their embeddings.

    Clients train, and predict, on their expanded graphs, so they are scored by themselves if some graph is expanded in
    the best round; a model that is used elsewhere sees the graph that is there. A client remembers `neighbors`. Users
    are those of ratings that are trained on; ratings of validation and test are in no message. Data without users and
    items (no attribute "side") has nothing to share or to hide by name: there this is FedAvg with perturbed updates,
    and a note says so. Without clipping, noise, pseudo items and expansion it is FedAvg to the bit.

    Fields:
        clip:            delta; null clips nothing
        noise:           lambda, the scale of the Laplace noise; 0 for none
        pseudo_items:    number of pseudo-interacted items of each client in each round
        expand_every:    rounds between two expansions; 0 for none
        warmup_rounds:   rounds before the first one, since early embeddings say little
        max_neighbors:   users of others that a client gets at most, drawn evenly; null for all
        embedding_noise: scale of Laplace noise on the users' embeddings; the paper has none
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg; one step of SGD, as in the paper
    """

    local_steps: int = 1
    optimizer: Optimizer = SGD(lr=0.01)
    clip: float | None = 0.1
    noise: float = 0.2
    pseudo_items: int = 1000
    expand_every: int = 10
    warmup_rounds: int = 0
    max_neighbors: int | None = None
    embedding_noise: float = 0.0

    personal: ClassVar[tuple[str, ...]] = ("neighbors",)
    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {
        "clip": "less",
        "noise": "more",
        "pseudo_items": "more",
        "embedding_noise": "more",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not 0.0 < self.clip < float("inf"):
            raise ValueError(f"clip is {self.clip!r}; it must be positive, or null to clip nothing")
        for name in ("noise", "embedding_noise"):
            refuse(not 0.0 <= getattr(self, name) < float("inf"), self, name, "it must be at least 0")
        for name in ("pseudo_items", "expand_every", "warmup_rounds"):
            refuse(getattr(self, name) < 0, self, name, "it must be at least 0")
        most, wanted = self.max_neighbors, "it must be at least 1, or null for all users (expand_every=0: none)"
        refuse(most is not None and most < 1, self, "max_neighbors", wanted)

    @property
    def epsilon(self) -> float:
        """The paper's bound on the privacy budget of a number in a round, 2 delta / lambda; inf without a bound."""
        return privacy_bound(self.clip, self.noise)

    @property
    def protecting_streams(self) -> tuple[str, ...]:
        """Noise on updates, the pseudo-interacted items, and noise on users' embeddings, as far as there are any."""
        drawn = {"perturbation": self.noise, "pseudo items": self.pseudo_items, "embeddings": self.embedding_noise}
        return tuple(purpose for purpose, amount in drawn.items() if amount)

    def scored_by_clients(self, memories: Iterable[State]) -> bool:
        """Whether somebody's predictions need other clients' users."""
        return any("neighbors" in memory for memory in memories)

    # ---- server

    def setup(self, fed: Federation) -> ModelState:
        """Start from the course's initial model, and say what the perturbation amounts to."""
        if fed.buffers and (self.clip is not None or self.noise):
            raise BadInput(
                f"the model has statistics that no gradient moves ({', '.join(sorted(fed.buffers)[:3])}), and FedGNN "
                "perturbs gradients; use a model without batch norm, keep them at the clients (shared), or perturb "
                "nothing (clip=null noise=0)"
            )
        if self.clip is None or not self.noise:
            fed.note(f"no bound on epsilon: clip is {self.clip} and noise is {self.noise:g}, and both are needed")
        else:
            fed.note(
                f"each number in an answer of a client is {self.epsilon:g}-differentially private: 2 delta / lambda = "
                f"2 * {self.clip:g} / {self.noise:g}, towards all who do not have the client's secret; the budgets of "
                "several numbers and answers add up"
            )
        if self.pseudo_items and TABLE not in fed.initial_params:
            fed.note(
                f"the model shares no table of embeddings ({TABLE}, of the encoder 'categorical'), so there are no "
                "pseudo-interacted items"
            )
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Expand the graphs when it is time, then send the model out and take the mean back."""
        after = fed.round - self.warmup_rounds - 1
        if self.expand_every and after >= 0 and after % self.expand_every == 0:
            self._expand(state.params, fed, first=after == 0)
        mean = fed.ask_folded(TrainModel(state.params), self.fold)
        return ModelState(mean.params)

    def _expand(self, params: Params, fed: Federation, first: bool) -> None:
        """Match the clients' items, and give each client the users of others that have some of them."""
        replies = fed.ask(ShareUsers(params), clients=fed.all_clients)
        found = matched(replies, self.max_neighbors, fed.generator("neighbors"))
        fed.ask({c: UseNeighbors(f.embeddings, f.user, f.item) for c, f in found.items()}, min_replies=0)
        if first:
            fed.note(_summary(replies, found))

    # ---- client

    @on(ShareUsers)
    def share_users(self, request: ShareUsers, client: GraphClient) -> SharedUsers:
        """Give the client's users as the encoder sees them, and the hashes of the items that they rated."""
        user, item = interactions(client.data)
        if not len(user):
            return SharedUsers(torch.empty(0, 0), user, item)
        if not isinstance(client.batching, FullBatch | LinkBatch):
            raise BadInput(
                f"FedGNN adds users of other clients to the whole message graph; batching is {client.batching!r}: use "
                "batching.name=full or links, or leave the graphs as they are (expand_every=0)"
            )
        load_params(client.model, client.complete(request.params))
        nodes, row = torch.unique(user, return_inverse=True)
        rows = embedded(client.model, client.prepared.graph, nodes)
        if self.embedding_noise:
            drawn = client.protecting("embeddings", rows).laplace(rows.shape, self.embedding_noise)
            rows = rows + drawn.to(rows.device)
        items, place = torch.unique(item, return_inverse=True)
        return SharedUsers(rows, row, _tokens(client, items)[place])

    @on(UseNeighbors)
    def use_neighbors(self, request: UseNeighbors, client: GraphClient) -> Kept:
        """Keep other clients' users, with the client's own items that they rated, in the place of those before."""
        others = {name: value for name, value in client.state.items() if name != "neighbors"}
        if len(request.embeddings):
            found = SharedUsers(request.embeddings, request.user, request.item)
            problem = ShareUsers({}).problem(found) or (
                "" if found.embeddings.shape[1] else "embeddings has no columns"
            )
            if problem:
                raise BadInput(f"the other clients' users cannot be used: {problem}")
            items = torch.unique(interactions(client.data)[1])
            user, item = located(request.user, request.item, items, _tokens(client, items))
            others["neighbors"] = {"embeddings": request.embeddings, "user": user, "item": item}
        client.state = others
        return Kept()

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model on the expanded graph, and perturb what became of it."""
        weight = self.weight(client)
        trained = self._trained(request, client).params
        return ModelUpdate(self.protected(request.params, trained, client) if weight else trained, weight)

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Evaluate the client's model on its expanded graph."""
        memory = self.best_memory(client.state) if request.best else client.state
        if "neighbors" not in memory:
            return super().evaluate(request, client)
        others = SharedUsers(**memory["neighbors"])
        load_params(client.model, client.complete(self.client_params(request.params, memory)))
        model = ExpandedModel(client.model, others.embeddings)
        return Evaluation(*client.task.evaluate(model, expanded(client.prepared, others), request.splits))

    def protected(self, before: Params, after: Params, client: GraphClient) -> Params:
        """Return the trained parameters as they leave the client: clipped, noisy, with pseudo-interacted items."""
        if self.clip is None and not self.noise and not self.pseudo_items:
            return after
        lr = self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1))
        guarded = {"before": before, "after": after}
        drawn = client.protecting("pseudo items", guarded)
        return perturbed(
            before,
            after,
            clip=None if self.clip is None else lr * self.clip,
            noise=lr * self.noise,
            stream=client.protecting("perturbation", guarded),
            table=table_rows(client.model, client.data, before, self.pseudo_items, drawn),
        )

    def _trained(self, request: TrainModel, client: GraphClient) -> Fitted:
        """Return what local training gives, on the graph with other clients' users if there are some."""
        if "neighbors" not in client.state:
            return self.fit(request.params, client)
        others = SharedUsers(**client.state["neighbors"])

        def loss(model: nn.Module, batch: Any, generator: torch.Generator) -> Tensor:
            return client.task.loss(ExpandedModel(model, others.embeddings), batch, generator)

        both = BothWays(loss, _loss_together, others)
        return self.fit(request.params, client, loss=both, prepared=expanded(client.prepared, others))


def _loss_together(clients: GraphCohort, others: Sequence[SharedUsers]) -> SeenThrough:
    """Return the loss on expanded graphs for many clients side by side."""
    return SeenThrough(expanded_together(others))


def _tokens(client: GraphClient, nodes: Tensor) -> Tensor:
    """Return the keyed hashes of some of the client's nodes."""
    keys = require_keys(client, "say which of its items others have too")
    return tokens(keys[nodes], f"isthmus FedGNN {client.position.seed}".encode())


def _summary(shared: Mapping[str, SharedUsers], found: Mapping[str, SharedUsers]) -> str:
    """Say what the first expansion amounts to."""
    if not any(len(each.embeddings) for each in shared.values()):
        return (
            "no client has users and items (a graph of links with the node attribute 'side'), so no graph is expanded: "
            "this is FedAvg with perturbed updates"
        )
    reached = [each for each in found.values() if len(each.embeddings)]
    if not reached:
        return "no two clients have a rated item in common, so no graph is expanded"
    numbers = (
        f"{sum(len(each.embeddings) for each in reached)} users by {sum(len(each.user) for each in reached)} edges"
    )
    return f"the first expansion gave {len(reached)} of {len(found)} clients users of others, in all {numbers}"
