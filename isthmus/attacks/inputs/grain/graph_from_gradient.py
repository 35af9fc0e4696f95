"""The graph that a client trains on, rebuilt from one gradient.

After Drencheva, Petrov, Baader, Dimitrov and Vechev, "GRAIN: Exact graph reconstruction from gradients" (ICLR 2025).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import CURIOUS_SERVER, Attack, Case, Seen
from isthmus.attacks.inputs.dense import DenseGCN, in_double, model_problem, weight
from isthmus.attacks.inputs.grain.blocks import Kinds, Limits
from isthmus.attacks.inputs.grain.search import LossOf, Sought, of_answers, of_classes, rebuilt
from isthmus.attacks.inputs.grain.small_graph import SmallGraph, alike, rings, same
from isthmus.attacks.inputs.layers import UPDATES, first_update, steps_problem, without_decay
from isthmus.attacks.measures import mean_of
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.learn.tasks import GraphBinary, GraphClassification, NodeClassification
from isthmus.models.decoders import MLPDecoder

# Of so many graphs that nobody holds rings are known, and how likely one is that none of them has.
EXAMPLES = 200
RARE = 1e-5

LOSSES: dict[type[Any], LossOf] = {
    NodeClassification: of_classes,
    GraphClassification: of_classes,
    GraphBinary: of_answers,
}


@dataclass(frozen=True, eq=False)
class Nodes:
    """What is known of nodes, and of graphs like a client's.

    Fields:
        kinds: what single nodes can be: features with a number of neighbours
        drawn: by client, a graph of the data, drawn at random
        rings: which share of edges is in a ring of each size, of some graphs of a set; nothing where there is no set
    """

    kinds: Kinds
    drawn: Mapping[str, SmallGraph]
    rings: Mapping[int, float]

    def likelihood(self, graph: SmallGraph) -> float:
        """Return the logarithm of how likely the rings of a graph are."""
        return sum(number * math.log(self.rings.get(size, RARE)) for size, number in rings(graph).items())


@dataclass(frozen=True)
class GraphFromGradient(Attack):
    """Rebuilds the one graph that a client trains on, features and edges, from its gradient.

    1. Kinds of nodes whose features lie in the span of the first layer's gradient may be there; others are not.
    2. Such a node with neighbours has a hidden row, and that lies in the span of the second layer's gradient.
    3. Of a graph with one label, the decoder's gradient has the mean of all nodes' rows: nodes with the neighbours of
       their neighbours are counted by least squares without negative numbers. This is not in the paper.
    4. Nodes are put together depth first until each has its neighbours, and the gradient of all weights is right.

    It finds graphs of fewer nodes than the layers have columns, with A + I regular: else rows lie in no span. Graphs
    whose nodes see the same within two hops have the same gradient; of these it takes the one with the usual rings.

    Fields:
        degree_columns: so many columns of the features, the last ones, say how many neighbours a node has in the
                        client's graph, one-hot from 0 on; with 0, kinds are the pairs of features and numbers of
                        neighbours that occur in the whole data
        rank:           directions whose singular value is below this share of the largest are rounding
        tolerance:      rows lie in a span if no more than this share of their length does not
        fits:           a graph is right if its gradient is off by no more than this share of its length
        steps:          steps of the depth-first search; what takes more counts as not rebuilt
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "the graph that a client trains on, with its features"
    knows: ClassVar[str] = "which features nodes of such data can have, with how many neighbours, and usual rings"
    reads: ClassVar[tuple[str, ...]] = UPDATES
    measures: ClassVar[tuple[str, ...]] = ("exact", "nodes", "one hop", "two hops")

    degree_columns: int = 0
    rank: float = 1e-6
    tolerance: float = 1e-2
    fits: float = 1e-2
    steps: int = 50_000

    def __post_init__(self) -> None:
        refuse(self.degree_columns < 0, self, "degree_columns", "it may not be negative")
        refuse(self.steps < 1, self, "steps", "it must be at least 1")
        for name in ("rank", "tolerance", "fits"):
            refuse(not 0.0 < getattr(self, name) < 1.0, self, name, "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return why there is no gradient of one graph that could be undone."""
        if type(course.task) not in LOSSES:
            return (
                f"it reads labels off gradients of classes, or of yes and no; the task is {type(course.task).__name__}"
            )
        problem = model_problem(course) or steps_problem(course, (1,))
        if problem:
            return problem
        spec: Any = course.model
        if spec.gnn.layers != 2 or not spec.activate:
            return (
                "it undoes two layers with relu after both: set model.gnn.layers=2, a decoder and model.activate=true"
            )
        if spec.readout is None and isinstance(spec.decoder, MLPDecoder) and spec.decoder.layers > 1:
            return "of nodes with scores it undoes one linear map after the graph network: set model.decoder=linear"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first round."""
        return at.round <= 1

    def known(self, case: Case) -> Nodes:
        """Return the kinds of nodes in the whole data, and a graph drawn from it for each client."""
        whole = case.scenario.whole
        kinds = kinds_of(whole.x.to_dense(), whole.edge_index, self.degree_columns)
        examples = {client: drawn(case, client, self.degree_columns) for client in case.clients}
        return Nodes(kinds, examples, shares_of_rings(case))

    def guess(self, seen: Seen, known: Nodes) -> dict[str, SmallGraph]:
        """Return the graph of each client; where none is found, the one that was drawn."""
        found = {}
        for client in seen.clients:
            graph = self._of(seen, client, known)
            found[client] = known.drawn[client] if graph is None else graph
        return found

    def _of(self, seen: Seen, client: str, known: Nodes) -> SmallGraph | None:
        sent, back = first_update(seen, client)
        algorithm: Any = seen.course.algorithm
        moved = {name: without_decay(sent[name], back[name], seen.course) for name in sent}
        gradient = {name: -each / algorithm.optimizer.lr for name, each in moved.items()}
        if not gradient[weight(0)].any() or not gradient[weight(1)].any():
            return None
        loss, limits = LOSSES[type(seen.course.task)], Limits(steps=self.steps)
        model = DenseGCN.of(seen.course)
        sought = Sought(model, in_double(sent), gradient, loss, self.rank, self.tolerance, self.fits, limits)
        return rebuilt(replace(sought, likelihood=known.likelihood), known.kinds)

    def prior(self, known: Nodes, clients: Sequence[str]) -> dict[str, SmallGraph]:
        """Return the graphs that were drawn."""
        return {client: known.drawn[client] for client in clients}

    def truth(self, case: Case, known: Nodes) -> dict[str, SmallGraph]:
        """Return the graph of each client that trains on one alone."""
        found = {}
        for client, part in case.scenario.parts.items():
            if not isinstance(part, GraphSet):
                found[client] = SmallGraph.of(part)
            elif int(part.mask("train").sum()) == 1:
                found[client] = SmallGraph.of(part.graph(int(part.mask("train").nonzero()[0])))
        return found

    def scores(self, guess: Mapping[str, SmallGraph], truth: Mapping[str, SmallGraph]) -> dict[str, float]:
        """Return how many are the same, and F1 of nodes, alone and with what lies within one hop and two."""
        pairs = [(guess[client], graph) for client, graph in truth.items()]
        hops = {name: mean_of([alike(*pair, hops) for pair in pairs]) for hops, name in enumerate(self.measures[1:])}
        return {"exact": mean_of([float(same(*pair)) for pair in pairs]), **hops}


def kinds_of(x: Tensor, edge_index: Tensor, degree_columns: int) -> Kinds:
    """Return the nodes that there can be, each once."""
    if degree_columns:
        own = distinct(x[:, : x.shape[1] - degree_columns]).double()
        return Kinds(own, torch.zeros(len(own), dtype=torch.long), degree_columns)
    degrees = torch.bincount(edge_index[0], minlength=len(x))
    both = distinct(torch.cat([x, degrees.unsqueeze(1).to(x.dtype)], dim=1))
    return Kinds(both[:, :-1].double(), both[:, -1].long())


def distinct(rows: Tensor) -> Tensor:
    """Return the rows, each once, as they come first."""
    _, which = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((int(which.max()) + 1 if len(which) else 0,), len(rows))
    first = first.scatter_reduce(0, which, torch.arange(len(rows)), "amin")
    return rows[first.sort().values]


def drawn(case: Case, client: str, degree_columns: int) -> SmallGraph:
    """Return a graph of the data: one of a set, or a part of a graph that is as large as clients' are on average."""
    whole, draw = case.scenario.whole, case.generator("graph like that of", client)
    if isinstance(whole, GraphSet):
        return SmallGraph.of(whole.graph(int(torch.randint(whole.num_items, (1,), generator=draw))))
    sizes = [part.num_nodes for part in case.scenario.parts.values()]
    number = max(1, round(sum(sizes) / len(sizes)))
    nodes = near_nodes(whole.edge_index, whole.num_nodes, number, draw)
    return SmallGraph.of(with_degrees(whole.subgraph(nodes), degree_columns))


def with_degrees(graph: Graph, columns: int) -> Graph:
    """Return a graph whose last columns of features say each node's number of neighbours, one-hot from 0 on."""
    if not columns:
        return graph
    degrees = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).clamp_max(columns - 1)
    x = graph.x.to_dense()
    told = torch.eye(columns, dtype=x.dtype)[degrees]
    return replace(graph, x=torch.cat([x[:, : x.shape[1] - columns], told], dim=1))


