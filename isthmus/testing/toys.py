"""Toy graphs, clients and courses: small, seeded, and with the odd clients that real federations have.

`ScriptedClients` answer from a script: what the server half of an algorithm does, without graphs or models.

    clients = ScriptedClients({"a": ModelUpdate(..., weight=1.0), "b": ModelUpdate(..., weight=3.0)})
    state = FedAvg().round(ModelState(params), clients.federation(params))
    assert clients.sent == [("a", TrainModel(params)), ("b", TrainModel(params))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.config.course import Course
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel, Outcome, Runtime
from isthmus.core.protocol import Algorithm, Holdings, Position, Request, Requests
from isthmus.core.random import Secret, torch_generator
from isthmus.core.record import Params, Record
from isthmus.data.graph import Graph, undirected
from isthmus.learn.batching import Batching, FullBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks import NodeClassification
from isthmus.models import GAP, GCN, GNNSpec, MLPDecoder, ModelSpec, ProGAP
from isthmus.runs.simulation import Scenario, build_model

Script = Mapping[str, Record] | Callable[[str, Request[Any]], Record]
MIN_NODES = 4  # of a client: two nodes for training, one for validation, one for test


def toy_graph(
    num_nodes: int = 48,
    *,
    num_features: int = 6,
    num_classes: int = 3,
    num_links: int = 3,
    homophily: float = 0.8,
    unlabelled_fraction: float = 0.0,
    weighted: bool = False,
    sparse: bool = False,
    seed: int = 0,
) -> Graph:
    """Return a small homophilous graph: features are noisy class means, links mostly join nodes of a class.

    Every node proposes `num_links` links at random; one that leaves its class is refused with probability `homophily`.
    Of every four nodes in a row two are for training, one for validation, one for test, so that any piece of a few
    nodes has all three; nodes without a label (-1) are in no mask. With `sparse`, features are the few that stand out.
    """
    draw = torch_generator(seed, "toy graph")
    y = torch.randint(num_classes, (num_nodes,), generator=draw)
    means = 2.0 * torch.randn(num_classes, num_features, generator=draw)
    x = means[y] + torch.randn(num_nodes, num_features, generator=draw)
    source = torch.arange(num_nodes).repeat_interleave(num_links)
    target = torch.randint(num_nodes, (len(source),), generator=draw)
    within = torch.rand(len(source), generator=draw) < homophily
    kept = ~within | (y[source] == y[target])
    edge_index = undirected(torch.stack([source, target])[:, kept], num_nodes)[0]
    y[torch.rand(num_nodes, generator=draw) < unlabelled_fraction] = -1
    if sparse:
        x = torch.where(x > 1.5, x, 0.0).to_sparse_csr()
    turn = torch.arange(num_nodes) % MIN_NODES
    labelled = y >= 0
    return Graph(
        x=x,
        edge_index=edge_index,
        y=y,
        num_classes=num_classes,
        node_ids=torch.arange(num_nodes),
        masks={"train": labelled & (turn < 2), "val": labelled & (turn == 2), "test": labelled & (turn == 3)},
        edge_weight=_symmetric_weights(edge_index, num_nodes) if weighted else None,
        name="toy",
    )


def toy_scenario(
    num_clients: int = 3,
    *,
    num_nodes: int = 48,
    num_common: int = 3,
    client_without_training: bool = False,
    client_with_one_training_node: bool = False,
    client_without_edges: bool = False,
    sparse: bool = False,
    seed: int = 0,
) -> Scenario:
    """Return a toy graph divided among clients of ragged sizes, the k-th about k times as large as the first.

    The first `num_common` nodes of the largest client are held by all, as customers of several banks are. Each option
    makes one more client odd: the last one, then the one before it, and so on, in the order above. The
    whole graph is odd in the same places, so that the clients' graphs are what its nodes induce. With `sparse`, nodes
    have more features than a client has nodes, and few of them are set.
    """
    sizes = _ragged(num_nodes, num_clients)
    parts = list(torch.split(torch.arange(num_nodes), sizes))
    parts = [torch.cat([part, parts[-1][:num_common]]) for part in parts[:-1]] + parts[-1:]
    odd = [client_without_training, client_with_one_training_node, client_without_edges]
    if sum(odd) > num_clients:
        raise ValueError(f"{sum(odd)} odd clients were asked for but num_clients is {num_clients!r}")
    graph = toy_graph(num_nodes, num_features=40 if sparse else 6, sparse=sparse, seed=seed)
    left = list(reversed(parts))
    if client_without_training:
        graph = _with_training_nodes(graph, left.pop(0), keep=0)
    if client_with_one_training_node:
        graph = _with_training_nodes(graph, left.pop(0), keep=1)
    if client_without_edges:
        graph = _without_inner_edges(graph, left.pop(0))
    return Scenario(graph, {f"client-{i}": graph.subgraph(nodes) for i, nodes in enumerate(parts)})


def toy_course(algorithm: Algorithm[Any], **changes: Any) -> Course:
    """Return a short course for toy clients: three rounds of a narrow GCN with dropout; `changes` are its fields.

    Its clients answer one after the other, so that every message can be watched; `runtime="auto"` puts them together.
    Where clients keep heads of their own, the model has one; a method that sums once has a narrow one that it is for.
    """
    head = MLPDecoder(hidden=4) if algorithm.keeps_heads else None
    summing: dict[str, GNNSpec] = {"GAP": GAP(hidden=5, dim=4), "ProGAP": ProGAP(dim=4, dropout=0.3)}
    gnn = summing.get(getattr(algorithm, "sums_once", ""), GCN(hidden=5, dropout=0.5))
    fields: dict[str, Any] = {
        "algorithm": algorithm,
        "model": ModelSpec(gnn, decoder=head),
        "rounds": 3,
        "num_clients": 3,
        "checkpoint_every": 1,
        "runtime": "loop",
    }
    return Course(**{**fields, **changes})


def toy_client(
    data: Graph | None = None,
    *,
    model: ModelSpec | None = None,
    batching: Batching | None = None,
    id: str = "client-0",
    seed: int = 0,
) -> GraphClient:
    """Return one client for a handler to work with: a toy graph and a narrow GCN without dropout."""
    data = toy_graph() if data is None else data
    course = Course(model=model or ModelSpec(GCN(hidden=5, dropout=0.0)), seed=seed)
    module = build_model(course, data.num_features, data.num_classes)
    client = GraphClient(id, data, NodeClassification(), module, batching or FullBatch())
    client.secret = Secret.of_simulation(seed, id)
    return client


def _ragged(num_nodes: int, num_clients: int) -> list[int]:
    if num_clients < 1 or num_nodes < MIN_NODES * num_clients:
        raise ValueError(
            f"num_nodes is {num_nodes!r} for {num_clients!r} clients; every client needs {MIN_NODES} at least"
        )
    shares = [k + 1 for k in range(num_clients)]
    spare = num_nodes - MIN_NODES * num_clients
    sizes = [MIN_NODES + spare * share // sum(shares) for share in shares]
    sizes[-1] += num_nodes - sum(sizes)
    return sizes


def _symmetric_weights(edge_index: Tensor, num_nodes: int) -> Tensor:
    # The same for both directions of an edge, and different from edge to edge.
    low, high = edge_index.min(dim=0).values, edge_index.max(dim=0).values
    return 0.5 + ((low * num_nodes + high) % 7).float() / 7.0


def _with_training_nodes(graph: Graph, nodes: Tensor, keep: int) -> Graph:
    train = graph.mask("train").clone()
    mine = nodes[train[nodes]]
    train[mine[keep:]] = False
    return graph.with_masks({**graph.masks, "train": train})


def _without_inner_edges(graph: Graph, nodes: Tensor | Sequence[int]) -> Graph:
    mine = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mine[torch.as_tensor(nodes)] = True
    kept = ~(mine[graph.edge_index[0]] & mine[graph.edge_index[1]])
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    return replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=weight)


class ScriptedClients(Runtime):
    """A runtime whose clients give written replies: one for each client, or what a function of the request says.

    `sent` lists what the server asked, in order; a `Failure` in the script is a client that fails.
    """

    def __init__(self, script: Script, clients: Sequence[str] | None = None) -> None:
        if clients is None and not isinstance(script, Mapping):
            raise ValueError("clients is None and script is a function; say which clients there are")
        self.script = script
        self._clients = tuple(script if clients is None else clients)  # type: ignore[arg-type]
        self.sent: list[tuple[str, Request[Any]]] = []
        self.reports: list[ExchangeReport] = []

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in the order given."""
        return self._clients

    @property
    def holdings(self) -> dict[str, Holdings]:
        """Nothing: scripted clients have no data."""
        return {}

    def federation(
        self,
        params: Params | None = None,
        *,
        buffers: Sequence[str] = (),
        cohort: Sequence[str] | None = None,
        round: int = 1,
        seed: int = 0,
        min_replies: int = 1,
    ) -> Federation:
        """Return one round's view of these clients, for `setup` and `round` of an algorithm."""
        return Federation(
            self,
            seed=seed,
            round=round,
            cohort=self.clients if cohort is None else cohort,
            model=InitialModel(params or {}, frozenset(buffers)),
            rules=ExchangeRules(min_replies),
            report=self.reports.append,
        )

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Answer from the script."""
        for client, request in requests.items():
            self.sent.append((client, request))
            reply = self.script[client] if isinstance(self.script, Mapping) else self.script(client, request)
            yield Outcome(client, reply, 0, 0, 0.0)

    def abandon_round(self) -> int:
        """Return 0: scripted clients remember nothing."""
        return 0

    def save_clients(self) -> dict[str, bytes]:
        """Return nothing: scripted clients remember nothing."""
        return {}
