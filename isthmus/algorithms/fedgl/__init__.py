"""FedGL: global pseudo labels and a global pseudo graph for clients with nodes in common.

Chen, Hu, Xu and Zheng (2021), "FedGL: Federated graph learning framework with global self-supervision".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.algorithms.fedgl.messages import (
    NO_LABEL,
    Guidance,
    LocalView,
    NodeList,
    ShareNodes,
    TrainWithGuidance,
    View,
    first_repeated,
)
from isthmus.algorithms.fedgl.top_products import approximate_top_products, exact_top_products
from isthmus.core.errors import BadInput, TooFewReplies, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Algorithm, cohort, on, told
from isthmus.core.record import Params, Record
from isthmus.learn.able import require_classes_of_nodes, require_keys, require_whole_graph
from isthmus.learn.graph_client import GraphClient, check_local_steps
from isthmus.learn.metrics.classification import Examples, cross_entropy
from isthmus.learn.optimizers import Adam, Loss, Optimizer, load_params
from isthmus.learn.tasks.node_classification import NodeBatch, PreparedNodes
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.products.between import EvenRows
from isthmus.models.products.sparse import Pattern, SparseMatrix, block_diagonal

FUSIONS = ("sum", "mean")
REDUCTIONS = ("mean", "sum")
EMBEDDINGS = ("output", "hidden")
VIEWS = ("round", "latest")
DEGREES = ("counts", "weights")
CHOICES = {"fusion": FUSIONS, "reduction": REDUCTIONS, "embeddings": EMBEDDINGS, "views": VIEWS, "degrees": DEGREES}


# ---- what crosses


@dataclass(frozen=True)
class FedGLState(Record):
    """The server's knowledge after a round."""

    params: Params
    """The global model."""
    nodes: dict[str, NodeList]
    """Who holds what."""
    views: dict[str, View]
    """The views that the next guidance is made of."""


# ---- what the server discovers


@dataclass(frozen=True)
class Discovery:
    """The global pseudo labels and the global pseudo graph, over all nodes that some view is about.

    Fields:
        ids:    (nodes,), int64, ascending
        place:  (nodes,), int64; the row of each of `ids` in what follows
        labels: (nodes,), int64; -1 for none
        graph:  (nodes, nodes)
    """

    ids: Tensor
    place: Tensor
    labels: Tensor
    graph: SparseMatrix

    @cached_property
    def _rows(self) -> EvenRows:
        return EvenRows(self.graph)

    def projected(self, ids: Tensor) -> Guidance:
        """Return what there is for a client with these nodes: rows and columns of others are left out (Fig. 4)."""
        return self.projected_each([ids])[0]

    def projected_each(self, held: Sequence[Tensor]) -> list[Guidance]:
        """Return the same for each of many clients."""
        sizes, ids = [len(mine) for mine in held], torch.cat([*held, self.ids[:0]])
        rank = torch.searchsorted(self.ids, ids)
        # One more, of which no view is about anything.
        every, places, labels = (
            torch.cat([each, each.new_full((1,), end)])
            for each, end in ((self.ids, 0), (self.place, -1), (self.labels, NO_LABEL))
        )
        known = (rank < len(self.ids)) & (every[rank] == ids)
        place = places[torch.where(known, rank, len(self.ids))]
        parts = zip(torch.split(place, sizes), torch.split(labels[place].int(), sizes), strict=True)
        found = []
        for mine, thought in parts:
            graph = self._rows.between(mine)
            found.append(Guidance(thought, graph.pattern.crow.int(), graph.pattern.col.int(), graph.values))
        return found


