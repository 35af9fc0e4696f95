"""Every algorithm of the table keeps to the rules, and every check catches an algorithm that does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from isthmus.algorithms import ALGORITHMS, FGSSL, GFLAPPNP, FedAvg, FedGL, FedGNN, FedOpt, FedProx, Local
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgrl.encoder_learning import EncoderLearning
from isthmus.core.errors import BadInput
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, Kept, ModelState, Request, cohort, on
from isthmus.core.record import Params, Record
from isthmus.core.replies import Each, Stack
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, AdamW, BothWays
from isthmus.learn.together.stacked_clients import GraphCohort
from isthmus.models import SAGE, MLPDecoder, ModelSpec
from isthmus.testing import CHECKS, check_algorithm, toy_course, toy_scenario
from isthmus.testing.conformance import check_stacked_equals_loop, odd_scenarios
from isthmus.testing.traces import trace_course
from tests.quick import KINDS, by_kind, quick

# ---- the algorithms of the package


# What a method's own lines seldom have a part in is checked for one of each kind in the default set, the slow one has
# the others; lies are told to all that have messages of their own. That clients through bytes end the same is seen of
# every method where half of them take part.
OF_KINDS = ("another_seed", "failure", "lies", "loop_equals_strict")
USUAL = set(FedAvg.handlers())
# One course for each of many messages.
LONG = {("gfl_appnp", "failure"), ("fedsage_plus", "lies")}


def in_the_default_set(name: str, check: str) -> bool:
    if (name, check) in LONG:
        return False
    own = check == "lies" and bool(ALGORITHMS[name].handlers().keys() - USUAL)
    return name in KINDS or check not in OF_KINDS or own


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[] if in_the_default_set(name, check) else [pytest.mark.slow])
        for name in ALGORITHMS
        for check in CHECKS
    ],
)
def test_algorithm_of_the_table_passes(name: str, check: str) -> None:
    algorithm = steady(name) if check == "stacked_equals_loop" else quick(name)
    # What fails in the second round may be missed in the third.
    course = toy_course(algorithm, rounds=3 if check == "failure" else 2)
    if check == "stacked_equals_loop" and name not in KINDS:
        check_stacked_equals_loop(algorithm, course, scenarios=odd_scenarios()[1:2])
    else:
        CHECKS[check](algorithm, course)


def steady(name: str) -> Algorithm[Any]:
    """Return an algorithm whose course does not blow rounding up."""
    algorithm = quick(name)
    if isinstance(algorithm, FGSSL):  # with its own rate, 1e-7 at the start part the loop from itself by 5e-3
        algorithm = replace(algorithm, optimizer=replace(algorithm.optimizer, lr=0.01))
    if isinstance(algorithm, EncoderLearning):
        # Representations without length but for rounding have directions, which Adam follows unless eps is above them.
        algorithm = replace(algorithm, optimizer=AdamW(lr=0.01, eps=1e-2))
    return algorithm


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_of_the_table_passes_at_length(name: str, check: str) -> None:
    CHECKS[check](steady(name) if check == "stacked_equals_loop" else quick(name), None)


# Batch norm brings buffers, neighbour batches draw from the clients' streams, Adam has moments to keep.
DEMANDING = {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))}
# Their clients have most to lose; as the first, these are tried with each of the checks, one with one.
REMEMBERING = ("local", "apfl", "ditto", "scaffold", "feddyn")
WITH_HEAD = ModelSpec(SAGE(hidden=5, batch_norm=True), decoder=MLPDecoder(hidden=4))


@pytest.mark.meet(1)
@pytest.mark.parametrize("check", ["loop_equals_strict", "same_seed", "resume", "failure", "idle_client"])
@pytest.mark.parametrize("name", [*REMEMBERING, *by_kind(name for name in ALGORITHMS if name not in REMEMBERING)])
def test_algorithm_of_the_table_passes_with_sampled_batches_and_batch_norm(name: str, check: str) -> None:
    kind = ALGORITHMS[name]
    unit = (
        {} if issubclass(kind, EncoderLearning) else {"step_unit": "epoch"}
    )  # whose step is always one of the whole graph
    algorithm = quick(name, local_steps=1, optimizer=Adam(lr=0.01), **unit)
    course = {**DEMANDING, "model": WITH_HEAD} if kind.keeps_heads else DEMANDING
    if isinstance(algorithm, FedGNN):  # it perturbs gradients, and the statistics of batch norm have none
        algorithm = replace(algorithm, clip=None, noise=0.0)
    if isinstance(algorithm, FedGL | FGSSL | GFLAPPNP | EncoderLearning):
        # Before the course in simulation, or by the clients that are asked first.
        with pytest.raises((BadInput, AssertionError), match=r"batching is NeighborBatch.*use full batches"):
            CHECKS[check](algorithm, toy_course(algorithm, rounds=2, **course))
        return
    CHECKS[check](algorithm, toy_course(algorithm, rounds=2, **course))


# Where configurations differ most: how they are stacked, and what they have to remember.
TELLING = ("stacked_equals_loop", "resume")


@pytest.mark.parametrize(
    "check", [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS]
)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(weighting="nodes", local_steps=2),
        FedAvg(weighting="uniform", local_steps=2),
        FedAvg(keep_moments=True, optimizer=SGD(lr=0.1, momentum=0.9), local_steps=2),
        FedProx(mu=0.5, local_steps=2),
        FedOpt(server="adam", server_lr=0.1, local_steps=2),
        FedOpt(server="yogi", server_lr=0.1, local_steps=2),
        FedOpt(server="adagrad", server_lr=0.1, local_steps=2),
        Local(optimizer=SGD(lr=0.1, momentum=0.9), local_steps=2),
    ],
    ids=repr,
)
def test_other_configurations_pass(algorithm: Algorithm[Any], check: str) -> None:
    if check == "stacked_equals_loop":
        check_stacked_equals_loop(algorithm, toy_course(algorithm, rounds=2), scenarios=odd_scenarios()[1:2])
    else:
        CHECKS[check](algorithm, toy_course(algorithm, rounds=2))


def test_a_method_with_personal_models_that_keeps_the_best_passes() -> None:
    check_algorithm(Personal(), toy_course(Personal(), rounds=2))


def test_check_algorithm_names_the_algorithm_and_the_rule() -> None:
    with pytest.raises(AssertionError, match=r"GlobalDice, check 'same_seed': .*torch's global generator"):
        check_algorithm(GlobalDice(), skip=[name for name in CHECKS if name not in ("repr", "same_seed")])


def test_check_algorithm_tells_everything_that_is_broken_at_once_and_returns_what_it_checked() -> None:
    slow = [name for name in CHECKS if name not in ("frozen", "repr", "docstrings", "parameters_move")]
    with pytest.raises(AssertionError) as caught:
        check_algorithm(NothingSaid(), skip=slow)
    told = str(caught.value)
    for broken in (
        "NothingSaid, check 'repr': temperature=1.125",
        "NothingSaid, check 'docstrings': ",
        "the record Silent has no docstring",
        "Silent.weight has no docstring",
        "Undocumented.params has no docstring",
    ):
        assert broken in told
    assert check_algorithm(FedAvg(), skip=slow) == ["frozen", "repr", "docstrings", "parameters_move"]


def test_check_algorithm_refuses_to_skip_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Did you mean 'resume'"):
        check_algorithm(FedAvg(), skip=("resum",))


def test_skipped_checks_do_not_run() -> None:
    others = [name for name in CHECKS if name not in ("requests", "idle_client")]
    with pytest.raises(AssertionError, match="'idle_client'"):
        check_algorithm(Democrat(), skip=others)
    assert check_algorithm(Democrat(), skip=[*others, "idle_client"]) == ["requests"]


# ---- algorithms that break a rule


@dataclass(frozen=True)
class Personal(FedAvg):
    """A good one: clients keep what they trained as their own."""

    personal: ClassVar[tuple[str, ...]] = ("own",)

    def client_params(self, params: Params, state: Any) -> Params:
        own: Params = state.get("own", params)
        return own

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        client.state["own"] = update.params
        return update


@dataclass(frozen=True)
class ChangesRequest(FedAvg):
    """Trains in the parameters that were sent."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        for name, tensor in request.params.items():
            tensor.copy_(update.params[name])
        return update


