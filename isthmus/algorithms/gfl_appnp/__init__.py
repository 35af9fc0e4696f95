"""GFL-APPNP: clients are nodes of a graph and share hidden representations.

Wu et al. (2022), "Graph Federated Learning with Hidden Representation Sharing".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.algorithms.gfl_appnp.at_client import (
    alike,
    edges_of,
    form_of,
    received,
    remembered,
    require_aggregates,
    require_fit,
    same_params,
)
from isthmus.algorithms.gfl_appnp.client_graph import ClientGraph, Mixing, slices, without_blocks
from isthmus.algorithms.gfl_appnp.hosted import Given, Hosted, add_noise, bare, gradients, hidden
from isthmus.algorithms.gfl_appnp.messages import (
    HiddenShare,
    KeepOwnWeights,
    NeighborList,
    ReceiveAggregates,
    ShareHidden,
    ShareNeighbors,
    TrainWithAggregates,
)
from isthmus.algorithms.gfl_appnp.shared_updates import batches_per_epoch, steps_of, train, train_together
from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, Kept, cohort, on
from isthmus.core.record import Params, Record, State
from isthmus.core.replies import Each, Stack, StackedTensor
from isthmus.learn.able import require_keys
from isthmus.learn.graph_client import GraphClient, check_local_steps
from isthmus.learn.optimizers import ELEMENTWISE, SGD, Optimizer
from isthmus.learn.tasks.task import Predictions
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models.products.propagation import pagerank_weights

COEFFICIENTS = ("appnp", "printed")
GRADIENTS = ("jacobian", "products", "none")
WEIGHTINGS = ("examples", "nodes", "uniform", "all")


@dataclass(frozen=True)
class ClientGraphState(Record):
    """What the server keeps: the model, and the graph between clients in the form in which it is used."""

    params: Params
    """The averaged model."""
    members: tuple[str, ...]
    """The clients that have a place in the graph."""
    counts: tuple[int, ...]
    """Number of nodes that each hosts."""
    trains: Tensor
    """(places,), bool: the nodes to train on; the nodes of all members lie one after the other."""
    start: Tensor
    """A~ without each client's own block, as a sparse matrix: where each row starts, (places + 1,)."""
    column: Tensor
    """Its columns, (entries,)."""
    value: Tensor
    """Its entries, (entries,)."""
    ready: tuple[str, ...]
    """The clients that have received the aggregates of the model above."""


