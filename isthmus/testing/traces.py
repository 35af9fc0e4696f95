"""Toy courses under observation: every state, memory and message on the way, and failures on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from isthmus.config.course import Course
from isthmus.core.client import Client
from isthmus.core.codec import decode, encode
from isthmus.core.errors import IsthmusError
from isthmus.core.federation import ExchangeReport, Outcome, Runtime
from isthmus.core.protocol import Algorithm, Position, Request, Requests
from isthmus.core.record import Params, Record, State, leaves
from isthmus.core.training import Callback, RoundReport, Standing, run_course
from isthmus.runs.simulation import Scenario, Simulation, torch_threads
from isthmus.runtime.loop import LoopRuntime, Pausing, StackedRuntime
from isthmus.testing.hostile.lies import Dishonest, HostileRuntime

# What the clock says of an exchange, left out of comparisons.
NO_CLOCK: dict[str, Any] = {
    name: 0.0 for name in ("seconds", "client_seconds", "codec_seconds", "check_seconds", "fold_seconds")
}


@dataclass(frozen=True)
class Fault:
    """A client's handler raises in one exchange: before it did anything, or after it did everything."""

    client: str
    round: int
    exchange: int
    when: Literal["before", "after"]

    def strikes(self, client: str, position: Position) -> bool:
        """Whether it is now."""
        return (client, position.round, position.exchange) == (self.client, self.round, self.exchange)


class InjectedFailure(RuntimeError):
    """What a faulty handler raises."""


@dataclass(frozen=True)
class Message:
    """One request to one client, and what came back."""

    client: str
    position: Position
    request: Request[Any]
    outcome: Outcome


@dataclass
class Trace(Callback):
    """What was seen of a course, heard as a callback; states and memories by round, where 0 is the setup."""

    initial: Params
    clients: tuple[str, ...]
    standings: dict[int, Standing] = field(default_factory=dict)
    memories: dict[int, dict[str, bytes]] = field(default_factory=dict)
    rounds: list[RoundReport] = field(default_factory=list)
    exchanges: list[ExchangeReport] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    together: Counter[str] = field(default_factory=Counter)  # replies that clients gave together, by request
    notes: dict[str, str] = field(default_factory=dict)  # why they did not
    pausing: Pausing = field(default_factory=Pausing)  # how the work was done that handlers asked their clients for
    said: list[str] = field(default_factory=list)  # what the algorithm noted
    ended_by: IsthmusError | None = None
    _before: tuple[Record, bytes] | None = None  # the state of the last checkpoint, which no round may change

    def exchanged(self, report: ExchangeReport) -> None:
        """Keep an exchange."""
        self.exchanges.append(report)

    def round_done(self, report: RoundReport) -> None:
        """Keep a round."""
        self.rounds.append(report)
        if self._before is not None and encode(self._before[0]) != self._before[1]:
            raise AssertionError(
                f"round {report.round} changed the server's state of the round before in place; return a new record"
            )

    def noted(self, round: int, text: str) -> None:
        """Keep what the algorithm says."""
        self.said.append(text)

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        """Keep a checkpoint."""
        self.standings[standing.round] = standing
        self.memories[standing.round] = dict(memories)
        self._before = (standing.state, encode(standing.state))

    @property
    def last(self) -> int:
        """The last whole round."""
        return max(self.standings, default=0)

    @property
    def state(self) -> Record | None:
        """The server's state after the last whole round; None where not even the setup was."""
        return self.standings[self.last].state if self.standings else None

    def first_messages(self) -> dict[str, Message]:
        """Return by kind of request the first message of the first client."""
        return {type(m.request).__name__: m for m in reversed(self.messages) if m.client == self.clients[0]}

    def models(self, algorithm: Algorithm[Any]) -> dict[str, Params]:
        """Return the model that each client would use at the end."""
        shared = algorithm.global_params(self.standings[self.last].state)
        memories = self.memories[self.last]
        return {c: algorithm.client_params(shared, decode(m, State)) for c, m in memories.items()}

    def values(self) -> dict[str, Any]:
        """Return everything that must be the same to the bit when two courses are the same, by name."""
        standing = self.standings[self.last]
        plain: dict[str, Any] = {
            "the number of rounds": self.last,
            "the server's state": standing.state,
            "the server's state at the best round": standing.best_state,
            "the best round": standing.best_round,
            "the best score": standing.best_score,
        }
        for client, memory in self.memories[self.last].items():
            plain[f"the memory of {client}"] = decode(memory, State)
        return plain

    def everything(self, sizes: bool = True) -> dict[str, Any]:
        """Return values and history."""
        return {**self.values(), **self.history(sizes)}

    def history(self, sizes: bool = True) -> dict[str, Any]:
        """Return the rounds and exchanges as they were reported, without the clock.

        Without `sizes`, not those of replies either: a number in words is as long as its last digits make it.
        """
        plain: dict[str, Any] = {}
        for report in self.rounds:
            bytes_up = report.bytes_up if sizes else 0
            plain[f"the report of round {report.round}"] = asdict(
                replace(report, seconds=0.0, wall_seconds=0.0, bytes_up=bytes_up)
            )
        for exchange in self.exchanges:
            name = f"the report of round {exchange.position.round}, exchange {exchange.position.exchange}"
            bytes_up = exchange.bytes_up if sizes else 0
            plain[name] = asdict(replace(exchange, bytes_up=bytes_up, **NO_CLOCK))
        return plain


