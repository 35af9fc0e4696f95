"""Guards that code, and others beside them: what replies are compared with, in which order, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.config.course import Course
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.guards.guard import AtServer, Guard, ReplyT
from isthmus.core.protocol import Algorithm, Client, ModelState, Request, Requests, on
from isthmus.core.record import Params, Record
from isthmus.privacy.checking.norm_bound import NormBound
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Fault, Trace
from tests.core.guards.toys import Adding
from tests.privacy.compression.toys import ALL, Answer

# Far from what was meant: one number of a hundred crosses, and nobody is sent all of it.
COARSE: dict[str, Any] = {"fraction": 0.01, "bits": 32, "max_drift": 1e9, **ALL}


@dataclass(frozen=True)
class Ask(Request[Answer]):
    """Asks for a model that is changed by one everywhere."""

    params: Params
    """The server's model."""


@dataclass(frozen=True)
class Wander(Algorithm[ModelState]):
    """The server's model is another one in each round, and each client adds one to it."""

    folds: bool = True

    def setup(self, fed: Federation) -> ModelState:
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        drawn = fed.generator("wander")
        params = {name: t + torch.randn(t.shape, generator=drawn) for name, t in state.params.items()}
        if self.folds:
            return ModelState(fed.ask_folded(Ask(params), weighted_mean).params)
        replies = fed.ask(Ask(params))
        return ModelState(fed.fold(replies, weighted_mean, dict.fromkeys(replies, Ask(params))).params)

    @on(Ask)
    def answer(self, request: Ask, client: Client) -> Answer:
        return Answer({name: t + 1.0 for name, t in request.params.items()}, {}, 1.0)


SEEN: list[tuple[str, float]] = []


def furthest(reply: Any, request: Any) -> float:
    """Return how far a reply is at most from a change by one."""
    return max(float((reply.params[n] - request.params[n] - 1.0).abs().max()) for n in request.params)


@dataclass(frozen=True)
class Looking(Guard):
    """Looks at replies wherever a guard can, beside what the client was asked."""

    def accept(self, reply: Record, request: Request[Any], client: str, at: AtServer) -> Record:
        if isinstance(reply, Answer):
            SEEN.append(("accept", furthest(reply, request)))
        return reply

    def review(self, replies: Mapping[str, Record], requests: Requests, at: AtServer) -> Mapping[str, str]:
        SEEN.extend(("review", furthest(r, requests[c])) for c, r in replies.items() if isinstance(r, Answer))
        return {}

    def folded(self, reply: ReplyT, requests: Requests, num_replies: int, at: AtServer) -> ReplyT:
        if isinstance(reply, Answer):
            SEEN.extend(("folded", furthest(reply, request)) for request in requests.values())
            SEEN.append(("requests", float(len({id(request) for request in requests.values()}))))
        return reply


def course(*guards: Guard, folds: bool = True, **changes: Any) -> Course:
    return toy_course(Wander(folds), **{"num_clients": 4, "guards": guards, "runtime": "loop", **changes})


def traced(made: Course, fault: Fault | None = None) -> Trace:
    trace = trace_course(made, toy_scenario(4), fault=fault)
    assert trace.ended_by is None, trace.ended_by
    return trace


@pytest.mark.parametrize("inner", [(), (Entropy(),)], ids=["alone", "packed"])
@pytest.mark.parametrize("coder", [TopK(direction="down", **COARSE), RandomK(fraction=0.01, direction="down", **ALL)])
def test_replies_are_compared_with_what_was_meant_whatever_a_client_has_of_it(
    coder: Guard, inner: tuple[Guard, ...]
) -> None:
    SEEN.clear()
    traced(course(Looking(), coder, *inner, rounds=4), Fault("client-0", 2, 0, "after"))
    kinds = {kind for kind, _ in SEEN}
    assert kinds == {"accept", "review", "folded", "requests"}
    assert max(far for kind, far in SEEN if kind != "requests") < 1e-4
    # Also in the round after a failure, when one client is sent all of it and the others what they lack.
    assert {far for kind, far in SEEN if kind == "requests"} == {1.0}


def test_a_guard_after_one_that_codes_sees_what_crosses() -> None:
    SEEN.clear()
    traced(course(TopK(direction="down", **COARSE), Looking(), rounds=3))
    assert max(far for kind, far in SEEN if kind == "accept") < 1e-4  # beside what was heard: clients added one to it


def test_a_bound_on_changes_measures_what_clients_changed() -> None:
    numbers = sum(t.numel() for t in traced(course(rounds=1)).initial.values())
    bound = NormBound(largest=1.01 * numbers**0.5)
    for guards in ((bound,), (bound, TopK(direction="down", **COARSE))):
        trace = traced(course(*guards, rounds=4))
        assert not [failure for report in trace.exchanges for failure in report.failures]


def test_noise_on_changes_goes_on_when_one_client_failed_and_is_sent_all_of_it() -> None:
    guards = (ClientDP(clip=1.0, noise=0.01), TopK(fraction=0.05, error_feedback=False, **ALL))
    made = toy_course(FedAvg(local_steps=2, weighting="uniform"), num_clients=4, guards=guards, runtime="loop")
    trace = traced(made, Fault("client-0", 2, 0, "after"))
    assert [(f.client, f.kind) for r in trace.exchanges for f in r.failures] == [("client-0", "error")]


# ---- what cannot be

twice = Quantise(bits=8)


@pytest.mark.parametrize(
    ("guards", "words"),
    [
        ((Entropy(), TopK()), "TopK is after it, and finds bytes where it codes numbers; put TopK before Entropy"),
        ((Entropy(), Delta()), "put Delta before Entropy"),
        ((Entropy(), RandomK()), "put RandomK before Entropy"),
        ((Delta(), Entropy(), Entropy("lzma")), "messages are packed twice"),
        ((twice, twice), "Quantise and Quantise code the same messages"),
        ((Delta(), TopK(), Quantise(), Entropy()), "those of top_k and low_rank have bits of their own"),
        ((RandomK(direction="down"), Adding()), 'set direction to "both" or "up"'),
        ((ClientDP(mode="distributed"), RandomK(), Adding()), "put RandomK before ClientDP"),
    ],
)
def test_an_order_that_cannot_be_is_refused_with_what_would_do(guards: tuple[Guard, ...], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Course(guards=guards, algorithm=FedAvg(weighting="uniform"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "guards",
    [
        (Delta(), Entropy()),
        (TopK(bits=4), Entropy()),
        (TopK(direction="up"), Delta(direction="down"), Entropy()),
        (RandomK(direction="up"), Adding()),
        (ClientDP(), Quantise(), Entropy()),
        (ClientDP(), TopK()),
        (ClientDP(), TopK(direction="down")),
        (ClientDP(), RandomK(fraction=1.0)),
        (ClientDP(mode="local"), TopK()),
        (ClientDP(clip=None, noise=0.0), TopK()),
        (RandomK(), ClientDP()),
    ],
)
def test_an_order_that_can_be_is_taken(guards: tuple[Guard, ...]) -> None:
    Course(guards=guards, algorithm=FedAvg(weighting="uniform"))
