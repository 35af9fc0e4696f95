"""From an encoder that is ready to a client's own model: a linear probe on frozen representations, or fine-tuning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms.fedgrl.together import Learners
from isthmus.core.client import Work
from isthmus.core.errors import BadInput
from isthmus.core.protocol import improves
from isthmus.core.record import CPU, Params, moved
from isthmus.learn.graph_client import Fit, GraphClient
from isthmus.learn.optimizers import AdamW, Optimizer, load_params
from isthmus.learn.tasks.node_classification import NodeClassification
from isthmus.learn.together.layouts import replaced
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models.model import Model
from isthmus.models.parts import Perceptron, require_count

# A class that a client has never seen in training is as good as impossible.
NEVER = -1e4


@dataclass(frozen=True)
class Downstream(ABC):
    """How a client makes a model for its own task out of an encoder."""

    def check(self, client: GraphClient) -> Model:
        """Return the client's module; raises BadInput where it fits no model for the task. `train` relies on it."""
        if type(client.task) is not NodeClassification or "accuracy" not in client.task.metrics:
            raise BadInput(
                f"heads are made for classes of nodes and chosen by accuracy; the task is {client.task!r}: use "
                "task.name=node_classification with accuracy among its metrics"
            )
        if not isinstance(client.model, Model) or client.model.decoder is None:
            raise BadInput("the model has no head apart from its encoder; set model.decoder.name=linear, or mlp")
        return client.model

    @abstractmethod
    def train(self, client: GraphClient, params: Params) -> Params:
        """Return the client's whole model; `params` are the encoder's, the head begins as the client's own does.

        A client without training examples gets its head as it began.
        """