def trace_course(
    course: Course,
    scenario: Scenario,
    *,
    seed: int | None = None,
    fault: Fault | None = None,
    liar: Dishonest | None = None,
    resume_from: tuple[Trace, int] | None = None,
    place: Callable[[Simulation], Runtime] | None = None,
) -> Trace:
    """Run a course on toy clients and return what was seen; an error of Isthmus ends the trace, another is raised.

    Fields:
        seed:        seed of the rounds, from the same initial model; by default the course's
        fault:       a failure to inject (runtime "loop" only)
        liar:        a client that lies
        resume_from: a trace, and the round whose checkpoint to go on from
        place:       makes the runtime, where the clients are not in this process
    """
    with torch_threads(course.threads):
        simulation = Simulation(course, scenario)
        trace = Trace(simulation.initial.params, tuple(simulation.clients))
        runtime = _watched(simulation, trace, fault, place)
        if liar is not None:
            runtime = HostileRuntime(runtime, liar)
        standing, own = None, simulation.own
        if resume_from is not None:
            before, round = resume_from
            standing = _through_bytes(before.standings[round], course.algorithm)
            runtime.load_clients(before.memories[round])
        plan = replace(course.plan(), seed=course.seed if seed is None else seed, checkpoint_every=1)
        try:
            if standing is None:
                # The setup by itself first, so that there is a checkpoint of it too.
                standing = run_course(
                    course.algorithm, runtime, replace(plan, rounds=0), simulation.initial, [trace], own=own
                )
            run_course(course.algorithm, runtime, plan, simulation.initial, [trace], standing, own=own)
        except IsthmusError as error:
            trace.ended_by = error
        except AssertionError:
            raise
        except Exception as error:
            where = "the setup" if standing is None else f"round {max(trace.last, standing.round) + 1}"
            raise AssertionError(f"the server half raised {type(error).__name__} in {where}: {error}") from error
    return trace


def _watched(
    simulation: Simulation, trace: Trace, fault: Fault | None, place: Callable[[Simulation], Runtime] | None
) -> Runtime:
    """Return the runtime of a simulation, a loop with an eye on every message; a stack tells what it does together."""
    if place is not None:
        simulation.runtime = place(simulation)
    elif simulation.course.runtime == "loop":
        return WatchedLoop(simulation.course.algorithm, list(simulation.clients.values()), trace, fault)
    runtime = simulation.runtime
    if isinstance(runtime, StackedRuntime):
        trace.together, trace.notes, trace.pausing = runtime.together, runtime.notes, runtime.pausing
    return runtime


