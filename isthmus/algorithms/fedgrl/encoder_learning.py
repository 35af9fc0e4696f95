"""What clients of FedGRL do, whether they share the encoder or not: learn it without labels, and put a head on it.

Suresh, Godbout, Mukherjee, Shrivastava, Neville and Li (2022), "Federated graph representation learning using
self-supervision".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgrl.downstream import Downstream, Finetune
from isthmus.algorithms.fedgrl.selfsup import BGRL, SelfSupervision
from isthmus.core.errors import BadInput, CourseFailed, refuse
from isthmus.core.federation import Federation
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, Request, on
from isthmus.core.random import seeded
from isthmus.core.record import Params, Record
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import GraphClient, copied, load_params, read_params, take_step
from isthmus.learn.metrics.classification import cross_entropy
from isthmus.learn.optimizers import AdamW, Cosine, Optimizer
from isthmus.learn.tasks.node_classification import NodeBatch, NodeClassification
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
        return self._self_supervised

    @property
    def _self_supervised(self) -> bool:
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
            return read_params(self.objective.build(widths.pop())) if self._self_supervised else {}

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
        load_params(model, client.complete(params))
        own = self._parts(model, objective)
        memory = client.state.get("objective") or self.objective.memory(model)
        memory = {name: tensor.clone() for name, tensor in memory.items()}
        live = [*self._live(model, client), *own.parameters()]
        state = client.state.get("optimizer")
        state = self.optimizer.start(live) if state is None else copied(state)
        round = max(client.position.round, 1)
        lr = self.optimizer.lr * self.optimizer.schedule.factor(round)
        views = client.generator("views")
        supervised = self._supervision(client, model)
        for _ in range(self.local_steps if live else 0):
            terms: list[Tensor] = [] if supervised is None else [supervised()]
            if self._self_supervised:
                found = self.objective.loss(model, own, client.prepared.graph, memory, views)
                terms.append(found if self.protocol == "lp1" else self.strength * found)
            take_step(live, torch.stack(terms).sum() if len(terms) > 1 else terms[0], self.optimizer, state, lr)
            memory = self.objective.remember(memory, model, round)
        client.state = {**client.state, "optimizer": state, "objective": memory}
        # A client that leaves the objective out gives its parts back as they came.
        parts = read_params(own) if self._self_supervised else objective
        return client.keep_personal(read_params(model), params), parts

    def _parts(self, model: Model, objective: Params) -> nn.Module:
        if not self._self_supervised:
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

    def _live(self, model: Model, client: GraphClient) -> list[Tensor]:
        """Return the parameters of the model that some term reaches."""
        labels = self.protocol == "lp2" and client.num_examples > 0
        encoder = self._self_supervised or (labels and not self.copy_gate)
        return [slot for name, slot in model.named_parameters() if (labels if name.startswith(HEAD) else encoder)]

    def _supervision(self, client: GraphClient, model: Model) -> Any:
        """Return what gives L_c at every step, or None where it does not count."""
        if self.protocol == "lp1" or not client.num_examples:
            return None
        generator = client.generator("fit")
        batches = client.task.batches(client.prepared, client.batching, generator)
        return lambda: self._labelled_loss(client, model, next(batches), generator)

    def _labelled_loss(self, client: GraphClient, model: Model, batch: NodeBatch, generator: torch.Generator) -> Tensor:
        if not self.copy_gate:
            return client.task.loss(model, batch, generator)
        with torch.no_grad():
            copy = model.embed(batch.graph, None)
        scores = model.classify(batch.graph, copy, generator)
        return cross_entropy(scores.index_select(0, batch.index), batch.labels)


def _width(model: Model) -> int:
    """Return the number of columns that the encoder gives: what the head's first map takes."""
    first = next(slot for name, slot in model.named_parameters() if name.startswith(HEAD) and slot.ndim == 2)
    return int(first.shape[0])


def _able(client: GraphClient) -> Model:
    if type(client.task) is not NodeClassification:
        raise BadInput(
            f"FedGRL learns representations of nodes; the task is {type(client.task).__name__}: use "
            "task.name=node_classification"
        )
    if not isinstance(client.batching, FullBatch):
        raise BadInput(
            f"FedGRL takes views of the whole graph; batching is {client.batching!r}: use full batches "
            "(batching.name=full)"
        )
    if not isinstance(client.model, Model) or client.model.decoder is None:
        raise BadInput("FedGRL needs a model with a head apart from its encoder; set model.decoder.name=mlp, or linear")
    return client.model
