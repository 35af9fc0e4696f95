"""The life of a run, from the first line of its journal to its models: the same in a simulation and between sites."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_dict
from isthmus.config.registry import name_of
from isthmus.core.federation import ExchangeReport, Federation, InitialModel, Runtime
from isthmus.core.record import Params
from isthmus.core.training import Callback, Standing, evaluate
from isthmus.learn.evaluate import Scores, weighted
from isthmus.report.summary import run_table
from isthmus.runs.checkpoint import Checkpoints
from isthmus.runs.folder import RunFolder
from isthmus.runs.journal import Journal, replace_file
from isthmus.runs.result import Result


@dataclass(frozen=True)
class Outcome:
    """What a run has come to, scored on test examples; the fields that `Result` has too are explained there.

    Fields:
        class_names: of the whole for None, and of each client that has its own
        features:    the facts of their columns (`feature_facts`)
    """

    metrics: dict[str, Scores]
    client_scores: dict[str, Scores]
    clients: tuple[str, ...]
    input_dim: int
    output_dim: int
    class_names: Mapping[str | None, Sequence[str]]
    features: Mapping[str | None, Mapping[str, str]]
    client_params: dict[str, Params] = field(default_factory=dict)
    client_dims: dict[str, tuple[int, int]] = field(default_factory=dict)
    client_parts: dict[str, Params] = field(default_factory=dict)


class Life(ABC):
    """A run on its way: the course, its folder and its journal, and who hears of it.

    Simulations and courses between sites say how they train and how they are scored; `say` hears every note too.
    """

    def __init__(
        self,
        course: Course,
        folder: RunFolder | None,
        journal: Journal,
        callbacks: Sequence[Callback] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.course, self.folder, self.journal, self.say = course, folder, journal, say
        kept = [] if folder is None else [Checkpoints(folder.checkpoint, course_digest(course), journal)]
        self.callbacks: list[Callback] = [journal, *kept, *callbacks]

    @abstractmethod
    def train(self, standing: Standing | None) -> tuple[Standing, float]:
        """Run the rounds that are left; return where the course stands then, and how many seconds they took."""

    @abstractmethod
    def score(self, standing: Standing) -> Outcome:
        """Score the best round."""

    def introduce(self, **facts: Any) -> None:
        """Write what a journal begins with."""
        self.journal.write("course", version=__version__, **facts, course=course_to_dict(self.course))

    def note(self, text: str, **facts: Any) -> None:
        """Take down what readers of the results should know."""
        self.say(text)
        self.journal.write("note", text=text, **facts)

    def to_the_end(self, standing: Standing | None) -> Result:
        """Run a course from where it stands, from its start if that is nowhere; keep what comes of it."""
        standing, seconds = self.train(standing)
        for text in [*self.journal.failure_notes(), *self.journal.scoring_notes(standing.best_round)]:
            self.note(text, at_end=True)
        started = time.perf_counter()
        outcome = self.score(standing)
        self.journal.write("scored", seconds=round(time.perf_counter() - started, 6))
        result = self._result(outcome, standing, seconds)
        self._keep(result, outcome, standing)
        return result

    def asked(
        self,
        runtime: Runtime,
        model: InitialModel,
        standing: Standing,
        report: Callable[[ExchangeReport], None] = lambda report: None,
    ) -> tuple[Scores, dict[str, Scores]]:
        """Ask every client how it does on its own test examples; return the mean, and each one's."""
        plan = self.course.plan()
        fed = Federation(
            runtime,
            seed=plan.seed,
            round=standing.round,
            cohort=runtime.clients,
            model=model,
            rules=plan.rules,
            report=report,
        )
        found = evaluate(self.course.algorithm, standing.best_state, fed, ("test",), plan.stopping.metric, best=True)
        each = {client: dict(evaluation.metrics.get("test", {})) for client, evaluation in found.items()}
        return weighted(each, {client: evaluation.counts.get("test", 0) for client, evaluation in found.items()}), each

    def _result(self, outcome: Outcome, standing: Standing, seconds: float) -> Result:
        exchanges = [event for event in self.journal.events if event["event"] == "exchange"]
        return Result(
            course=self.course,
            metrics=outcome.metrics,
            client_scores=outcome.client_scores,
            num_rounds=standing.round,
            best_round=standing.best_round,
            seconds=seconds,
            bytes_down=sum(event["bytes_down"] for event in exchanges),
            bytes_up=sum(event["bytes_up"] for event in exchanges),
            input_dim=outcome.input_dim,
            output_dim=outcome.output_dim,
            params=self.course.algorithm.global_params(standing.best_state),
            client_params=outcome.client_params,
            client_dims=outcome.client_dims,
            client_parts=outcome.client_parts,
            events=self.journal.events,
            notes=[event["text"] for event in self.journal.events if event["event"] == "note"],
            run_dir=None if self.folder is None else self.folder.path,
            clients=outcome.clients,
        )

    def _keep(self, result: Result, outcome: Outcome, standing: Standing) -> None:
        """Write the last event, the models and the table of results."""
        self.journal.write(
            "end",
            num_rounds=result.num_rounds,
            best_round=result.best_round,
            best_score=standing.best_score,
            seconds=round(result.seconds, 3),
            metrics=result.metrics,
            client_scores=result.client_scores,
            missing=result.missing,
        )
        if self.folder is not None:
            self.folder.save_models(result.params, result.client_params, lambda client: _facts(outcome, client))
            self.folder.save_parts(result.client_parts)
            title = name_of(type(self.course.algorithm))
            table = run_table({title: self.journal.events}, self.course.task.metrics[0])
            replace_file(self.folder.report, table.markdown().encode())


def _facts(outcome: Outcome, client: str | None) -> dict[str, str]:
    """Return what a file of a model says of it: the global one's for None."""
    whole = (outcome.input_dim, outcome.output_dim)
    into, out = outcome.client_dims.get(client, whole) if client else whole
    names = list(outcome.class_names.get(client, outcome.class_names[None]))
    sizes = {"input_dim": str(into), "output_dim": str(out)}
    columns = outcome.features.get(client, outcome.features[None])
    return {"isthmus": __version__, **sizes, "class_names": json.dumps(names), **columns}
