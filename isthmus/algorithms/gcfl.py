"""GCFL and GCFL+: clients are divided into clusters by their updates, and every cluster has a model of its own.

Xie, Ma, Xiong and Yang (2021), "Federated graph classification over non-IID graphs".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Kept, ModelState, Request, on
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient, LocalTraining

KindT = TypeVar("KindT", bound="TrainModel | UseModel")


@dataclass(frozen=True)
class UseModel(Request[Kept]):
    """Tells a client the model of its cluster after a round."""

    params: Params
    """The cluster's model; who else is in the cluster is not said."""


@dataclass(frozen=True)
class Cluster(Record):
    """Some clients and their common model."""

    members: tuple[str, ...]
    """Who they are; every client is in one cluster."""
    params: Params
    """Their model."""


@dataclass(frozen=True)
class GCFLState(ModelState):
    """The clusters, and what the server knows of each client to divide them by."""

    clusters: tuple[Cluster, ...]
    """All clusters."""
    trails: dict[str, Tensor]
    """Of each client heard since its cluster was made: its last update (GCFL), or the last updates' norms (GCFL+)."""
    weights: dict[str, float]
    """The weight of each client as it last said."""


@dataclass(frozen=True)
class GCFL(LocalTraining[GCFLState]):
    """FedAvg inside clusters; a cluster whose clients pull apart is cut in two by the directions of their updates.

        round:  server -> client  TrainModel(params)              the model of the client's cluster
                client -> server  ModelUpdate(params, weight)     the server sees each client's
                server -> client  UseModel(params)                to all clients, for their evaluation
                client -> server  Kept()

    With u_i what client i added to its cluster's model and n_i its weight, a cluster is cut when

        |sum_i n_i u_i / sum_i n_i| < eps_1   and   max_i |u_i| > eps_2

    over its clients that answered: together they stand still, but some of them would go on. The cut is the minimum
    cut (Stoer and Wagner, 1997) of the complete graph of its clients with weights 1 + cos(u_i, u_j). Then every
    cluster, new ones among them, takes the weighted mean of its clients' models. Updates are those of the trained
    parameters; buffers (batch norm statistics) are averaged. Both bounds depend on model, optimiser and local steps.

    The paper's weights are the cosines themselves. Some are below 0, where Stoer and Wagner's algorithm finds no
    minimum: it needs weights of at least 0, hence the 1. It makes a cut into s and t clients dearer by s t, and so
    favours uneven cuts. Two groups of at least two clients, with cosines a within a group and b across, are found if
    (size of the larger) (1 + b) < 1 + a; else one client is cut off. Groups that pull in opposite directions are found
    whatever their sizes, groups at right angles are not.

    A cluster is cut only if it has `min_clients` that train, and if each of them was heard since the cluster was made;
    a client that was not asked this round goes by its last update. Clients without training examples go to the side of
    more weight. A side of whose clients none was asked this round starts with the mean of both sides. Every cut is
    noted in the journal; if none is made when the first is possible, the two norms are noted beside their bounds.

    Clients are evaluated with their cluster's model, which they remember as `cluster`. The global model is the mean of
    the clusters' models by their clients' weights; as long as there is one cluster, it is that one's, and this is
    FedAvg to the bit (eps_1 = 0 never cuts).

    Fields:
        eps_1:         bound on the norm of the mean update
        eps_2:         bound on the largest norm of an update
        min_clients:   how many clients a cluster must have to be cut
        warmup_rounds: rounds at the start without a cut
        fold:          how the models of a cluster become one
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

    eps_1: float = 0.05
    eps_2: float = 0.1
    min_clients: int = 3
    warmup_rounds: int = 20
    fold: Fold = weighted_mean

    personal: ClassVar[tuple[str, ...]] = ("cluster",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.eps_1 <= self.eps_2 < float("inf") or self.eps_2 == 0.0:
            raise ValueError(
                f"eps_1 is {self.eps_1!r} and eps_2 {self.eps_2!r}; the bound on the mean update must be at least 0 "
                "and at most the bound on the largest one, and that must be positive"
            )
        refuse(self.min_clients < 2, self, "min_clients", "one client cannot be divided, so at least 2")
        refuse(self.warmup_rounds < 0, self, "warmup_rounds", "it must be at least 0")

    # ---- server

    def setup(self, fed: Federation) -> GCFLState:
        """Put everybody into one cluster with the course's initial model."""
        params = fed.initial_params
        return GCFLState(params, (Cluster(fed.all_clients, params),), {}, {})

    def round(self, state: GCFLState, fed: Federation) -> GCFLState:
        """Train in clusters, cut those that pull apart, average in each, and tell everybody its model."""
        clusters = _with_newcomers(state.clusters, fed.all_clients)
        requests = _by_client(TrainModel, clusters, fed.clients)
        replies = fed.ask(requests)
        trained = {client: reply for client, reply in replies.items() if reply.weight > 0.0}
        if not trained:
            raise CourseFailed("every ModelUpdate has weight 0: no client in the cohort has training examples")
        weights = {**state.weights, **{client: reply.weight for client, reply in replies.items()}}
        after: list[Cluster] = []
        now = replace(state, weights=weights)
        for cluster in clusters:
            updates = _updates(cluster, trained, fed.buffers)
            trails = now.trails | {client: self.extended(now.trails.get(client), u) for client, u in updates.items()}
            now = replace(now, trails=trails)
            sides = self._sides(cluster, updates, now, fed)
            whole = self._folded(cluster.members, trained, cluster.params, requests, fed)
            after += [Cluster(side, self._folded(side, trained, whole, requests, fed)) for side in sides]
            if len(sides) > 1:
                left = {client: trail for client, trail in trails.items() if client not in cluster.members}
                now = replace(now, trails=left)
        if len(after) == 1 and self.eps_1 > 0.0:
            was = self._can_be_cut(after[0], state, fed.round - 1)
            if self._can_be_cut(after[0], now, fed.round) and not was:  # so this is said once
                fed.note(f"round {fed.round}: {self._what_a_cut_needs(updates, weights)}")
        fed.ask(_by_client(UseModel, after, fed.all_clients), min_replies=0)
        return replace(now, params=_overall(after, weights), clusters=tuple(after))

    def _sides(
        self, cluster: Cluster, updates: Mapping[str, Tensor], state: GCFLState, fed: Federation
    ) -> list[tuple[str, ...]]:
        """Return the members of the cluster, as they are or in two parts."""
        active = _active(cluster, state.weights)
        if not self._can_be_cut(cluster, state, fed.round) or not self.pulls_apart(updates, state.weights):
            return [cluster.members]
        first, second = minimum_cut(self.similarities(torch.stack([state.trails[client] for client in active])))
        sides = [{active[i] for i in first}, {active[i] for i in second}]
        sides.sort(key=lambda side: -sum(state.weights[client] for client in side))
        sides[0] |= set(cluster.members) - set(active)
        parts = [tuple(client for client in cluster.members if client in side) for side in sides]
        fed.note(f"round {fed.round}: a cluster was cut in two: {', '.join(parts[0])} | {', '.join(parts[1])}")
        return parts

    def _can_be_cut(self, cluster: Cluster, state: GCFLState, round: int) -> bool:
        """Whether enough of the cluster's clients are known after a round, and that is late enough."""
        active = _active(cluster, state.weights)
        known = all(client in state.trails and self.is_enough(state.trails[client]) for client in active)
        return round > self.warmup_rounds and len(active) >= self.min_clients and known

    def _what_a_cut_needs(self, updates: Mapping[str, Tensor], weights: Mapping[str, float]) -> str:
        mean, largest = _norms(updates, weights)
        return (
            f"a first cut was possible and was not made: the mean update has the norm {mean:.3g}, the largest update "
            f"{largest:.3g}; a cut needs a mean below eps_1 = {self.eps_1:g} and a largest above eps_2 = {self.eps_2:g}"
        )

    # ---- what a cluster is cut by

    def pulls_apart(self, updates: Mapping[str, Tensor], weights: Mapping[str, float]) -> bool:
        """Whether both bounds on the norms hold for a cluster's updates of this round."""
        if not updates:
            return False
        mean, largest = _norms(updates, weights)
        return mean < self.eps_1 and largest > self.eps_2

    def _folded(
        self,
        members: Sequence[str],
        trained: Mapping[str, ModelUpdate],
        otherwise: Params,
        requests: Mapping[str, TrainModel],
        fed: Federation,
    ) -> Params:
        """Return what the members' models become together, taken in the order in which they answered."""
        replies = {client: reply for client, reply in trained.items() if client in members}
        return fed.fold(replies, self.fold, requests).params if replies else otherwise

    def extended(self, trail: Tensor | None, update: Tensor) -> Tensor:
        """Return what is kept of a client after one more update: here the update itself."""
        return update

    def is_enough(self, trail: Tensor) -> bool:
        """Whether what is kept of a client is enough to divide clients by."""
        return True

    def similarities(self, trails: Tensor) -> Tensor:
        """Return how alike clients are, at least 0, (clients, ...) -> (clients, clients)."""
        directions = torch.nn.functional.normalize(trails.double(), dim=1)
        return (1.0 + directions @ directions.t()).clamp(min=0.0)

    # ---- client

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the model of the client's cluster; the global one for a client that was not told."""
        own: Params | None = state.get("cluster")
        return super().client_params(params if own is None else own, state)

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the model of the client's cluster, as FedAvg does."""
        return ModelUpdate(self.fit(request.params, client).params, self.weight(client))

    @on(UseModel)
    def use(self, request: UseModel, client: GraphClient) -> Kept:
        """Remember the cluster's model."""
        client.state["cluster"] = request.params
        return Kept()


