"""Courses on a device that is none, in a process of its own: torch must meet the device before its first gradient.

Every case is run on the CPU and on the pretended device (`isthmus/testing/pretended_device.py`). Numbers are computed
by the CPU both times, so all that a course gives back must be the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import isthmus as ist
from isthmus.config.course import Course
from isthmus.core.record import CPU
from isthmus.core.training import EarlyStopping
from isthmus.data.dividing import PublicSplit
from isthmus.learn.batching import FullBatch, LinkBatch, MiniBatch, NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, AdamW
from isthmus.learn.tasks import (
    GraphBinary,
    GraphClassification,
    GraphRegression,
    LinkClassification,
    LinkPrediction,
    NodeClassification,
    NodeSamples,
)
from isthmus.learn.together import blocks
from isthmus.models import DECODERS, GNNS, READOUTS, LinearEncoder, MLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.testing.pretended_device import operations, pretended_device
from isthmus.testing.toys import toy_course, toy_scenario
from isthmus.testing.traces import require_same
from tests.core.guards.toys import Boxed, Counting
from tests.learn.tasks.graph_toys import NODES, toy_set
from tests.learn.tasks.link_toys import toy_facts, toy_ratings
from tests.quick import quick

Case = tuple[Course, Scenario]
LINK_METRICS = ("accuracy", "loss", "hits@5", "mrr")


def by_algorithm(name: str, runtime: str, sparse: bool, **changes: Any) -> Case:
    """Return a course of an algorithm on toy clients, one of which has nothing to train on."""
    scenario = toy_scenario(4, num_nodes=60, sparse=sparse, client_without_training=True)
    return toy_course(quick(name), num_clients=4, runtime=runtime, rounds=2, **changes), scenario


def by_model(gnn: str, runtime: str) -> Case:
    """Return a course of a graph network, with batch norm where it has one."""
    spec: Any = GNNS[gnn](hidden=8)  # type: ignore[call-arg]
    spec = replace(spec, dropout=0.4) if hasattr(spec, "dropout") else spec
    spec = replace(spec, batch_norm=True) if hasattr(spec, "batch_norm") else spec
    model = ModelSpec(spec, encoder=LinearEncoder(dim=5), decoder=MLPDecoder(hidden=4))
    return by_algorithm("fedavg", runtime, sparse=gnn in ("sage", "sgc"), model=model)


def by_optimizer(optimizer: Any, runtime: str) -> Case:
    """Return a course in which clients keep their moments."""
    course, scenario = by_algorithm("fedavg", runtime, sparse=True)
    return replace(course, algorithm=quick("fedavg", optimizer=optimizer, keep_moments=True)), scenario


def by_links(task: Any, batching: Any, decoder: str = "hadamard_mlp", ratings: bool = False) -> Case:
    """Return a course on links."""
    whole = toy_ratings(6, 9, 60) if ratings else toy_facts(24, 120)
    third = whole.divide([torch.arange(k, whole.num_items, 3) for k in range(3)])
    model = ModelSpec(GNNS["gcn"](hidden=4, dropout=0.3), decoder=DECODERS[decoder]())  # type: ignore[call-arg]
    course = toy_course(quick("fedavg"), task=task, model=model, batching=batching, rounds=2, masks=PublicSplit())
    return course, Scenario(whole, {f"client-{k}": part for k, part in enumerate(third)})  # type: ignore[arg-type, misc]


def by_graphs(task: Any, batching: Any, readout: str, **kind: bool) -> Case:
    """Return a course on sets of graphs."""
    whole = toy_set(task.target, sizes=NODES * 3, **kind)
    third = whole.divide([torch.arange(k, whole.num_items, 3) for k in range(3)])
    gnn: Any = GNNS["gin"](hidden=4, dropout=0.3)  # type: ignore[call-arg]
    gnn = replace(gnn, edge_dim=sum(whole.edge_sizes)) if kind.get("categorical") else gnn
    model = ModelSpec(gnn, readout=READOUTS[readout](), decoder=MLPDecoder(hidden=4))
    algorithm = quick("fedavg", optimizer=SGD(lr=1e-3))
    stopping = EarlyStopping(metric=task.metrics[0])
    course = toy_course(algorithm, task=task, model=model, batching=batching, rounds=2, stopping=stopping)
    return course, Scenario(whole, {f"client-{k}": part for k, part in enumerate(third)})  # type: ignore[arg-type, misc]


CASES: dict[str, Callable[[], Case]] = {
    "fedavg, one by one": lambda: by_algorithm("fedavg", "loop", sparse=False),
    "fedavg, together, sparse": lambda: by_algorithm("fedavg", "auto", sparse=True),
    "fedavg, through bytes": lambda: by_algorithm("fedavg", "strict", sparse=True),
    "guards, one by one": lambda: by_algorithm("scaffold", "loop", False, guards=(Boxed(), Counting())),
    "guards, together": lambda: by_algorithm("fedavg", "auto", True, guards=(Boxed(), Counting())),
    "neighbourhoods": lambda: by_algorithm("fedavg", "loop", True, batching=NeighborBatch(4, (1, 1))),
    "samples": lambda: by_algorithm("fedavg", "auto", False, task=NodeSamples()),
    "all metrics": lambda: by_algorithm("fedavg", "auto", False, task=NodeClassification(EVERY_METRIC)),
    "adam": lambda: by_optimizer(Adam(lr=0.01), "auto"),
    "adamw, one by one": lambda: by_optimizer(AdamW(lr=0.01), "loop"),
    "momentum": lambda: by_optimizer(SGD(lr=0.1, momentum=0.9), "auto"),
    "links, classes": lambda: by_links(LinkClassification(metrics=LINK_METRICS), LinkBatch(16)),
    "links, disjoint": lambda: by_links(LinkClassification(disjoint=True), FullBatch()),
    "links, prediction": lambda: by_links(LinkPrediction(), FullBatch(), "dot", ratings=True),
    "links, ranked": lambda: by_links(LinkPrediction(metrics=LINK_METRICS), NeighborBatch(8, (3, 3)), "distmult"),
    "graphs, classes": lambda: by_graphs(GraphClassification(), MiniBatch(4), "mean", categorical=True),
    "graphs, several tasks": lambda: by_graphs(GraphBinary(), FullBatch(), "sum", sparse=True),
    "graphs, numbers": lambda: by_graphs(GraphRegression(), MiniBatch(4), "max"),
    "monitors": lambda: by_algorithm("fedavg", "auto", False, monitors=("cka", "hidden_error", "gradient_smoothness")),
}
# Those of the default set, about a second of the processor each: one by one and together, and every kind of data.
QUICK = ("guards, together", "neighbourhoods", "adam", "links, disjoint", "graphs, numbers")
EVERY_METRIC = NodeClassification.known_metrics
MODELS = {f"{gnn}, {runtime}": (gnn, runtime) for gnn in GNNS for runtime in ("loop", "auto")}


def compare(case: Case, doubles: bool = True) -> int:
    """Run a case on the CPU and on the device; return how many operations the device did. Raise where they differ."""
    course, scenario = case
    with pretended_device(doubles) as device:
        blocks.has_doubles = lambda place: doubles or place == CPU
        here = ist.run(replace(course, runtime=course.runtime if doubles else "loop"), scenario=scenario)
        before = operations()
        there = ist.run(replace(course, device=device), scenario=scenario)
    what = "a course on the device and one on the CPU disagree"
    require_same(_given_back(here), _given_back(there), what)
    return operations() - before


def _given_back(result: Any) -> dict[str, Any]:
    return {
        "metrics": result.metrics,
        "scores": result.client_scores,
        "params": result.params or {},
        "models": result.client_params or {},
        "notes": "\n".join(result.notes),
    }


def compare_case(name: str, doubles: bool = True) -> int:
    """Compare one of `CASES`."""
    return compare(CASES[name](), doubles)


def compare_model(name: str) -> int:
    """Compare a graph network."""
    return compare(by_model(*MODELS[name]))


def compare_algorithm(name: str, runtime: str, sparse: bool) -> int:
    """Compare an algorithm."""
    return compare(by_algorithm(name, runtime, sparse))


def refusals() -> dict[str, str]:
    """Return what the device says to each thing that no device would do."""
    found = {}
    with pretended_device() as device:
        there, here = torch.ones(2, 2, device=device), torch.ones(2, 2)
        wrong: dict[str, Callable[[], Any]] = {
            "product": lambda: there @ here,
            "sum": lambda: here + there,
            "index": lambda: there[torch.tensor([0])],
            "cat": lambda: torch.cat([there, here]),
            "write": lambda: here.add_(there),
            "numpy": there.numpy,
            "draw": lambda: there.uniform_(generator=torch.Generator()),
            "made": lambda: torch.rand(2, device=device, generator=torch.Generator()),
        }
        for name, act in wrong.items():
            try:
                found[name] = f"nothing, and returned {act()!r}"
            except RuntimeError as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found