@dataclass(frozen=True)
class ChangesMemory(FedAvg):
    """Adds to a tensor in its memory."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        client.state.setdefault("visits", torch.zeros(1)).add_(1.0)
        return super().train(request, client)


@dataclass(frozen=True)
class ChangesState(FedAvg):
    """Adds to the server's state of the round before."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        after = super().round(state, fed)
        next(iter(state.params.values())).add_(1.0)
        return after


@dataclass(frozen=True)
class NotesOnClient(FedAvg):
    """Remembers on the client object how often it was asked."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: Any) -> ModelUpdate:
        client.visits = getattr(client, "visits", 0) + 1
        update = super().train(request, client)
        return replace(update, weight=update.weight / client.visits**client.num_examples)


@dataclass(frozen=True)
class NotesOnAlgorithm(FedAvg):
    """Gets around the frozen dataclass."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        object.__setattr__(self, "last_client", client.id)
        return super().train(request, client)


@dataclass(frozen=True)
class NotesOnClass(FedAvg):
    """Keeps a message pool on the class."""

    pool: ClassVar[dict[str, str]] = {}

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        self.pool[client.id] = "was here"
        return super().train(request, client)


POOL: list[str] = []


@dataclass(frozen=True)
class NotesInModule(FedAvg):
    """Keeps a message pool in the module."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        POOL.append(client.id)
        return super().train(request, client)


@dataclass(frozen=True)
class Unhashable(FedAvg):
    """Has a field that cannot be hashed."""

    layers: list[int] = field(default_factory=lambda: [1, 2])


@dataclass(frozen=True)
class HiddenField(FedAvg):
    """Leaves a hyper-parameter out of its repr."""

    temperature: float = field(default=1.0, repr=False)


@dataclass(frozen=True)
class GlobalDice(FedAvg):
    """Draws from torch's global generator."""

    def weight(self, client: GraphClient) -> float:
        return super().weight(client) * float(1.0 + torch.rand(()))


