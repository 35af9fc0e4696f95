"""What a finished course gives: metrics, history, models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from isthmus.config.client_settings import own_model
from isthmus.config.course import Course
from isthmus.core.record import Params
from isthmus.learn.evaluate import Scores
from isthmus.learn.fit import load_params
from isthmus.report.monitors import last_measured

if TYPE_CHECKING:
    import pandas as pd


LISTS = ("event", "time", "metrics", "cohort", "missing", "unscored")  # of a round's event: no columns of a table


@dataclass(frozen=True)
class Result:
    """The outcome of a course; all scores are of the best round by validation, on test examples.

    Fields:
        course:        the course as it was run
        metrics:       mode -> metric -> value; modes are "{global,local}_model/{global,local}_graph"
        client_scores: client -> metric -> value, of the model the client would use, on the client's own graph (the
                       centralised model: on the client's nodes, within the whole graph)
        num_rounds:    rounds that were run
        best_round:    the round that is kept
        params:        the global model's parameters: those that are shared; empty for a method without a global model
        client_params: the clients' models, whole, where they differ from the global one
        client_dims:   numbers of inputs and outputs of the clients' models, where they have their own
        client_parts:  what the clients need beside their models to predict, where they do: FedSage+'s generators
        clients:       all clients of the course, whether there are scores of them or not
        notes:         what a user should know
        run_dir:       the run folder, or None
    """

    course: Course
    metrics: dict[str, Scores]
    client_scores: dict[str, Scores]
    num_rounds: int
    best_round: int
    seconds: float
    bytes_down: int
    bytes_up: int
    input_dim: int
    output_dim: int
    params: Params = field(repr=False)
    client_params: dict[str, Params] = field(repr=False)
    events: Sequence[dict[str, Any]] = field(repr=False)
    notes: list[str]
    run_dir: Path | None
    client_dims: dict[str, tuple[int, int]] = field(default_factory=dict)
    client_parts: dict[str, Params] = field(default_factory=dict, repr=False)
    clients: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Clients of the course that no score has anything of: they gave no answer when the kept model was tested."""
        return [client for client in self.clients if client not in self.client_scores]

    def score(self, graph: str = "global_graph", metric: str = "accuracy", model: str = "global_model") -> float:
        """Return the headline number: the global model's, or the mean of the local ones where there is none.

        With `model` "local_model" it is the other way round.
        """
        other = "local_model" if model == "global_model" else "global_model"
        for mode in (model, other):
            scores = self.metrics.get(f"{mode}/{graph}", {})
            if metric in scores:
                return scores[metric]
        raise KeyError(f"no {metric!r} on the {graph!r}; there is {self.metrics}")

    @property
    def history(self) -> pd.DataFrame:
        """One row per round: seconds, bytes, metrics."""
        import pandas as pd

        rounds = [event for event in self.events if event["event"] == "round"]
        rows = [{**{k: v for k, v in e.items() if k not in LISTS}, **e["metrics"]} for e in rounds]
        return pd.DataFrame(rows)

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
        return self._module(self.params, (self.input_dim, self.output_dim), None)

    @property
    def client_models(self) -> dict[str, nn.Module]:
        """Each client's model as a module; clients without a personal one have the global model."""
        return {
            name: self._module(
                self.client_params.get(name, self.params),
                self.client_dims.get(name, (self.input_dim, self.output_dim)),
                name,
            )
            for name in self.client_params or self.client_scores
        }

    def _module(self, params: Params, dims: tuple[int, int], client: str | None) -> nn.Module:
        module = own_model(self.course, client).build(*dims)
        load_params(module, params)
        return module.eval()
