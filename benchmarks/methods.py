"""Isthmus against bare loops, method by method: the same rounds on the same clients, taking turns.

    python benchmarks/methods.py [--only NAME ...] [--repeats 5] [--rounds 3] [--data-root DATA]

One table, with two bare loops of the same lines in `bare/`, one file for each method. `loop` is what somebody who
knows torch_geometric writes: its layers with cached normalisation, dense features as its datasets give them, torch's
optimiser. `tuned` has two things more that only measuring tells: bags of words as sparse tensors, and Adam in one pass
over memory. Where features are dense anyway (neighbours, graphs) Adam alone is another; SCAFFOLD has plain SGD.

Milliseconds are of the processor, for one round, without evaluation, medians over repeats; ratios are taken repeat by
repeat and given as median and range, of processor time, and for `loop` of time by the clock too. `weights apart` is the
largest difference of a weight from either loop after three rounds at dropout 0, of all that a method keeps: the global
model, and control variates, personal or previous models of clients; the script fails where it is above what single
precision explains.

Where a method learns from samples, each side draws its own in the rounds that are timed. In those whose weights are
compared there is nothing to draw: links have the negatives that the data tells; batches of nodes hold all training
nodes with all their neighbours, of smaller clients; batches of graphs hold all training graphs of a client.

One thread on all sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from bare.ditto import DittoLoop
from bare.fedavg import FedAvgLoop
from bare.fedgl import FedGLLoop
from bare.fedprox import FedProxLoop
from bare.graphs import BATCH, GraphLoop
from bare.links import LinkLoop
from bare.moon import MoonLoop
from bare.neighbors import BATCH as SEEDS
from bare.neighbors import FANOUTS, NeighborLoop
from bare.nodes import HIDDEN, LR, STEPS, Setting
from bare.scaffold import DECAY, SGD_LR, ScaffoldLoop
from sides import Ours
from synthetic import BlockSplitter, Synthetic
from timing import heading, interleaved, row, short, spread

import isthmus as ist
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo.links_of import LinksOf
from isthmus.data.zoo.tu import PROTEINS
from isthmus.learn.batching import MiniBatch, NeighborBatch
from isthmus.learn.tasks import GraphClassification, LinkPrediction
from isthmus.models import GCN, GIN, SAGE, DotDecoder, MLPDecoder, SumReadout
from isthmus.runs.simulation import Scenario, load_scenario

SHORTEST_TURN = 0.3  # seconds
CHECKED_ROUNDS = 3
COLUMNS = (
    *("method", "clients", "isthmus ms", "loop ms", "tuned ms"),
    *("loop / isthmus", "tuned / isthmus", "loop / isthmus by the clock", "weights apart"),
)
Weights = dict[str, torch.Tensor]

TIMED = Setting()
# Adam divides a gradient by its size, so that one which is nothing but rounding (1e-9) becomes a step of full length as
# soon as eps is not far above it. Where weights are compared, eps is: all else is as in the rounds that are timed.
CHECKED = Setting(dropout=0.0, eps=1e-3, sampled=False)
# Sums of up to some thousand terms of order one, in another order, differ by up to 1e-5 of them. FedGL chooses
# neighbours: of two whose products are equal up to rounding, each side may take another (19 of 2,708 nodes did after a
# round with five clients), and a neighbour counts a hundredth of a row of the pseudo graph.
TOLERANCE, TOLERANCE_OF_CHOICES = 1e-5, 1e-4


class Loop(Protocol):
    """A bare loop."""

    def round(self) -> int:
        """Do one round and return how many clients trained in it."""

    def params(self) -> list[Weights]:
        """Return all weights that the method has, the global model's first, under the package's names."""


@dataclass(frozen=True)
class Method:
    """What is compared.

    Fields:
        course:    the course of our side for a number of clients; dropout and Adam's eps are the setting's
        bare:      makes the bare loop of the same clients, initial weights and setting
        clients:   numbers of clients
        memory:    key of a client's memory that holds further weights, to be compared too
        tolerance: how far the sides' weights may be apart
        timed:     the setting of the rounds that are timed
    """

    course: Callable[[int, Setting], ist.Course]
    bare: Callable[[Scenario, Mapping[str, torch.Tensor], Setting], Loop]
    clients: tuple[int, ...]
    memory: str = ""
    tolerance: float = TOLERANCE
    timed: Setting = TIMED


def with_eps(algorithm: Any, setting: Setting) -> Any:
    """Return the algorithm with the setting's eps, if it has Adam."""
    if not isinstance(algorithm.optimizer, ist.Adam):
        return algorithm
    return replace(algorithm, optimizer=replace(algorithm.optimizer, eps=setting.eps))


