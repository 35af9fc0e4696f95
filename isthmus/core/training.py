"""The one training loop: setup, rounds, evaluation, early stopping, checkpoints."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isthmus.core.errors import CourseFailed, IsthmusError, TooFewReplies, refuse
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel, Listener, Runtime
from isthmus.core.folds import weighted_mean
from isthmus.core.guards.guard import Guard, OwnClient
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, KeepBest, improves
from isthmus.core.random import Sampling, Secret, UniformSampling, numpy_generator
from isthmus.core.record import Record, State


@dataclass(frozen=True)
class EarlyStopping:
    """Stops when the validation metric has not improved for `patience` rounds (0: never); the best model is kept.

    The metric is the mean over clients, weighted by their validation examples. Rounds are compared by it only where the
    same clients scored them, each on as many examples: a round that more clients scored, or the same ones on more
    examples, takes the place of the best one, whatever the score; any other never does, and counts as a round without
    improvement. With `keep: last` the
    model of the last round is kept, whatever validation says of it; clients that choose a model of their own, as in
    Local, still do.
    """

    patience: int = 0
    metric: str = "accuracy"
    keep: str = "best"

    def __post_init__(self) -> None:
        refuse(self.keep not in ("best", "last"), self, "keep", "choose from best, last")
        if self.keep == "last" and self.patience > 0:
            raise ValueError(f"keep is 'last' and patience {self.patience!r}; patience needs a best round: set it to 0")
        refuse(self.patience < 0, self, "patience", "it must be at least 0")


@dataclass(frozen=True)
class Plan:
    """How long a course runs, who takes part, and what is checked on the way."""

    rounds: int
    seed: int = 0
    sampling: Sampling = field(default_factory=UniformSampling)
    rules: ExchangeRules = field(default_factory=ExchangeRules)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    evaluate_every: int = 1
    checkpoint_every: int = 0
    guards: tuple[Guard, ...] = ()
    metrics: tuple[str, ...] = ()  # what every evaluation reports


@dataclass(frozen=True)
class Standing:
    """Where a course stands after a round; with the clients' memories it is all that a resume needs."""

    round: int
    state: Record
    best_state: Record
    best_round: int
    best_score: float | None
    best_scorers: tuple[str, ...] | None = None  # whose scores are in it; None where an older version did not keep them
    best_counts: tuple[int, ...] | None = None  # the validation examples of each; None where that is not known
    guards: Mapping[str, State] = field(default_factory=dict)  # what guards remember at the server


