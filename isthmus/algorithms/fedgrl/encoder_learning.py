"""What clients of FedGRL do, whether they share the encoder or not: learn it without labels, and put a head on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.downstream import Downstream, Finetune
from isthmus.algorithms.fedgrl.selfsup import BGRL, SelfSupervision
from isthmus.algorithms.fedgrl.together import OWN, Learners
from isthmus.core.client import NotTogether, Work
from isthmus.core.errors import BadInput, CourseFailed, refuse
from isthmus.core.federation import Federation
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, Request, on
from isthmus.core.random import seeded
from isthmus.core.record import Params, Record
from isthmus.learn.able import require_classes_of_nodes, require_whole_graph
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.one_or_many import Graphs
from isthmus.learn.optimizers import (
    AdamW,
    Cosine,
    Optimizer,
    OptimizerState,
    copied,
    load_params,
    read_params,
    take_step,
)
from isthmus.learn.together.layouts import replaced
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model

PROTOCOLS = ("lp1", "lp2")
HEAD = "decoder."
# The server makes parts of the objective that have this many rows and columns.
MAX_WIDTH = 8192


@dataclass(frozen=True)
class FedGRLState(Record):
    """The shared model; empty where every client learns alone (`LocalGRL`)."""

    params: Params
    """The encoder f."""
    objective: Params
    """What the self-supervised objective learns besides it, such as BGRL's predictor."""


@dataclass(frozen=True)
class EncoderWidth(Record):
    """What the server has to know to make the objective's own parts."""

    width: int
    """Columns of the encoder's output; the same for all clients of a course."""


@dataclass(frozen=True)
class DescribeEncoder(Request[EncoderWidth]):
    """Asks for the width of the encoder's output."""

    describes: ClassVar[bool] = True

    def problem(self, reply: EncoderWidth) -> str:
        """Return what is wrong with a width."""
        fits = 1 <= reply.width <= MAX_WIDTH
        return "" if fits else f"width is {float(reply.width):g}; it must be from 1 to {MAX_WIDTH}"

    def common(self, reply: EncoderWidth) -> int:
        """Return the width: all clients train the same parts."""
        return reply.width


