"""What every algorithm must keep to, as checks that can be called one by one or all at once.

    from isthmus.testing import check_algorithm
    check_algorithm(MyMethod(my_field=3))

A check runs the algorithm on toy clients and raises AssertionError when a rule is broken; `CHECKS` holds them by name.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from isthmus.config.course import Course
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadMessage, nearest
from isthmus.core.exposure import field_docs
from isthmus.core.federation import Runtime
from isthmus.core.protocol import Algorithm, EvaluateModel, Failure, KeepBest, Position, reply_type
from isthmus.core.random import UniformSampling
from isthmus.core.record import Record, field_types, leaves
from isthmus.learn.together.blocks import can_stack
from isthmus.runs.at_workers import at_workers
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.runtime.cluster import Crew
from isthmus.testing.hostile.lies import lies_about, some_lies_about
from isthmus.testing.hostile.lying import tell_lies
from isthmus.testing.inspection import (
    generator_states,
    global_generators,
    has_source,
    places_for_notes,
    variants,
    with_nested,
)
from isthmus.testing.toys import toy_course, toy_scenario
from isthmus.testing.traces import Fault, Trace, require_close, require_same, same, trace_course

Check: TypeAlias = Callable[[Algorithm[Any], Course | None], Any]

# By how many characters a number may be longer or shorter for rounding.
DIGITS = 24
# Sent by the course itself, not by the algorithm's server half.
COURSE_REQUESTS = (EvaluateModel, KeepBest)


def check_algorithm(algorithm: Algorithm[Any], course: Course | None = None, *, skip: Sequence[str] = ()) -> list[str]:
    """Run every check (see `CHECKS`) but those in `skip`; raise AssertionError that says which rules are broken.

    Returns the names of the checks that were made.

    `course` gives model, batching, rounds and the like; by default `toy_course(algorithm)`. The clients are toy ones.
    """
    for name in skip:
        if name not in CHECKS:
            raise ValueError(f"skip has {name!r}; {nearest(name, CHECKS)}")
    names = [name for name in CHECKS if name not in skip]
    problems: list[str] = []
    for name in names:
        try:
            CHECKS[name](algorithm, course)
        except AssertionError as error:
            problems.append(f"{type(algorithm).__name__}, check {name!r}: {error}")
        except Exception:
            if not problems:
                raise
            break  # what is broken already may be why
    if problems:
        raise AssertionError("\n".join(problems))
    return names


# ---- the object


def check_frozen(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that the algorithm is a frozen, hashable dataclass and that a course leaves no notes on it or near it."""
    kind = type(algorithm)
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise AssertionError(f"{kind.__name__} is not a frozen dataclass; write @dataclass(frozen=True) above it")
    try:
        before, code = copy.deepcopy(algorithm), hash(algorithm)
    except TypeError as error:
        raise AssertionError(f"{kind.__name__} cannot be hashed: {error}; use tuples in place of lists") from None
    notes = places_for_notes(algorithm)
    _seen.clear()  # a course of now, which the checks that come next look at too
    _clean(_plain_trace(algorithm, course))
    after = places_for_notes(algorithm)
    changed = sorted(place for place in notes.keys() | after.keys() if notes.get(place) != after.get(place))
    if changed:
        raise AssertionError(f"a course changed {changed[0]}; a client remembers only client.state")
    if before != algorithm or hash(algorithm) != code or repr(before) != repr(algorithm):
        raise AssertionError(f"a course changed the algorithm: it was {before!r} and is {algorithm!r}")