@dataclass(frozen=True)
class GCFLPlus(GCFL):
    """GCFL that divides clients by how the norms of their updates went over the last rounds.

        round:  server -> client  TrainModel(params)              the model of the client's cluster
                client -> server  ModelUpdate(params, weight)     the server sees each client's
                server -> client  UseModel(params)                to all clients, for their evaluation
                client -> server  Kept()

    A cluster is cut under the conditions of GCFL, once `num_norms` updates of each of its clients are known since the
    cluster was made. The cut is the minimum cut of the complete graph with weights max(D) - D_ij, where D_ij is the
    distance of the sequences of the last `num_norms` norms |u_i| and |u_j| by dynamic time warping
    (`algorithms/gcfl.py`).

    Fields:
        num_norms:   how many norms of a client are compared
        standardize: divide every sequence by its standard deviation first
        eps_1, eps_2, min_clients, warmup_rounds: as in GCFL
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

    num_norms: int = 10
    standardize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 2 if self.standardize else 1  # one number has no deviation
        refuse(self.num_norms < least, self, "num_norms", f"it must be at least {least}")

    def extended(self, trail: Tensor | None, update: Tensor) -> Tensor:
        """Return the norms so far with that of the update, the last `num_norms` of them."""
        norm = update.double().norm().reshape(1)
        return (norm if trail is None else torch.cat([trail, norm]))[-self.num_norms :]

    def is_enough(self, trail: Tensor) -> bool:
        """Whether the sequence has its full length."""
        return len(trail) == self.num_norms

    def similarities(self, trails: Tensor) -> Tensor:
        """Return how much nearer than the farthest two each two sequences are."""
        if self.standardize:
            trails = trails / trails.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
        distances = warping_distances(trails)
        return distances.max() - distances


def minimum_cut(weights: Tensor) -> tuple[list[int], list[int]]:
    """Return the two sides of the cheapest cut of a complete graph, by Stoer and Wagner; both have a member.

    Each phase takes the vertices in the order of their ties to those taken before. The last one, cut off from all
    others, is the cheapest cut that parts it from the one before; then both become one vertex.
    """
    ties = weights.double().clone().fill_diagonal_(0.0)  # (vertices, vertices)
    merged = [[i] for i in range(len(ties))]
    left = list(range(len(ties)))
    cheapest, side = float("inf"), [0]
    while len(left) > 1:
        before, last = left[0], left[0]
        tied = ties[last].clone()
        waiting = torch.zeros(len(ties), dtype=torch.bool)
        waiting[left[1:]] = True
        for _ in left[1:]:
            before, last = last, int(tied.masked_fill(~waiting, -1.0).argmax())
            waiting[last] = False
            price = float(tied[last])
            tied += ties[last]
        if price < cheapest:
            cheapest, side = price, merged[last]
        merged[before] = merged[before] + merged[last]
        ties[before] += ties[last]
        ties[:, before] = ties[before]
        ties[before, before] = 0.0
        left.remove(last)
    return sorted(side), sorted(set(range(len(ties))) - set(side))


def _with_newcomers(clusters: tuple[Cluster, ...], everybody: Sequence[str]) -> tuple[Cluster, ...]:
    """Return the clusters with clients that are in none put into the first."""
    placed = {client for cluster in clusters for client in cluster.members}
    strangers = tuple(client for client in everybody if client not in placed)
    if not strangers:
        return clusters
    return (replace(clusters[0], members=clusters[0].members + strangers), *clusters[1:])


def _by_client(kind: type[KindT], clusters: Sequence[Cluster], clients: Sequence[str]) -> dict[str, KindT]:
    """Return for each client the request with its cluster's model; members of a cluster get the same object."""
    orders: dict[str, KindT] = {}
    for cluster in clusters:
        request = kind(cluster.params)
        orders |= {client: request for client in cluster.members if client in clients}
    return orders