class WatchedLoop(LoopRuntime):
    """The loop runtime, with an eye on every message: handlers may change neither request nor memory in place."""

    def __init__(
        self, algorithm: Algorithm[Any], clients: Sequence[Client], trace: Trace, fault: Fault | None = None
    ) -> None:
        super().__init__(algorithm, clients)
        self.trace = trace
        if fault is not None:
            self.sites[fault.client].algorithm = _Faulty(algorithm, fault)

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Iterator[Outcome]:
        """Answer the requests one after the other and look at what each handler left behind."""
        for client, request in requests.items():
            memory = dict(self.sites[client].client.state)
            sent, remembered = encode(request), encode(memory)
            (outcome,) = self.answer_each(position, {client: request}, timeout_seconds)
            place = f"round {position.round}, {type(request).__name__}: the handler of {client}"
            if encode(request) != sent:
                raise AssertionError(
                    f"{place} changed the request in place; make new tensors (the other clients and the server read "
                    "the same object in process, and not at all between sites)"
                )
            if encode(memory) != remembered:
                raise AssertionError(
                    f"{place} changed an entry of client.state in place; put a new value there, so that a failure "
                    "leaves the memory as it was"
                )
            self.trace.messages.append(Message(client, position, request, outcome))
            yield outcome


class _Faulty:
    """Stands in for an algorithm at one client; its handlers raise where the fault says."""

    def __init__(self, algorithm: Algorithm[Any], fault: Fault) -> None:
        self._algorithm, self._fault = algorithm, fault

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._algorithm, name)
        if name not in type(self._algorithm).handlers().values():
            return member

        def handler(request: Request[Any], client: Client) -> Record:
            strikes = self._fault.strikes(client.id, client.position)
            if strikes and self._fault.when == "before":
                raise InjectedFailure(f"{client.id} fails on purpose")
            reply: Record = member(request, client)
            if strikes:
                raise InjectedFailure(f"{client.id} fails on purpose")
            return reply

        return handler


def _through_bytes(standing: Standing, algorithm: Algorithm[Any]) -> Standing:
    kind = type(algorithm).state_type()
    return replace(
        standing, state=decode(encode(standing.state), kind), best_state=decode(encode(standing.best_state), kind)
    )


def require_same(first: Mapping[str, Any], second: Mapping[str, Any], what: str) -> None:
    """Raise AssertionError that names the first thing in which two sets of values differ by a bit."""
    require_close(first, second, what, tolerance=0.0)


def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two sets of values are the same to the bit."""
    try:
        require_same(first, second, "")
    except AssertionError:
        return False
    return True


def require_close(first: Mapping[str, Any], second: Mapping[str, Any], what: str, tolerance: float = 1e-4) -> None:
    """Raise AssertionError that names the first thing in which two sets of values differ by more than rounding."""
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in first or name not in second:
            raise AssertionError(f"{what}: {name} is there in one and not in the other")
        difference = _difference(first[name], second[name], tolerance)
        if difference:
            raise AssertionError(f"{what}: {name} differs: {difference}")


def _difference(first: Any, second: Any, tolerance: float) -> str:
    left, right = leaves(first), leaves(second)
    if left.keys() != right.keys():
        return f"{sorted(left.keys() ^ right.keys())[:3]} are in one only"
    for path, value in left.items():
        of_leaf = _between_tensors if isinstance(value, Tensor) and isinstance(right[path], Tensor) else _between_values
        told = of_leaf(value, right[path], tolerance)
        if told:
            return f"{path.lstrip('.')} {told}" if path else told
    return ""


def _between_tensors(value: Tensor, other: Tensor, tolerance: float) -> str:
    if value.shape != other.shape or value.dtype != other.dtype:
        return f"is {value.dtype} {tuple(value.shape)} in one, {other.dtype} {tuple(other.shape)} in other"
    ours, theirs = value.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30)
    if torch.allclose(ours, theirs, tolerance, tolerance) if tolerance else torch.equal(ours, theirs):
        return ""
    return f"differs by up to {float((value.double() - other.double()).abs().max()):.3g}"


def _between_values(value: Any, other: Any, tolerance: float) -> str:
    if type(value) is float is type(other) and abs(value - other) <= tolerance * (1 + abs(value)):
        return ""
    both_nan = value != value and other != other
    if type(value) is type(other) and (value == other or both_nan):
        return ""
    return f"is {str(value)[:80]} in one and {str(other)[:80]} in the other"