# At which shares of the clients, from the least to the largest, a metric is told.
SPREAD = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class RoundReport:
    """One round in numbers, for the journal and the progress bar."""

    round: int
    cohort: tuple[str, ...]
    seconds: float
    bytes_down: int
    bytes_up: int
    evaluations: Mapping[str, Evaluation]  # by client; empty when this round was not evaluated
    score: float | None  # the early-stopping metric
    is_best: bool
    wall_seconds: float = 0.0  # of the whole round, with the server's own work
    missing: tuple[str, ...] = ()  # clients of whom the algorithm got no usable reply to something it asked
    scorers: tuple[str, ...] = ()  # clients whose validation score is in `score`
    counts: tuple[int, ...] = ()  # the validation examples of each of them
    unscored: tuple[str, ...] = ()  # clients that were asked how the model does, and gave no usable answer
    spent: Mapping[str, float] = field(default_factory=dict)  # what guards have used up so far: epsilon

    @property
    def scored_on(self) -> str:
        """What tells the rounds apart whose scores cannot be compared: other clients, or other numbers of examples."""
        return hashlib.blake2b(repr((self.scorers, self.counts)).encode(), digest_size=4).hexdigest()

    @property
    def train_loss(self) -> float | None:
        """The training loss over all clients; None where nobody was asked, or has any."""
        loss = weighted_metric(self.evaluations, "train", "loss")
        return None if math.isnan(loss) else loss

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric by split/name, sorted: its mean over clients, weighted by their examples."""
        found = self.evaluations
        names = {(split, metric) for e in found.values() for split, values in e.metrics.items() for metric in values}
        return {f"{split}/{metric}": weighted_metric(found, split, metric) for split, metric in sorted(names)}

    @property
    def spread(self) -> dict[str, list[float]]:
        """How far clients are apart in every metric: its values at `SPREAD` of the clients, where there are several."""
        found: dict[str, list[float]] = {}
        for evaluation in self.evaluations.values():
            for split, values in evaluation.metrics.items():
                for metric, value in values.items():
                    if evaluation.counts.get(split, 0) and math.isfinite(value):
                        found.setdefault(f"{split}/{metric}", []).append(value)
        return {name: np.quantile(values, SPREAD).tolist() for name, values in sorted(found.items()) if len(values) > 1}


@dataclass(frozen=True)
class _Evaluated:
    """How the model of a round does, each field as `RoundReport` has it; nothing where nobody was asked."""

    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    score: float | None = None
    scorers: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    unscored: tuple[str, ...] = ()
    is_best: bool = False


class Callback:
    """Hears what happens in a course, by methods to override: journals, checkpoints, progress bars, sinks."""

    def exchanged(self, report: ExchangeReport) -> None:
        """Take note of an exchange."""

    def round_done(self, report: RoundReport) -> None:
        """Take note of a round."""

    def noted(self, round: int, text: str) -> None:
        """Take note of what the algorithm says."""

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        """Write a checkpoint."""


def run_course(
    algorithm: Algorithm[Any],
    runtime: Runtime,
    plan: Plan,
    model: InitialModel,
    callbacks: Sequence[Callback],
    standing: Standing | None = None,
    secret: Secret | None = None,
    own: OwnClient | None = None,
    listener: Listener | None = None,
    until: int | None = None,
) -> Standing:
    """Run a course to its end, from its start or from `standing`; an interruption leaves a checkpoint.

    With `until` it is left after that round, as it stands there: what comes later is as if it had never stopped.
    `secret` is what the server's protecting streams are drawn from, by default the seed; `own` a client of its own.
    `listener` hears what the server's process has of all messages.
    """
    course = _Course(algorithm, runtime, plan, model, callbacks, secret, own, listener)
    if standing is None:
        standing = course.start()
    runtime.mark(standing.round)
    recent = {standing.round: standing}
    try:
        while not finished(plan, standing) and (until is None or standing.round < until):
            after = course.advance(standing)
            recent = {standing.round: standing, after.round: after}
            runtime.mark(after.round)
            standing = after
            if plan.checkpoint_every and standing.round % plan.checkpoint_every == 0:
                course.save(standing)
    except (KeyboardInterrupt, IsthmusError):
        # The round under way is lost, nothing else: memories and standing go back to the end of the same round.
        course.save(recent[runtime.abandon_round()])
        raise
    course.save(standing)
    return standing


def finished(plan: Plan, standing: Standing) -> bool:
    """Whether the rounds are done or patience has run out."""
    patience = plan.stopping.patience
    # Only a round that was evaluated can tell that there was no improvement.
    out_of_patience = patience > 0 and standing.round - standing.best_round >= patience
    over = standing.round >= plan.rounds or (out_of_patience and standing.round % plan.evaluate_every == 0)
    return over or bool(plan.guards and GuardLine(plan.guards).exhausted(standing.guards))


# Whose evaluation it is where a guard adds them up.
EVERYBODY = "everybody"


def evaluated(fed: Federation, request: EvaluateModel, clients: Sequence[str], plan: Plan) -> dict[str, Evaluation]:
    """Return how each client's model does by client, or that of everybody as one, where a guard adds them up."""
    if not fed.sums_scores:
        return dict(fed.ask(request, clients=clients, min_replies=0))
    request = replace(request, names=plan.metrics)
    try:
        return {EVERYBODY: fed.ask_folded(request, weighted_mean, clients=clients, min_replies=0)}
    except (CourseFailed, TooFewReplies) as error:
        fed.note(f"how the model does could not be added up: {error}")
        return {}


def weighted_metric(evaluations: Mapping[str, Evaluation], split: str, metric: str) -> float:
    """Return the mean of a metric over clients, weighted by their examples in the split; NaN when there are none."""
    total = weight = 0.0
    for evaluation in evaluations.values():
        value = evaluation.metrics.get(split, {}).get(metric)
        count = evaluation.counts.get(split, 0)
        if value is not None and count:
            total, weight = total + count * value, weight + count
    return total / weight if weight else math.nan


