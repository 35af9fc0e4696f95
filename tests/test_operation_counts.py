"""How many operations torch is given, and how large their results are: the cost of a simulation, without a clock.

A count that grows is a slower simulation long before a benchmark would tell.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isthmus.algorithms import APFL, MOON, Ditto, FedAvg, FedDyn, FedProx, FedRep, PFedMe, Scaffold
from isthmus.algorithms.fedavg import TrainModel
from isthmus.core.federation import ExchangeRules, Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import EvaluateModel, ModelState
from isthmus.learn.batching import LinkBatch, MiniBatch, NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, Optimizer
from isthmus.learn.tasks import (
    GraphClassification,
    LinkClassification,
    LinkPrediction,
    NodeClassification,
    NodeSamples,
)
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import (
    APPNP,
    GAT,
    GCN,
    GIN,
    GPRGNN,
    MLP,
    SAGE,
    SGC,
    DistMultDecoder,
    DotDecoder,
    MLPDecoder,
    ModelSpec,
    SumReadout,
)
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.runtime.loop import StackedRuntime
from isthmus.testing import toy_course
from isthmus.testing.toys import toy_graph
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts

# What a client draws for itself: its random bits, and the place where they go.
OF_EACH_CLIENT = {"aten.random_.from", "aten.select.int", "aten.slice.Tensor"}


class Counting(TorchDispatchMode):
    """Counts operations by name, and finds the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations[str(func)] += 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and not leaf.is_meta:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out

    @property
    def total(self) -> int:
        return self.operations.total()


def counted(call: Callable[[], Any]) -> Counting:
    """Return what a call costs once everything that is built only once has been built."""
    call()
    with Counting() as counts:
        call()
    return counts


def simulation(
    num_clients: int,
    algorithm: Any = None,
    *,
    model: ModelSpec | None = None,
    sparse: bool = False,
    num_features: int = 40,
    share: float = 0.25,
    runtime: str = "auto",
) -> Simulation:
    """Return clients with equally many nodes, so that one block holds them all."""
    parts = {}
    for k in range(num_clients):
        graph = toy_graph(16, num_features=num_features, seed=k)
        x = 0.2 * graph.x  # small, so that nobody diverges
        kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(k)) < share
        parts[f"client-{k:02d}"] = replace(graph, x=(x * kept).to_sparse_csr() if sparse else x)
    course = toy_course(algorithm or FedAvg(), model=model or ModelSpec(), num_clients=num_clients, runtime=runtime)
    return Simulation(course, Scenario(next(iter(parts.values())), parts))


def federation(of: Simulation, round: int = 1) -> Federation:
    rules = ExchangeRules(min_replies=len(of.clients))
    clients = of.runtime.clients
    return Federation(
        of.runtime, seed=0, round=round, cohort=clients, model=of.initial, rules=rules, report=lambda report: None
    )


def one_round(of: Simulation) -> Counting:
    rounds = itertools.count(1)  # what is drawn at one place of a course is not drawn there again
    return counted(lambda: federation(of, next(rounds)).ask_folded(TrainModel(of.initial.params), weighted_mean))


def one_evaluation(of: Simulation) -> Counting:
    state = ModelState(of.initial.params)
    request = EvaluateModel(of.course.algorithm.global_params(state), ("train", "val"), "accuracy", best=False)
    return counted(lambda: federation(of).ask(request, clients=of.runtime.clients, min_replies=0))


def require_together(of: Simulation, request: str) -> None:
    assert isinstance(of.runtime, StackedRuntime)
    assert of.runtime.together[request] and not of.runtime.alone[request] and not of.runtime.notes


def test_clients_data_are_put_side_by_side_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    stack = NodeClassification.stack

    def counting(task: Any, prepared: Any) -> Any:
        stacked.append(len(prepared))
        return stack(task, prepared)

    monkeypatch.setattr(NodeClassification, "stack", counting)
    of = simulation(6)
    one_round(of), one_evaluation(of)
    assert stacked == [6]


MODELS = {
    "gcn": ModelSpec(GCN(dropout=0.0)),
    "gcn with batch norm": ModelSpec(GCN(dropout=0.0, batch_norm=True)),
    "sage": ModelSpec(SAGE(dropout=0.0)),
    "gat": ModelSpec(GAT(dropout=0.0)),
    "gin": ModelSpec(GIN(dropout=0.0, train_eps=True)),
    "gprgnn": ModelSpec(GPRGNN(dropout=0.0)),
    "appnp": ModelSpec(APPNP(dropout=0.0)),
    "sgc": ModelSpec(SGC()),
}


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", MODELS)
def test_a_round_takes_as_many_operations_for_many_clients_as_for_few(name: str, sparse: bool) -> None:
    counts = []
    for num_clients in (8, 24):
        of = simulation(num_clients, model=MODELS[name], sparse=sparse)
        counts.append(one_round(of).operations)
        require_together(of, "TrainModel")
    assert counts[0] == counts[1]


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("algorithm", [FedProx(mu=0.1), FedAvg(optimizer=Adam(lr=0.01))], ids=["fedprox", "adam"])
def test_so_does_one_with_a_penalty_or_with_moments(algorithm: FedAvg, sparse: bool) -> None:
    counts = []
    for num_clients in (8, 24):
        of = simulation(num_clients, algorithm, model=MODELS["gcn"], sparse=sparse)
        counts.append(one_round(of).operations)
        require_together(of, "TrainModel")
    assert counts[0] == counts[1]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_only_the_drawing_of_random_bits_grows_with_the_clients(sparse: bool) -> None:
    few, many = (one_round(simulation(n, sparse=sparse)).operations for n in (8, 24))
    grown = many - few
    assert few - many == Counter() and grown.keys() <= OF_EACH_CLIENT
    assert FedAvg().local_steps > 1
    assert grown["aten.random_.from"] == 24 - 8  # for all steps at once
    assert grown.total() - grown["aten.random_.from"] <= 24 - 8  # once for each client, not in each step