def nodes(algorithm: Any, **fields: Any) -> Callable[[int, Setting], ist.Course]:
    """Return courses on Cora with a GCN."""

    def course(num_clients: int, setting: Setting) -> ist.Course:
        model = ist.ModelSpec(GCN(hidden=HIDDEN, dropout=setting.dropout))
        return ist.Course(num_clients=num_clients, algorithm=with_eps(algorithm, setting), model=model, **fields)

    return course


def graphs(algorithm: Any) -> Callable[[int, Setting], ist.Course]:
    """Return courses on PROTEINS with GIN, one pass over the training graphs in each round."""

    def course(num_clients: int, setting: Setting) -> ist.Course:
        head = MLPDecoder(HIDDEN, dropout=setting.dropout)
        return ist.Course(
            dataset=PROTEINS(),
            splitter=RandomSplitter(),
            task=GraphClassification(),
            batching=MiniBatch(BATCH),
            num_clients=num_clients,
            algorithm=with_eps(algorithm, setting),
            model=ist.ModelSpec(GIN(hidden=HIDDEN, dropout=setting.dropout), decoder=head, readout=SumReadout()),
        )

    return course


@dataclass(frozen=True)
class LinksAndNone(LinksOf):
    """The links of a dataset, and as many pairs of nodes that are told to be none."""

    def load(self, root: Path) -> LinkGraph:
        """Return links and pairs."""
        found = super().load(root)
        # With the pairs of seed 0, rounding decides in the third round of five clients whether ReLU lets one number of
        # one node through: 23 weights of the dense loop, the node's words, are then 7e-5 from both other sides.
        draw = torch.Generator().manual_seed(1)
        pairs = torch.randint(found.num_nodes, found.links.shape, generator=draw).sort(dim=0).values
        key, links = (ends[0] * found.num_nodes + ends[1] for ends in (pairs, found.links.sort(dim=0).values))
        pairs = pairs[:, ~torch.isin(key, links) & (pairs[0] != pairs[1])]
        count = found.num_items + pairs.shape[1]
        return replace(
            found,
            links=torch.cat([found.links, pairs], dim=1),
            label=torch.zeros(count, dtype=torch.int64),
            link_ids=torch.arange(count),
            linked=(torch.arange(count) < found.num_items).long(),
            negatives="none",
        )


def links(algorithm: Any) -> Callable[[int, Setting], ist.Course]:
    """Return courses on the links of Cora with a GCN and scalar products, each step on all training links."""

    def course(num_clients: int, setting: Setting) -> ist.Course:
        return ist.Course(
            dataset=LinksOf() if setting.sampled else LinksAndNone(),
            splitter=RandomSplitter(),
            task=LinkPrediction(),
            num_clients=num_clients,
            algorithm=with_eps(algorithm, setting),
            model=ist.ModelSpec(GCN(hidden=HIDDEN, dropout=setting.dropout), decoder=DotDecoder()),
        )

    return course


def neighbors(algorithm: Any) -> Callable[[int, Setting], ist.Course]:
    """Return courses on clients of 10,000 nodes with GraphSAGE, each step on a sampled neighbourhood."""

    def course(num_clients: int, setting: Setting) -> ist.Course:
        size = (10_000 if setting.sampled else 1_000) * num_clients
        everything = NeighborBatch(size, (-1,) * len(FANOUTS))
        return ist.Course(
            dataset=Synthetic(num_nodes=size, num_pairs=5 * size, num_features=32, num_groups=num_clients),
            splitter=BlockSplitter(),
            batching=NeighborBatch(SEEDS, FANOUTS) if setting.sampled else everything,
            num_clients=num_clients,
            algorithm=with_eps(algorithm, setting),
            model=ist.ModelSpec(SAGE(hidden=HIDDEN, dropout=setting.dropout)),
        )

    return course