def scorers_of(evaluations: Mapping[str, Evaluation], split: str, metric: str) -> tuple[str, ...]:
    """Return the clients that have a share in the mean of a metric, sorted."""
    found = evaluations.items()
    return tuple(sorted(c for c, e in found if metric in e.metrics.get(split, {}) and e.counts.get(split, 0)))


def takes_over(
    metric: str,
    score: float,
    scorers: Mapping[str, int],
    best: Standing,
    complete: bool,
    barred: Collection[str] = (),
) -> bool:
    """Whether a round takes the place of the best one.

    `scorers` are the clients in its score with their numbers of examples; `complete` says whether all who were asked
    gave an answer. A best round that clients scored who are barred now is compared with nothing any more.
    """
    if best.best_score is None:
        # Without validation data there is no best round but the latest.
        return math.isnan(score) or improves(metric, score, None)
    if best.best_scorers is None:
        return complete and improves(metric, score, best.best_score)
    left = tuple(client for client in best.best_scorers if client not in barred)
    if left != best.best_scorers:
        return len(scorers) >= len(left) and math.isfinite(score)
    if tuple(scorers) == best.best_scorers:
        counts = tuple(scorers.values())
        if best.best_counts in (None, counts):
            return improves(metric, score, best.best_score)
        return sum(counts) > sum(best.best_counts or ()) and math.isfinite(score)
    return len(scorers) > len(best.best_scorers) and math.isfinite(score)


