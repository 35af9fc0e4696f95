"""FedGRL on toy clients: short courses, clients without labels, clients with classes of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from isthmus.algorithms import FedGRL, LocalGRL
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.selfsup import BGRL, DGI, GAE, GRACE, SelfSupervision
from isthmus.core.codec import decode
from isthmus.core.protocol import Position
from isthmus.core.random import seeded
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.learn.augment import Augmentation
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import AdamW, Cosine, read_params
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Trace, trace_course

HEAD = "decoder."
MODEL = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)
STILL = ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)
PROBE = ModelSpec(GCN(hidden=5, dropout=0.5), decoder=LinearDecoder())
NO_VIEW = Augmentation(0.0, 0.0)
QUICK = AdamW(lr=0.02, weight_decay=1e-2, schedule=Cosine(rounds=8, warmup_rounds=2))
SHORT = Finetune(steps=4, evaluate_every=2)
SMALL = BGRL(hidden=7, rounds=6, decay=0.8)
OBJECTIVES: dict[str, SelfSupervision] = {
    "bgrl": SMALL,
    "grace": GRACE(hidden=7, max_nodes=9),
    "dgi": DGI(),
    "gae": GAE(max_edges=11),
}


def quick(**fields: Any) -> FedGRL:
    """FedGRL with steps that show after a few rounds, and little time for the heads."""
    return FedGRL(**{"objective": SMALL, "optimizer": QUICK, "downstream": SHORT, "local_steps": 2, **fields})


def alone(**fields: Any) -> LocalGRL:
    """The same, every client by itself."""
    return LocalGRL(**{"objective": SMALL, "optimizer": QUICK, "downstream": SHORT, "local_steps": 2, **fields})


LP1, LP2 = quick(), quick(protocol="lp2")
MODES: dict[str, FedGRL] = {
    "lp1": LP1,
    "lp2": LP2,
    "lp2, gated": quick(protocol="lp2", copy_gate=True),
    "lp2, supervised only": quick(protocol="lp2", strength=0.0),
    "lp1, alone": alone(),
    "lp2, alone": alone(protocol="lp2"),
}


@cache
def usual(num_clients: int = 3) -> Scenario:
    return toy_scenario(num_clients)


@cache
def with_idle(num_clients: int = 3) -> Scenario:
    return with_idle_client(usual(num_clients))


_seen: dict[tuple[FedGRL, int, str], tuple[Scenario, Trace]] = {}


def traced(algorithm: FedGRL, scenario: Scenario | None = None, **fields: Any) -> Trace:
    """The trace of a course of two rounds, or more, in which nothing fails; tests that only look at it share it."""
    scenario = usual() if scenario is None else scenario
    fields = {"model": MODEL, "num_clients": len(scenario.parts), "rounds": 2, **fields}
    course = (algorithm, id(scenario), repr(fields))
    if course not in _seen:
        _seen[course] = (scenario, _traced(algorithm, scenario, fields))
    return _seen[course][1]


def _traced(algorithm: FedGRL, scenario: Scenario, fields: dict[str, Any]) -> Trace:
    trace = trace_course(toy_course(algorithm, **fields), scenario)
    assert trace.ended_by is None, trace.ended_by
    failures = [failure for report in trace.exchanges for failure in report.failures]
    assert not failures, failures
    return trace


def encoder(trace: Trace) -> Params:
    return trace.standings[trace.last].state.params  # type: ignore[attr-defined,no-any-return]


def memory(trace: Trace, client: str, round: int | None = None) -> State:
    return decode(trace.memories[trace.last if round is None else round][client], State)


def gap(first: Params, second: Params) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def unlabelled(graph: Graph) -> Graph:
    """The same graph of a client that has no task: no label, and nothing to train, choose or test with."""
    nothing = torch.zeros(graph.num_nodes, dtype=torch.bool)
    return replace(graph, y=torch.full_like(graph.y, -1)).with_masks(dict.fromkeys(graph.masks, nothing))


def with_idle_client(scenario: Scenario) -> Scenario:
    last = list(scenario.parts)[-1]
    parts = {n: unlabelled(p) if n == last else p for n, p in scenario.parts.items()}
    return replace(scenario, parts=parts)


def with_client_without_classes(scenario: Scenario) -> Scenario:
    """The same clients, of which the last has neither labels nor masks, and knows of no classes."""
    last = list(scenario.parts)[-1]
    bare = replace(unlabelled(scenario.parts[last]), num_classes=0, class_names=(), masks={})
    return replace(scenario, parts={**scenario.parts, last: bare})


def without_last(scenario: Scenario) -> Scenario:
    return replace(scenario, parts=dict(list(scenario.parts.items())[:-1]))


def with_own_classes(scenario: Scenario) -> Scenario:
    """The same clients, of which the last knows only two classes, by other numbers."""
    last = list(scenario.parts)[-1]

    def fewer(part: Graph) -> Graph:
        return replace(part, y=torch.where(part.y == 2, 0, part.y), num_classes=2, class_names=("left", "right"))

    return replace(scenario, parts={n: fewer(p) if n == last else p for n, p in scenario.parts.items()})


def wise_client(data: Graph | None = None, model: ModelSpec = STILL) -> tuple[GraphClient, Params]:
    """A client that keeps its head, and the encoder that it gets."""
    client = toy_client(toy_graph(20) if data is None else data, model=model)
    client.position = Position(seed=4, round=1, exchange=0)
    whole = read_params(client.model)
    client.own = {name: tensor for name, tensor in whole.items() if name.startswith(HEAD)}
    return client, {name: tensor for name, tensor in whole.items() if not name.startswith(HEAD)}


def parts_of(objective: SelfSupervision, seed: int = 0) -> Params:
    """What an objective learns besides the encoder, as it begins."""
    with seeded(seed, "parts"):
        return read_params(objective.build(5))