@dataclass(frozen=True)
class NumpyDice(FedAvg):
    """Draws from numpy's global generator."""

    def weight(self, client: GraphClient) -> float:
        return super().weight(client) * float(1.0 + np.random.rand())


@dataclass(frozen=True)
class PythonDice(FedAvg):
    """Draws from Python's global generator."""

    def weight(self, client: GraphClient) -> float:
        return super().weight(client) * (1.0 + random.random())


@dataclass(frozen=True)
class UnseededDice(FedAvg):
    """Makes a generator of its own, seeded from the machine."""

    def weight(self, client: GraphClient) -> float:
        return super().weight(client) * random.SystemRandom().random()


@dataclass(frozen=True)
class LoadedDice(FedAvg):
    """Has its own fixed seed."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: Any) -> ModelUpdate:
        client.position = replace(client.position, seed=7)
        return super().train(request, client)


@dataclass(frozen=True)
class Whisper(Request[Kept]):
    """A request that nobody sends."""


@dataclass(frozen=True)
class NeverAsked(FedAvg):
    """Handles a request that is never sent."""

    @on(Whisper)
    def whisper(self, request: Whisper, client: GraphClient) -> Kept:
        return Kept()


@dataclass(frozen=True)
class NeverAnswered(FedAvg):
    """Sends a request that has no handler."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        fed.ask(Whisper(), min_replies=0)
        return super().round(state, fed)


@dataclass(frozen=True)
class WrongReply(FedAvg):
    """Answers with another record than the request names."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> Any:
        super().train(request, client)
        return Kept()


@dataclass(frozen=True)
class WrongField(FedAvg):
    """Answers with a number where parameters should be."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> Any:
        return replace(super().train(request, client), params=3)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Smuggler(FedAvg):
    """Hangs something undeclared on the reply."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        object.__setattr__(update, "labels", client.data.y)
        return update


@dataclass(frozen=True)
class Attached(FedAvg):
    """Sends tensors that still have a gradient."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        update = super().train(request, client)
        return replace(update, params={n: t.requires_grad_() for n, t in update.params.items()})


