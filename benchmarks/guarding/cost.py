"""Milliseconds and bytes of one exchange, for each guard, by clients and size of the model.

Clients are simulated one after the other in one process, and everything passes through bytes (the `strict` runtime),
so a time is the sum of what the server and all clients do; nothing crosses a network. Each client answers with the
model it was sent plus a change of its own of a hundredth of the model's size; the server takes the weighted mean. The
model is one matrix with rows of 64 numbers. The first exchange, in which clients know nothing yet, is not in the times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from timing import heading, row, short

from guarding.settings import Settings
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Algorithm, Client, ModelState, Request, on
from isthmus.core.record import Params, Record
from isthmus.runtime.strict import StrictRuntime

CLIENTS = (3, 10, 50)
SIZES = {"10 KB": 10_000, "1 MB": 1_000_000, "50 MB": 50_000_000}
COLUMNS = 64
# Above so many bytes of all replies together a time is taken once: it is minutes, and steady.
MANY = 200_000_000


@dataclass(frozen=True)
class Change(Record):
    """A client's model."""

    params: Params
    """The model that was sent, changed a little."""
    weight: float
    """The same for all."""


@dataclass(frozen=True)
class ChangeModel(Request[Change]):
    """Asks for a model that is changed a little."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class Exchanges(Algorithm[ModelState]):
    """One exchange a round, in which nothing is learned."""

    def setup(self, fed: Federation) -> ModelState:
        """Start from the initial model."""
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Take the mean of the clients' models."""
        return ModelState(fed.ask_folded(ChangeModel(state.params), weighted_mean).params)

    @on(ChangeModel)
    def change(self, request: ChangeModel, client: Client) -> Change:
        """Change the model."""
        stream = client.generator("change")
        found = {n: t + 0.01 * torch.randn(t.shape, generator=stream) for n, t in request.params.items()}
        return Change(found, 1.0)


class Bystander(Client):
    """A client without data."""

    def evaluate(self, params: Params, splits: tuple[str, ...]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
        """Return nothing."""
        return {}, {}


@dataclass(frozen=True)
class Cost:
    """What one exchange took: milliseconds, and bytes for each client."""

    milliseconds: list[float]
    down: float
    up: float


def measured(num_clients: int, num_bytes: int, repeats: int) -> Cost:
    """Do exchanges and return what they took."""
    names = [f"client-{number}" for number in range(num_clients)]
    factories: dict[str, Callable[[], Client]] = {name: partial(Bystander, name) for name in names}
    algorithm = Exchanges()
    runtime = StrictRuntime(algorithm, factories)
    stream = torch.Generator().manual_seed(0)
    params = {"weight": torch.randn(max(1, num_bytes // (4 * COLUMNS)), COLUMNS, generator=stream)}
    reports: list[ExchangeReport] = []
    state, times = ModelState(params), []
    for round in range(1, repeats + 2):
        started = time.perf_counter()
        fed = Federation(
            runtime,
            seed=0,
            round=round,
            cohort=names,
            model=InitialModel(params),
            rules=ExchangeRules(min_replies=num_clients),
            report=reports.append,
        )
        state = algorithm.round(state, fed)
        runtime.mark(round)
        times.append(1e3 * (time.perf_counter() - started))
    last = reports[-1]
    return Cost(times[1:], last.bytes_down / num_clients, last.bytes_up / num_clients)


def show(settings: Settings) -> None:
    """Print the table."""
    sizes = {"10 KB": SIZES["10 KB"]} if settings.quick else SIZES
    heading("clients", "model", "ms", "range", "bytes down", "bytes up")
    for number in CLIENTS[:1] if settings.quick else CLIENTS:
        for size, num_bytes in sizes.items():
            repeats = 1 if number * num_bytes > MANY else settings.repeats
            cost = measured(number, num_bytes, repeats)
            times = cost.milliseconds
            spread = f"{short(min(times))} to {short(max(times))}"
            row(number, size, short(statistics.median(times)), spread, f"{cost.down:,.0f}", f"{cost.up:,.0f}")