def aligned(held: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return all ids in ascending order, the row of each, and the rows of each client's nodes.

    Rows are numbered as nodes first appear, client after client, so that results do not depend on what the ids are.
    """
    every = torch.cat([*held, torch.empty(0, dtype=torch.int64)])
    ids, inverse = torch.unique(every, return_inverse=True)
    first = torch.full((len(ids),), len(every)).scatter_reduce_(0, inverse, torch.arange(len(every)), "amin")
    place = torch.empty_like(first)
    place[torch.argsort(first)] = torch.arange(len(ids))
    return ids, place, list(torch.split(place[inverse], [len(each) for each in held]))


def fuse(
    parts: Sequence[Tensor], places: Sequence[Tensor], weights: Sequence[float], num_nodes: int, mean: bool
) -> Tensor:
    """Return sum_k w_k X_k over the clients that hold each node (eq. 11 and 13), (nodes, columns).

    w_k = N_k / M; a client that does not hold a node contributes zero. With `mean`, a node's sum is divided by the
    weights of the clients that do hold it.
    """
    total = sum(weights)
    fused = torch.zeros(num_nodes, parts[0].shape[1])
    for part, place, weight in zip(parts, places, weights, strict=True):
        fused.index_add_(0, place, part.float(), alpha=weight / total)
    if not mean:
        return fused
    held = torch.zeros(num_nodes)
    for place, weight in zip(places, weights, strict=True):
        held[place] += weight / total
    return fused / held.unsqueeze(1)


def pseudo_labels(predictions: Tensor, threshold: float) -> Tensor:
    """Return argmax P_i where max P_i > threshold, else -1 (eq. 12), (nodes,)."""
    largest, label = predictions.max(dim=1)
    return torch.where(largest > threshold, label, NO_LABEL)


def pseudo_graph(
    embeddings: Tensor, num_neighbors: int, exact_nodes: int, generator: torch.Generator | None = None
) -> SparseMatrix:
    """Return relu(H H^T), the `num_neighbors` largest entries of each row, rows adding up to one (eq. 14).

    A node is its own neighbour if its product with itself is among the largest, for the paper takes none out. Above
    `exact_nodes` nodes, neighbours come from an approximate search. The result holds nodes x num_neighbors entries at
    most, and no matrix of all products is made on the way.
    """
    if len(embeddings) <= exact_nodes:
        found = exact_top_products(embeddings, num_neighbors)
    else:
        assert generator is not None
        found = approximate_top_products(embeddings, num_neighbors, generator)
    size = (len(embeddings), len(embeddings))
    graph = SparseMatrix(Pattern(found.start, found.column, size), found.products)
    return graph.with_values(graph.values / graph.pattern.spread(graph.row_sums()))


# ---- the algorithm


@dataclass(frozen=True)
class FedGL(Algorithm[FedGLState]):
    """Clients with common nodes share predictions and embeddings; the server makes labels and edges of them for all.

        setup:  server -> client  ShareNodes()                           again in a round with clients it has not met
                client -> server  NodeList(ids, classes)                 the server sees each client's
        round:  server -> client  TrainWithGuidance(params, guidance)    about the client's own nodes alone
                client -> server  LocalView(params, weight, view)        the server sees each client's

    Client k trains on A_k + beta D^-1/2 A^(k) D^-1/2 (eq. 9; A_k is normalised, A^(k) the projection of the pseudo
    graph, D its degrees) with the loss L_GCN + alpha L_SSL (eq. 8; L_SSL is the cross-entropy with the pseudo
    labels, on nodes that are not training nodes of the client), and reports the parameters W_k, and the predictions
    P_k and embeddings H_k of its nodes, which the trained model gives without dropout on the complemented graph. The
    server averages, with N_k nodes of client k and M = sum_k N_k over the clients it hears of:

        W = sum_k N_k/M W_k (eq. 10),   P = sum_k N_k/M P_k (eq. 11),   H = sum_k N_k/M H_k (eq. 13)
        Y_i = argmax P_i where max P_i > threshold (eq. 12)
        A = relu(H H^T), the num_neighbors largest of each row, rows adding up to one (eq. 14)

    The embeddings of equation 2 are the scores before the softmax of equation 3. Models are scored on the clients'
    own graphs, without the pseudo graph. In the first round there is no guidance. A client without training labels
    trains on pseudo labels alone, once it has some. With alpha = beta = 0 this is FedAvg weighted by nodes.

    What the server learns: each client's parameters; for each node that a client holds, which class it is thought to
    have and how sure that is, hence most of the client's labels; who holds the same nodes. Ids, features and edges are
    not sent, but parameters tell which features occur among the client's nodes, and similar predictions and embeddings
    make edges likely. A client learns, of its own nodes only, what class the others' predictions and its own give them
    together, and which of them are similar.

    Fields:
        alpha:         strength of the pseudo labels; 0 leaves them out
        beta:          strength of the pseudo graph; 0 leaves it out
        threshold:     how probable a class must be to become a pseudo label; in [0, 1)
        num_neighbors: neighbours of a node in the pseudo graph, s
        fusion:        "sum", as printed: clients that do not hold a node contribute zero, so that a node that few
                       clients hold never reaches the threshold; or "mean" over the clients that hold it
        reduction:     L_SSL is the "mean" over the pseudo-labelled nodes, as L_GCN is over the training nodes; or the
                       "sum" that equation 8 prints, both losses being divided by the number of training nodes
        embeddings:    H_k is the model's "output" (eq. 2), or its last "hidden" layer
        views:         guidance comes from the clients of the last "round", or from the "latest" view of each client
        degrees:       what D counts in equation 9: a node's neighbours in A^(k) ("counts"), or their weights
                       ("weights"). The paper calls D the degree matrix and says no more. By weights, A^(k) counts as
                       much as the client's own graph, and clients learn to repeat the predictions of the round
                       before; by neighbours, it counts about 1 / num_neighbors of that, and only so the paper's
                       finding holds that the pseudo graph alone changes little
        exact_nodes:   above this number of nodes in all, neighbours are searched for approximately
        local_steps:   steps between two messages
        step_unit:     a step is one "batch", or one "epoch" (the same here: only full batches are taken)
        optimizer:     the clients' optimiser, started anew every round
        fold:          how the clients' models become one: their weighted mean, or a robust fold
    """

    alpha: float = 0.2
    beta: float = 1.0
    threshold: float = 0.5
    num_neighbors: int = 100
    fusion: str = "sum"
    reduction: str = "mean"
    embeddings: str = "output"
    views: str = "round"
    degrees: str = "counts"
    exact_nodes: int = 20_000
    local_steps: int = 10
    step_unit: str = "batch"
    optimizer: Optimizer = Adam(lr=0.01, weight_decay=5e-4)
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)
        for name in ("alpha", "beta"):
            refuse(not 0.0 <= getattr(self, name) < float("inf"), self, name, "it must be at least 0")
        refuse(not 0.0 <= self.threshold < 1.0, self, "threshold", "a probability that can be exceeded is in [0, 1)")
        refuse(self.num_neighbors < 1, self, "num_neighbors", "it must be at least 1 (beta=0: no pseudo graph)")
        refuse(self.exact_nodes < 0, self, "exact_nodes", "it must be at least 0")
        for name, known in CHOICES.items():
            refuse(getattr(self, name) not in known, self, name, f"choose from {', '.join(known)}")

    @property
    def learns_without_labels(self) -> bool:
        """Whether pseudo labels can stand in for labels."""
        return self.alpha > 0

    # ---- server

    def setup(self, fed: Federation) -> FedGLState:
        """Start from the course's initial model, without any guidance, knowing who holds what."""
        return FedGLState(fed.initial_params, self._met({}, fed), {})

    def round(self, state: FedGLState, fed: Federation) -> FedGLState:
        """Guide the clients by the last views, average their models, keep their new views (Algorithm 1)."""
        nodes = self._met(state.nodes, fed)
        found = self.discover(nodes, state.views, fed.generator("index"))
        known = [client for client in fed.clients if client in nodes]
        num_classes = len(nodes[known[0]].classes)
        width = next((view.embeddings.shape[1] for view in state.views.values()), 0)
        width = num_classes if self.embeddings == "output" else width
        guidance = dict(zip(known, found.projected_each([nodes[client].ids for client in known]), strict=True))
        requests = {c: TrainWithGuidance(state.params, mine, num_classes, width) for c, mine in guidance.items()}
        replies = fed.ask(requests)
        models = {client: ModelUpdate(reply.params, reply.weight) for client, reply in replies.items()}
        mean = fed.fold(models, self.fold, requests)
        views = {client: reply.view for client, reply in replies.items()}
        return FedGLState(mean.params, nodes, state.views | views if self.views == "latest" else views)

    def discover(
        self, nodes: Mapping[str, NodeList], views: Mapping[str, View], generator: torch.Generator
    ) -> Discovery:
        """Return the pseudo labels and the pseudo graph that the views give together (eq. 11 to 14)."""
        held = [nodes[client].ids for client in views]
        ids, place, places = aligned(held)
        labels, start = torch.full_like(ids, NO_LABEL), ids.new_zeros(len(ids) + 1)
        graph = SparseMatrix(Pattern(start, start[:0], (len(ids), len(ids))), torch.empty(0))  # no edges
        if len(ids):
            weights = [float(len(each)) for each in held]
            mean = self.fusion == "mean"
            if self.alpha:
                parts = [view.predictions for view in views.values()]
                labels = pseudo_labels(fuse(parts, places, weights, len(ids), mean), self.threshold)
            if self.beta:
                parts = [view.embeddings for view in views.values()]
                fused = fuse(parts, places, weights, len(ids), mean)
                graph = pseudo_graph(fused, self.num_neighbors, self.exact_nodes, generator)
        return Discovery(ids, place, labels, graph)

    def _met(self, known: Mapping[str, NodeList], fed: Federation) -> dict[str, NodeList]:
        """Return who holds what, after asking the clients of the round that are new."""
        new = [client for client in fed.clients if client not in known]
        if not new:
            return dict(known)
        replies = fed.ask(ShareNodes(), clients=new, min_replies=0)
        nodes = {**known, **self._alike(known, replies, fed)}
        found, needed = sum(client in nodes for client in fed.clients), min(fed.min_replies, len(fed.clients))
        if found < needed:
            reasons = "; ".join(told(replies.failures.values())[:3])
            raise TooFewReplies(
                f"round {fed.round}, ShareNodes: {found} of {len(fed.clients)} clients said which nodes they hold, "
                f"{needed} needed ({reasons})"
            )
        nodes = {client: nodes[client] for client in fed.all_clients if client in nodes}
        if len(nodes) == len(fed.all_clients) > 1 and _all_different(nodes.values()):
            fed.note(
                "no two clients hold a common node: guidance is nothing but each client's own predictions, and "
                "similarities among its own nodes"
            )
        return nodes

    def _alike(
        self, known: Mapping[str, NodeList], found: Mapping[str, NodeList], fed: Federation
    ) -> dict[str, NodeList]:
        """Return the newcomers that have the classes of those who were there before; the others stay out, named."""
        first = next(iter(known), None)
        if first is None:
            return dict(found)
        other = [client for client, held in found.items() if held.classes != known[first].classes]
        for client in other:
            fed.note(
                f"round {fed.round}: {client} stays out: it has the classes {_listed(found[client].classes)}, {first} "
                f"has {_listed(known[first].classes)}; FedGL fuses predictions class by class: give all clients the "
                "same classes in the same order"
            )
        return {client: held for client, held in found.items() if client not in other}

    # ---- client

    @on(ShareNodes)
    def share_nodes(self, request: ShareNodes, client: GraphClient) -> NodeList:
        """Say which nodes the client holds, under the names that others know them by."""
        self.require_able(client)
        keys = require_keys(client, "say which of its nodes others hold too")
        repeated = first_repeated(keys)
        if repeated is not None:
            raise BadInput(f"{client.id} holds the id {repeated} twice; every node needs an id of its own")
        data = client.data
        return NodeList(keys, data.class_names or tuple(str(number) for number in range(data.num_classes)))

    @on(TrainWithGuidance)
    def train(self, request: TrainWithGuidance, client: GraphClient) -> LocalView:
        """Train the received model on the complemented graph, with the pseudo labels as further labels."""
        self.require_able(client)
        if problem := request.guidance.problem(client.num_nodes):
            raise BadInput(f"the guidance cannot be used: {problem}")
        prepared, loss = self.guided(client.prepared, request.guidance)
        fitted = client.fit(
            request.params,
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            loss=loss,
            prepared=prepared,
        )
        load_params(client.model, client.complete(fitted.params))
        with torch.no_grad():
            output, embeddings = self._seen(client.model, prepared.graph)
        weight = float(client.num_nodes) if fitted.steps else 0.0
        return LocalView(fitted.params, weight, View(output.softmax(dim=1), embeddings))

    @cohort(TrainWithGuidance)
    def train_together(self, requests: Sequence[TrainWithGuidance], clients: GraphCohort) -> list[LocalView]:
        """Train the received model for many clients at once, each on its own complemented graph."""
        if not all(client.num_examples for client in clients) or any(
            r.params is not requests[0].params for r in requests
        ):
            return [self.train(request, client) for request, client in zip(requests, clients, strict=True)]
        data = self.guided_together(clients, [request.guidance for request in requests])
        fitted = clients.fit(
            requests[0].params,
            steps=self.local_steps,
            step_unit=self.step_unit,
            optimizer=self.optimizer,
            data=data,
            observe=lambda model, data: self._seen(model, data.graph),
        )
        output, embeddings = fitted.observed
        # Classes become rows: along few numbers that lie together it takes several times as long.
        predictions = output.t().contiguous().softmax(dim=0).t().contiguous()
        views = zip(_apart(predictions, data), _apart(embeddings, data), strict=True)
        return [
            LocalView(mine.params, float(client.num_nodes), View(*view))
            for mine, client, view in zip(fitted.members(), clients, views, strict=True)
        ]

    def guided(self, prepared: PreparedNodes, guidance: Guidance) -> tuple[PreparedNodes, Loss | None]:
        """Return a client's data with pseudo graph and labels, and the loss of equation 8; None for the task's own."""
        graph = prepared.graph
        if self.beta and len(guidance.weights):
            graph = graph.replace(complement=self.complement(guidance.graph))
        pseudo = self._pseudo_nodes(prepared, guidance)
        if not len(pseudo):
            return replace(prepared, graph=graph), None
        nodes, known, weights = self._learned(prepared, guidance, pseudo)
        index, labels = {**prepared.index, "train": nodes}, {**prepared.labels, "train": known}

        def loss(model: nn.Module, batch: NodeBatch, generator: torch.Generator) -> Tensor:
            output: Tensor = model(batch.graph, generator)  # (nodes, classes)
            return torch.dot(cross_entropy(output.index_select(0, batch.index), batch.labels, "none"), weights)

        return replace(prepared, graph=graph, index=index, labels=labels), loss

    def guided_together(self, clients: GraphCohort, guidance: Sequence[Guidance]) -> StackedData:
        """Return what `guided` does for many clients side by side; what labels count is said with the data."""
        data = clients.data
        if self.beta and any(len(each.weights) for each in guidance):
            stacked = block_diagonal([each.graph for each in guidance], data.rows)
            data = replace(data, graph=data.graph.replace(complement=self.complement(stacked)))
        pseudo = [self._pseudo_nodes(c.prepared, g) for c, g in zip(clients, guidance, strict=True)]
        if not any(map(len, pseudo)):
            return data
        each = [self._learned(c.prepared, g, n) for c, g, n in zip(clients, guidance, pseudo, strict=True)]
        nodes, labels, weights = zip(*each, strict=True)
        rows = torch.cat([mine + k * data.rows for k, mine in enumerate(nodes)])
        learned = Examples.of(rows, torch.cat(labels), list(map(len, nodes)))
        return replace(data, learned=replace(learned, weights=torch.cat(weights)))

    def _learned(self, prepared: PreparedNodes, guidance: Guidance, pseudo: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the nodes that a client learns from, their labels or pseudo labels, and what each counts."""
        train = prepared.index["train"]
        counts = self._weights(len(train), len(pseudo))
        weights = [torch.full((len(n),), w, device=train.device) for n, w in zip((train, pseudo), counts, strict=True)]
        labels = torch.cat([prepared.labels["train"], guidance.labels[pseudo].long()])
        return torch.cat([train, pseudo]), labels, torch.cat(weights)

    def complement(self, graph: SparseMatrix) -> SparseMatrix:
        """Return beta D^-1/2 A^(k) D^-1/2 (eq. 9) of a pseudo graph, or of many clients' side by side."""
        pattern = graph.pattern
        degree = graph.row_sums() if self.degrees == "weights" else pattern.crow.diff().float()
        scale = torch.where(degree > 0, degree.pow(-0.5), 0.0)  # (nodes,)
        values = graph.values * pattern.spread(self.beta * scale)
        return graph.with_values(values.mul_(scale.index_select(0, pattern.col)))

    def _pseudo_nodes(self, prepared: PreparedNodes, guidance: Guidance) -> Tensor:
        """Return the nodes with a pseudo label that are not training nodes, V_GPL."""
        if not self.alpha:
            return prepared.index["train"][:0]
        usable = guidance.labels >= 0
        usable[prepared.index["train"]] = False
        return usable.nonzero().flatten()

    def _weights(self, num_labelled: int, num_pseudo: int) -> tuple[float, float]:
        """Return what a training node and a pseudo-labelled node count in the loss."""
        labelled = 1.0 / max(num_labelled, 1)
        return labelled, self.alpha * (1.0 / max(num_pseudo, 1) if self.reduction == "mean" else labelled)

    def _seen(self, model: nn.Module, graph: GraphInput) -> tuple[Tensor, Tensor]:
        """Return the model's output, and the embeddings that the server is told."""
        output: Tensor = model(graph, None)
        if self.embeddings == "output":
            return output, output
        assert isinstance(model, Model)
        return output, model.embed(graph, None)

    def require_able(self, client: GraphClient) -> None:
        """Refuse tasks, batches and models that pseudo labels or the pseudo graph cannot be made for."""
        require_classes_of_nodes(client, "FedGL makes pseudo labels for nodes")
        takes = "FedGL trains on the whole graph, complemented by the pseudo graph, and on all pseudo labels"
        require_whole_graph(client, takes)
        if self.embeddings == "hidden":
            _require_hidden(client.model)


def _require_hidden(model: nn.Module) -> None:
    if not isinstance(model, Model):
        raise BadInput(
            f"embeddings is 'hidden', but {type(model).__name__} is no model of this package's; use 'output'"
        )
    layers = getattr(model.gnn, "layers", ())
    if model.encoder is None and model.decoder is None and len(layers) < 2:
        raise BadInput(
            "embeddings is 'hidden', but the model has one learnable layer: before it there are the client's features, "
            "which must not leave it; use 'output', or a model with more layers"
        )


def _all_different(nodes: Iterable[NodeList]) -> bool:
    ids = torch.cat([held.ids for held in nodes])
    return len(torch.unique(ids)) == len(ids)


def _listed(classes: Iterable[str]) -> str:
    names = list(classes)
    return f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''} ({len(names)})"


def _apart(stacked: Tensor, data: StackedData) -> list[Tensor]:
    """Return each client's rows of a stacked tensor, in memory of their own."""
    blocks = stacked.view(len(data.sizes), data.rows, -1)
    return [blocks[k, :size].clone() for k, size in enumerate(data.sizes)]