@dataclass(frozen=True)
class Undocumented(Record):
    """A reply whose field has no docstring."""

    params: Params
    weight: float
    """The share in the mean."""


@dataclass(frozen=True)
class TrainUndocumented(Request[Undocumented]):
    """Asks for it."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class NoDocstrings(FedAvg):
    """Does not say what it reveals."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        fed.ask_folded(TrainUndocumented(state.params), weighted_mean)
        return super().round(state, fed)

    @on(TrainUndocumented)
    def train_undocumented(self, request: TrainUndocumented, client: GraphClient) -> Undocumented:
        return Undocumented(request.params, 1.0)


@dataclass(frozen=True)
class Silent(Record):
    params: Params
    """The client's parameters."""
    weight: float


@dataclass(frozen=True)
class TrainSilent(Request[Silent]):
    """Asks for it."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class NothingSaid(NoDocstrings):
    """Breaks several rules: two records without docstrings, and a field that its repr hides."""

    temperature: float = field(default=1.0, repr=False)

    @on(TrainSilent)
    def train_silent(self, request: TrainSilent, client: GraphClient) -> Silent:
        return Silent(request.params, 1.0)


@dataclass(frozen=True)
class Idle(FedAvg):
    """Computes a mean and throws it away."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        super().round(state, fed)
        return state


@dataclass(frozen=True)
class Stubborn(FedAvg):
    """Needs an answer from everybody."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        replies = fed.ask(TrainModel(state.params), min_replies=len(fed.clients))
        return ModelState(next(iter(replies.values())).params)


@dataclass(frozen=True)
class Domino(FedAvg):
    """Lets a client that missed one round fail in all rounds after it."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        expected = client.state.get("round", client.position.round)
        if client.position.round != expected:
            raise RuntimeError(f"expected round {expected}")
        client.state["round"] = expected + 1
        return super().train(request, client)


@dataclass(frozen=True)
class HalfDone(FedAvg):
    """Does its work in a place that no failure takes back."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: Any) -> ModelUpdate:
        client.data.attributes.setdefault("visits", []).append(client.position.round)
        update = super().train(request, client)
        return replace(update, weight=update.weight / len(client.data.attributes["visits"]) ** client.num_examples)


@dataclass(frozen=True)
class Everyone(FedAvg):
    """Counts on every client being in the cohort."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        replies = fed.ask(TrainModel(state.params))
        mean = weighted_mean([replies[client] for client in fed.all_clients])
        assert isinstance(mean, ModelUpdate)
        return ModelState(mean.params)


@dataclass(frozen=True)
class Democrat(FedAvg):
    """Gives a client without training nodes a vote."""

    def weight(self, client: GraphClient) -> float:
        return 1.0


@dataclass(frozen=True)
class Diluted(FedAvg):
    """Divides by the number of clients, idle ones too."""

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        replies = fed.ask(TrainModel(state.params))
        shares = [replies[c].weight / 40 for c in replies]
        rest = 1.0 / len(replies)
        return ModelState(
            {
                name: rest * old + sum(s * replies[c].params[name] for s, c in zip(shares, replies, strict=True))
                for name, old in state.params.items()
            }
        )


@dataclass(frozen=True)
class CountingState(Record):
    """A server that forgets to save its count."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Counts rounds outside its state."""

    counts: ClassVar[list[int]] = [0]

    def setup(self, fed: Federation) -> ModelState:
        self.counts[0] = 0
        return super().setup(fed)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        self.counts[0] += 1
        after = super().round(state, fed)
        return ModelState({name: tensor + 1e-3 * self.counts[0] for name, tensor in after.params.items()})


@dataclass(frozen=True)
class AnotherState(FedAvg):
    """Says it keeps one record and keeps another."""

    def round(self, state: Any, fed: Federation) -> Any:
        return CountingState(super().round(state, fed).params)


