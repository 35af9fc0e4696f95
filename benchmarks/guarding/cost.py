"""Milliseconds and bytes of one exchange, for each guard, by clients and size of the model.

Clients are simulated one after the other in one process, and everything passes through bytes (the `strict` runtime),
so a time is the sum of what the server and all clients do; nothing crosses a network. Milliseconds are of the
processor, medians over repeats. Each client answers with the model it was sent plus a change of its own of a hundredth
of the model's size; the server takes the weighted mean. The model is one matrix with rows of 64 numbers. The first
exchange, in which clients know nothing yet, is not in the times.

In brackets is how many times as long it takes as without guards; bytes are those of one client, as a share of what
crosses without guards, down and up. Above `MANY` bytes of all replies together a time is taken once, above `MOST` only
of the guards `LARGE`, and above `TOO_MANY` not at all: the memories of all clients are in this one process, several
times (with 50 clients and 50 MB some 11 GB).

With `--out` what was measured is kept in a file there; what was stopped goes on where it was.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timing import heading, row, short

from guarding.kept import Kept
from guarding.settings import Settings
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel
from isthmus.core.folding.krum import Krum
from isthmus.core.folds import weighted_mean
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine
from isthmus.core.protocol import Algorithm, Client, ModelState, Request, on
from isthmus.core.random import Secret
from isthmus.core.record import Params, Record, State
from isthmus.privacy import (
    ClientDP,
    Delta,
    DistanceToMedian,
    Entropy,
    LowRank,
    NoRepeats,
    NormBound,
    Quantise,
    RandomK,
    RobustFold,
    SecureSum,
    TopK,
)
from isthmus.runtime.strict import StrictRuntime

NONE = "none"
# Guards whose work is in training itself (example_dp, edge_dp, node_dp), in predictions (class_sanity), or in what
# others found (quarantine) have nothing to do in these exchanges.
LINES: dict[str, tuple[Guard, ...]] = {
    NONE: (),
    "entropy": (Entropy(),),
    "delta, entropy": (Delta(), Entropy()),
    "quantise 8": (Quantise(bits=8),),
    "quantise 4, entropy": (Quantise(bits=4), Entropy()),
    "quantise 1 with feedback, entropy": (Quantise(bits=1, error_feedback=True), Entropy()),
    "top_k 0.05, entropy": (TopK(fraction=0.05), Entropy()),
    "random_k 0.05": (RandomK(fraction=0.05),),
    "low_rank 4, entropy": (LowRank(rank=4), Entropy()),
    "norm_bound": (NormBound(times_median=3.0),),
    "distance_to_median": (DistanceToMedian(),),
    "no_repeats": (NoRepeats(),),
    "robust_fold": (RobustFold(),),
    "robust_fold by krum": (RobustFold(Krum(num_malicious=0)),),
    "client_dp": (ClientDP(noise=0.01),),
    "secure_sum": (SecureSum(),),
}
LARGE = (
    NONE,
    "entropy",
    "delta, entropy",
    "quantise 8",
    "quantise 4, entropy",
    "quantise 1 with feedback, entropy",
    "top_k 0.05, entropy",
    "random_k 0.05",
    "low_rank 4, entropy",
    "norm_bound",
    "no_repeats",
    "client_dp",
)
COLUMNS = 64
# Above so many bytes of all replies together a time is taken once: it is minutes, and steady.
MANY = 200_000_000
MOST = 600_000_000
TOO_MANY = 3_000_000_000


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


class Exchanging:
    """A server and its clients, exchange by exchange."""

    def __init__(self, guards: tuple[Guard, ...], num_clients: int, num_bytes: int) -> None:
        self.names = [f"client-{number}" for number in range(num_clients)]
        self.line, self.algorithm = GuardLine(guards) if guards else None, Exchanges()
        self.runtime = StrictRuntime(self.algorithm, {name: partial(self._client, name) for name in self.names})
        stream = torch.Generator().manual_seed(0)
        params = {"weight": torch.randn(max(1, num_bytes // (4 * COLUMNS)), COLUMNS, generator=stream)}
        self.initial, self.state = InitialModel(params), ModelState(params)
        self.memories: dict[str, State] = {}
        self.round = 0

    def _client(self, name: str) -> Client:
        client = Bystander(name)
        client.guards, client.secret = self.line, Secret.of_simulation(0, name)
        return client

    def next(self) -> list[ExchangeReport]:
        """Do one exchange, with all that guards add to it."""
        self.round += 1
        reports: list[ExchangeReport] = []
        fed = Federation(
            self.runtime,
            seed=0,
            round=self.round,
            cohort=self.names,
            model=self.initial,
            rules=ExchangeRules(min_replies=len(self.names)),
            report=reports.append,
            guards=self.line,
            memories=self.memories,
        )
        self.state = self.algorithm.round(self.state, fed)
        if self.line is not None:
            kept = self.line.round_done(self.memories, self.round)
            self.memories.clear()
            self.memories.update(kept)
        self.runtime.mark(self.round)
        return reports


def measured(guards: tuple[Guard, ...], num_clients: int, num_bytes: int, repeats: int) -> dict[str, Any]:
    """Return the milliseconds of exchanges, and the bytes of one client in the last."""
    exchanging, times, reports = Exchanging(guards, num_clients, num_bytes), [], []
    exchanging.next()
    for _ in range(repeats):
        started = time.process_time()
        reports = exchanging.next()
        times.append(1e3 * (time.process_time() - started))
    ways = ("bytes_down", "bytes_up")
    down, up = (sum(getattr(report, way) for report in reports) / num_clients for way in ways)
    return {"milliseconds": times, "down": down, "up": up}


def show(settings: Settings) -> None:
    """Print the table."""
    sizes, clients = settings.models, settings.numbers
    kept = Kept(settings.out, "cost")
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    lines = {line: guards for line, guards in LINES.items() if line in (NONE, *(settings.lines or LINES))}
    for size, num_bytes in sizes.items():
        for number in clients:
            for line, guards in lines.items():
                if number * num_bytes > (MOST if line not in LARGE else TOO_MANY):
                    continue
                repeats = 1 if number * num_bytes > MANY else settings.repeats
                make = partial(measured, guards, number, num_bytes, repeats)
                found[line, number, size] = kept.of(f"{line}; {number} clients; {size}", make)
    heading("clients", "guards", *(f"{size}: {what}" for size in sizes for what in ("ms", "down, up")))
    for number in clients:
        for line in lines:
            cells = [_cells(*(found.get((each, number, size)) for each in (line, NONE))) for size in sizes]
            row(number, line, *(cell for pair in cells for cell in pair))


def _cells(one: dict[str, Any] | None, plain: dict[str, Any] | None) -> tuple[str, str]:
    if one is None or plain is None:
        return "-", "-"
    took, before = (statistics.median(each["milliseconds"]) for each in (one, plain))
    down, up = (one[way] / plain[way] for way in ("down", "up"))
    return f"{short(took)} ({took / before:.1f})", f"{down:.3f}, {up:.3f}"
