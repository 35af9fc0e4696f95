"""Accuracy against epsilon, for each thing that noise can hide: clients, rows of nodes, edges, nodes, examples.

Five clients by communities unless said, the round that validation finds best, test nodes (or graphs) of the clients'
own data, in per cent: a mean over seeds, each with its own split, and the standard deviation. Epsilon is that of the
whole course, towards everybody (clients: towards those who see models), with the delta that is said; "none" is without
noise. Of an edge it is that of an undirected one. Settings were chosen by a few tries on Cora and Amazon Photo, and no
budget was counted for them. With `--out` finished courses are kept in a file there, and what was stopped goes on.

GAP's published numbers (Sajadmanesh et al., 2023; one graph, no federation): edges at epsilon 4, in one direction,
76.3 / 98.7 / 83.8 on Facebook / Reddit / Amazon; nodes at epsilon 8: 63.2 / 94.0 / 77.4; without noise 80.0 / 99.4 /
91.2, a perceptron 50.8 / 82.4 / 71.1. These graphs are denser, and not at hand here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from timing import heading, row

from guarding.kept import Kept
from guarding.settings import TABLES, Settings
from isthmus.algorithms import FedAvg, FedGAP, FedGL, FedProGAP
from isthmus.config.course import Course
from isthmus.config.load import course_digest
from isthmus.core.guards.guard import Guard
from isthmus.core.training import EarlyStopping
from isthmus.data.splitters import SPLITTERS
from isthmus.data.zoo import DATASETS
from isthmus.learn.optimizers import SGD, Adam
from isthmus.learn.tasks import GraphClassification
from isthmus.models import GAP, GCN, MLP, MLPDecoder, ModelSpec, ProGAP, SumReadout
from isthmus.privacy.accounting.releases import noise_within
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.noise.example_dp import ExampleDP
from isthmus.privacy.noise.graph_dp import EdgeDP, NodeDP
from isthmus.privacy.noise.row_noise import RowNoise
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Scenario, load_scenario

EPSILONS = (1.0, 4.0, 8.0)
# Dataset -> delta, below one over the number of edges.
GRAPHS = {"cora": 1e-5, "pubmed": 1e-5, "amazon_photo": 1e-6}
# Of GAP's encoder, or of ProGAP's stages but the last together.
ROUNDS, SETUP_ROUNDS, STEPS = 20, 40, 4
OPTIMIZER = Adam(lr=0.01, weight_decay=5e-4)
HEAD = ModelSpec(GAP(hidden=64, dim=16, hops=1, dropout=0.2))
STAGES = ModelSpec(ProGAP(dim=16, hops=1, dropout=0.5))
PERCEPTRON = ModelSpec(MLP(hidden=64))
# Of steps that hide nodes or graphs: their number in a course, and which share of the examples is in one.
PRIVATE_STEPS, FRACTION = 60, 0.1
# Methods whose clients add up over neighbours once, each with the network that it is for.
SUMS_ONCE: dict[str, dict[str, Any]] = {
    "gap": {
        "algorithm": FedGAP(local_steps=STEPS, encoder_rounds=SETUP_ROUNDS, optimizer=OPTIMIZER),
        "model": HEAD,
    },
    "progap": {
        "algorithm": FedProGAP(local_steps=STEPS, stage_rounds=SETUP_ROUNDS, optimizer=OPTIMIZER),
        "model": STAGES,
    },
    "gap, two hops": {
        "algorithm": FedGAP(local_steps=STEPS, encoder_rounds=SETUP_ROUNDS, optimizer=OPTIMIZER),
        "model": ModelSpec(GAP(hidden=64, dim=16, hops=2, dropout=0.2)),
    },
    "progap, two hops": {
        "algorithm": FedProGAP(local_steps=STEPS, stage_rounds=SETUP_ROUNDS // 2, optimizer=OPTIMIZER),
        "model": ModelSpec(ProGAP(dim=16, hops=2, dropout=0.5)),
    },
}
ON_GRAPHS = ModelSpec(GCN(hidden=16, dropout=0.0), decoder=MLPDecoder(hidden=16, dropout=0.0), readout=SumReadout())


def show(settings: Settings) -> None:
    """Print a table for each."""
    every: dict[str, Callable[[Settings], None]] = dict(
        zip(TABLES, (clients, rows, edges, nodes, examples), strict=True)
    )
    for name in settings.tables or TABLES:
        every[name](settings)


class Measured:
    """Scenarios of a dataset by seed, which are loaded once, and what courses on them come to."""

    def __init__(self, settings: Settings, course: Course) -> None:
        self.rounds = 2 if settings.quick else None
        self.course = course
        self.seeds = range(1 if settings.quick else settings.seeds)
        self.data = settings.data
        self.kept = Kept(settings.out, "dp")
        self._scenarios: dict[int, Scenario] = {}

    def cell(self, **changes: Any) -> str:
        """Return the accuracy of a course with these changes."""
        if self.rounds is not None:
            changes["rounds"] = self.rounds
        found = []
        for seed in self.seeds:
            course = replace(self.course, seed=seed, evaluate_every=2, **changes)
            found.append(self.kept.of(course_digest(course), partial(self._trained, course))["accuracy"])
        spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
        return f"{statistics.mean(found):.1f}{spread}"

    def _trained(self, course: Course) -> dict[str, float]:
        if course.seed not in self._scenarios:
            self._scenarios[course.seed] = load_scenario(replace(self.course, seed=course.seed), self.data)
        result = run(course, scenario=self._scenarios[course.seed])
        return {"accuracy": 100.0 * result.metrics["global_model/local_graph"]["accuracy"]}


def budgets(settings: Settings) -> Sequence[float]:
    """Return the epsilons of a table."""
    return EPSILONS[:1] if settings.quick else EPSILONS


def graphs(settings: Settings) -> dict[str, float]:
    """Return the datasets of a table with their deltas."""
    names = settings.datasets or (("cora",) if settings.quick else tuple(GRAPHS))
    return {name: GRAPHS[name] for name in names}


def title(text: str, *columns: str) -> None:
    """Print what a table is about, and its head."""
    print(f"\n### {text}\n", flush=True)
    heading(*columns)


def told(epsilon: float) -> str:
    """Return the head of a column."""
    return f"epsilon {epsilon:g}"


def edges(settings: Settings) -> None:
    """Show edge_dp beside what sees no edge, and what hides none."""
    columns = [told(epsilon) for epsilon in budgets(settings)]
    title("Edges: edge_dp, one hop; two where it is said", "dataset", "delta", "method", *columns, "without noise")
    plain = FedAvg(local_steps=STEPS, optimizer=OPTIMIZER)
    for name, delta in graphs(settings).items():
        measured = Measured(settings, Course(dataset=DATASETS[name](), algorithm=plain, rounds=ROUNDS))
        for method, words in SUMS_ONCE.items():
            noisy = [measured.cell(guards=(EdgeDP(epsilon, delta),), **words) for epsilon in budgets(settings)]
            row(name, f"{delta:g}", method, *noisy, measured.cell(**words))
        for method, model in (("fedavg, mlp: no edges", PERCEPTRON), ("fedavg, gcn", ModelSpec(GCN()))):
            nothing = ["" for _ in columns]
            row(name, "", method, *nothing, measured.cell(model=model, rounds=ROUNDS + SETUP_ROUNDS))


def nodes(settings: Settings) -> None:
    """Show node_dp beside the same steps without sums (example_dp on a perceptron)."""
    columns = [told(epsilon) for epsilon in (4.0, 8.0, 16.0)[: len(budgets(settings))]]
    title(f"Nodes: {PRIVATE_STEPS} steps on {FRACTION:g} of the nodes, delta 1e-5", "dataset", "guard", *columns)
    for name in settings.datasets or ("cora", "pubmed")[: 1 if settings.quick else 2]:
        half = PRIVATE_STEPS // 2
        learns: dict[str, Any] = {"local_steps": 1, "optimizer": Adam(lr=0.02), "weighting": "uniform"}
        plain = FedAvg(**learns)
        measured = Measured(settings, Course(dataset=DATASETS[name](), algorithm=plain, rounds=half))
        gap = {"algorithm": FedGAP(encoder_rounds=half, **learns), "model": HEAD}
        progap = {"algorithm": FedProGAP(stage_rounds=half, **learns), "model": STAGES}
        kinds: dict[str, tuple[Callable[[float], Guard], dict[str, Any]]] = {
            "gap: node_dp, degree 10, cut": (node_dp_within, gap),
            "progap: the same": (node_dp_within, progap),
            "mlp: example_dp": (_example_dp, {"model": PERCEPTRON, "rounds": PRIVATE_STEPS}),
        }
        for kind, (guard, words) in kinds.items():
            cells = [measured.cell(guards=(guard(e),), **words) for e in (4.0, 8.0, 16.0)[: len(columns)]]
            row(name, kind, *cells)


def examples(settings: Settings) -> None:
    """Show example_dp on graphs."""
    columns = [told(epsilon) for epsilon in budgets(settings)]
    title(
        f"Examples: graphs, example_dp, {PRIVATE_STEPS} steps on {FRACTION:g} of them, delta 1e-5, dealt at random",
        "dataset",
        *columns,
        "none",
    )
    for name in ("proteins",):
        base = Course(
            dataset=DATASETS[name](),
            task=GraphClassification(),
            splitter=SPLITTERS["random"](),
            model=ON_GRAPHS,
            algorithm=FedAvg(local_steps=1, optimizer=Adam(lr=0.01), weighting="uniform"),
            rounds=PRIVATE_STEPS,
        )
        measured = Measured(settings, base)
        noisy = [measured.cell(guards=(_example_dp(epsilon),)) for epsilon in budgets(settings)]
        row(name, *noisy, measured.cell())


def clients(settings: Settings) -> None:
    """Show client_dp, with the norm of its noise in clips."""
    title(
        "Clients: Cora, client_dp, central, all in each of 30 rounds, delta 1e-3, a GCN of 16 hidden units",
        "clients",
        "epsilon",
        "noise on the mean, in clips",
        "accuracy",
    )
    for number in (5, 50):
        base = Course(
            num_clients=number,
            model=ModelSpec(GCN(hidden=16)),
            algorithm=FedAvg(local_steps=4, weighting="uniform", optimizer=SGD(lr=0.25)),
            rounds=30,
            stopping=EarlyStopping(keep="last"),
        )
        measured = Measured(settings, base)
        for epsilon in (8.0, 64.0, math.inf)[: len(budgets(settings))]:
            noise = 0.0 if epsilon == math.inf else noise_within(epsilon, 1e-3, 30)
            length = noise * math.sqrt(1433 * 16 + 16 + 16 * 7 + 7) / number
            guards = (ClientDP(clip=1.0, noise=noise, delta=1e-3),)
            row(str(number), f"{epsilon:g}", f"{length:.3g}", measured.cell(guards=guards))


def rows(settings: Settings) -> None:
    """Show row_noise on what FedGL's clients say of their nodes."""
    title(
        "Rows: Cora, FedGL (3 clients with half of the nodes each), row_noise, 10 rounds, delta 1e-5; of a row",
        *[told(epsilon) for epsilon in (8.0, 64.0, 512.0)[: len(budgets(settings))]],
        "none",
        "FedAvg",
    )
    method = FedGL(local_steps=4, alpha=0.1, beta=0.1)
    base = Course(
        num_clients=3,
        splitter=SPLITTERS["random"](shares=(0.5, 0.5, 0.5)),
        algorithm=method,
        rounds=10,  # type: ignore[call-arg]
    )
    measured = Measured(settings, base)
    cells = []
    for epsilon in (8.0, 64.0, 512.0)[: len(budgets(settings))]:
        noise = 2.0 * noise_within(epsilon, 1e-5, 20)  # two rows in each answer
        cells.append(measured.cell(guards=(RowNoise(clip=1.0, noise=noise),)))
    cells += [measured.cell(), measured.cell(algorithm=replace(method, alpha=0.0, beta=0.0))]
    row(*cells)


def _example_dp(epsilon: float) -> ExampleDP:
    return ExampleDP(1.0, noise_within(epsilon, 1e-5, PRIVATE_STEPS, FRACTION), FRACTION, 1)


def node_dp_within(epsilon: float) -> NodeDP:
    """Return noise of which about half is spent on the sums, as much as keeps epsilon."""

    def guard(noise: float) -> NodeDP:
        steps = FRACTION * math.sqrt(PRIVATE_STEPS * math.expm1(noise**-2.0))  # mu of the steps, about
        return NodeDP(1.0, noise, FRACTION, 1, sum_noise=1.0 / steps, max_degree=10, cut=True)

    return guard(_least(lambda noise: guard(noise).epsilon_of(PRIVATE_STEPS, 0) <= epsilon))


def _least(holds: Callable[[float], bool]) -> float:
    low, high = 0.2, 20.0
    while high - low > 0.01:
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