@dataclass(frozen=True)
class UnsavableMemory(FedAvg):
    """Puts an object into its memory that is no record."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        client.state["model"] = client.model
        return super().train(request, client)


@dataclass(frozen=True)
class BadEvaluation(FedAvg):
    """Says nothing about its evaluation but NaN."""

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: Any) -> Evaluation:
        return Evaluation({"val": {"accuracy": float("nan")}}, {"val": 1})


@dataclass(frozen=True)
class ForgetsPenalty(FedProx):
    """Trains many clients without the proximal term."""

    mu: float = 0.5

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        return trained_by(replace(self, mu=0.0), requests, clients)


def trained_by(algorithm: FedAvg, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
    """Return what an algorithm's plain handler gives for each client."""
    return [algorithm.train(request, client) for request, client in zip(requests, clients, strict=True)]


@dataclass(frozen=True)
class FirstWeightForAll(FedAvg):
    """Gives many clients the weight of the first."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        replies = trained_by(self, requests, clients)
        return [replace(reply, weight=replies[0].weight) for reply in replies]


@dataclass(frozen=True)
class OneStepFewer(FedAvg):
    """Trains many clients for one step less."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        return trained_by(replace(self, local_steps=self.local_steps - 1), requests, clients)


@dataclass(frozen=True)
class SameDiceForAll(FedAvg):
    """Draws the dropout of many clients from the streams of another exchange."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        for client in clients:
            client.position = replace(client.position, exchange=7)
        return trained_by(self, requests, clients)


@dataclass(frozen=True)
class SwappedReplies(FedAvg):
    """Gives the models of many clients back in another order, which weights tell."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        replies = trained_by(self, requests, clients)
        return [replace(reply, weight=other.weight) for reply, other in zip(replies, replies[::-1], strict=True)]


@dataclass(frozen=True)
class ForgetsMemory(Personal):
    """Lets many clients train but not remember."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> list[ModelUpdate]:
        return [FedAvg.train(self, request, client) for request, client in zip(requests, clients, strict=True)]


@dataclass(frozen=True)
class JudgesTheGlobalModel(Personal):
    """Evaluates the global model of many clients in the place of their own."""

    @cohort(EvaluateModel)
    def evaluate_together(self, requests: Sequence[EvaluateModel], clients: Any) -> list[Evaluation]:
        found = clients.evaluate([requests[0].params] * len(clients), requests[0].splits)
        return [Evaluation(metrics, counts) for metrics, counts in found]


@dataclass(frozen=True)
class GivesUp(FedAvg):
    """Never manages to train many clients at once."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> Stack:
        raise NotImplementedError("one at a time, please")


@dataclass(frozen=True)
class OtherLossForMany(FedAvg):
    """Has a loss for one client, and another for many."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        loss = BothWays(client.task.loss, self.loss_of_many)
        return ModelUpdate(self.fit(request.params, client, loss=loss).params, self.weight(client))

    def loss_of_many(self, clients: GraphCohort, about: Sequence[Any]) -> Any:
        return lambda model, data, streams, frozen: 2 * clients.task.stacked_loss(model, data, streams)


@dataclass(frozen=True)
class BrokenLossForMany(OtherLossForMany):
    """Has a loss for many clients that cannot be taken."""

    def loss_of_many(self, clients: GraphCohort, about: Sequence[Any]) -> Any:
        raise ZeroDivisionError("nothing to divide by")


@dataclass(frozen=True)
class EverybodyElse(FedAvg):
    """Lets no two clients do the same, neither in training nor in evaluation."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        fitted = self.fit(request.params, client, steps=1 + int(client.id[-1]))
        return ModelUpdate(fitted.params, self.weight(client))

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: Any) -> Evaluation:
        return Evaluation(*client.task.evaluate(client.model, client.prepared, request.splits))


