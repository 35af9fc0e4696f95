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

from isthmus.config.client_settings import check_client_settings, own_algorithm
from isthmus.config.course import Course
from isthmus.config.tables import name_of
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput
from isthmus.core.federation import InitialModel, Runtime
from isthmus.core.protocol import Algorithm
from isthmus.core.random import numpy_generator, seeded
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.data.merging import merged
from isthmus.learn.blocks import Blocks
from isthmus.learn.client import GraphClient
from isthmus.learn.evaluate import Scores, one_by_one, score_on_global_graph, score_on_local_graphs
from isthmus.learn.fit import load_params, read_params
from isthmus.personalize.sharing import require_own_heads, shared_names
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


def initial_model(course: Course, model: nn.Module) -> InitialModel:
    """Return the shared parameters that a course starts from, which of them are buffers, and what is personal."""
    params = read_params(model)
    shared = shared_names(course.sharing, params)
    buffers = frozenset(name for name, _ in model.named_buffers() if name in shared)
    return InitialModel({n: t for n, t in params.items() if n in shared}, buffers, frozenset(params) - shared)


def personal_start(course: Course, model: nn.Module) -> Params:
    """Return what a client's personal parameters begin with: those of a model that is fresh from `build_model`."""
    slots = model.state_dict()
    shared = shared_names(course.sharing, slots)
    return {name: slot.clone() for name, slot in slots.items() if name not in shared}


class Simulation:
    """The clients, the runtime and the initial model of a course, all in this process."""

    def __init__(self, course: Course, scenario: Scenario) -> None:
        require_kind(course, scenario.whole)
        self.course = course
        self.scenario = scenario
        self.holdings = {"all": scenario.whole} if course.algorithm.pooled else scenario.parts
        self.model = self._build(scenario.whole)
        course.task.require_model(self.model, scenario.whole)
        self.initial = initial_model(course, self.model)
        self._require_fitting_heads()
        check_client_settings(course, self.holdings)
        # One module serves all clients of a kind in turn: parameters are loaded before each use.
        modules: dict[tuple[int, int], tuple[nn.Module, Params]] = {}
        self.clients: dict[str, GraphClient] = {}
        for name, data in self.holdings.items():
            dims = (course.task.input_dim(data), course.task.output_dim(data))
            if dims not in modules:
                model = self._build(data)
                modules[dims] = (model, personal_start(course, model))
            self.clients[name] = self._client(name, *modules[dims])
        self.blocks = Blocks(course.block_mb * 2**20)
        self.runtime = self._runtime()
        self.whole = course.task.prepare(scenario.whole)

    def _build(self, data: Any) -> nn.Module:
        task = self.course.task
        return build_model(self.course, task.input_dim(data), task.output_dim(data))

    def _client(self, name: str, model: nn.Module, own: Params) -> GraphClient:
        client = GraphClient(name, self.holdings[name], self.course.task, model, self.course.batching, own)
        client.algorithm = own_algorithm(self.course, name)
        return client

    def _require_fitting_heads(self) -> None:
        """Refuse clients with different classes that are to share what depends on them."""
        task = self.course.task
        numbers = {name: task.output_dim(data) for name, data in self.holdings.items()}
        if len(set(numbers.values())) > 1:
            classes = [f"{name}: {number}" for name, number in numbers.items()][:6]
            shared = frozenset(self.initial.params)
            require_own_heads(self.course.model, task.input_dim(self.scenario.whole), shared, classes)

    @property
    def client_dims(self) -> dict[str, tuple[int, int]]:
        """The numbers of inputs and outputs of each client's model."""
        task = self.course.task
        return {name: (task.input_dim(data), task.output_dim(data)) for name, data in self.holdings.items()}

    @property
    def one_set_of_classes(self) -> bool:
        """Whether every client's model is one for the whole data as well."""
        whole = (self.course.task.input_dim(self.scenario.whole), self.course.task.output_dim(self.scenario.whole))
        return set(self.client_dims.values()) == {whole}

    def class_names(self) -> dict[str | None, tuple[str, ...]]:
        """Return the names of the classes of each client, and under None those of the whole."""
        return {None: self.scenario.whole.class_names, **{n: data.class_names for n, data in self.holdings.items()}}

    @property
    def has_personal_models(self) -> bool:
        """Whether clients end with models of their own."""
        return self.course.algorithm.has_personal_models or bool(self.initial.personal)

    def _runtime(self) -> Runtime:
        algorithm = self.course.algorithm
        if self.course.runtime == "loop":
            return LoopRuntime(algorithm, list(self.clients.values()))
        if self.course.runtime == "auto":
            return StackedRuntime(algorithm, list(self.clients.values()), self.blocks)

        def restarted(name: str) -> GraphClient:
            model = self._build(self.holdings[name])
            return self._client(name, model, personal_start(self.course, model))

        return StrictRuntime(algorithm, {name: lambda name=name: restarted(name) for name in self.clients})  # type: ignore[misc]

    def notes(self) -> list[str]:
        """Return what a user should know about the clients before reading results."""
        if self.course.algorithm.learns_without_labels:
            return []
        idle = {name: client.data for name, client in self.clients.items() if client.num_examples == 0}
        why = self.course.task.why_idle
        return [f"{name} {why(data)}: it trains nothing and has no weight in any mean" for name, data in idle.items()]

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
        algorithm = self.course.algorithm
        if type(algorithm).data_of is Algorithm.data_of:
            gather = self.blocks if self.course.runtime == "auto" else one_by_one
            return score_on_local_graphs(self.course.task, self.clients, models, split, gather)
        for name, memory in self.memories().items():  # what clients are scored on may hang on what they remember
            self.clients[name].state = memory
        return score_on_local_graphs(self.course.task, self.clients, models, split, data_of=algorithm.data_of)

    def on_parts_of_global_graph(self, params: Params, split: str) -> dict[str, Scores]:
        """Score a model that runs on the whole graph on each client's nodes: the centralised beside the clients'."""
        load_params(self.model, params)
        ids, order = torch.sort(self.scenario.whole.item_ids)  # the whole may itself be a part of something
        groups = [order[torch.searchsorted(ids, part.item_ids)] for part in self.scenario.parts.values()]
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
