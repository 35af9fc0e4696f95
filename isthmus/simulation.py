"""A course in one process: loads the graph, splits it, makes the clients and the runtime."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isthmus.config.course import Course
from isthmus.config.tables import name_of
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput
from isthmus.core.federation import InitialModel, Runtime
from isthmus.core.random import numpy_generator, seeded
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.data.merging import merged
from isthmus.learn.blocks import Blocks
from isthmus.learn.client import GraphClient
from isthmus.learn.evaluate import Scores, one_by_one, score_on_global_graph, score_on_local_graphs
from isthmus.learn.fit import load_params, read_params
from isthmus.runtime.loop import LoopRuntime
from isthmus.runtime.stacked import StackedRuntime
from isthmus.runtime.strict import StrictRuntime


@dataclass(frozen=True)
class Scenario:
    """Who holds what: the whole graph, and each client's part of it."""

    whole: Graph
    parts: dict[str, Graph]
    seconds: float = 0.0  # that it took to load and to divide


def load_scenario(course: Course, root: Path) -> Scenario:
    """Load the course's graph, draw its masks and divide it among the clients."""
    started = time.perf_counter()
    graph: Any = course.dataset.load(root)
    graph = course.masks.apply(graph, numpy_generator(course.seed, "masks"))
    parts = course.splitter.split(graph, course.num_clients, numpy_generator(course.seed, "split"))
    if course.global_graph == "merged":
        if not isinstance(graph, Graph):
            raise BadInput(
                f"global_graph is 'merged', but the dataset {graph.name!r} is divided by {graph.item}s; "
                "only graphs divided by nodes can be merged: use 'whole'"
            )
        graph = merged(graph, parts)
    width = len(str(len(parts) - 1))
    named = {f"client-{i:0{width}d}": part for i, part in enumerate(parts)}
    return Scenario(graph, named, time.perf_counter() - started)


def require_kind(course: Course, data: Any) -> None:
    """Raise BadInput unless the course's task learns from data of this kind."""
    wanted = course.task.data_type
    if not isinstance(data, wanted):
        raise BadInput(
            f"the dataset {data.name!r} consists of {data.item}s, the task {name_of(type(course.task))!r} learns from "
            f"{wanted.item}s; choose a dataset whose task is {wanted.item!r} (isthmus list datasets)"
        )


def build_model(course: Course, input_dim: int, output_dim: int) -> nn.Module:
    """Return the course's model with its initial parameters, which depend on its sizes and the seed alone."""
    with seeded(course.seed, "model"):
        return course.model.build(input_dim, output_dim)


def initial_model(model: nn.Module) -> InitialModel:
    """Return the parameters that a course starts from, and which of them are buffers."""
    return InitialModel(read_params(model), frozenset(name for name, _ in model.named_buffers()))


class Simulation:
    """The clients, the runtime and the initial model of a course, all in this process."""

    def __init__(self, course: Course, scenario: Scenario) -> None:
        require_kind(course, scenario.whole)
        self.course = course
        self.scenario = scenario
        self.holdings = {"all": scenario.whole} if course.algorithm.pooled else scenario.parts
        self.model = self._build()
        self.initial = initial_model(self.model)
        # One module serves all clients in turn: parameters are loaded before each use.
        self.clients = {name: self._client(name, self.model) for name in self.holdings}
        self.blocks = Blocks(course.block_mb * 2**20)
        self.runtime = self._runtime()
        self.whole = course.task.prepare(scenario.whole)

    def _build(self) -> nn.Module:
        task, whole = self.course.task, self.scenario.whole
        return build_model(self.course, task.input_dim(whole), task.output_dim(whole))

    def _client(self, name: str, model: nn.Module) -> GraphClient:
        return GraphClient(name, self.holdings[name], self.course.task, model, self.course.batching)

    def _runtime(self) -> Runtime:
        algorithm = self.course.algorithm
        if self.course.runtime == "loop":
            return LoopRuntime(algorithm, list(self.clients.values()))
        if self.course.runtime == "auto":
            return StackedRuntime(algorithm, list(self.clients.values()), self.blocks)

        def restarted(name: str) -> GraphClient:
            return self._client(name, self._build())

        return StrictRuntime(algorithm, {name: lambda name=name: restarted(name) for name in self.clients})  # type: ignore[misc]

    def notes(self) -> list[str]:
        """Return what a user should know about the clients before reading results."""
        if self.course.algorithm.learns_without_labels:
            return []
        idle = [name for name, client in self.clients.items() if client.num_examples == 0]
        return [f"{name} has no training examples: it trains nothing and has no weight in any mean" for name in idle]

    def runtime_notes(self) -> list[str]:
        """Return what a user should know about how the clients were simulated."""
        if not isinstance(self.runtime, StackedRuntime):
            return []
        return [
            f"{name} could not answer for many clients at once, so they answered one by one: {reason}"
            for name, reason in self.runtime.notes.items()
        ]

    def memories(self) -> dict[str, State]:
        """Return what each client remembered at the end of the last whole round."""
        return {client: decode(memory, State) for client, memory in self.runtime.save_clients().items()}

    def on_global_graph(self, models: dict[str, Params], split: str) -> Scores:
        """Score models on the whole graph."""
        return score_on_global_graph(self.course.task, self.model, self.whole, models, split)

    def on_local_graphs(self, models: dict[str, Params], split: str) -> tuple[Scores, dict[str, Scores]]:
        """Score each client's model on the client's own graph."""
        gather = self.blocks if self.course.runtime == "auto" else one_by_one
        return score_on_local_graphs(self.course.task, self.clients, models, split, gather)

    def on_parts_of_global_graph(self, params: Params, split: str) -> dict[str, Scores]:
        """Score a model that runs on the whole graph on each client's nodes: the centralised beside the clients'."""
        load_params(self.model, params)
        groups = [part.node_ids for part in self.scenario.parts.values()]
        found = self.course.task.evaluate_groups(self.model, self.whole, split, groups)
        return dict(zip(self.scenario.parts, found, strict=True))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Run with a number of torch threads, then restore the old one; results depend on it in the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