@dataclass(frozen=True)
class Freeze(Downstream):
    """Logistic regression on the frozen encoder's representations, as a linear head.

    Columns are centred and scaled by the training nodes; the scaling is then made part of the head. Of the strengths
    of the l2 penalty, C = 2^-10, 2^-8, ..., 2^10, the one with the best accuracy on the client's validation nodes
    counts, the smallest among equals; without validation nodes it is C = 1.

    Fields:
        max_exponent: strengths go from 2^-max_exponent to 2^max_exponent
        step:         step of the exponent
        max_iter:     iterations of the solver at most
    """

    max_exponent: int = 10
    step: int = 2
    max_iter: int = 1000

    def __post_init__(self) -> None:
        require_count("max_exponent", self.max_exponent, least=0)
        require_count("step", self.step)
        require_count("max_iter", self.max_iter)

    def check(self, client: GraphClient) -> Model:
        """Return the client's module, whose head has to be linear."""
        model = super().check(client)
        if not isinstance(model.decoder, Perceptron) or len(model.decoder.layers) != 1:
            raise BadInput(
                "a frozen encoder gets a linear head; set model.decoder.name=linear, or "
                "algorithm.downstream.name=finetune"
            )
        return model

    def train(self, client: GraphClient, params: Params) -> Params:
        """Return the encoder as it is with the head that was found."""
        model, prepared = self.check(client), client.prepared
        whole = client.complete(params)
        if not len(prepared.index["train"]):
            return whole
        load_params(model, whole)
        with torch.no_grad():
            h = model.embed(prepared.graph, None).cpu().double()
        # The solver is one of the CPU's.
        index, labels = moved((prepared.index, prepared.labels), CPU)
        weight, bias = self.head(h, index, labels, client.task.output_dim(client.data))
        head = {"decoder.layers.0.weight": weight.float(), "decoder.layers.0.bias": bias.float()}
        return {**whole, **moved(head, client.device)}

    def head(
        self, h: Tensor, index: dict[str, Tensor], labels: dict[str, Tensor], num_classes: int
    ) -> tuple[Tensor, Tensor]:
        """Return weight (width, classes) and bias (classes,) of the best probe."""
        train = h[index["train"]]
        center, scale = train.mean(dim=0), train.std(dim=0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        seen = torch.unique(labels["train"])
        if len(seen) == 1:
            return h.new_zeros(h.shape[1], num_classes), _bias(h.new_zeros(1), seen, num_classes)
        exponents = range(-self.max_exponent, self.max_exponent + 1, self.step) if len(index["val"]) else (0,)
        rows = ((train - center) / scale).numpy()
        best: tuple[float, Tensor, Tensor] | None = None
        for exponent in exponents:
            probe = self._probe(2.0**exponent, rows, labels["train"].numpy(), len(seen))
            weight, bias = _two_sided(probe.coef_, probe.intercept_)  # (width, seen), (seen,)
            weight = weight / scale.unsqueeze(1)
            bias = bias - center @ weight
            full = h.new_zeros(h.shape[1], num_classes)
            full[:, seen] = weight
            shift = _bias(bias, seen, num_classes)
            right = ((h[index["val"]] @ full + shift).argmax(dim=1) == labels["val"]).double()
            score = float(right.mean()) if len(right) else 0.0
            if best is None or score > best[0]:
                best = (score, full, shift)
        assert best is not None
        return best[1], best[2]

    def _probe(self, strength: float, rows: np.ndarray, labels: np.ndarray, num_classes: int) -> Any:
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        # Newton's steps are few, and with two classes cheap; with more they would cost the square of their number.
        solver = "newton-cholesky" if num_classes == 2 else "lbfgs"
        probe = LogisticRegression(C=strength, max_iter=self.max_iter, solver=solver)
        # Small products: threads beyond the course's only get in the way.
        with threadpool_limits(torch.get_num_threads()):
            return probe.fit(rows, labels)


@dataclass(frozen=True)
class Finetune(Downstream):
    """Encoder and head are trained together on the client's own labels.

    Fields:
        steps:          optimiser steps
        optimizer:      the optimiser; its schedule goes by rounds and plays no part
        evaluate_every: steps between two looks at the client's validation nodes, of which the best is kept, the start
                        not among them; 0 keeps the last
    """

    steps: int = 100
    optimizer: Optimizer = AdamW(lr=0.01, weight_decay=1e-3)
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        require_count("steps", self.steps)
        require_count("evaluate_every", self.evaluate_every, least=0)

    def train(self, client: GraphClient, params: Params) -> Params:
        """Return the model that does best on the client's validation nodes."""
        self.check(client)
        whole = client.complete(params)
        if not len(client.prepared.index["train"]):
            return whole
        tuned: Params = client.do(Tune(self, whole))
        return tuned

    def lengths(self) -> list[int]:
        """Return the steps before each look."""
        every = self.evaluate_every or self.steps
        return [min(every, self.steps - done) for done in range(0, self.steps, every)]


@dataclass(frozen=True, eq=False)
class Tune(Work):
    """Fine-tuning of one client's whole model."""

    way: Finetune
    params: Params

    def kind(self) -> Hashable:
        """Return what is the same for all clients whose models are tuned together."""
        return (type(self), self.way, tuple(self.params))

    def alone(self, client: GraphClient) -> Params:
        """Tune one client's model."""
        way, prepared = self.way, client.prepared
        best = running = self.params
        generator, state, score = client.generator("finetune"), None, None
        for length in way.lengths():
            work = Fit(running, length, way.optimizer, optimizer_state=state)
            lr = way.optimizer.lr
            fitted = work.on(client.model, running, client.task, prepared, lr, client.batching, generator)
            running, state = fitted.params, fitted.optimizer_state
            found = client.task.evaluate(client.model, prepared, ("val",))[0]["val"].get("accuracy")
            if found is None or improves("accuracy", found, score):
                best, score = running, found
        return best if way.evaluate_every else running

    @staticmethod
    def together(clients: GraphCohort, works: Sequence[Tune]) -> Sequence[Params]:
        """Tune many clients' models as one."""
        way, task, model = works[0].way, clients.task, clients.model
        stack = Learners(clients, [work.params for work in works], lambda name: True)
        stack.begin(way.optimizer, [None] * len(works), way.optimizer.lr)
        streams = stack.streams("finetune")
        scores: list[float | None] = [None] * len(works)
        best = {name: live.detach().clone() for name, live in stack.of_model().items()}
        with replaced(model, stack.of_model()):
            for length in way.lengths():
                for _ in range(length):
                    stack.step(task.stacked_loss(model, stack.data, streams))
                for k, (metrics, _) in enumerate(task.evaluate_stacked(model, stack.data, ("val",))):
                    found = metrics["val"].get("accuracy")
                    if found is None or not way.evaluate_every or improves("accuracy", found, scores[k]):
                        stack.copy_member(best, k)
                        scores[k] = found
        return stack.members(best)


def _two_sided(weight: np.ndarray, bias: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return weight and bias of scikit-learn as (width, classes) and (classes,); two classes have one row there."""
    if len(weight) == 1:
        weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
    return torch.from_numpy(np.ascontiguousarray(weight.T)), torch.from_numpy(bias)


def _bias(bias: Tensor, seen: Tensor, num_classes: int) -> Tensor:
    return bias.new_full((num_classes,), NEVER).index_copy_(0, seen, bias)


DOWNSTREAMS: dict[str, type[Downstream]] = {"freeze": Freeze, "finetune": Finetune}
