"""The schema of a course: everything that decides its result, and whether its parts go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from isthmus.algorithms import FedAvg
from isthmus.core.errors import nearest, refuse
from isthmus.core.federation import ExchangeRules
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import line_problem
from isthmus.core.protocol import Algorithm
from isthmus.core.random import Sampling, UniformSampling
from isthmus.core.record import device_problem
from isthmus.core.training import EarlyStopping, Plan
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import MaskRule, RatioSplit, Splitter
from isthmus.data.folders.own_kinds import Folders
from isthmus.data.splitters.community import CommunitySplitter
from isthmus.data.zoo.cora import Cora
from isthmus.learn.batching import Batching, FullBatch
from isthmus.learn.optimizers import Optimizer
from isthmus.learn.tasks import NodeClassification, Task
from isthmus.models import DotDecoder, ModelSpec
from isthmus.models.model import ALL_BUT_HEADS, EVERYTHING, ModelFactory, check_patterns
from isthmus.monitors import MONITORS
from isthmus.sinks import SINKS

RUNTIMES = ("auto", "loop", "strict")
GLOBAL_GRAPHS = ("whole", "merged")
MAX_THREADS = 256


@dataclass(frozen=True)
class Course:
    """One federated training, from the data to the last round. Every field is a key of the YAML file.

    Fields:
        dataset:          the graph, whole
        masks:            which nodes are for training, validation and test; drawn before the split
        splitter:         how the graph is divided among clients
        num_clients:      how many clients there are
        global_graph:     what "global" trains on and the global model is scored on: the "whole" dataset, or what the
                          clients' graphs amount to when they are "merged", without edges that no client has
        task:             what is learned, and the metrics that are reported
        model:            the graph neural network
        shared:           which of its parameters are shared, as patterns of their names: "*" for all, "gnn.*",
                          "!*.norm*" for an exception; the others stay with each client and are in no message. Null:
                          all, or all but the decoder where the algorithm's clients have heads of their own
        batching:         full batches, or sampled neighbourhoods
        algorithm:        the federated method with its hyper-parameters
        guards:           what is done to messages before they leave and after they arrive, in this order: secure sums,
                          noise, compression, checks. Between sites each silo can ask for some
        server_share:     the share of the data that the server has as a graph of its own, drawn at random beside what
                          clients hold; between sites any share stands for the server's own folder (isthmus serve
                          --graph). The fold "fltrust" with root "server" goes by it. 0: it has none
        client_settings:  other values for single clients, by client id: of the algorithm's fields, of which only what a
                          client itself reads has an effect, and of the model and the batching by their names:
                          {client-0: {optimizer.lr: 0.1, model.decoder.hidden: 16, batching.name: neighbor}}
        rounds:           how many rounds at most
        seed:             decides everything that is random
        sampling:         which share of the clients takes part in a round: always as many ("uniform"), or each by
                          itself with this probability ("poisson")
        stopping:         early stopping on validation; the best round is kept, or the last one
        min_replies:      with fewer usable replies to an exchange, the course stops
        timeout_seconds:  a reply that takes longer counts as failed
        evaluate_every:   rounds between two evaluations
        checkpoint_every: rounds between two checkpoints (0: only at the end and at Ctrl-C)
        runtime:          "auto" (clients answer together where the algorithm can), "loop" (one after the other),
                          or "strict" (one after the other, everything through bytes)
        block_mb:         memory that clients who answer together may take at a time, about
        threads:          threads of torch; more than one pays only for large graphs
        device:           where clients compute: "cpu", "cuda", "cuda:1", "mps", or "auto" for a GPU where there is one.
                          Between sites every silo chooses its own
        sinks:            where metrics go beside the journal: "tensorboard", "wandb", "mlflow", "json_lines"
        monitors:         what is measured beside the scores, in simulation only: "cka" (how alike the clients' models
                          are), "walk_distance" (how far their graphs are apart), "connectivity" (how well the graph
                          between clients is connected), "gradient_smoothness" (how far neighbours' gradients are
                          apart), "hidden_error" (how far a client's model walks away while it trains)
        monitor_every:    rounds between two measurements of models (0: only at the end)
    """

    dataset: Dataset = Cora()
    masks: MaskRule = RatioSplit()
    splitter: Splitter = CommunitySplitter()
    num_clients: int = 5
    global_graph: str = "whole"
    task: Task = NodeClassification()
    model: ModelSpec | ModelFactory = ModelSpec()
    shared: tuple[str, ...] | None = None
    batching: Batching = FullBatch()
    algorithm: Algorithm[Any] = FedAvg()
    guards: tuple[Guard, ...] = ()
    server_share: float = 0.0
    client_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: int = 100
    seed: int = 0
    sampling: Sampling = UniformSampling()
    stopping: EarlyStopping = EarlyStopping()
    min_replies: int = 1
    timeout_seconds: float | None = None
    evaluate_every: int = 1
    checkpoint_every: int = 50
    runtime: str = "auto"
    block_mb: int = 256
    threads: int = 1
    device: str = "cpu"
    sinks: tuple[str, ...] = ()
    monitors: tuple[str, ...] = ()
    monitor_every: int = 0

    def __post_init__(self) -> None:
        self._follow_folders()
        self._check_numbers()
        self._check_choices()
        check_patterns(self.sharing)
        self._check_heads()
        self._check_guards()

    def _check_numbers(self) -> None:
        for name in ("num_clients", "rounds", "evaluate_every", "threads", "min_replies", "block_mb"):
            refuse(getattr(self, name) < 1, self, name, "it must be at least 1")
        refuse(self.threads > MAX_THREADS, self, "threads", f"it must be at most {MAX_THREADS}")
        for name in ("checkpoint_every", "monitor_every"):
            refuse(getattr(self, name) < 0, self, name, "it must be at least 0")
        refuse(not 0.0 <= self.server_share <= 1.0, self, "server_share", "a share is from 0 to 1")
        none_left = self.timeout_seconds is not None and not self.timeout_seconds > 0
        refuse(none_left, self, "timeout_seconds", "it must be positive")

    def _check_choices(self) -> None:
        for name, known in (("runtime", RUNTIMES), ("global_graph", GLOBAL_GRAPHS)):
            refuse(getattr(self, name) not in known, self, name, f"choose from {', '.join(known)}")
        problem = device_problem(self.device)
        refuse(bool(problem), self, "device", problem)
        if self.min_replies > self.num_clients and not self.algorithm.pooled:
            raise ValueError(f"min_replies is {self.min_replies} but there are {self.num_clients} clients")
        if self.stopping.metric not in self.task.metrics:
            raise ValueError(
                f"stopping.metric is {self.stopping.metric!r}, which the task does not report; "
                f"choose from {', '.join(self.task.metrics)} or add it to task.metrics"
            )
        for sink in self.sinks:
            if sink not in SINKS:
                raise ValueError(f"sinks has {sink!r}; {nearest(sink, SINKS)}")
        for monitor in self.monitors:
            if monitor not in MONITORS:
                raise ValueError(f"monitors has {monitor!r}; {nearest(monitor, MONITORS)}")

    def _follow_folders(self) -> None:
        """Take the number of clients from the folders where each is a client; refuse a splitter for them."""
        if not isinstance(self.dataset, Folders) or not self.dataset.paths:
            return
        number = len(self.dataset.paths)
        if self.num_clients not in (number, Course.num_clients):
            raise ValueError(
                f"num_clients is {self.num_clients}, but dataset.paths has {number} folders, each of them a client; "
                "leave num_clients out"
            )
        if self.splitter != Course.splitter:
            raise ValueError(
                f"splitter is {self.splitter!r}, but dataset.paths has a folder for each client; leave the splitter "
                "out, or divide one folder: dataset.name=folder"
            )
        object.__setattr__(self, "num_clients", number)

    def _check_heads(self) -> None:
        """Raise ValueError where clients are to keep heads, by the algorithm's own choice, and the model has none."""
        if not self.algorithm.keeps_heads or not isinstance(self.model, ModelSpec):
            return
        decoder = self.model.decoder
        if decoder is None or (isinstance(decoder, DotDecoder) and self.shared is None):
            found = "null" if decoder is None else "'dot', which has no parameters"
            raise ValueError(
                f"model.decoder is {found}, but with {type(self.algorithm).__name__} every client has a head of its "
                "own; set model.decoder.name=mlp or linear for nodes and graphs, hadamard_mlp, distmult or bilinear "
                "for links"
            )

    def _check_guards(self) -> None:
        """Raise ValueError where guards cannot stand as they do, or not beside the course's other parts."""
        own = getattr(self.algorithm, "fold", None)
        if getattr(own, "asks_server", False) and not any(getattr(guard, "by", None) == own for guard in self.guards):
            raise ValueError(
                f"algorithm.fold is {own!r}, and a fold cannot ask the server's own graph by itself: leave it out, and "
                "add {name: robust_fold, by: {name: fltrust, root: server}} to guards"
            )
        problem = line_problem(self.guards) if self.guards else ""
        if problem:
            raise ValueError(f"guards: {problem}")
        for guard in self.guards:
            problem = guard.problem(self)
            if problem:
                raise ValueError(f"guards: {type(guard).__name__}: {problem}")

    @property
    def sharing(self) -> tuple[str, ...]:
        """The patterns of what is shared."""
        if self.shared is not None:
            return self.shared
        return ALL_BUT_HEADS if self.algorithm.keeps_heads else EVERYTHING

    def plan(self) -> Plan:
        """Return the part of the course that the training loop needs."""
        return Plan(
            rounds=self.rounds,
            seed=self.seed,
            sampling=self.sampling,
            rules=ExchangeRules(self.min_replies, self.timeout_seconds),
            stopping=self.stopping,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            guards=self.guards,
            metrics=self.task.metrics,
        )


def schedule_notes(course: Course) -> list[str]:
    """Return a note for each schedule of the course's algorithm whose number of rounds is not the course's."""
    rounds = course.rounds
    return [
        f"{place}.rounds is {part.rounds}, and the course has {rounds} rounds: {_what_happens(part, rounds)}"
        for place, part in _schedules(course.algorithm)
        if part.rounds != rounds
    ]


def _schedules(algorithm: Algorithm[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each part of an algorithm that has a number of `rounds` to follow, and where it stands."""
    for own in fields(algorithm):
        value, place = getattr(algorithm, own.name), f"algorithm.{own.name}"
        if isinstance(value, Optimizer):
            value, place = value.schedule, f"{place}.schedule"
        if is_dataclass(value) and hasattr(value, "rounds"):
            yield place, value


def _what_happens(part: Any, rounds: int) -> str:
    if part.rounds < rounds:
        return f"after round {part.rounds} it stays as it ends"
    if rounds <= getattr(part, "warmup_rounds", 0):
        return f"it ends within the warm-up of {part.warmup_rounds} rounds"
    return "it ends on the way"
