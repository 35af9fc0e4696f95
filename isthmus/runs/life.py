"""The life of a run, from the first line of its journal to its result: the same in a simulation and between sites."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from isthmus import __version__
from isthmus.config.build import name_of, stated
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_dict, own_model
from isthmus.core.exposure import exposure
from isthmus.core.federation import ExchangeReport, Federation, InitialModel, Runtime
from isthmus.core.guards.line import GuardLine
from isthmus.core.outside import replace_file
from isthmus.core.protocol import EvaluateModel
from isthmus.core.random import Secret
from isthmus.core.record import Params
from isthmus.core.training import Callback, Standing, evaluated
from isthmus.learn.graph_client import Scores, weighted
from isthmus.learn.optimizers import load_params
from isthmus.report.drawing import escape
from isthmus.report.page import table_markup
from isthmus.report.run_page import run_page
from isthmus.report.story import story_of
from isthmus.report.summary import last_measured, run_table, score_of
from isthmus.runs.folder import Checkpoints, Journal, RunFolder
from isthmus.runs.pages import write_page

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.report.charts import Chart


LISTS = (
    "event",
    "time",
    "metrics",
    "spread",
    "cohort",
    "missing",
    "unscored",
)  # of a round's event: no columns of a table


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run has come to; all scores are of the best round by validation, on test examples.

    Fields:
        metrics:       mode -> metric -> value; modes are "{global,local}_model/{global,local}_graph"
        client_scores: client -> metric -> value, of the model the client would use, on the client's own graph (the
                       centralised model: on the client's nodes, within the whole graph)
        clients:       all clients of the course, whether there are scores of them or not
        client_params: the clients' models, whole, where they differ from the global one
        client_dims:   numbers of inputs and outputs of the clients' models, where they have their own
        client_parts:  what the clients need beside their models to predict, where they do: FedSage+'s generators
        class_names:   of the whole for None, and of each client that has its own
        features:      the facts of their columns (`feature_facts`)
    """

    metrics: dict[str, Scores]
    client_scores: dict[str, Scores]
    clients: tuple[str, ...]
    input_dim: int
    output_dim: int
    client_params: dict[str, Params] = field(default_factory=dict, repr=False)
    client_dims: dict[str, tuple[int, int]] = field(default_factory=dict)
    client_parts: dict[str, Params] = field(default_factory=dict, repr=False)
    class_names: Mapping[str | None, Sequence[str]] = field(repr=False)
    features: Mapping[str | None, Mapping[str, str]] = field(repr=False)

    def dims_of(self, client: str | None) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a client's model; for None, of the global one."""
        return self.client_dims.get(client or "", (self.input_dim, self.output_dim))


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """The outcome of a course, with the course and how it went.

    Fields:
        best_round: the round that is kept, of `num_rounds` that were run
        params:     the global model's parameters: those that are shared; empty for a method without a global model
        notes:      what a user should know
    """

    course: Course
    num_rounds: int
    best_round: int
    seconds: float
    bytes_down: int
    bytes_up: int
    params: Params = field(repr=False)
    events: Sequence[dict[str, Any]] = field(repr=False)
    notes: list[str]
    run_dir: Path | None

    @property
    def missing(self) -> list[str]:
        """Clients of the course that no score has anything of: they gave no answer when the kept model was tested."""
        if not self.client_scores and any(
            self.metrics.values()
        ):  # they were added up, and nobody knows of a single one
            return []
        return [client for client in self.clients if client not in self.client_scores]

    def score(self, graph: str = "global_graph", metric: str = "accuracy", model: str = "global_model") -> float:
        """Return the headline number: the global model's, or the mean of the local ones where there is none.

        With `model` "local_model" it is the other way round.
        """
        found = score_of(self.metrics, graph, metric, model)
        if found is None:
            raise KeyError(f"no {metric!r} on the {graph!r}; there is {self.metrics}")
        return found

    @property
    def history(self) -> pd.DataFrame:
        """One row per round: seconds, bytes, metrics."""
        import pandas as pd

        rounds = [event for event in self.events if event["event"] == "round"]
        rows = [{**{k: v for k, v in e.items() if k not in LISTS}, **e["metrics"]} for e in rounds]
        return pd.DataFrame(rows)

    def plot(self, *metrics: str, **others: Result) -> Chart:
        """Return a chart of metrics over the rounds, `val/` and the course's own unless said, with `others` by title.

        It is Altair's, which notebooks show, and which can be saved: `result.plot("val/loss").save("loss.html")`.
        """
        from isthmus.report.curves import plotted

        runs = {self._title: self.events, **{title: other.events for title, other in others.items()}}
        return plotted(runs, metrics or (f"val/{self.course.stopping.metric}",))

    def report(self, path: str | Path | None = None) -> str:
        """Return the page of the run, one file that needs nothing else; with a path, write it there too."""
        events = list(self.events)
        page = run_page(story_of(self._title, events), events)
        if path is not None:
            replace_file(Path(path), page.encode())
        return page

    @property
    def _title(self) -> str:
        return name_of(type(self.course.algorithm)) if self.run_dir is None else self.run_dir.resolve().name

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the scores, and what a user should know."""
        table = run_table({name_of(type(self.course.algorithm)): list(self.events)}, self.course.task.metrics[0])
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return table_markup(table) + (f"<ul>{notes}</ul>" if notes else "")

    @property
    def monitors(self) -> dict[str, pd.DataFrame]:
        """What the course's monitors measured last, by name: client x client, or a number for each client."""
        import pandas as pd

        found: dict[str, pd.DataFrame] = {}
        for name, event in last_measured(self.events, self.course.monitors).items():
            clients = event["clients"]
            if "matrix" in event:
                found[name] = pd.DataFrame(event["matrix"], index=clients, columns=clients, dtype=float)
            else:
                found[name] = pd.DataFrame({name: event["values"]}, index=clients, dtype=float)
        return found

    @property
    def model(self) -> nn.Module:
        """The global model as a module; for a method without one, see `client_models`."""
        if not self.params:
            raise ValueError(
                f"{type(self.course.algorithm).__name__} has no global model; the clients' are in client_models"
            )
        module = self.course.model.build(self.input_dim, self.output_dim)
        if module.state_dict().keys() != self.params.keys():
            raise ValueError(
                f"the clients share only a part of the model ({', '.join(self.course.sharing)}), which is in params; "
                "whole models are in client_models"
            )
        return self._module(self.params, None)

    @property
    def client_models(self) -> dict[str, nn.Module]:
        """Each client's model as a module; clients without a personal one have the global model."""
        names = self.client_params or self.client_scores
        return {name: self._module(self.client_params.get(name, self.params), name) for name in names}

    def _module(self, params: Params, client: str | None) -> nn.Module:
        module = own_model(self.course, client).build(*self.dims_of(client))
        load_params(module, params)
        return module.eval()