ADAM = ist.Adam(lr=LR)
ONE_EPOCH = ist.FedAvg(local_steps=1, step_unit="epoch", optimizer=ADAM)
BOTH = (5, 50)
# FedGL is for clients that have nodes in common: 10 % of Cora are everybody's.
COMMON = RandomSplitter(overlap_fraction=0.1)
METHODS: dict[str, Method] = {
    "fedavg": Method(nodes(ist.FedAvg(local_steps=STEPS, optimizer=ADAM)), FedAvgLoop, BOTH),
    "fedprox": Method(nodes(ist.FedProx(local_steps=STEPS, optimizer=ADAM, mu=0.01)), FedProxLoop, BOTH),
    "scaffold": Method(
        nodes(ist.Scaffold(local_steps=STEPS, optimizer=ist.SGD(lr=SGD_LR, weight_decay=DECAY))),
        ScaffoldLoop,
        BOTH,
        memory="variate",
    ),
    "moon": Method(nodes(ist.MOON(local_steps=STEPS, optimizer=ADAM)), MoonLoop, BOTH, memory="previous"),
    "ditto": Method(nodes(ist.Ditto(local_steps=STEPS, optimizer=ADAM)), DittoLoop, BOTH, memory="model"),
    "fedgl": Method(
        nodes(ist.FedGL(local_steps=STEPS, optimizer=ADAM), splitter=COMMON),
        FedGLLoop,
        BOTH,
        tolerance=TOLERANCE_OF_CHOICES,
    ),
    "links": Method(links(ist.FedAvg(local_steps=STEPS, optimizer=ADAM)), LinkLoop, (5,)),
    "neighbors": Method(neighbors(ist.FedAvg(local_steps=STEPS, optimizer=ADAM)), NeighborLoop, (10,)),
    "graphs": Method(graphs(ONE_EPOCH), GraphLoop, (10,), timed=Setting(dropout=0.0)),
}


def our_weights(ours: Ours, memory: str) -> list[Weights]:
    """Return our side's weights in the order of a bare loop's: the server's, then those in the clients' memories."""
    state: Any = ours.state
    found = [state.params, *([state.variate] if hasattr(state, "variate") else [])]
    remembered = (client.state.get(memory) for client in ours.simulation.clients.values()) if memory else ()
    return [*found, *(dict(each) for each in remembered if each is not None)]


def bare_loops(method: Method, scenario: Scenario, start: Weights, setting: Setting) -> dict[str, Loop]:
    """Return the bare loops of a method by name."""
    return {
        name: method.bare(scenario, start, setting._replace(tuned=tuned))
        for name, tuned in (("loop", False), ("tuned", True))
    }


def apart(method: Method, num_clients: int, root: Path, rounds: int = CHECKED_ROUNDS) -> float:
    """Return the largest difference of a weight from a bare loop's after some rounds at dropout 0."""
    course = method.course(num_clients, CHECKED)
    scenario = load_scenario(course, root)
    ours = Ours(course, scenario)
    loops = bare_loops(method, scenario, ours.simulation.initial.params, CHECKED).values()
    for _ in range(rounds):
        ours.round()
        for loop in loops:
            loop.round()
    mine = our_weights(ours, method.memory)
    pairs = [pair for loop in loops for pair in zip(mine, loop.params(), strict=True)]
    return max(float((own[name] - theirs[name]).abs().max()) for own, theirs in pairs for name in theirs)


def compare(name: str, method: Method, num_clients: int, root: Path, rounds: int, repeats: int) -> None:
    """Print a row of the table; raises SystemExit where the sides' weights are too far apart."""
    found = apart(method, num_clients, root)
    course = method.course(num_clients, method.timed)
    scenario = load_scenario(course, root)
    ours = Ours(course, scenario)
    sides = {"isthmus": ours, **bare_loops(method, scenario, ours.simulation.initial.params, method.timed)}
    wall = interleaved(sides, rounds, repeats, shortest=SHORTEST_TURN)
    wall.trained(*sides)
    busy = wall.of_processor()
    times = [short(busy.median(side)) for side in sides]
    ratios = [spread(each.ratios(side, "isthmus")) for each, side in ((busy, "loop"), (busy, "tuned"), (wall, "loop"))]
    row(name, num_clients, *times, *ratios, f"{found:.1e}")
    if not found <= method.tolerance:
        raise SystemExit(f"{name}, {num_clients} clients: weights are {found:.1e} apart, above {method.tolerance:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--clients", type=int, nargs="+", help="in the place of each method's own numbers of clients")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in a turn, at least")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side that count")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="where datasets are that do not ship")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the bare loops' dropout
    heading(*COLUMNS)
    for name in chosen.only:
        method = METHODS[name] if chosen.clients is None else replace(METHODS[name], clients=tuple(chosen.clients))
        for number in method.clients:
            compare(name, method, number, chosen.data_root, chosen.rounds, chosen.repeats)


if __name__ == "__main__":
    main()