@dataclass(frozen=True)
class EncoderLearning(Algorithm[FedGRLState]):
    """An algorithm whose clients learn an encoder without labels. Fields: see FedGRL."""

    personal: ClassVar[tuple[str, ...]] = ("model",)
    keeps_heads: ClassVar[bool] = True

    objective: SelfSupervision = BGRL()
    protocol: str = "lp1"
    downstream: Downstream = Finetune()
    strength: float = 1.0
    copy_gate: bool = False
    local_steps: int = 1
    optimizer: Optimizer = AdamW(lr=1e-4, weight_decay=1e-5, schedule=Cosine(rounds=1000, warmup_rounds=100))

    def __post_init__(self) -> None:
        refuse(self.protocol not in PROTOCOLS, self, "protocol", f"choose from {', '.join(PROTOCOLS)}")
        refuse(not 0.0 <= self.strength < float("inf"), self, "strength", "it must be at least 0")
        if self.copy_gate and self.protocol == "lp1":
            raise ValueError('copy_gate is true and protocol "lp1", where labels never reach the encoder; use "lp2"')
        refuse(isinstance(self.local_steps, bool) or self.local_steps < 0, self, "local_steps", "it must be at least 0")

    @property
    def learns_without_labels(self) -> bool:
        """Whether graphs without labels count."""
        return self.self_supervised

    @property
    def self_supervised(self) -> bool:
        """Whether L~_c counts."""
        return self.protocol == "lp1" or self.strength > 0

    def num_own_parameters(self, model: Any, input_dim: int) -> int:
        """Return the size of the objective's own parts."""
        return sum(slot.numel() for slot in self.objective.build(_width(model)).parameters())

    # ---- server

    def own_parts(self, fed: Federation) -> Params:
        """Make the objective's own parts for the width of the clients' encoders."""
        if any(name.startswith(HEAD) for name in fed.initial_params):
            raise BadInput('with FedGRL heads stay with the clients; leave shared out, or end it with "!decoder.*"')
        widths = {reply.width for reply in fed.ask(DescribeEncoder(), clients=fed.all_clients).values()}
        if not widths:
            raise CourseFailed("no client said how many columns its encoder gives")
        with seeded(fed.generator("objective").initial_seed(), "objective"):
            return read_params(self.objective.build(widths.pop())) if self.self_supervised else {}

    # ---- client

    @on(DescribeEncoder)
    def describe(self, request: DescribeEncoder, client: GraphClient) -> EncoderWidth:
        """Tell the width of what the encoder gives; in "lp1" a client that could make nothing of it fails here."""
        model = _able(client)
        if self.protocol == "lp1":
            self.downstream.check(client)
        return EncoderWidth(_width(model))

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Evaluate the client's own model; in "lp1" it is made of the current encoder first."""
        if self.protocol == "lp1" and not request.best:
            encoder = self.encoder(request.params, client.state)
            client.state = {**client.state, "model": self.downstream.train(client, encoder)}
        reply: Evaluation = super().evaluate(request, client)
        return reply

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's whole model, as far as it has one."""
        own: Params | None = state.get("model")
        return super().client_params(self.encoder(params, state), state) if own is None else own

    def encoder(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the encoder that a client would use: the shared one."""
        return params

    def trained(self, client: GraphClient, params: Params, objective: Params) -> tuple[Params, Params]:
        """Take the local steps; return encoder and objective, and leave the rest in the client's memory."""
        model = _able(client)
        memory = client.state.get("objective")
        if not memory:
            load_params(model, client.complete(params))
            memory = self.objective.memory(model)
        learned: Learned = client.do(Learn(self, params, objective, memory, client.state.get("optimizer")))
        client.state = {**client.state, "optimizer": learned.state, "objective": learned.memory}
        if learned.personal:
            client.state = {**client.state, "personal": learned.personal}
        return learned.params, learned.parts

    def lr(self, client: GraphClient) -> float:
        """Return the learning rate of the round."""
        return self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1))

    def parts_for(self, model: Model, objective: Params) -> nn.Module:
        """Return the objective's own parts, as they were sent."""
        if not self.self_supervised:
            return nn.ModuleDict()
        with torch.random.fork_rng(devices=[]):
            own = self.objective.build(_width(model)).to(next(model.parameters()).device)
        if not objective and any(True for _ in own.parameters()):
            raise BadInput(
                f"this client's strength is {self.strength:g}, but the course's is 0 and so nobody shares the parts of "
                f"{type(self.objective).__name__}; give the course a strength above 0, and 0 to the clients without"
            )
        load_params(own, objective)
        return own

    def moves(self, name: str, client: GraphClient) -> bool:
        """Whether some term reaches a parameter of the client's model, or of the objective."""
        if name.startswith(HEAD):
            return self.learns_from_labels(client)
        return self.self_supervised or (self.learns_from_labels(client) and not self.copy_gate)

    def learns_from_labels(self, client: GraphClient) -> bool:
        """Whether L_c counts while the encoder learns."""
        return self.protocol == "lp2" and client.num_examples > 0

    def labelled(self, model: Model) -> nn.Module:
        """Return the model as L_c sees it."""
        return Gated(model) if self.copy_gate else model

    def added(self, labelled: Tensor | None, own: Tensor | None) -> Tensor:
        """Return L_c + lambda_c L~_c, of one client or of each, where the terms count."""
        if own is not None and self.protocol == "lp2":
            own = self.strength * own
        terms = [term for term in (labelled, own) if term is not None]
        return torch.stack(terms).sum(dim=0)


class Gated(nn.Module):
    """A model whose head alone is trained: it reads a copy of what the encoder gives."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the head's scores."""
        with torch.no_grad():
            copy = self.model.embed(graph, None)
        return self.model.classify(graph, copy, generator)


@dataclass(frozen=True)
class Learned:
    """What local training gives back.

    Fields:
        params:   the encoder
        personal: what else of the model there is
        parts:    the objective's own parts
        memory:   what the objective remembers
        state:    the optimiser's state
    """

    params: Params
    personal: Params
    parts: Params
    memory: Params
    state: OptimizerState