BROKEN: list[tuple[type[Algorithm[Any]], str, str]] = [
    (ChangesRequest, "loop_equals_strict", r"TrainModel: the handler of client-0 changed the request in place"),
    (ChangesRequest, "same_seed", r"changed the request in place"),
    (ChangesMemory, "failure", r"changed an entry of client.state in place"),
    (ChangesState, "resume", r"changed the server's state of the round before in place"),
    (NotesOnClient, "loop_equals_strict", r"the loop runtime and the strict one disagree.*differs"),
    (NotesOnAlgorithm, "frozen", r"a course changed the attribute 'last_client' of the algorithm"),
    (NotesOnClass, "frozen", r"a course changed 'pool' of NotesOnClass"),
    (NotesInModule, "frozen", r"a course changed 'POOL' of"),
    (Unhashable, "frozen", r"cannot be hashed"),
    (HiddenField, "repr", r"temperature=1.125 cannot be told"),
    (GlobalDice, "same_seed", r"drew from torch's global generator"),
    (NumpyDice, "same_seed", r"drew from numpy's global generator"),
    (PythonDice, "same_seed", r"drew from Python's global generator"),
    (UnseededDice, "same_seed", r"two courses with the same seed disagree"),
    (LoadedDice, "another_seed", r"another seed gave the same models"),
    (NeverAsked, "requests", r"a handler of Whisper, but no Whisper was sent"),
    (NeverAnswered, "requests", r"Whisper was sent, but no handler is marked @on\(Whisper\)"),
    (WrongReply, "replies", r"the reply of client-0 to TrainModel is a Kept; the request names ModelUpdate"),
    (WrongField, "replies", r"the reply of client-0 to TrainModel does not fit ModelUpdate: .*params"),
    (Smuggler, "replies", r"carries 'labels', which ModelUpdate does not declare"),
    (Attached, "replies", r"is attached to a gradient; detach it"),
    (NoDocstrings, "docstrings", r"Undocumented.params has no docstring"),
    (Idle, "parameters_move", r"parameter '.*' is after 3 rounds what it was at the start"),
    (Stubborn, "failure", r"client-0 was made to fail, and the course ended"),
    (Domino, "failure", r"then, in round 3, TrainModel failed at client-0"),
    (HalfDone, "failure", r"a handler that fails after its work leaves traces"),
    (Everyone, "partial_participation", r"the server half raised KeyError in round 1: 'client-"),
    (Everyone, "failure", r"the server half raised KeyError in round 2: 'client-0'"),
    (Democrat, "idle_client", r"ModelUpdate of client-2, .*has weight 1.0; expected 0"),
    (Diluted, "idle_client", r"a client without training nodes changes the result"),
    (Forgetful, "resume", r"stopped after round 0 and resumed disagrees"),
    (AnotherState, "resume", "gave the server state CountingState; its setup is annotated to return ModelState"),
    (UnsavableMemory, "requests", r"the course ended with TooFewReplies: .*client-0: error: state of .*'model'"),
    (BadEvaluation, "replies", r"EvaluateModel: client-0 failed \(not_finite\)"),
    (
        ForgetsPenalty,
        "stacked_equals_loop",
        r"answer together and clients that answer alone disagree: the server's state",
    ),
    (FirstWeightForAll, "stacked_equals_loop", r"6 clients that answer together .*disagree: the server's state"),
    (OneStepFewer, "stacked_equals_loop", r"6 clients that answer together .*disagree: the server's state"),
    (SameDiceForAll, "stacked_equals_loop", r"6 clients that answer together .*disagree: the server's state"),
    (SwappedReplies, "stacked_equals_loop", r"6 clients that answer together .*disagree: the server's state"),
    (ForgetsMemory, "stacked_equals_loop", r"disagree: the best score"),
    (JudgesTheGlobalModel, "stacked_equals_loop", r"disagree: the best score"),
    (GivesUp, "stacked_equals_loop", r"'train_together' gave up: NotImplementedError: one at a time, please"),
    (OtherLossForMany, "stacked_equals_loop", r"6 clients that answer together .*disagree: the server's state"),
    (
        BrokenLossForMany,
        "stacked_equals_loop",
        r"Fit, which clients ask for, went wrong for many .*: nothing to",
    ),
    (EverybodyElse, "stacked_equals_loop", r"clients ask for work \(Fit\) that is never the same for two of them"),
]


