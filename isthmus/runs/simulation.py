"""A course in one process: loads the graph, splits it, makes the clients and the runtime."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from isthmus.config.build import name_of
from isthmus.config.course import Course
from isthmus.config.load import check_client_settings, clients_with_own_models, own_algorithm, own_batching, own_model
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput, IsthmusError
from isthmus.core.federation import InitialModel, Listener, Runtime
from isthmus.core.guards.guard import OwnClient
from isthmus.core.guards.line import GuardLine
from isthmus.core.outside import some
from isthmus.core.protocol import Algorithm
from isthmus.core.random import Secret, numpy_generator, seeded
from isthmus.core.record import CPU, Params, State, device_of, moved
from isthmus.data.conventions import SPLITS
from isthmus.data.dividing import PublicSplit, fingerprint, has_split
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import Folders
from isthmus.data.folders.schema.schema import digest_at
from isthmus.data.graph import Graph, feature_facts, input_names
from isthmus.data.joining import merged
from isthmus.learn.graph_client import GraphClient, Scores, one_by_one, score_on_global_graph, score_on_local_graphs
from isthmus.learn.optimizers import load_params, read_params
from isthmus.learn.together.blocks import Blocks
from isthmus.models import ModelSpec
from isthmus.models.model import ModelFactory, require_own_heads, require_own_inputs, require_same_shared, shared_names
from isthmus.runtime.loop import LoopRuntime, StackedRuntime
from isthmus.runtime.strict import StrictRuntime

COPIES = 3  # of a model that one client's training needs at least: itself, its gradient, the reply


@dataclass(frozen=True)
class Scenario:
    """Who holds what: the whole graph, and each client's part of it."""

    whole: Graph
    parts: dict[str, Graph]
    seconds: float = 0.0  # that it took to load and to divide
    notes: tuple[str, ...] = ()  # what a user should know of how it was divided
    server: Graph | None = None  # what the server has of its own; without it, it is drawn if the course says so


def load_scenario(course: Course, root: Path) -> Scenario:
    """Load the course's graph, draw its masks and divide it among the clients."""
    if isinstance(course.dataset, Folders):
        from isthmus.runs.own_silos import scenario_of_folders  # it stands on this file, and on the rules between sites

        return scenario_of_folders(course, course.dataset)
    started = time.perf_counter()
    graph: Any = course.dataset.load(root)
    notes: list[str] = []
    if isinstance(course.dataset, OwnFolder) and has_split(graph):
        notes = own_split_note(course, {course.dataset.path: graph})
    else:
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
    return Scenario(graph, named, time.perf_counter() - started, tuple(notes))


def own_split_note(course: Course, own: Mapping[str, Any]) -> list[str]:
    """Return that splits of one's own stand where the course has a rule for masks, in words; `own` has who has one."""
    if not own or isinstance(course.masks, PublicSplit):
        return []
    counts = [f"{int(sum(data.mask(split).sum() for data in own.values()))} {split}" for split in SPLITS]
    each = "each." if isinstance(course.dataset, Folders) else ""
    return [
        f"the column split of {some(own)} stands ({', '.join(counts)}): masks {name_of(type(course.masks))!r} is not "
        f"used there; dataset.{each}own_split=false lets it divide anew"
    ]


def require_kind(course: Course, data: Any) -> None:
    """Raise BadInput unless the course's task learns from data of this kind."""
    wanted = course.task.data_type
    if not isinstance(data, wanted):
        raise BadInput(
            f"the dataset {data.name!r} consists of {data.item}s, the task {name_of(type(course.task))!r} learns from "
            f"{wanted.item}s; choose a dataset whose task is {wanted.item!r} (isthmus list datasets)"
        )


def columns_of(course: Course, data: Any) -> tuple[str, ...]:
    """Return what the columns that the course's model reads are called; empty where they have no names."""
    reads_edges = bool(getattr(getattr(course.model, "gnn", None), "edge_dim", 0))
    return input_names(data, reads_edges)


def output_dim(course: Course, data: Any, client: str) -> int:
    """Return how many outputs a client's model has; one that is never trained where no labels are known or needed."""
    number = course.task.output_dim(data)
    if number > 0:
        return number
    if course.algorithm.learns_without_labels:
        return 1
    raise BadInput(
        f"{client} has no label among {data.num_items} {data.item}s and no names of classes, so its model would have "
        f"no output; {name_of(type(course.algorithm))} needs labels: give it some, or leave it out"
    )