class Life(ABC):
    """A run on its way: simulations and courses between sites say how they train and how they are scored."""

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

    # What the server's protecting streams are drawn from; None where it derives from the seed.
    secret: Secret | None = None

    @abstractmethod
    def train(self, standing: Standing | None) -> tuple[Standing, float]:
        """Run the rounds that are left; return where the course stands then, and how many seconds they took."""

    @abstractmethod
    def score(self, standing: Standing) -> Outcome:
        """Score the best round."""

    def introduce(self, **facts: Any) -> None:
        """Write what a journal begins with."""
        told = {"course": course_to_dict(self.course), "chosen": stated(self.course), "exposure": self.exposure()}
        self.journal.write("course", version=__version__, **facts, **told)

    def exposure(self) -> list[dict[str, Any]]:
        """Return who sees what, as plain values."""
        return [
            {"request": each.request, "sent": list(each.sent), "reply": each.reply, "answered": list(each.answered),
             "server_sees": each.server_sees, "down": each.wire_down, "up": each.wire_up}
            for each in exposure(type(self.course.algorithm), self.course.guards)
        ]  # fmt: skip

    def note(self, text: str, **facts: Any) -> None:
        """Take down what readers of the results should know."""
        self.say(text)
        self.journal.write("note", text=text, **facts)

    def to_the_end(self, standing: Standing | None) -> Result:
        """Run a course from where it stands, from its start if that is nowhere; keep what comes of it."""
        return self.wound_up(*self.train(standing))

    def wound_up(self, standing: Standing, seconds: float) -> Result:
        """Score a course that has been trained, which took so many seconds; keep what comes of it."""
        for text in [*self.journal.failure_notes(), *self.journal.scoring_notes(standing.best_round)]:
            self.note(text, at_end=True)
        started = time.perf_counter()
        outcome = self.score(standing)
        self.journal.write("scored", seconds=round(time.perf_counter() - started, 6))
        result = self._result(outcome, standing, seconds)
        self._keep(result, standing)
        return result

    def asked(
        self,
        runtime: Runtime,
        model: InitialModel,
        standing: Standing,
        report: Callable[[ExchangeReport], None] = lambda report: None,
    ) -> tuple[Scores, dict[str, Scores]]:
        """Ask every client how it does on its own test examples; return the mean, and each one's.

        Where a guard adds them up there is but the mean.
        """
        plan = self.course.plan()
        fed = Federation(
            runtime,
            seed=plan.seed,
            round=standing.round,
            cohort=runtime.clients,
            model=model,
            rules=plan.rules,
            report=report,
            guards=GuardLine(plan.guards) if plan.guards else None,
            memories=dict(standing.guards),
            secret=self.secret,
        )
        params = self.course.algorithm.global_params(standing.best_state)
        request = EvaluateModel(params, ("test",), plan.stopping.metric, best=True)
        found = evaluated(fed, request, fed.all_clients, plan)
        each = {client: dict(evaluation.metrics.get("test", {})) for client, evaluation in found.items()}
        mean = weighted(each, {client: evaluation.counts.get("test", 0) for client, evaluation in found.items()})
        return mean, {} if fed.sums_scores else each

    def _result(self, outcome: Outcome, standing: Standing, seconds: float) -> Result:
        exchanges = [event for event in self.journal.events if event["event"] == "exchange"]
        return Result(
            **vars(outcome),
            course=self.course,
            num_rounds=standing.round,
            best_round=standing.best_round,
            seconds=seconds,
            bytes_down=sum(event["bytes_down"] for event in exchanges),
            bytes_up=sum(event["bytes_up"] for event in exchanges),
            params=self.course.algorithm.global_params(standing.best_state),
            events=self.journal.events,
            notes=[event["text"] for event in self.journal.events if event["event"] == "note"],
            run_dir=None if self.folder is None else self.folder.path,
        )

    def _keep(self, result: Result, standing: Standing) -> None:
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
            self.folder.save_models(result.params, result.client_params, lambda client: _facts(result, client))
            self.folder.save_parts(result.client_parts)
            title = name_of(type(self.course.algorithm))
            table = run_table({title: self.journal.events}, self.course.task.metrics[0])
            replace_file(self.folder.report, table.markdown().encode())
            write_page(self.folder, list(self.journal.events))


def _facts(outcome: Outcome, client: str | None) -> dict[str, str]:
    """Return what a file of a model says of it: the global one's for None."""
    into, out = outcome.dims_of(client)
    names = list(outcome.class_names.get(client, outcome.class_names[None]))
    sizes = {"input_dim": str(into), "output_dim": str(out)}
    columns = outcome.features.get(client, outcome.features[None])
    return {"isthmus": __version__, **sizes, "class_names": json.dumps(names), **columns}