@pytest.mark.parametrize(("kind", "check", "message"), BROKEN, ids=[f"{k.__name__}-{c}" for k, c, _ in BROKEN])
def test_check_catches(kind: type[Algorithm[Any]], check: str, message: str) -> None:
    course = toy_course(kind(), rounds=2) if check == "stacked_equals_loop" else None
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        CHECKS[check](kind(), course)


def test_a_plain_class_is_not_a_frozen_dataclass() -> None:
    class Plain(FedAvg):
        """Forgets the decorator, so that its fields would be lost."""

    with pytest.raises(AssertionError, match="Plain is not a frozen dataclass"):
        CHECKS["frozen"](Plain(), None)


@dataclass(frozen=True)
class Together(Personal):
    """A good one: many clients keep what they trained as their own."""

    @cohort(TrainModel)
    def train_together(self, requests: Sequence[TrainModel], clients: GraphCohort) -> Stack:
        fitted = clients.fit(requests[0].params, steps=self.local_steps, optimizer=self.optimizer)
        for k, client in enumerate(clients):
            client.state["own"] = fitted.member(k)
        weights = Each(tuple(self.weight(client) for client in clients))
        return Stack.of(clients.ids, ModelUpdate, params=fitted.params, weight=weights)


@dataclass(frozen=True)
class NeverTogether(NeverAsked):
    """Handles a request for many that is never sent."""

    @cohort(Whisper)
    def whisper_together(self, requests: Sequence[Whisper], clients: Any) -> list[Kept]:
        return [Kept() for _ in clients]


@dataclass(frozen=True)
class LossForOne(FedAvg):
    """A good one: its loss is known for one client alone."""

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        def loss(model: Any, batch: Any, generator: torch.Generator) -> Any:
            return 2 * client.task.loss(model, batch, generator)

        return ModelUpdate(self.fit(request.params, client, loss=loss).params, self.weight(client))


def test_a_loss_for_one_client_is_no_fault() -> None:
    check_stacked_equals_loop(LossForOne(), scenarios=odd_scenarios()[1:2])


# What the clients of a method train by a request that is none of these is done by each alone.
TOGETHER = (
    *("TrainModel", "TrainAlone", "TrainCorrected", "TrainNormalized", "TrainWithGuidance", "TrainWithAggregates"),
    *("TrainEncoder", "TrainOwnEncoder", "TrainAsDrawn"),
)
# Their models are none that are put side by side: they read sums that are made once.
ONE_BY_ONE = {"fedgap", "fedprogap"}


@pytest.mark.meet(1)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.pooled])
def test_clients_of_the_algorithms_of_the_table_work_together(name: str, sparse: bool) -> None:
    course = toy_course(quick(name), runtime="auto", num_clients=4, rounds=1)
    trace = trace_course(course, toy_scenario(4, num_nodes=60, sparse=sparse))
    assert trace.ended_by is None and not trace.notes
    assert any(trace.together[request] for request in TOGETHER) == (name not in ONE_BY_ONE)
    assert (trace.together["EvaluateModel"] > 0) == (name not in ONE_BY_ONE)


def test_a_good_handler_for_many_passes_and_one_that_is_never_used_is_noticed() -> None:
    check_stacked_equals_loop(Together(), toy_course(Together(), rounds=2))
    sampled = toy_course(Together(), batching=NeighborBatch(8, (2, 2)), rounds=2)  # it cannot be used
    check_stacked_equals_loop(Together(), sampled, scenarios=odd_scenarios()[1:2])
    with pytest.raises(
        AssertionError, match="there is a handler for many of Whisper, but clients answered it one by one"
    ):
        CHECKS["stacked_equals_loop"](NeverTogether(), None)


def test_sizes_of_replies_that_are_made_up_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stack, "sizes", lambda self: [100] * len(self))
    with pytest.raises(AssertionError, match=r"round 1, TrainModel: replies that clients gave together are told to be"):
        CHECKS["stacked_equals_loop"](FedAvg(), None)