def build_model(
    course: Course, input_dim: int, output_dim: int, client: str | None = None, allow_import: bool = True
) -> nn.Module:
    """Return the course's model, or a client's own, with initial parameters that depend on sizes and seed alone."""
    spec = own_model(course, client, allow_import)
    _require_memory(spec, input_dim, output_dim, "model" if client is None else f"client_settings.{client}: model")
    with seeded(course.seed, "model"):
        return spec.build(input_dim, output_dim)


def _require_memory(spec: ModelFactory, input_dim: int, output_dim: int, where: str) -> None:
    """Raise BadInput for a model that this machine cannot hold; its size is found without making any of it."""
    if not isinstance(spec, ModelSpec):
        return  # an object of the user's own may do anything while it is built
    try:
        with torch.device("meta"):
            size = sum(tensor.numel() for tensor in spec.build(input_dim, output_dim).state_dict().values())
    except IsthmusError:
        return  # it cannot be built at all, which is told when it is
    except (RuntimeError, OverflowError, MemoryError, TypeError):
        size = 2**63  # not even a shape can have this size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if COPIES * 4 * size > memory:
        raise BadInput(
            f"{where} has {'over ' * (size == 2**63)}{size:,} parameters, {4 * size / 1e9:,.0f} GB; this machine has "
            f"{memory / 1e9:,.0f} GB, and training needs {COPIES} copies: make it smaller (model.gnn.hidden, "
            "model.gnn.layers)"
        )


def known_parameters(course: Course, allow_import: bool = True) -> tuple[str, ...] | None:
    """Return the names of the parameters of all clients' models, where some have their own; else None."""
    own = clients_with_own_models(course)
    if not own:
        return None
    models = [build_model(course, 1, 1, client, allow_import) for client in (None, *own)]
    return tuple(dict.fromkeys(name for model in models for name in model.state_dict()))


def initial_model(course: Course, model: nn.Module, known: Sequence[str] | None = None) -> InitialModel:
    """Return the shared parameters that a course starts from, its buffers, and which of the known ones are not."""
    params = read_params(model)
    shared = shared_names(course.sharing, params, known)
    buffers = frozenset(name for name, _ in model.named_buffers() if name in shared)
    personal = frozenset((*params, *(known or ()))) - shared
    return InitialModel({n: t for n, t in params.items() if n in shared}, buffers, personal)


def personal_start(course: Course, model: nn.Module, known: Sequence[str] | None = None) -> Params:
    """Return what a client's personal parameters begin with: those of a model that is fresh from `build_model`."""
    slots = model.state_dict()
    shared = shared_names(course.sharing, slots, known)
    return {name: slot.clone() for name, slot in slots.items() if name not in shared}


def simulated_client(
    course: Course, name: str, data: Any, model: nn.Module, own: Params, guards: GuardLine | None = None
) -> GraphClient:
    """Return a client of a course with its own settings; `own` is what its personal parameters begin with."""
    client = GraphClient(name, data, course.task, model, own_batching(course, name), own, device_of(course.device))
    client.algorithm = own_algorithm(course, name)
    client.secret = Secret.of_simulation(course.seed, name)
    client.guards = GuardLine(course.guards) if guards is None and course.guards else guards
    return client


def fresh_model(course: Course, name: str, data: Any, known: Sequence[str] | None) -> tuple[nn.Module, Params]:
    """Return a client's model, and what its personal parameters begin with."""
    model = build_model(course, *dims_of(course, data, name), name)
    return model, personal_start(course, model, known)


def dims_of(course: Course, data: Any, name: str) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a client's model."""
    return course.task.input_dim(data), output_dim(course, data, name)


# From a client's name to its model, and what its personal parameters begin with.
ModelOf: TypeAlias = Callable[[str], tuple[nn.Module, Params]]


def simulated_clients(course: Course, holdings: Mapping[str, Any], model_of: ModelOf) -> dict[str, GraphClient]:
    """Return clients by name; one module serves all of a kind in turn, as parameters are loaded before each use."""
    own = clients_with_own_models(course)
    modules: dict[tuple[int, int, str | None], tuple[nn.Module, Params]] = {}
    clients, guards = {}, GuardLine(course.guards) if course.guards else None
    for name, data in holdings.items():
        kind = (*dims_of(course, data, name), name if name in own else None)
        if kind not in modules:
            modules[kind] = model_of(name)
        clients[name] = simulated_client(course, name, data, *modules[kind], guards)
    return clients


def simulated_runtime(course: Course, clients: Mapping[str, GraphClient], model_of: ModelOf, blocks: Blocks) -> Runtime:
    """Return what carries exchanges to clients in this process; the strict one makes each anew for every answer."""
    if course.runtime == "loop":
        return LoopRuntime(course.algorithm, list(clients.values()))
    if course.runtime == "auto":
        return StackedRuntime(course.algorithm, list(clients.values()), blocks)

    def restarted(name: str) -> GraphClient:
        return simulated_client(course, name, clients[name].data, *model_of(name))

    return StrictRuntime(course.algorithm, {name: partial(restarted, name) for name in clients})