@dataclass(frozen=True)
class GFLAPPNP(Algorithm[ClientGraphState]):
    """Each client hosts one node of a graph, or a few; predictions mix what all nodes' encoders say.

        setup:  server -> client  ShareNeighbors()
                client -> server  NeighborList(nodes, source, target, weight, trains)   the server sees each client's
                server -> client  KeepOwnWeights(own)
                client -> server  Kept()
        then, in the setup and at the end of every round, one sharing:
                server -> client  ShareHidden(params, gradients)
                client -> server  HiddenShare(hidden, gradients)                        the server sees each client's
                server -> client  ReceiveAggregates(aggregate, gradients)               each client its own
                client -> server  Kept()
        round:  server -> client  TrainWithAggregates()
                client -> server  ModelUpdate(params, weight)                           the server sees only the mean
                one sharing of the mean

    This is Algorithm 1 cut open between its lines, so that evaluation comes after a sharing: what is evaluated is
    z_k = sum_j A~_kj h_j with every h_j of the very model that is evaluated. Per communication each thing crosses once.

        h_j,s = encoder(x_j,s; W),   h_j = mean over j's samples                                            (13a, 16)
        A~    = sum_i c_i (D^-1/2 (A + I) D^-1/2)^i                                                         (13b)
        C_k   = sum over j != k of A~_kj h_j,   grad C_k likewise of the gradients
        y^    = softmax(A~_kk h_k,s + C_k)                                                                  (15a)
        g     = mean over the batch of (y^ - y) (A~_kk grad h_k,s + grad C_k),   W <- W - lr g              (15b)

    The paper prints y - y^ in 15b; with W <- W - lr g that would climb, so it is y^ - y here. The encoder is the
    course's model on rows without edges, whatever it is: each sample by itself (GNNs are perceptrons then). C_k and
    grad C_k stay as they were received through the `local_steps` updates; the client's own part is always of its
    current weights. A client that hosts several nodes keeps all of them current: its C leaves out all its own nodes,
    and it gets its own block of A~ once. With one client that hosts all nodes, this is centralised APPNP. A node that
    several clients host counts by the mean of what they share.

    Coefficients. APPNP's Z <- (1 - alpha) S Z + alpha H, M times, comes to c_i = alpha (1 - alpha)^i and c_M =
    (1 - alpha)^M: "appnp". The paper prints c_i = (1 - alpha) alpha^i and c_M = alpha^M: "printed", which is APPNP with
    1 - alpha in the place of alpha, and at alpha = 0.1 hardly looks at neighbours. What a node without edges keeps is 1
    in both.

    Who takes part: nodes for validation and test share like all others, and only nodes to train on get grad C. Clients
    that have none are asked to train only where they count in the mean (`weighting`). All members share in every round,
    also those outside the round's cohort. A client that fails to share is missing in the others' aggregates until the
    next sharing; one that has not got its aggregates is not asked to train.

    Edges: both ends' hosts must name an edge, or the course is refused. Loops are left out (A~ has its own); edges to
    nodes that nobody hosts are left out and noted. A client names its nodes by `client.node_keys`, and neighbours
    by the attribute "neighbors" of its graph (splitter `node_hosts`), or else by its own edges. Between sites, where
    no silo's edges lead to another's nodes, those come from the table `neighbors` of its folder (`client.foreign`):
    keys of the silos' ids by their common secret. Without that table silos with nodes of their own do not mix.

    What the server sees: the client graph, each h, and each gradient of h, from which the features of a single sample
    can be computed but for their length; noise or "none" are the remedies. The noise is drawn from the client's own
    secret, anew for every answer: who asks often can average it away. h has no noise.

    What a client sees: sums over others, and these hide nobody where there is one other only. C_k is A~_kj h_j then,
    and a client that knows or guesses A~_kj (its own A~_kk says much) has h_j; likewise the gradients. So no node's C
    is of one client: it is withheld (0, and no grad C), in the setup and whenever clients that fail leave too few, and
    the journal says for how many nodes. With `min_sources=1`, which is the paper's method, the server does forward what
    one client shared to a client without other sources; two clients mix with that only. Sources are clients, not nodes:
    two nodes of one client are one source. It is a count and no proof: who hosts several nodes has several sums, and
    can subtract them.

    A client's memory: `own`, `params` (the model that was shared last), `aggregate`, `gradients`.

    Fields:
        alpha:        teleport probability
        hops:         M, the number of propagation steps
        coefficients: c_i as "appnp" or as "printed", see above
        local_steps:  I, updates between two communications
        step_unit:    a step is one "batch", or one "epoch" over the training samples
        batch_size:   training samples in each update; null for all
        optimizer:    the clients' optimiser, started anew every round
        gradients:    how gradients of h are made: "jacobian", all nodes at once, a backward pass for each class;
                      "products", node by node and class by class, with the least memory and for any module (the same
                      numbers); "none": nothing is sent and grad C is left out (the paper's V2)
        noise_std:    standard deviation of Gaussian noise on each entry of the uploaded Jacobians (V1: 1)
        weighting:    a client's share in the mean: "all", the same for everybody, as eq. 1 has it: clients that have
                      nothing to train on send the model back as it came, and slow the others down; or the same for all
                      that train ("uniform"), the number of training "examples", or of "nodes"
        min_sources:  least number of other clients that a node's C is a sum over; with 1, as in the paper, one client's
                      h may be sent on
        fold:         how the clients' models become one: their weighted mean, or a robust fold
    """

    alpha: float = 0.1
    hops: int = 10
    coefficients: str = "appnp"
    local_steps: int = 10
    step_unit: str = "batch"
    batch_size: int | None = None
    optimizer: Optimizer = SGD(lr=0.5)
    gradients: str = "jacobian"
    noise_std: float = 0.0
    weighting: str = "all"
    min_sources: int = 2
    fold: Fold = weighted_mean

    personal: ClassVar[tuple[str, ...]] = ("params", "aggregate")
    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"noise_std": "more", "min_sources": "more"}
    # A client's part of A~ and its neighbours' aggregates come in the setup and at the end of a round.
    starts_anew: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps, self.step_unit)
        for name, known in (("coefficients", COEFFICIENTS), ("gradients", GRADIENTS), ("weighting", WEIGHTINGS)):
            refuse(getattr(self, name) not in known, self, name, f"choose from {', '.join(known)}")
        refuse(not 0.0 <= self.alpha <= 1.0, self, "alpha", "a probability lies between 0 and 1")
        for name, least in (("hops", 0), ("min_sources", 1)):
            refuse(getattr(self, name) < least, self, name, f"it must be at least {least}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size!r}; it must be at least 1, or null for all samples")
        refuse(not 0.0 <= self.noise_std < float("inf"), self, "noise_std", "it must be at least 0")
        if self.noise_std and self.gradients == "none":
            raise ValueError(f'noise_std is {self.noise_std!r} and gradients "none": there is nothing to put noise on')

    @property
    def walk_weights(self) -> tuple[float, ...]:
        """c_0 to c_M of eq. 13b."""
        return pagerank_weights(self.alpha if self.coefficients == "appnp" else 1.0 - self.alpha, self.hops)

    @property
    def protecting_streams(self) -> tuple[str, ...]:
        """Noise on the gradients, if there is any."""
        return ("noise",) if self.noise_std else ()

    def scored_by_clients(self, memories: Iterable[State]) -> bool:
        """Return True: predictions need the aggregates in the clients' memories."""
        return True

    @property
    def learns_without_labels(self) -> bool:
        """Whether clients that have nothing to train on count in the mean."""
        return self.weighting == "all"

    def predict_with(self, parts: Params, task: Any, model: Any, data: Any) -> Predictions:
        """Return what the encoder says of the samples of a graph's nodes, mixed by A~ of that very graph."""
        prepared = task.prepare(data)
        hosted = Hosted.of_prepared(prepared)
        weight = torch.empty(0) if data.edge_weight is None else data.edge_weight
        source, target = data.node_ids[data.edge_index]
        graph = ClientGraph.of({"the graph": NeighborList(data.node_ids, source, target, weight, torch.empty(0))})
        matrix = graph.mixing(self.walk_weights)
        own = torch.from_numpy(matrix.diagonal()).float()[:, None]  # (nodes, 1), A~_kk
        with torch.no_grad():
            h = model(bare(hosted.x), None)  # (samples, classes)
        means = hosted.means(h)
        others = Mixing.of(matrix).times(means) - own * means
        found: Predictions = task.predict(Given(own[hosted.owner] * h + others[hosted.owner]), prepared)
        return found

    # ---- server

    def setup(self, fed: Federation) -> ClientGraphState:
        """Build the graph between clients, give everybody its own weights, and share the initial model."""
        lists = fed.ask(ShareNeighbors(), clients=fed.all_clients)
        graph = ClientGraph.of(dict(lists), leave_out=True)
        if graph.one_sided:
            fed.note(f"edges that one side names only are left out: {graph.one_sided}")
        others, blocks = without_blocks(graph.mixing(self.walk_weights), graph.counts)
        if len(graph.clients) > 1 and not others.nnz:
            fed.note(
                "no edge joins nodes of different clients, so each mixes its own nodes only; in simulation, "
                "splitter.name=node_hosts lists neighbours at other clients, between sites a table of neighbours"
            )
        mixing = Mixing.of(self._withheld(others, graph.counts, fed))
        if graph.num_left_out:
            fed.note(f"{graph.num_left_out} edges to nodes that no client hosts are left out of the client graph")
        own = dict(zip(graph.clients, blocks, strict=True))
        kept = fed.ask({client: KeepOwnWeights(block) for client, block in own.items()})
        state = ClientGraphState(
            params=fed.initial_params,
            members=graph.clients,
            counts=graph.counts,
            trains=torch.cat([reply.trains for reply in lists.values()]),
            start=mixing.start,
            column=mixing.column,
            value=mixing.value,
            ready=(),
        )
        return self._share(state, tuple(kept), fed)

    def round(self, state: ClientGraphState, fed: Federation) -> ClientGraphState:
        """Average what the clients of the cohort train, then share the mean."""
        trainers = self._trainers(state)
        asked = [client for client in fed.clients if client in state.ready and client in trainers]
        params = state.params
        if asked:
            params = fed.ask_folded(TrainWithAggregates(), self.fold, clients=asked).params
        return self._share(replace(state, params=params), state.members, fed)

    def _trainers(self, state: ClientGraphState) -> frozenset[str]:
        if self.weighting == "all":
            return frozenset(state.members)
        parts = torch.split(state.trains, list(state.counts))
        return frozenset(client for client, part in zip(state.members, parts, strict=True) if bool(part.any()))

    def _withheld(self, others: Any, counts: Sequence[int], fed: Federation) -> Any:
        """Return A~ between clients without the rows of too few clients, and note those of a single one."""
        sources = Mixing.of(others).num_clients(counts).numpy()
        few = (sources > 0) & (sources < self.min_sources)
        if few.any():
            from scipy import sparse

            fed.note(
                f"{int(few.sum())} nodes have less than {self.min_sources} sources and get no aggregate; with "
                "algorithm.min_sources=1 they would, and their hosts could tell what the one source shared"
            )
            others = (sparse.diags((~few).astype(np.float64)) @ others).tocsr()
            others.eliminate_zeros()
        single = int((sources[~few] == 1).sum())
        if single:
            fed.note(
                f"the aggregate of {single} nodes comes from one other client only, so their hosts can tell what it "
                "shared; algorithm.min_sources=2 withholds it"
            )
        return others

    def _share(self, state: ClientGraphState, members: Sequence[str], fed: Federation) -> ClientGraphState:
        """Ask everybody for its hidden representations and give back to each what the others' amount to."""
        mixing = Mixing(state.start, state.column, state.value)
        places = dict(zip(state.members, slices(state.counts), strict=True))
        rows = state.trains.nonzero().flatten()
        wanted = set() if self.gradients == "none" else set(mixing.sources(rows).tolist())
        plain, full = ShareHidden(state.params, False), ShareHidden(state.params, True)
        found = fed.ask(
            {c: plain if wanted.isdisjoint(range(places[c].start, places[c].stop)) else full for c in members}
        )
        width = next((reply.hidden.shape[1] for reply in found.values()), 0)
        replies = {c: reply for c, reply in found.items() if self._fits(c, reply, places[c], width, fed)}
        shared = torch.zeros(len(state.trains), width)
        for client, reply in replies.items():
            shared[places[client]] = reply.hidden
        aggregates = mixing.times(shared)
        mixed = mixing.mixed_gradients(rows, [(places[c], r.gradients) for c, r in replies.items() if r.gradients])
        few = self._sums_of_few(mixing, state, replies)
        aggregates[few] = 0.0
        for tensor in mixed.values():
            tensor[few[rows]] = 0.0
        requests = {}
        for client in replies:
            first, end = torch.searchsorted(rows, torch.tensor([places[client].start, places[client].stop])).tolist()
            compensation = {name: tensor[first:end] for name, tensor in mixed.items()} if end > first else {}
            requests[client] = ReceiveAggregates(aggregates[places[client]], compensation)
        kept = fed.ask(requests, min_replies=0) if requests else {}
        return replace(state, ready=tuple(kept))

    def _sums_of_few(self, mixing: Mixing, state: ClientGraphState, replies: Collection[str]) -> Tensor:
        """Return which nodes' sums are withheld, for without those that have not shared they may be one client's."""
        if self.min_sources <= 1 or len(replies) == len(state.members):
            return torch.zeros(len(state.trains), dtype=torch.bool)
        sources = mixing.num_clients(state.counts, [client in replies for client in state.members])
        return (sources > 0) & (sources < self.min_sources)

    def _fits(self, client: str, reply: HiddenShare, place: slice, width: int, fed: Federation) -> bool:
        """Whether a share is of the client's nodes and of the others' classes; one that is not is left out, and noted.

        The rest of its shapes was looked at when it came (`ShareHidden.problem`).
        """
        expected = (place.stop - place.start, width)
        if tuple(reply.hidden.shape) == expected:
            return True
        fed.note(
            f"round {fed.round}: {client} shared {reply.hidden.shape[0]} rows of {reply.hidden.shape[1]} columns, not "
            f"{expected[0]} of {expected[1]}: the nodes that it hosts, and the columns of most clients; it is left out"
        )
        return False

    # ---- client

    @on(ShareNeighbors)
    def name_neighbors(self, request: ShareNeighbors, client: GraphClient) -> NeighborList:
        """Say which nodes the client hosts, and which are their neighbours."""
        require_fit(client)
        keys = require_keys(client, "name its nodes so that others know them")
        source, target, weight = edges_of(client, keys)
        trains = torch.zeros_like(keys, dtype=torch.bool)
        trains[Hosted.of(client).train_nodes] = True
        return NeighborList(keys, source, target, weight, trains)

    @on(KeepOwnWeights)
    def keep_own_weights(self, request: KeepOwnWeights, client: GraphClient) -> Kept:
        """Keep the client's own part of A~."""
        hosted = Hosted.of(client).num_nodes
        if request.own.shape != (hosted, hosted) or not request.own.is_floating_point():
            raise BadInput(f"{client.id} hosts {hosted} nodes; its part of A~ cannot have {form_of(request.own)}")
        client.state["own"] = request.own
        return Kept()

    @on(ShareHidden)
    def share(self, request: ShareHidden, client: GraphClient) -> HiddenShare:
        """Keep the model; return each node's mean representation in it, and the gradients of these."""
        if request.gradients and self.gradients == "none":
            raise BadInput(f'{client.id} was asked for gradients, but the course says gradients "none": it gives none')
        return HiddenShare(*self._seen([request], [client]))

    def _seen(self, requests: Sequence[ShareHidden], members: Sequence[GraphClient]) -> tuple[Tensor, Params]:
        """Keep the model; return h of all members' nodes, and the gradients of those that are asked for any."""
        params, whole = same_params(requests), Hosted.joined([Hosted.of(client) for client in members])
        h = whole.means(hidden(members[0].model, params, whole.x))
        asked = [client for client, request in zip(members, requests, strict=True) if request.gradients]
        found = self._gradients(params, asked, h.shape[1]) if asked else {}
        for client in members:
            client.state["params"] = params
        return h, found

    @cohort(ShareHidden)
    def share_together(self, requests: Sequence[ShareHidden], clients: GraphCohort) -> list[HiddenShare] | Stack:
        """Run the encoder once over all clients' samples."""
        asked = [k for k, request in enumerate(requests) if request.gradients]
        if asked and self.gradients == "none":
            raise ValueError("gradients are asked for in a course without; each client refuses by itself")
        h, found = self._seen(requests, list(clients))
        sizes = [Hosted.of(client).num_nodes for client in clients]
        if len(set(sizes)) == 1 and len(asked) in (0, len(sizes)):
            stacked = {name: StackedTensor(t.view(len(sizes), sizes[0], *t.shape[1:])) for name, t in found.items()}
            each = StackedTensor(h.view(len(sizes), sizes[0], h.shape[1]))
            return Stack.of(clients.ids, HiddenShare, hidden=each, gradients=stacked)
        mine: list[Params] = [{} for _ in sizes]
        for name, tensor in found.items():
            for k, part in zip(asked, torch.split(tensor, [sizes[k] for k in asked]), strict=True):
                mine[k][name] = part
        return [HiddenShare(part, grads) for part, grads in zip(torch.split(h, sizes), mine, strict=True)]

    def _gradients(self, params: Params, members: Sequence[GraphClient], num_classes: int) -> Params:
        """Return the gradients of clients' nodes, one client's after the other's."""
        hosts = [Hosted.of(client) for client in members]
        found = gradients(members[0].model, params, Hosted.joined(hosts), self.gradients == "jacobian")
        if not self.noise_std:
            return found
        parts = {name: torch.split(tensor, [host.num_nodes for host in hosts]) for name, tensor in found.items()}
        noisy = []
        for k, client in enumerate(members):
            mine = {name: part[k] for name, part in parts.items()}
            noisy.append(add_noise(mine, self.noise_std, num_classes, client.protecting("noise", mine)))
        return {name: torch.cat([each[name] for each in noisy]) for name in found}

    @on(ReceiveAggregates)
    def receive(self, request: ReceiveAggregates, client: GraphClient) -> Kept:
        """Keep what the neighbours amount to."""
        require_aggregates(request, client)
        client.state["aggregate"], client.state["gradients"] = request.aggregate, request.gradients
        return Kept()

    @on(TrainWithAggregates)
    def train(self, request: TrainWithAggregates, client: GraphClient) -> ModelUpdate:
        """Train the shared model for a while, with the neighbours as they were."""
        hosted, params = Hosted.of(client), client.state["params"]
        plan = steps_of(hosted, self.batch_size, client.generator("batches"))
        trained = train(
            client.model,
            params,
            hosted,
            received(client),
            islice(plan, self._num_steps(hosted)),
            self.optimizer,
            self._lr(client),
            client.generator("fit"),
        )
        return ModelUpdate(trained, self.weight(client))

    @cohort(TrainWithAggregates)
    def train_all(self, requests: Sequence[TrainWithAggregates], clients: GraphCohort) -> Stack:
        """Train for many clients at once."""
        members = list(clients)
        hosts = [Hosted.of(client) for client in members]
        params: Params = members[0].state["params"]
        if not all(alike(client.state["params"], params) for client in members):  # after a resume, each has a copy
            raise ValueError("clients begin with different models")
        weights = Each(tuple(self.weight(client) for client in members))
        if not any(len(host.train) for host in hosts):
            same = {name: StackedTensor(t.expand(len(members), *t.shape)) for name, t in params.items()}
            return Stack.of(clients.ids, ModelUpdate, params=same, weight=weights)
        steps = {self._num_steps(host) for host in hosts}
        if type(self.optimizer) not in ELEMENTWISE or len(steps) > 1:
            raise ValueError("clients take different numbers of steps, or their optimiser is not known to stack")
        full = self.batch_size is None or all(len(host.train) <= self.batch_size for host in hosts)
        trained = train_together(
            clients.model,
            params,
            hosts,
            [received(client) for client in members],
            [steps_of(h, self.batch_size, c.generator("batches")) for h, c in zip(hosts, members, strict=True)],
            steps.pop(),
            full,
            self.optimizer,
            self._lr(members[0]),
            lambda: [client.generator("fit") for client in members],
        )
        stacked = {name: StackedTensor(tensor) for name, tensor in trained.items()}
        return Stack.of(clients.ids, ModelUpdate, params=stacked, weight=weights)

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Measure softmax(sum_j A~_kj h_j) on the client's own samples."""
        memory = self._memory_for(request, client)
        hosted = Hosted.of(client)
        z = hosted.mixed(memory["own"], hidden(client.model, request.params, hosted.x), memory["aggregate"])
        metrics, counts = client.task.evaluate(Given(z), client.prepared, request.splits)
        return Evaluation(metrics, counts)

    @cohort(EvaluateModel)
    def evaluate_together(self, requests: Sequence[EvaluateModel], clients: GraphCohort) -> list[Evaluation]:
        """Run the encoder once over all clients' samples and measure each client's."""
        hosts = [Hosted.of(client) for client in clients]
        memories = [self._memory_for(request, client) for request, client in zip(requests, clients, strict=True)]
        params = same_params(requests)
        whole = Hosted.joined(hosts)
        h = hidden(clients.model, params, whole.x)
        sizes = [len(host.owner) for host in hosts]
        if all(host.num_nodes == 1 for host in hosts):
            own = torch.cat([memory["own"] for memory in memories])  # (clients, 1)
            offset = torch.cat([memory["aggregate"] for memory in memories])  # (clients, classes)
            logits = own[whole.owner] * h + offset[whole.owner]
        else:
            each = zip(hosts, memories, torch.split(h, sizes), strict=True)
            logits = torch.cat([host.mixed(memory["own"], h, memory["aggregate"]) for host, memory, h in each])
        data = clients.data
        padded = logits.new_zeros(len(hosts) * data.rows, logits.shape[1])
        rows = torch.tensor(sizes)
        first = torch.repeat_interleave(torch.arange(len(hosts)) * data.rows - (rows.cumsum(0) - rows), rows)
        padded[(first + torch.arange(len(logits))).to(padded.device)] = logits
        found = clients.task.evaluate_stacked(Given(padded), data, requests[0].splits)
        return [Evaluation(metrics, counts) for metrics, counts in found]

    def _memory_for(self, request: EvaluateModel, client: GraphClient) -> State:
        return remembered(self.best_memory(client.state) if request.best else client.state, request)

    def weight(self, client: GraphClient) -> float:
        """Return the client's share in the mean; zero for one that has nothing to train on, unless all count."""
        if client.num_examples == 0 and self.weighting != "all":
            return 0.0
        sizes = {"examples": client.num_examples, "nodes": client.num_nodes}
        return float(sizes.get(self.weighting, 1))

    def _num_steps(self, hosted: Hosted) -> int:
        return self.local_steps * (batches_per_epoch(hosted, self.batch_size) if self.step_unit == "epoch" else 1)

    def _lr(self, client: GraphClient) -> float:
        return self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1))