def check_repr(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that the repr tells two configurations apart, and so does equality."""
    for field in dataclasses.fields(algorithm):
        if not field.init:
            continue
        for value in variants(getattr(algorithm, field.name)):
            try:
                other = dataclasses.replace(algorithm, **{field.name: value})
            except ValueError:
                continue
            if repr(other) == repr(algorithm) or other == algorithm:
                raise AssertionError(f"{field.name}={value!r} cannot be told from {algorithm!r} by repr and ==")


def check_docstrings(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that every field of a record that crosses, or that the server keeps, has a docstring: what it reveals."""
    requests = type(algorithm).handlers()
    own = [kind for kind in requests if kind not in COURSE_REQUESTS]
    roots = [type(algorithm).state_type(), *own, *(reply_type(kind) for kind in own)]
    missing = [what for kind in with_nested(roots) for what in _undocumented(kind)]
    if missing:
        raise AssertionError("\n".join(missing))


def _undocumented(kind: type[Record]) -> Iterator[str]:
    doc = kind.__doc__ or ""
    if not doc.strip() or doc.startswith(f"{kind.__name__}("):
        yield f"the record {kind.__name__} has no docstring"
    docs = field_docs(kind) if has_source(kind) else {}
    for name in [name for name, text in docs.items() if not text]:
        yield f"{kind.__name__}.{name} has no docstring; write one under the field that says what it reveals"


# ---- runtimes and randomness


def check_loop_equals_strict(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that clients that live on and clients that forget all but their memory, through bytes, end the same."""
    scenario = toy_scenario(4, client_without_edges=True, client_with_one_training_node=True)
    loop = _clean(_trace(algorithm, course, scenario, num_clients=4))
    strict = _clean(_trace(algorithm, course, scenario, runtime="strict", num_clients=4))
    require_same(
        loop.everything(),
        strict.everything(),
        "the loop runtime and the strict one disagree (does a client keep anything outside client.state?)",
    )


def check_stacked_equals_loop(
    algorithm: Algorithm[Any], course: Course | None = None, *, scenarios: Sequence[Scenario] | None = None
) -> None:
    """Check that clients that answer together give what they would give alone, within rounding.

    Also with ragged cohorts, a cohort of one, clients with a single training node or none, dense and sparse features.
    Where the model and the batches allow it, handlers for many (`@cohort`) must be used, and work that handlers ask
    their clients for must be done together for some of them. A loss that is known for one client alone is no fault.

    A course on graphs or links needs `scenarios` of its own in the place of the toy ones.
    """
    for scenario in odd_scenarios() if scenarios is None else scenarios:
        changes = {"num_clients": len(scenario.parts)}
        loop = _clean(_trace(algorithm, course, scenario, runtime="loop", **changes))
        stacked = _clean(_trace(algorithm, course, scenario, runtime="auto", **changes))
        if len(loop.clients) > 1 and _stackable(algorithm, course, None if scenarios is None else scenario):
            _require_together(algorithm, stacked)
        require_close(
            loop.everything(sizes=False),
            stacked.everything(sizes=False),
            f"{len(loop.clients)} clients that answer together and clients that answer alone disagree",
        )
        _require_sizes(loop, stacked)


def odd_scenarios() -> list[Scenario]:
    """Return toy clients, ragged and odd."""
    odd = {"client_without_training": True, "client_with_one_training_node": True, "client_without_edges": True}
    return [
        toy_scenario(1),
        toy_scenario(6, num_nodes=90, sparse=True, **odd),
        toy_scenario(2, num_nodes=60, sparse=True),
        _without_training(toy_scenario(5, num_nodes=64, **odd), 1),  # two idle clients are a block of their own
    ]


def check_workers_equal_loop(
    algorithm: Algorithm[Any], course: Course | None = None, *, crew: Crew, num_blocks: int = 2
) -> None:
    """Check that clients in worker processes give what they give here, and go on from any round with the same bits.

    One by one they give the same to the bit but for the order of sums in double precision; together, what stacks do.
    It is in no default set of checks, since it needs workers (`isthmus.runtime.cluster.crew_of`).
    """
    scenario = toy_scenario(4, client_without_edges=True, client_without_training=True)

    def place(simulation: Simulation) -> Runtime:
        return at_workers(simulation, crew, num_blocks)

    here = _clean(_trace(algorithm, course, scenario, num_clients=4))
    asked = _course(algorithm, course, num_clients=4, runtime="auto")
    there = _clean(trace_course(asked, scenario, place=place))
    require_close(
        here.everything(sizes=False), there.everything(sizes=False), "clients at workers and clients here disagree"
    )
    round = there.last // 2
    resumed = _clean(trace_course(asked, scenario, resume_from=(there, round), place=place))
    what = f"a course at workers that was stopped after round {round} and resumed disagrees with one that was not"
    require_same(there.values(), resumed.values(), what)


def _require_sizes(loop: Trace, stacked: Trace) -> None:
    """Require that replies are as long; only a number that may be rounded otherwise may have other digits."""
    rounded: Counter[Position] = Counter()
    for message in loop.messages:
        found = leaves(message.outcome.reply).values()
        rounded[message.position] += sum(type(leaf) is float and not leaf.is_integer() for leaf in found)
    for one, other in zip(loop.exchanges, stacked.exchanges, strict=True):
        if abs(one.bytes_up - other.bytes_up) > DIGITS * rounded[one.position]:
            raise AssertionError(
                f"round {one.position.round}, {one.request}: replies that clients gave together are told to be "
                f"{other.bytes_up} bytes long, those of each alone are {one.bytes_up}"
            )


def _require_together(algorithm: Algorithm[Any], trace: Trace) -> None:
    """Raise AssertionError where clients did alone what they should have done together."""
    many = {kind.__name__: name for kind, name in type(algorithm).cohort_handlers().items()}
    for name, reason in trace.notes.items():
        if name in many.values():
            raise AssertionError(f"the handler for many {name!r} gave up: {reason}")
        if name in trace.pausing.broken:
            raise AssertionError(f"{name}, which clients ask for, went wrong for many of them at once: {reason}")
    idle = sorted(many.keys() - trace.together.keys() - {EvaluateModel.__name__})
    if idle:
        raise AssertionError(f"there is a handler for many of {idle[0]}, but clients answered it one by one")
    work = trace.pausing
    if work.alone and not work.together and not work.reasons and not trace.together:
        kinds = ", ".join(sorted(work.alone))
        raise AssertionError(f"clients ask for work ({kinds}) that is never the same for two of them")


def check_same_seed(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that the same seed gives the same bits, and that no global generator is used or touched."""
    with global_generators(1) as before:
        first = _clean(_trace(algorithm, course))
        drawn = [name for name, state in generator_states().items() if state != before[name]]
    if drawn:
        raise AssertionError(f"a course drew from {drawn[0]}; draw from client.generator(...) or fed.generator(...)")
    with global_generators(2):
        second = _clean(_plain_trace(algorithm, course))
    require_same(first.everything(), second.everything(), "two courses with the same seed disagree")


def check_another_seed(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that another seed gives another result, even from the same initial model: the toy model has dropout."""
    first = _clean(_plain_trace(algorithm, course))
    course = _course(algorithm, course)
    second = _clean(trace_course(course, toy_scenario(), seed=course.seed + 1))
    if same(_models(first, algorithm), _models(second, algorithm)):
        raise AssertionError(
            "another seed gave the same models to the bit; randomness must derive from the seed: "
            "client.generator(...), fed.generator(...)"
        )


# ---- state


def check_resume(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that a course can stop after any round, be saved as bytes, go on elsewhere and end with the same bits."""
    whole = _clean(_plain_trace(algorithm, course))
    course, scenario = _course(algorithm, course), toy_scenario()
    for round in whole.standings:
        resumed = _clean(trace_course(course, scenario, resume_from=(whole, round)))
        what = f"a course that was stopped after round {round} and resumed disagrees with one that was not"
        require_same(whole.values(), resumed.values(), what)
        later = {r.round: r.evaluations for r in resumed.rounds}
        before = {r.round: r.evaluations for r in whole.rounds if r.round > round}
        if later != before:
            raise AssertionError(f"{what}: the evaluations of its rounds differ")


def check_failure(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that a client whose handler raises is a named failure and keeps its memory, and that the others go on.

    The handler raises in each exchange of the setup and of the second round, once before and once after its work: both
    must lead to the same course. When the failing client is the only one, the course ends with an error that names it.
    What was before the round is taken from the course in which nothing fails.
    """
    clean = _clean(_plain_trace(algorithm, course))
    course, scenario = _course(algorithm, course), toy_scenario()
    client = clean.clients[0]
    asked = {(m.position.round, m.position.exchange) for m in clean.messages if m.client == client}
    struck = sorted(place for place in asked if place[0] in (0, min(2, clean.last)))
    for round, exchange in struck:
        start = (clean, round - 1) if round else None
        before = _failed(course, scenario, Fault(client, round, exchange, "before"), start)
        after = _failed(course, scenario, Fault(client, round, exchange, "after"), start)
        if before.standings and after.standings:
            require_same(
                before.values(),
                after.values(),
                f"round {round}, exchange {exchange}: a handler that fails after its work leaves traces of it",
            )


def check_partial_participation(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that a course with half of the clients in each round runs without a failure, the same in both runtimes."""
    scenario = toy_scenario(4)
    fields = {"sampling": UniformSampling(fraction=0.5), "num_clients": 4}
    loop = _clean(_trace(algorithm, course, scenario, **fields))
    wanted = (len(loop.clients) + 1) // 2
    if any(len(report.cohort) != wanted for report in loop.rounds):
        raise AssertionError(f"cohorts were {[r.cohort for r in loop.rounds]}, expected {wanted} clients in each")
    strict = _clean(_trace(algorithm, course, scenario, runtime="strict", **fields))
    require_same(
        loop.values(), strict.values(), "with half of the clients, the loop runtime and the strict one disagree"
    )


def check_idle_client(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that a client without training nodes breaks nothing and leaves the mean as it is.

    Its replies that hold parameters and a weight have weight 0, unless the algorithm learns without labels. When all
    that the algorithm asks for is weighted, the course without that client ends with the same server state.
    """
    course = _course(algorithm, course)
    scenario = toy_scenario(client_without_training=True)
    trace = _clean(trace_course(course, scenario))
    if algorithm.pooled or algorithm.learns_without_labels:
        return
    idle = list(scenario.parts)[-1]
    mine = [m for m in trace.messages if m.client == idle and not isinstance(m.request, COURSE_REQUESTS)]
    for message in mine:
        reply = message.outcome.reply
        weight = getattr(reply, "weight", 0.0)
        if hasattr(reply, "params") and weight != 0.0:
            raise AssertionError(
                f"{type(reply).__name__} of {idle}, which has no training nodes, has weight {weight}; expected 0"
            )
    if mine and all(hasattr(message.outcome.reply, "weight") for message in mine):
        others = {name: part for name, part in scenario.parts.items() if name != idle}
        without = _clean(trace_course(course, Scenario(scenario.whole, others)))
        require_same(
            {"the server's state": trace.standings[trace.last].state},
            {"the server's state": without.standings[without.last].state},
            "a client without training nodes changes the result",
        )


# ---- messages


def check_requests(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that every request that is sent has a handler, and that every handler's request is sent."""
    handled = set(type(algorithm).handlers())
    trace = _plain_trace(algorithm, course)
    sent = {type(message.request) for message in trace.messages}
    orphans = sorted(kind.__name__ for kind in sent - handled)
    if orphans:
        raise AssertionError(f"{orphans[0]} was sent, but no handler is marked @on({orphans[0]})")
    _clean(trace)
    if KeepBest in handled and not algorithm.personal:
        handled.discard(KeepBest)
    idle = sorted(kind.__name__ for kind in handled - sent)
    if idle:
        raise AssertionError(f"there is a handler of {idle[0]}, but no {idle[0]} was sent during the course")


def check_replies(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that replies are of the type that the request names and hold only what that record declares, detached."""
    trace = _plain_trace(algorithm, course)
    for message in trace.messages:
        reply, request = message.outcome.reply, type(message.request)
        place = f"the reply of {message.client} to {request.__name__}"
        if isinstance(reply, Failure):
            raise AssertionError(f"{place} is a failure: {reply.reason}")
        wanted = reply_type(request)
        if type(reply) is not wanted:
            raise AssertionError(f"{place} is a {type(reply).__name__}; the request names {wanted.__name__}")
        extra = sorted(set(vars(reply)) - set(field_types(wanted)))
        if extra:
            raise AssertionError(f"{place} carries {extra[0]!r}, which {wanted.__name__} does not declare")
        attached = [path for path, leaf in leaves(reply).items() if isinstance(leaf, Tensor) and leaf.requires_grad]
        if attached:
            raise AssertionError(f"{place}{attached[0]} is attached to a gradient; detach it")
        try:
            arrived: Record = decode(encode(reply), wanted)
        except BadMessage as error:
            raise AssertionError(f"{place} does not fit {wanted.__name__}: {error}") from None
        require_same({"it": reply}, {"it": arrived}, f"{place} is not what comes out of its bytes")
    _clean(trace)


def check_parameters_move(algorithm: Algorithm[Any], course: Course | None = None) -> None:
    """Check that training moves every trainable parameter of the global model and of some client's model."""
    trace = _clean(_plain_trace(algorithm, course))
    simulation = Simulation(_course(algorithm, course), toy_scenario())
    trainable = [name for name, _ in simulation.model.named_parameters()]
    initial = {**next(iter(simulation.clients.values())).own, **trace.initial}
    models = list(trace.models(algorithm).values())
    shared = algorithm.global_params(trace.standings[trace.last].state)
    for group in [models, *([[shared]] if shared else [])]:
        for name in trainable:
            having = [model[name] for model in group if name in model]
            if having and all(torch.equal(tensor, initial[name]) for tensor in having):
                raise AssertionError(f"parameter {name!r} is after {trace.last} rounds what it was at the start")


def check_lies(algorithm: Algorithm[Any], course: Course | None = None, *, thorough: bool = False) -> int:
    """Check that a client that lies is found out and named, that nobody else fails, and that the course ends well.

    One client answers one kind of request with replies that are wrong in one place, each time another, in as many
    courses as it takes to tell a lie about every field of every reply; with `thorough` every lie there is
    (`isthmus.testing.hostile.lies`). The liar is the first client, then the last. A lie that no honest client could
    tell must be a failure in the exchange in which it was told. Returns the number of lies.
    """
    clean = _clean(_plain_trace(algorithm, course))
    course, scenario = _course(algorithm, course), toy_scenario()
    if len(clean.clients) < 3:  # nobody can say who of two is right
        return 0
    lies = lies_about if thorough else some_lies_about
    return tell_lies(clean, lies, lambda liar: trace_course(course, scenario, liar=liar))


CHECKS: dict[str, Check] = {
    "frozen": check_frozen,
    "repr": check_repr,
    "docstrings": check_docstrings,
    "requests": check_requests,
    "replies": check_replies,
    "parameters_move": check_parameters_move,
    "loop_equals_strict": check_loop_equals_strict,
    "same_seed": check_same_seed,
    "another_seed": check_another_seed,
    "resume": check_resume,
    "failure": check_failure,
    "partial_participation": check_partial_participation,
    "idle_client": check_idle_client,
    "stacked_equals_loop": check_stacked_equals_loop,
    "lies": check_lies,
}


# ---- toy courses


def _course(algorithm: Algorithm[Any], course: Course | None, **changes: Any) -> Course:
    course = toy_course(algorithm) if course is None else dataclasses.replace(course, algorithm=algorithm)
    return dataclasses.replace(course, **changes)


def _trace(algorithm: Algorithm[Any], course: Course | None, scenario: Scenario | None = None, **changes: Any) -> Trace:
    return trace_course(_course(algorithm, course, **changes), scenario or toy_scenario())


_seen: list[tuple[Course, Trace]] = []


def _plain_trace(algorithm: Algorithm[Any], course: Course | None) -> Trace:
    """Return the trace of the course as it is, on the usual toy clients; checks that only look at it share it."""
    asked = _course(algorithm, course)
    for known, trace in _seen:
        if known == asked and type(known.algorithm) is type(algorithm):
            return trace
    trace = trace_course(asked, toy_scenario())
    _seen[:] = [(asked, trace)]
    return trace


def _without_training(scenario: Scenario, number: int) -> Scenario:
    parts = dict(scenario.parts)
    for name in list(parts)[:number]:
        masks = parts[name].masks
        parts[name] = parts[name].with_masks({**masks, "train": torch.zeros_like(masks["train"])})
    return Scenario(scenario.whole, parts)


def _stackable(algorithm: Algorithm[Any], course: Course | None, scenario: Scenario | None) -> bool:
    """Whether the course's model and batches allow clients to answer together."""
    changes = {} if scenario is None else {"num_clients": len(scenario.parts)}
    simulation = Simulation(_course(algorithm, course, **changes), scenario or toy_scenario())
    clients = list(simulation.clients.values())
    return can_stack(clients[0], clients[0])


def _clean(trace: Trace) -> Trace:
    """Return the trace of a course in which nothing failed; raise AssertionError otherwise."""
    if trace.ended_by is not None:
        raise AssertionError(f"the course ended with {type(trace.ended_by).__name__}: {trace.ended_by}")
    for report in trace.exchanges:
        for failure in report.failures:
            raise AssertionError(
                f"round {report.position.round}, {report.request}: {failure.client} failed ({failure.kind}): "
                f"{failure.reason}"
            )
    return trace


def _failed(course: Course, scenario: Scenario, fault: Fault, start: tuple[Trace, int] | None) -> Trace:
    """Return the trace of a course, from a checkpoint on, with a fault that was taken as it should be."""
    trace = trace_course(course, scenario, fault=fault, resume_from=start)
    place = f"round {fault.round}, exchange {fault.exchange}: {fault.client} was made to fail"
    named = False
    for report in trace.exchanges:
        at = report.position
        for failure in report.failures:
            named |= fault.strikes(failure.client, at) and failure.kind == "error"
            # What follows from a missed message may fail too, but only at the client that missed it.
            follows = at.round >= fault.round if fault.round == 0 else at.round == fault.round
            if failure.client != fault.client or not follows:
                raise AssertionError(
                    f"{place}; then, in round {at.round}, {report.request} failed at {failure.client}: {failure.reason}"
                )
    if not named:
        raise AssertionError(f"{place}, and no failure of that name was reported")
    if trace.ended_by is not None:
        if len(trace.clients) > 1:
            raise AssertionError(f"{place}, and the course ended: {trace.ended_by}")
        if fault.client not in str(trace.ended_by):
            raise AssertionError(f"{place}; the error that ended the course does not name it: {trace.ended_by}")
    return trace


def _models(trace: Trace, algorithm: Algorithm[Any]) -> dict[str, Any]:
    return {f"the model of {client}": params for client, params in trace.models(algorithm).items()}