def _updates(cluster: Cluster, trained: Mapping[str, ModelUpdate], buffers: Collection[str]) -> dict[str, Tensor]:
    """Return what each member that trained added to the cluster's model, as one row of numbers."""
    names = [name for name in cluster.params if name not in buffers]
    return {
        client: torch.cat([(trained[client].params[n] - cluster.params[n]).flatten() for n in names])
        for client in cluster.members
        if client in trained
    }


def _active(cluster: Cluster, weights: Mapping[str, float]) -> list[str]:
    """Return the members that train, as far as is known."""
    return [client for client in cluster.members if weights.get(client, 1.0) > 0.0]


def _norms(updates: Mapping[str, Tensor], weights: Mapping[str, float]) -> tuple[float, float]:
    """Return the norm of the weighted mean of some updates, and the largest of their norms."""
    shares = torch.tensor([weights[client] for client in updates], dtype=torch.float64)
    each = torch.stack([u.double() for u in updates.values()])  # (clients, parameters)
    mean = (shares / shares.sum()) @ each
    return float(mean.norm()), float(each.norm(dim=1).max())


def _overall(clusters: Sequence[Cluster], weights: Mapping[str, float]) -> Params:
    """Return the mean of the clusters' models by the weights of their members."""
    if len(clusters) == 1:
        return clusters[0].params
    sizes = [sum(weights.get(client, 0.0) for client in cluster.members) for cluster in clusters]
    return weighted_mean(ModelUpdate(c.params, size) for c, size in zip(clusters, sizes, strict=True)).params


def warping_distances(sequences: Tensor) -> Tensor:
    """Return the distance of every two of some sequences, (sequences, length) -> (sequences, sequences).

    An alignment goes from both starts to both ends, and from (i, j) to (i + 1, j), (i, j + 1) or (i + 1, j + 1). The
    distance is the least sqrt(sum of (a_i - b_j)^2 along an alignment):

        D(i, j) = (a_i - b_j)^2 + min(D(i - 1, j), D(i, j - 1), D(i - 1, j - 1))
    """
    number, length = sequences.shape
    if length == 0:
        raise ValueError("sequences have no entries; there is nothing to align")
    values = sequences.double()
    # The row above, with a column before the first that no alignment comes from.
    above = [torch.full((number, number), torch.inf, dtype=torch.float64) for _ in range(length + 1)]
    above[0] = torch.zeros(number, number, dtype=torch.float64)
    for i in range(length):
        row = [torch.full_like(above[0], torch.inf)]
        for j in range(length):
            gap = (values[:, None, i] - values[None, :, j]).square()  # all pairs at once
            row.append(gap + torch.minimum(torch.minimum(above[j + 1], row[j]), above[j]))
        above = row
    return above[length].sqrt()