class Simulation:
    """The clients, the runtime and the initial model of a course, all in this process."""

    def __init__(self, course: Course, scenario: Scenario) -> None:
        require_kind(course, scenario.whole)
        self.course = course
        self.listener: Listener | None = None  # hears what the server's process has of all messages
        self.device = device_of(course.device)
        self.scenario = scenario
        self.holdings = {"all": scenario.whole} if course.algorithm.pooled else scenario.parts
        check_client_settings(course, self.holdings)
        self.own_models = clients_with_own_models(course)
        self._known = known_parameters(course)
        self.model = build_model(course, *self.whole_dims)
        course.task.require_model(self.model, scenario.whole)
        self.initial = initial_model(course, self.model, self._known)
        self._require_fitting_ends()
        self.clients = simulated_clients(course, self.holdings, self._checked_model)
        self.blocks = Blocks(course.block_mb * 2**20)
        self.runtime = simulated_runtime(course, self.clients, self._model, self.blocks)
        self.whole = course.task.prepare(scenario.whole if self.device == CPU else scenario.whole.to(self.device))
        self.model.to(self.device)
        self._require_work()
        for client in self.clients.values():
            (client.algorithm or course.algorithm).require_able(client)

    @cached_property
    def own(self) -> OwnClient | None:
        """The server's own client, where the course gives it a share of the data."""
        if not self.course.server_share:
            return None
        from isthmus.runs.server_graph import servers_client

        return servers_client(self.course, self.scenario, self._known)

    def _model(self, name: str) -> tuple[nn.Module, Params]:
        return fresh_model(self.course, name, self.holdings[name], self._known)

    def _checked_model(self, name: str) -> tuple[nn.Module, Params]:
        """Return a client's model, if it fits the client's data and what the others share, with its personal start."""
        model, own = self._model(name)
        if name in self.own_models and self.course.task.count(self.holdings[name], "train"):
            try:
                self.course.task.require_model(model, self.holdings[name])
            except BadInput as error:
                raise BadInput(f"client_settings.{name}: {error}") from None
        shared = {slot: tensor for slot, tensor in model.state_dict().items() if slot not in own}
        require_same_shared(self.course.sharing, self.initial.params, name, shared)
        return model, own

    def _require_work(self) -> None:
        """Refuse clients of which none has anything to train on, where the algorithm needs labels."""
        idle = self._idle()
        if len(idle) < len(self.clients):
            return
        reasons = [f"{name} {why}" for name, why in idle.items()]
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise BadInput(
            f"no client can train: {'; '.join(reasons[:3])}{more}; use fewer clients (num_clients), or masks with a "
            "larger training share (masks.train)"
        )

    def _idle(self) -> dict[str, str]:
        """Return why clients have nothing to train on, of those that have not; none if labels are not needed."""
        if self.course.algorithm.learns_without_labels:
            return {}
        why = self.course.task.why_idle
        return {name: why(client.data) for name, client in self.clients.items() if client.num_examples == 0}

    def _require_fitting_ends(self) -> None:
        """Refuse clients with different features or classes that are to share what depends on them."""
        into, out = self.whole_dims
        shared = frozenset(self.initial.params)
        alike = {name: dims for name, dims in self.client_dims.items() if name not in self.own_models}
        for end, other, require in ((0, out, require_own_inputs), (1, into, require_own_heads)):
            names = {self.holdings[name].class_names for name in alike} - {()} if end else set()
            if len({dims[end] for dims in alike.values()}) > 1 or len(names) > 1:
                numbers = [f"{name}: {dims[end]}" for name, dims in alike.items()][:6]
                require(self.course.model, other, shared, numbers)

    @property
    def fingerprint(self) -> str:
        """What tells the data from other data of the same size; folders may have no whole, so each of them counts."""
        parts = self.scenario.parts.values() if isinstance(self.course.dataset, Folders) else ()
        return fingerprint(self.scenario.whole, *parts)

    @property
    def client_dims(self) -> dict[str, tuple[int, int]]:
        """The numbers of inputs and outputs of each client's model."""
        return {name: dims_of(self.course, data, name) for name, data in self.holdings.items()}

    @property
    def whole_dims(self) -> tuple[int, int]:
        """The numbers of inputs and outputs of a model for the whole data."""
        return dims_of(self.course, self.scenario.whole, "the whole dataset")

    def class_names(self) -> dict[str | None, tuple[str, ...]]:
        """Return the names of the classes of each client, and under None those of the whole."""
        return {None: self.scenario.whole.class_names, **{n: data.class_names for n, data in self.holdings.items()}}

    def features(self) -> dict[str | None, dict[str, str]]:
        """Return what a model file says of its columns: of each client's model, and under None of one for the whole."""
        held: list[tuple[str | None, Any]] = [(None, self.scenario.whole), *self.holdings.items()]
        schemas = self._schemas()
        return {name: feature_facts(columns_of(self.course, data), schema=schemas.get(name, "")) for name, data in held}

    def _schemas(self) -> dict[str | None, str]:
        """Return the digests of the schemas that folders of one's own follow; for the whole the one that all have."""
        dataset = self.course.dataset
        if isinstance(dataset, Folders):
            own: dict[str | None, str] = {name: digest_at(place) for name, place in dataset.places.items()}
            return {**own, None: next(iter(own.values())) if len(set(own.values())) == 1 else ""}
        found = digest_at(Path(dataset.path)) if isinstance(dataset, OwnFolder) else ""
        return dict.fromkeys((None, *self.holdings), found)

    @property
    def has_personal_models(self) -> bool:
        """Whether clients end with models of their own."""
        return self.course.algorithm.has_personal_models or bool(self.initial.personal)

    def notes(self) -> list[str]:
        """Return what a user should know about the clients before reading results."""
        notes = [f"{name} {why}: it trains nothing and has no weight in any mean" for name, why in self._idle().items()]
        drawn = self.course.algorithm.protecting_streams
        if drawn:
            notes.append(
                f"what protects clients ({', '.join(drawn)}) is drawn from secrets that derive from the seed, as all "
                "in a simulation: it protects from nobody who knows the course; between sites each silo has its own"
            )
        return notes

    def runtime_notes(self) -> list[str]:
        """Return what a user should know about how the clients were simulated."""
        reasons: Mapping[str, str] = getattr(self.runtime, "notes", {})
        text = "could not be done for many clients at once, so it was done one by one"
        return [f"{name} {text}: {reason}" for name, reason in reasons.items()]

    def done_alone(self) -> dict[str, str]:
        """Return what was done client by client though clients are put together, each with the reason."""
        if not isinstance(self.runtime, StackedRuntime):
            return {}
        clients: dict[str, list[str]] = {}
        for client, reason in self.blocks.reasons.items():
            clients.setdefault(reason, []).append(client)
        found = {
            f"{len(names)} clients, {names[0]} the first" if len(names) > 1 else names[0]: reason
            for reason, names in clients.items()
        }
        return {**found, **self.runtime.notes}

    def memories(self) -> dict[str, State]:
        """Return what each client remembered at the end of the last whole round."""
        return {client: decode(memory, State) for client, memory in self.runtime.save_clients().items()}

    @cached_property
    def to_look_at(self) -> tuple[nn.Module, Any]:
        """A model for parameters to be loaded into, and the whole data, as monitors want them: on the CPU."""
        if self.device == CPU:
            return self.model, self.whole
        return copy.deepcopy(self.model).to(CPU), self.course.task.prepare(self.scenario.whole)

    def on_global_graph(self, models: dict[str, Params], split: str) -> Scores:
        """Score models on the whole graph."""
        return score_on_global_graph(self.course.task, self.model, self.whole, models, split)

    def on_local_graphs(self, models: dict[str, Params], split: str) -> tuple[Scores, dict[str, Scores]]:
        """Score each client's model on the client's own graph."""
        algorithm, models = self.course.algorithm, moved(models, self.device)
        if type(algorithm).data_of is Algorithm.data_of:
            gather = self.blocks if self.course.runtime == "auto" else one_by_one
            return score_on_local_graphs(self.course.task, self.clients, models, split, gather)
        for name, memory in self.memories().items():  # what clients are scored on may hang on what they remember
            self.clients[name].state = moved(memory, self.device)

        def data_of(client: GraphClient) -> Any:
            return (client.algorithm or algorithm).data_of(client)

        return score_on_local_graphs(self.course.task, self.clients, models, split, data_of=data_of)

    def on_parts_of_global_graph(self, params: Params, split: str) -> dict[str, Scores]:
        """Score a model that runs on the whole graph on each client's nodes: the centralised beside the clients'."""
        load_params(self.model, params)
        ids, order = torch.sort(self.scenario.whole.item_ids)  # the whole may itself be a part of something
        parts = self.scenario.parts.values()
        groups = [order[torch.searchsorted(ids, part.item_ids)].to(self.device) for part in parts]
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
