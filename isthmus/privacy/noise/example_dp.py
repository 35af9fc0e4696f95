"""Differential privacy of single examples: graphs, or nodes whose model sees no edges. Abadi et al. (2016).

What hides them is in the steps of the clients' own training (`isthmus.learn.private_fit`); here is what may be promised
of that: which courses it holds for, and what it comes to over all that a client tells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from isthmus.core.errors import BadInput, refuse
from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import AtClient, AtServer, Guard
from isthmus.core.guards.hiding import STEPS_TAKEN, PrivateSteps
from isthmus.core.protocol import EvaluateModel, Evaluation, KeepBest, Request, Requests, reply_type
from isthmus.core.record import Params, Record, State, field_types
from isthmus.privacy.accounting.releases import Releases, require_accounting, spent

# Exchanges in which nobody takes a step: how a model does, and receipts.
APART = (EvaluateModel, KeepBest)


@dataclass(frozen=True)
class ExampleDP(Guard):
    """What a client tells hardly depends on whether one of its examples is there, towards everybody, the server too.

    An example is a graph of a graph-level task, or a node of a model that sees no edges (model.gnn.name=mlp). With n
    training examples of a client, C = `clip`, z = `noise` and q = `fraction`, every step of its training descends by

        (1 / (q n)) (sum over drawn i of clip(grad l_i, C) + N(0, z^2 C^2)),    each i drawn with probability q

    in the place of a batch, whatever the course's batching; an epoch is 1 / q steps, rounded up. Who is drawn and the
    noise come from the client's own secret. Epsilon, with `delta`, is that of Gaussian noise of z on sums of examples
    that are drawn so, once for each step, of the client that was asked most often; it is about adding or leaving out
    one example of one client. How many examples a client has is taken for known, as all of a course are told. What a
    client says of how a model does (EvaluateModel) is on its examples and not covered, unless `hide_scores`, which
    leaves a course without a best round.

    A client takes no more than `steps` in an answer, and with a budget nothing leaves it beyond that, whoever asks.
    Only methods are let in of which it is known that all that leaves a client is made of what its training gave
    (`tells_only_models`, said by each class for itself). Real numbers are meant: attacks on the last bits of floats are
    not defended against.

    Fields:
        clip:        C, the length of one example's gradient
        noise:       z, as a multiple of C; 0 clips only, and promises nothing
        fraction:    q, the share of the examples that is expected in a step
        steps:       steps of one answer: local_steps, or local_steps / q where step_unit is "epoch"
        delta:       the chance that epsilon does not hold; well below one over the number of examples
        epsilon:     budget: before the round that would exceed it the course ends; null for none
        hide_scores: whether clients say nothing of how the model does on their data
    """

    clip: float = 1.0
    noise: float = 1.0
    fraction: float = 0.1
    steps: int = 4
    delta: float = 1e-5
    epsilon: float | None = None
    hide_scores: bool = False

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {
        "noise": "more",
        "delta": "less",
        "epsilon": "less",
        "hide_scores": "more",
    }
    # What epsilon is called in a journal.
    told_as: ClassVar[str] = "epsilon of examples"

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.clip < math.inf, self, "clip", "it must be positive")
        refuse(not 0.0 <= self.noise < math.inf, self, "noise", "it must be at least 0")
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be above 0, and at most 1")
        refuse(self.steps < 1, self, "steps", "it must be at least 1")
        refuse(not 0.0 < self.delta < 1.0, self, "delta", "it must be between 0 and 1")
        refuse(self.epsilon is not None and not self.epsilon > 0.0, self, "epsilon", "it must be positive, or null")

    @property
    def private_steps(self) -> PrivateSteps:
        """How clients take the steps of their training."""
        return PrivateSteps(self.clip, self.noise, self.fraction, self.steps)

    @property
    def changes_every_number(self) -> bool:
        """Whether there is noise in each step."""
        return self.noise > 0.0

    def releases(self, answers: int) -> Sequence[Releases]:
        """Return what so many answers of a client tell, for the account."""
        return [Releases(self.noise, answers * self.steps, self.fraction)]

    # ---- before the start

    def problem(self, course: Any) -> str:
        """Return what of a course breaks what the noise promises."""
        found = (of_method(course), self._of_steps(course), self.of_model(course), self._of_account())
        return next(filter(None, found), "")

    def _of_steps(self, course: Any) -> str:
        algorithm = course.algorithm
        per_step = self.private_steps.per_epoch if getattr(algorithm, "step_unit", "batch") == "epoch" else 1
        wanted = getattr(algorithm, "local_steps", 0) * per_step
        if wanted and wanted != self.steps:
            return (
                f"steps is {self.steps}, and an answer takes {wanted} (algorithm.local_steps, step_unit); set steps to "
                f"{wanted}"
            )
        if type(course.batching).__name__ != "FullBatch":
            return "it draws the examples of each step itself; leave batching.name at full"
        return ""

    def of_model(self, course: Any) -> str:
        """Return why examples cannot be told apart in what a model learns; empty if they can."""
        gnn, item = getattr(course.model, "gnn", None), course.task.data_type.item
        if getattr(gnn, "batch_norm", False):
            return "model.gnn.batch_norm is true, and its statistics are of all examples together; set it to false"
        if item == "graph" or (item == "node" and type(gnn).__name__ == "MLP"):
            return ""
        if item == "node":
            return (
                f"the network {type(gnn).__name__} sees edges, so a node is in the gradients of its neighbours; set "
                "model.gnn.name=mlp, or hide nodes with their edges: model.gnn.name=gap algorithm.name=fedgap (or "
                "progap and fedprogap) and the guard node_dp"
            )
        return f"the examples are {item}s, each of which lies in the messages to others; it hides graphs and nodes"

    def _of_account(self) -> str:
        try:
            if self.noise:
                require_accounting("the account of examples that are drawn at random")
        except BadInput as error:
            return str(error)
        first = self.epsilon_of(1, 0) if self.epsilon is not None else 0.0
        if self.epsilon is None or first <= self.epsilon:
            return ""
        return f"epsilon is {self.epsilon:g}, and the first round would spend {first:.3g}; set noise to more"

    def shown(self, exchange: Exchange) -> Exchange:
        """Return what is seen of an exchange in which a client's steps are noisy."""
        if exchange.request == "EvaluateModel":
            return replace(exchange, answered={}) if self.hide_scores else exchange
        if exchange.server_sees == "nothing but a receipt":
            return exchange
        return replace(exchange, wire_up=f"{exchange.wire_up}, {self.of_what}")

    @property
    def of_what(self) -> str:
        """What replies are made of, in words."""
        return "made by noisy steps"

    # ---- client

    def release(self, reply: Record, request: Request[Any], at: AtClient) -> Record:
        """Return a reply as it is, within the budget; scores only if they are not hidden."""
        if isinstance(reply, Evaluation):
            return Evaluation({}, {}) if self.hide_scores else reply
        if self.epsilon is not None and Params in field_types(type(reply)).values():
            taken: int = at.client.state.get(STEPS_TAKEN, {}).get("in_all", 0)
            found = self.epsilon_of(math.ceil(taken / self.steps), 0) if taken else 0.0
            if found > self.epsilon:
                raise BadInput(f"{self.told_as} would be {found:.3g}, and the budget is {self.epsilon:g}")
        return reply

    # ---- server

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Charge those who are asked for what they learn, and say once what is not hidden."""
        request = next(iter(requests.values()), None)
        if request is None or isinstance(request, APART) or not _learns(request):
            return requests
        memory = at.memory
        if not memory:
            self._tell(at)
        before = memory.get("in_round", 0) if memory.get("round") == at.position.round else 0
        asked: Counter[str] = Counter(memory.get("asked", {}))
        asked.update(at.clients)
        at.remember({**memory, "asked": dict(asked), "round": at.position.round, "in_round": before + 1})
        return requests

    def _tell(self, at: AtServer) -> None:
        numbers = sum(tensor.numel() for tensor in at.known.params.values())
        sizes: list[int] = [held.examples.get("train", 0) for held in at.known.holdings.values()]
        least = min(sizes, default=0)
        if least and self.noise:
            length = self.noise * math.sqrt(numbers) / (self.fraction * least)
            at.note(
                f"the noise on a step of {numbers:,} parameters has a norm of about {length:.3g} clips where a client "
                f"has {least} examples, and the mean itself one at most"
                + (": let more examples be drawn (fraction), or learn fewer parameters" if length > 1.0 else "")
            )
        if not self.hide_scores:
            at.note(f"{self.told_as} is of models: what clients say of how a model does on their data is no part of it")

    # ---- the account

    def epsilon_of(self, answers: int, more: int) -> float:
        """Return epsilon of so many answers, and so many more."""
        return spent(self.releases(answers + more), self.delta)

    def spent(self, memory: State) -> dict[str, float]:
        """Return epsilon so far, of the client that was asked most often."""
        return {self.told_as: self.epsilon_of(_most(memory), 0)}

    def exhausted(self, memory: State) -> str:
        """Return that another round like the last would exceed the budget."""
        if self.epsilon is None or not memory:
            return ""
        most = _most(memory)
        after = self.epsilon_of(most, max(1, memory["in_round"]))
        if after <= self.epsilon:
            return ""
        return (
            f"{self.told_as} is {self.epsilon_of(most, 0):.3g} of {self.epsilon:g}, and another round would make it "
            f"{after:.3g} (delta {self.delta:g})"
        )


def of_method(course: Any) -> str:
    """Return why it is not known of a course's method that only what training gave leaves a client."""
    algorithm = course.algorithm
    if not vars(type(algorithm)).get("tells_only_models", False):
        return (
            f"{type(algorithm).__name__} is not known to send nothing but what training gave; use one that is: fedavg, "
            "fedprox, fedopt, scaffold, fedgap, fedprogap"
        )
    if getattr(algorithm, "weighting", "uniform") != "uniform":
        return (
            f"algorithm.weighting is {algorithm.weighting!r}, so a reply says how many examples a client has at the "
            "time; set algorithm.weighting=uniform"
        )
    return ""


def _most(memory: State) -> int:
    return max(memory.get("asked", {}).values(), default=0)


def _learns(request: Request[Any]) -> bool:
    """Whether a reply to a request holds parameters."""
    return Params in field_types(reply_type(type(request))).values()