@dataclass
class _Course:
    """The parts of a course that stay the same from round to round, and what is counted of this round."""

    algorithm: Algorithm[Any]
    runtime: Runtime
    plan: Plan
    model: InitialModel
    callbacks: Sequence[Callback]
    secret: Secret | None = None
    own: OwnClient | None = None
    listener: Listener | None = None
    traffic: list[ExchangeReport] = field(default_factory=list)
    listening: float = 0.0  # seconds that callbacks took

    def __post_init__(self) -> None:
        self.state_type = type(self.algorithm).state_type()
        self.guards = GuardLine(self.plan.guards) if self.plan.guards else None

    def federation(self, round: int, memories: dict[str, State]) -> Federation:
        everybody = self.runtime.clients
        cohort = everybody if round == 0 else self.plan.sampling.cohort(everybody, self._draws(round))
        self.traffic, self.listening = [], 0.0
        return Federation(
            self.runtime,
            seed=self.plan.seed,
            round=round,
            cohort=cohort,
            model=self.model,
            rules=self.plan.rules,
            report=self._exchanged,
            note=lambda text: self._noted(round, text),
            guards=self.guards,
            memories=memories,
            secret=self.secret,
            sampling=self.plan.sampling,
            own=self.own,
            listener=self.listener,
        )

    def _draws(self, round: int) -> np.random.Generator:
        """Return what the cohort is drawn from: a server's own secret, where it hides by being drawn, else the seed."""
        if self.plan.sampling.hides and self.secret is not None and not self.secret.simulated:
            return np.random.default_rng(list(self.secret.stream("cohort", self.plan.seed, round).take(32)))
        return numpy_generator(self.plan.seed, round, "cohort")

    def _exchanged(self, report: ExchangeReport) -> None:
        self.traffic.append(report)
        started = time.perf_counter()
        for callback in self.callbacks:
            callback.exchanged(report)
        self.listening += time.perf_counter() - started

    def _missing(self, cohort: Sequence[str], traffic: Sequence[ExchangeReport]) -> tuple[str, ...]:
        failed = {failure.client for report in traffic for failure in report.failures}
        return tuple(client for client in cohort if client in failed)

    def _noted(self, round: int, text: str) -> None:
        for callback in self.callbacks:
            callback.noted(round, text)

    def save(self, standing: Standing) -> None:
        memories = self.runtime.save_clients()
        for callback in self.callbacks:
            callback.checkpoint(standing, memories)

    def start(self) -> Standing:
        memories: dict[str, State] = {}
        state = self._checked(self.algorithm.setup(self.federation(0, memories)))
        guards = {} if self.guards is None else self.guards.round_done(memories, 0)
        return Standing(round=0, state=state, best_state=state, best_round=0, best_score=None, guards=guards)

    def _stepped(self, state: Record, fed: Federation) -> Record:
        """Return the state after a round; where nobody was drawn, it stays as it is, unless a guard says more."""
        goes_on = fed.clients or self.plan.sampling.least(len(fed.all_clients))
        if goes_on or (self.guards is not None and self.guards.answers_for_nobody):
            return self._checked(self.algorithm.round(state, fed))
        fed.note(f"nobody was drawn for round {fed.round}: the model stays as it is")
        return state

    def _checked(self, state: Record) -> Record:
        """Refuse a state that no checkpoint could bring back."""
        if type(state) is not self.state_type:
            raise CourseFailed(
                f"{type(self.algorithm).__name__} gave the server state {type(state).__name__}; "
                f"its setup is annotated to return {self.state_type.__name__}"
            )
        return state

    def advance(self, before: Standing) -> Standing:
        round = before.round + 1
        started = time.perf_counter()
        memories = dict(before.guards)
        fed = self.federation(round, memories)
        state = self._stepped(before.state, fed)
        ended = self._guarded(round, memories)
        missing = self._missing(fed.clients, self.traffic)
        found = self._evaluated(fed, state, before, last=round == self.plan.rounds or bool(ended))
        after = replace(before, round=round, state=state)
        if found.is_best:
            after = replace(
                after,
                best_state=state,
                best_round=round,
                best_score=found.score,
                best_scorers=found.scorers,
                best_counts=found.counts,
            )
            if self.algorithm.personal or self.model.personal:
                fed.ask(KeepBest(), clients=fed.all_clients, min_replies=0)
        after = replace(after, guards=memories)
        report = RoundReport(
            round=round,
            cohort=fed.clients,
            seconds=sum(report.seconds for report in self.traffic),
            bytes_down=sum(report.bytes_down for report in self.traffic),
            bytes_up=sum(report.bytes_up for report in self.traffic),
            wall_seconds=time.perf_counter() - started - self.listening,
            missing=missing,
            spent={} if self.guards is None else self.guards.spent(memories),
            **vars(found),
        )
        for callback in self.callbacks:
            callback.round_done(report)
        return after

    def _guarded(self, round: int, memories: dict[str, State]) -> str:
        """Have guards end a round, and return why the course has to end; empty if it may go on."""
        if self.guards is None:
            return ""
        kept = self.guards.round_done(memories, round)
        memories.clear()  # a guard may forget, and what follows in this round is remembered in this very dictionary
        memories.update(kept)
        ended = self.guards.exhausted(memories)
        if ended:
            self._noted(round, f"the course ends after round {round}: {ended}")
        return ended

    def _evaluated(self, fed: Federation, state: Record, before: Standing, last: bool) -> _Evaluated:
        """Ask every client how the new model does, in rounds in which that is due, and in the last one."""
        if fed.round % self.plan.evaluate_every != 0 and not last:
            return _Evaluated()
        metric, asked = self.plan.stopping.metric, fed.all_clients
        params, before_it = self.algorithm.global_params(state), len(self.traffic)
        evaluations = evaluated(fed, EvaluateModel(params, ("train", "val"), metric, best=False), asked, self.plan)
        failed = self._missing(asked, self.traffic[before_it:])
        unscored = failed if EVERYBODY in evaluations else tuple(c for c in asked if c not in evaluations)
        score = weighted_metric(evaluations, "val", metric)
        scorers = scorers_of(evaluations, "val", metric)
        counts = tuple(evaluations[client].counts["val"] for client in scorers)
        # A round whose evaluation failed, or gave no finite score, does not take the place of one that has a score.
        by = dict(zip(scorers, counts, strict=True))
        is_best = self.plan.stopping.keep == "last" or takes_over(metric, score, by, before, not unscored, fed.barred)
        return _Evaluated(evaluations, None if math.isnan(score) else score, scorers, counts, unscored, is_best)