HEADED = ModelSpec(GCN(dropout=0.0), decoder=MLPDecoder(dropout=0.0))
# Methods whose clients remember something, with the request by which they train and the model.
REMEMBERING: dict[str, tuple[Any, str, ModelSpec]] = {
    "fedrep": (FedRep(head_steps=2), "TrainModel", HEADED),
    "ditto": (Ditto(), "TrainModel", MODELS["gcn"]),
    "ditto, adam": (Ditto(optimizer=Adam(lr=0.01)), "TrainModel", MODELS["gcn"]),
    "pfedme": (PFedMe(inner_steps=2), "TrainModel", MODELS["gcn"]),
    "apfl": (APFL(alpha_lr=0.1), "TrainModel", MODELS["gcn"]),
    "scaffold": (Scaffold(), "TrainCorrected", MODELS["gcn"]),
    "feddyn": (FedDyn(), "TrainModel", MODELS["gcn"]),
    "moon": (MOON(), "TrainModel", MODELS["gcn"]),
}


def later_round(of: Simulation) -> Counting:
    """Return what a whole round costs once clients have something to remember."""
    algorithm: Any = of.course.algorithm
    states = [algorithm.setup(federation(of))]

    def play() -> None:
        states.append(algorithm.round(states[-1], federation(of)))
        of.runtime.mark(len(states))

    play()
    return counted(play)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_so_does_a_round_of_clients_that_remember_something(name: str, sparse: bool) -> None:
    algorithm, request, model = REMEMBERING[name]
    counts = []
    for num_clients in (8, 24):
        of = simulation(num_clients, algorithm, model=model, sparse=sparse, share=0.05)
        counts.append(later_round(of).operations)
        require_together(of, request)
    assert counts[0] == counts[1]


def test_a_round_together_takes_far_fewer_operations_than_one_by_one() -> None:
    together, alone = one_round(simulation(24)), one_round(simulation(24, runtime="loop"))
    assert together.total < alone.total / 8


@pytest.mark.parametrize(
    ("model", "at_most"),
    # What was counted, and a tenth more.
    [(ModelSpec(), 65 * 1.1), (ModelSpec(GCN(batch_norm=True)), 68 * 1.1), (ModelSpec(GAT()), 196 * 1.1)],
    ids=["default", "batch norm", "gat"],
)
def test_a_clients_step_takes_no_more_operations_than_it_did(model: ModelSpec, at_most: float) -> None:
    of = simulation(1, model=model, runtime="loop")
    (client,) = of.clients.values()
    optimizer = FedAvg().optimizer
    two, five = (counted(lambda n=n: client.fit(of.initial.params, steps=n, optimizer=optimizer)) for n in (2, 5))  # type: ignore[misc]
    step = (five.total - two.total) / 3
    assert step <= at_most


def test_a_step_of_all_takes_about_as_many_operations_as_one_clients() -> None:
    of = simulation(6)  # with six draws of random bits among the 98 operations that were counted
    cohort, optimizer = GraphCohort([*of.clients.values()]), FedAvg().optimizer
    two, five = (counted(lambda n=n: cohort.fit(of.initial.params, steps=n, optimizer=optimizer)) for n in (2, 5))  # type: ignore[misc]
    assert (five.total - two.total) / 3 <= 98 * 1.1


# ---- memory


@pytest.mark.parametrize("optimizer", [FedAvg().optimizer, Adam(lr=0.01)], ids=["sgd", "adam"])
def test_the_first_layers_of_clients_with_sparse_features_are_not_copied_for_each(optimizer: Optimizer) -> None:
    num_clients, num_features, hidden = 20, 700, 64
    of = simulation(num_clients, FedAvg(optimizer=optimizer), sparse=True, num_features=num_features, share=0.01)
    whole = num_clients * num_features * hidden
    assert one_round(of).largest < whole / 2
    require_together(of, "TrainModel")
    assert one_evaluation(of).largest < whole / 2
    # Clients with models of their own are evaluated without copying these either.
    cohort = GraphCohort([*of.clients.values()])
    own = [{name: tensor + k for name, tensor in of.initial.params.items()} for k in range(num_clients)]
    assert counted(lambda: cohort.evaluate(own, ("val",))).largest < whole / 2


