"""What a secure sum costs: milliseconds and bytes of one exchange beside the same exchange without it.

In one process clients answer one after the other and everything passes through bytes (the `strict` runtime), so a time
is the sum of what the server and all clients do. Between processes they are silos on loopback with mutual TLS, each in
a process of its own with its memories and its book in files, and keys are signed by certificates. Plain exchanges and
secure ones take turns, and the first two of each are not in the times; bytes are those of messages, for each client.
Beside milliseconds of the clock are those of the processors that all processes took together, as a mean: on a machine
with other work these say more.
What does not fit into memory is left out: each place has the bytes of all replies that it does at most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import psutil
import torch
from timing import heading, row, short

from guarding.between import between_processes
from guarding.cost import COLUMNS, MANY, Bystander, Exchanges
from guarding.settings import BETWEEN, HERE, Settings
from isthmus.core.client import Client
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel, Runtime
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine
from isthmus.core.guards.settled import Settled
from isthmus.core.protocol import ModelState
from isthmus.core.random import Secret
from isthmus.core.record import Params
from isthmus.privacy.secure_sum import SecureSum
from isthmus.runtime.strict import StrictRuntime

GUARDS: dict[str, tuple[Guard, ...]] = {"plain": (), "secure": (SecureSum(),)}
PROCESSOR = ("plain processor ms", "secure processor ms", "processor times")
# Bytes of all replies together that fit into the memory of a small computer, several times over.
MOST_HERE, MOST_BETWEEN = 3_000_000_000, 600_000_000


def client(name: str, guards: tuple[Guard, ...], book: Settled) -> Client:
    """Return a client with a secret and a book of its own."""
    made = Bystander(name)
    made.guards, made.secret, made.book = GuardLine(guards), Secret(name.encode().ljust(32, b".")), book
    return made


def here(names: Sequence[str], guards: tuple[Guard, ...]) -> Runtime:
    """Return a runtime of this process."""
    factories: dict[str, Callable[[], Client]] = {n: partial(client, n, guards, Settled()) for n in names}
    return StrictRuntime(Exchanges(), factories)


def parameters(num_bytes: int) -> Params:
    """Return a model of about so many bytes."""
    stream = torch.Generator().manual_seed(0)
    return {"weight": torch.randn(max(1, num_bytes // (4 * COLUMNS)), COLUMNS, generator=stream)}


class Measured:
    """One way to carry exchanges, and what they took."""

    def __init__(self, runtime: Runtime, names: Sequence[str], guards: tuple[Guard, ...], params: Params) -> None:
        self.runtime, self.names, self.line, self.state = runtime, list(names), GuardLine(guards), ModelState(params)
        self.reports: list[ExchangeReport] = []
        self.milliseconds: list[float] = []
        self.processor: list[float] = []
        self.round = 0

    def exchange(self) -> None:
        """Carry one."""
        self.round, self.reports = self.round + 1, []
        started, before = time.perf_counter(), processor_seconds()
        fed = Federation(
            self.runtime,
            seed=0,
            round=self.round,
            cohort=self.names,
            model=InitialModel(self.state.params),
            rules=ExchangeRules(min_replies=len(self.names)),
            report=self.reports.append,
            guards=self.line,
            secret=Secret(bytes(32)),
        )
        self.state = Exchanges().round(self.state, fed)
        self.runtime.mark(self.round)
        self.milliseconds.append(1e3 * (time.perf_counter() - started))
        self.processor.append(1e3 * (processor_seconds() - before))

    def bytes_of(self, way: str) -> float:
        """Return the bytes of the last exchange in a direction, for each client."""
        return sum(getattr(report, f"bytes_{way}") for report in self.reports) / len(self.names)


def processor_seconds() -> float:
    """Return what this process and those that it started took of processors so far."""
    mine = psutil.Process()
    each = [process.cpu_times() for process in (mine, *mine.children(recursive=True))]
    return float(sum(times.user + times.system for times in each))


def measured(ways: dict[str, Measured], repeats: int, warm: int) -> None:
    """Let ways take turns."""
    for number in range(repeats + warm):
        for way in ways.values():
            way.exchange()
            if number < warm:
                way.milliseconds.clear()
                way.processor.clear()


def show(settings: Settings) -> None:
    """Print the table."""
    heading(
        "where", "clients", "model", "plain ms", "secure ms", "range", "times", *PROCESSOR, "bytes down", "bytes up"
    )
    for number in settings.numbers:
        names = [f"client-{place}" for place in range(number)]
        if settings.where != BETWEEN:
            show_here(names, settings)
        if settings.where != HERE:
            show_between(names, settings)


def show_here(names: Sequence[str], settings: Settings) -> None:
    """Print the rows of one process."""
    for size, num_bytes in settings.models.items():
        if len(names) * num_bytes <= MOST_HERE:
            params = parameters(num_bytes)
            ways = {way: Measured(here(names, guards), names, guards, params) for way, guards in GUARDS.items()}
            told("one process", len(names), size, ways, num_bytes, settings)


def show_between(names: Sequence[str], settings: Settings) -> None:
    """Print the rows of a process for each client."""
    sizes = {size: n for size, n in settings.models.items() if len(names) * n <= MOST_BETWEEN}
    if sizes:
        with between_processes(names, GUARDS) as runtimes:
            for size, num_bytes in sizes.items():
                params = parameters(num_bytes)
                ways = {way: Measured(runtimes[way](), names, guards, params) for way, guards in GUARDS.items()}
                told("between processes", len(names), size, ways, num_bytes, settings)


def told(place: str, number: int, size: str, ways: dict[str, Measured], num_bytes: int, settings: Settings) -> None:
    """Measure and print a row."""
    large = number * num_bytes > MANY
    measured(ways, 1 if large else settings.repeats, 0 if large else 2)
    plain, secure = (ways[way].milliseconds for way in ("plain", "secure"))
    times = statistics.median(secure) / statistics.median(plain)
    down, up = ways["secure"].bytes_of("down"), ways["secure"].bytes_of("up")
    less, least = ways["plain"].bytes_of("down"), ways["plain"].bytes_of("up")
    row(
        place,
        number,
        size,
        short(statistics.median(plain)),
        short(statistics.median(secure)),
        f"{short(min(secure))} to {short(max(secure))}",
        f"{times:.2f}",
        short(statistics.mean(ways["plain"].processor)),
        short(statistics.mean(ways["secure"].processor)),
        _times(sum(ways["secure"].processor), sum(ways["plain"].processor)),
        f"{down:,.0f} ({down / less:.2f})",
        f"{up:,.0f} ({up / least:.2f})",
    )


def _times(secure: float, plain: float) -> str:
    """Return how many times over one is the other; nothing where the clock of the processor has not moved."""
    return f"{secure / plain:.2f}" if plain > 0.0 else "-"