def shares_of_rings(case: Case) -> dict[int, float]:
    """Return which share of edges is in a ring of each size, of some graphs of a set that no client holds."""
    whole = case.scenario.whole
    if not isinstance(whole, GraphSet):
        return {}
    held = torch.zeros(whole.num_items, dtype=torch.bool)
    for part in case.scenario.parts.values():
        held[torch.isin(whole.graph_ids, part.graph_ids)] = True
    others = (~held).nonzero().flatten()
    some = others[torch.randperm(len(others), generator=case.generator("graphs with rings"))[:EXAMPLES]]
    found: Counter[int] = Counter()
    for place in some.tolist():
        found += rings(SmallGraph.of(whole.graph(place)))
    total = sum(found.values())
    return {size: number / total for size, number in found.items()}


def near_nodes(edge_index: Tensor, num_nodes: int, number: int, draw: torch.Generator) -> Tensor:
    """Return a node drawn at random and those that a walk outwards from it meets first, so many if there are."""
    start = int(torch.randint(num_nodes, (1,), generator=draw))
    inside = torch.zeros(num_nodes, dtype=torch.bool)
    inside[start] = True
    found = [start]
    while len(found) < number:
        reached = edge_index[1][inside[edge_index[0]]]
        fresh = torch.unique(reached[~inside[reached]])
        if not len(fresh):
            break
        chosen = fresh[torch.randperm(len(fresh), generator=draw)][: number - len(found)]
        inside[chosen] = True
        found += chosen.tolist()
    return torch.tensor(sorted(found))