@pytest.mark.parametrize("name", REMEMBERING)
def test_nor_are_those_that_clients_remember(name: str) -> None:
    algorithm, request, model = REMEMBERING[name]
    num_clients, num_features, hidden = 20, 700, 64
    of = simulation(num_clients, algorithm, model=model, sparse=True, num_features=num_features, share=0.01)
    assert later_round(of).largest < num_clients * num_features * hidden / 2
    require_together(of, request)


def test_dense_features_do_need_a_copy_for_each() -> None:
    """Otherwise the tests above could not fail."""
    of = simulation(20, num_features=700)
    assert one_round(of).largest >= 20 * 700 * 64


# ---- evaluation


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", MODELS)
def test_one_model_is_evaluated_for_all_clients_in_one_run(name: str, sparse: bool) -> None:
    counts = []
    for num_clients in (8, 24):
        of = simulation(num_clients, model=MODELS[name], sparse=sparse)
        counts.append(one_evaluation(of).operations)
        require_together(of, "EvaluateModel")
    assert counts[0] == counts[1]


def test_own_models_are_evaluated_in_one_run_too() -> None:
    counts = []
    for num_clients in (8, 24):
        of = simulation(num_clients, sparse=True)
        cohort = GraphCohort([*of.clients.values()])
        own = [{name: tensor + k for name, tensor in of.initial.params.items()} for k in range(num_clients)]
        counts.append(counted(lambda cohort=cohort, own=own: cohort.evaluate(own, ("val",))).operations)  # type: ignore[misc]
    # Each client's own rows are taken out of its own weights; nothing else is done for each.
    assert (counts[1] - counts[0]).keys() <= {"aten.index_select.default"} and counts[0] - counts[1] == Counter()
    assert (counts[1] - counts[0])["aten.index_select.default"] == 24 - 8


# ---- other tasks and batches: what each client draws for itself grows with the clients, and nothing else

NETWORK = GCN(hidden=8, dropout=0.0)


def _graphs(k: int) -> Any:
    return toy_set(sizes=(5, 1, 7, 2, 4, 6, 3, 8), seed=k)


def _facts(k: int) -> Any:
    return toy_facts(12, 40, seed=k)


def _nodes(k: int) -> Any:
    return toy_graph(16, num_features=8, seed=k)


# Fields of the course, a client's data, and the most operations that a step takes for each further client: what was
# counted, and a tenth more.
TASKS: dict[str, tuple[dict[str, Any], Callable[[int], Any], float]] = {
    "graphs": (
        {
            "task": GraphClassification(),
            "model": ModelSpec(NETWORK, decoder=MLPDecoder(8, dropout=0.0), readout=SumReadout()),
        },
        _graphs,
        0.0,
    ),
    "batches of graphs": (
        {
            "task": GraphClassification(),
            "batching": MiniBatch(2),
            "model": ModelSpec(GIN(hidden=8, dropout=0.0), decoder=MLPDecoder(8, dropout=0.0), readout=SumReadout()),
        },
        _graphs,
        4.0,
    ),
    "links": ({"task": LinkPrediction(), "model": ModelSpec(NETWORK, decoder=DotDecoder())}, _facts, 3.0),
    "classes of links": (
        {
            "task": LinkClassification(),
            "batching": LinkBatch(8),
            "model": ModelSpec(NETWORK, decoder=DistMultDecoder()),
        },
        _facts,
        9,
    ),
    "neighbourhoods": ({"batching": NeighborBatch(3, (2, 2)), "model": ModelSpec(NETWORK)}, _nodes, 19.3),
    "samples of nodes": ({"task": NodeSamples(), "model": ModelSpec(MLP(hidden=8, dropout=0.0))}, _nodes, 0),
}


def batched(num_clients: int, name: str, steps: int) -> Simulation:
    """Return clients of one task that have data of their own."""
    fields, data, _ = TASKS[name]
    parts = {f"client-{k:02d}": data(k) for k in range(num_clients)}
    algorithm = FedAvg(local_steps=steps, optimizer=SGD(lr=0.01))
    course = toy_course(algorithm, num_clients=num_clients, runtime="auto", **fields)
    return Simulation(course, Scenario(next(iter(parts.values())), parts))


def further_operations(name: str, num_clients: int) -> float:
    """Return how many operations a further step takes."""
    two, five = (batched(num_clients, name, steps) for steps in (2, 5))
    counts = [one_round(of).total for of in (two, five)]
    for of in (two, five):
        require_together(of, "TrainModel")
    return (counts[1] - counts[0]) / 3


@pytest.mark.parametrize("name", TASKS)
def test_a_step_of_any_task_takes_few_operations_for_a_further_client(name: str) -> None:
    few, many = (further_operations(name, number) for number in (8, 24))
    assert (many - few) / 16 <= 1.1 * TASKS[name][2]