@dataclass(frozen=True, eq=False)
class Learn(Work):
    """The local steps of one client: from what it was sent, and what it remembers."""

    algorithm: EncoderLearning
    params: Params
    objective: Params
    memory: Params
    state: OptimizerState | None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that learn together; optimisers count their steps."""
        return (type(self), tuple(self.params), None if self.state is None else self.state["step"])

    def alone(self, client: GraphClient) -> Learned:
        """Take the steps of one client."""
        algorithm, model, round = self.algorithm, _able(client), max(client.position.round, 1)
        load_params(model, client.complete(self.params))
        own = algorithm.parts_for(model, self.objective)
        memory = {name: tensor.clone() for name, tensor in self.memory.items()}
        reached = (slot for name, slot in model.named_parameters() if algorithm.moves(name, client))
        live: list[Tensor] = [*reached, *own.parameters()]
        state = algorithm.optimizer.start(live) if self.state is None else copied(self.state)
        views, fit = client.generator("views"), client.generator("fit")
        batches = client.task.batches(client.prepared, client.batching, fit)
        for _ in range(algorithm.local_steps if live else 0):
            labelled = found = None
            if algorithm.learns_from_labels(client):
                labelled = client.task.loss(algorithm.labelled(model), next(batches), fit)
            if algorithm.self_supervised:
                found = algorithm.objective.loss(model, own, client.prepared.graph, memory, views)
            take_step(live, algorithm.added(labelled, found), algorithm.optimizer, state, algorithm.lr(client))
            memory = algorithm.objective.remember(memory, dict(model.named_parameters()), round)
        whole = read_params(model)
        # A client that leaves the objective out gives its parts back as they came.
        parts = read_params(own) if algorithm.self_supervised else self.objective
        sent = {name: whole[name] for name in self.params}
        return Learned(sent, {n: whole[n] for n in whole if n not in sent}, parts, memory, state)

    @staticmethod
    def together(clients: GraphCohort, works: Sequence[Learn]) -> Sequence[Learned]:
        """Take the steps of many clients as one."""
        first, one = works[0], clients.clients[0]
        algorithm, model, round = first.algorithm, _able(one), max(one.position.round, 1)
        objective = algorithm.objective
        if algorithm.self_supervised and "losses" not in vars(type(objective)):
            raise NotTogether(f"{type(objective).__name__} has a loss for one client alone")
        own = algorithm.parts_for(model, first.objective)
        stack = Learners(
            clients,
            [client.complete(work.params) for client, work in zip(clients, works, strict=True)],
            lambda name: algorithm.moves(name, one),
            [work.objective for work in works] if algorithm.self_supervised else (),
        )
        stack.begin(algorithm.optimizer, [work.state for work in works], algorithm.lr(one))
        memory = stack.held([work.memory for work in works])
        data, views, fit = stack.data, stack.streams("views"), stack.streams("fit")
        graphs = Graphs.of_many(clients, data, views)
        learned = {name: stack.live[name] for name, _ in model.named_parameters()}
        with replaced(model, stack.of_model()), replaced(own, stack.of_objective()):
            for _ in range(algorithm.local_steps if stack.weights.moved else 0):
                labelled = found = None
                if algorithm.learns_from_labels(one):
                    labelled = one.task.stacked_loss(algorithm.labelled(model), data, fit)
                if algorithm.self_supervised:
                    found = objective.losses(model, own, memory, graphs)
                stack.step(algorithm.added(labelled, found))
                memory = objective.remember(memory, learned, round)
        whole = stack.of_model()
        sent = stack.members({name: whole[name] for name in first.params})
        personal = stack.members({name: value for name, value in whole.items() if name not in first.params})
        parts = stack.members({OWN + name: value for name, value in stack.of_objective().items()}, OWN)
        given = [work.objective for work in works]
        each = zip(sent, personal, parts if algorithm.self_supervised else given, strict=True)
        kept = zip(each, stack.members(memory), stack.states(), strict=True)
        return [Learned(*mine, memory=target, state=state) for mine, target, state in kept]


def _width(model: Model) -> int:
    """Return the number of columns that the encoder gives: what the head's first map takes."""
    first = next(slot for name, slot in model.named_parameters() if name.startswith(HEAD) and slot.ndim == 2)
    return int(first.shape[0])


def _able(client: GraphClient) -> Model:
    require_classes_of_nodes(client, "FedGRL learns representations of nodes")
    require_whole_graph(client, "FedGRL takes views of the whole graph")
    if not isinstance(client.model, Model) or client.model.decoder is None:
        raise BadInput("FedGRL needs a model with a head apart from its encoder; set model.decoder.name=mlp, or linear")
    return client.model
