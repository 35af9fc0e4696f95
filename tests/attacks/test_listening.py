"""What positions see: everything that arrives there, nothing else, and a course has the same bits with an ear on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg, FedGL, Scaffold
from isthmus.attacks.attack import CURIOUS_CLIENT, CURIOUS_SERVER, Case, Deciding, Seen
from isthmus.attacks.listening import Overhearing
from isthmus.core.protocol import EvaluateModel, Kept, Position, Request
from isthmus.core.record import leaves
from isthmus.core.training import run_course
from isthmus.privacy import ClientDP, Quantise, SecureSum
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Trace, require_same


@dataclass(frozen=True)
class Looks(Deciding):
    """Looks at everything, or at one round."""

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "nothing"
    knows: ClassVar[str] = "nothing"

    round: int = 0
    client: str = ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        return not self.round or at.round == self.round

    def known(self, case: Case) -> None: ...

    def guess(self, seen: Seen, known: None) -> Any: ...

    def prior(self, known: None, clients: Any) -> Any: ...

    def truth(self, case: Case, known: None) -> Any: ...


@dataclass(frozen=True)
class LooksAsClient(Looks):
    position: ClassVar[str] = CURIOUS_CLIENT


def overheard(made: isthmus.Course, attack: Looks, scenario: Scenario | None = None) -> tuple[Seen, Trace]:
    scenario = scenario or toy_scenario(made.num_clients)
    simulation = Simulation(made, scenario)
    trace = Trace(simulation.initial.params, tuple(simulation.clients))
    listening = Overhearing([attack])
    run_course(made.algorithm, simulation.runtime, made.plan(), simulation.initial, [trace], listener=listening)
    final = made.algorithm.global_params(trace.standings[trace.last].best_state)
    return listening.seen(attack, Case(made, scenario), simulation.initial.params, final), trace


def course(algorithm: Any = None, **changes: Any) -> isthmus.Course:
    return toy_course(algorithm or FedAvg(local_steps=1), **{"num_clients": 4, "rounds": 2, **changes})


@pytest.mark.parametrize("runtime", ["loop", "auto", "strict"])
@pytest.mark.parametrize("algorithm", [FedAvg(local_steps=1), Scaffold(local_steps=1), FedGL()])
def test_the_server_hears_every_field_of_every_reply_and_changes_nothing(algorithm: Any, runtime: str) -> None:
    made = course(algorithm, runtime=runtime, checkpoint_every=1)
    seen, with_it = overheard(made, Looks())
    plain = trace_course(course(algorithm, runtime="loop"), toy_scenario(4))
    single = [message for message in seen.messages if len(message.clients) == 1]
    expected = {(m.position.round, m.position.exchange, m.client): m for m in plain.messages}
    assert {(m.at.round, m.at.exchange, *m.clients) for m in single} == expected.keys()
    for message in single:
        other = expected[message.at.round, message.at.exchange, message.clients[0]]
        assert type(message.request) is type(other.request)
        ours, theirs = leaves(message.reply), leaves(other.outcome.reply)
        assert ours.keys() == theirs.keys()
        for path, leaf in ours.items():
            if isinstance(leaf, torch.Tensor):
                torch.testing.assert_close(leaf, theirs[path], rtol=1e-3, atol=1e-4)
    require_same(trace_course(made, toy_scenario(4)).values(), with_it.values(), "a course that is heard")


def test_what_replies_were_folded_to_is_heard_too_and_is_their_mean() -> None:
    seen, _ = overheard(course(runtime="loop"), Looks(round=1))
    folds = [message for message in seen.messages if len(message.clients) > 1]
    assert len(folds) == 1 and folds[0].clients == seen.clients
    each = [m.reply for m in seen.messages if m.at == folds[0].at and len(m.clients) == 1]
    weights = [reply.weight for reply in each]
    for name, mean in folds[0].reply.params.items():
        slow = sum(w * reply.params[name] for w, reply in zip(weights, each, strict=True)) / sum(weights)
        torch.testing.assert_close(mean, slow)
    assert seen.about("client-2", "params")[0].reply is each[2]


def test_under_a_secure_sum_the_server_hears_no_reply_of_anybody_but_the_sum() -> None:
    seen, _ = overheard(course(guards=(SecureSum(),)), Looks(round=1))
    with_models = [message for message in seen.messages if hasattr(message.reply, "params")]
    assert with_models and all(message.clients == seen.clients for message in with_models)
    assert seen.about("client-1", "params") == with_models
    plain, _ = overheard(course(), Looks(round=1))
    sums = [m for m in plain.messages if hasattr(m.reply, "params") and len(m.clients) > 1]
    for name, tensor in sums[0].reply.params.items():
        torch.testing.assert_close(with_models[0].reply.params[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("guards", [(), (SecureSum(),), (Quantise(bits=8),)])
def test_a_client_hears_what_it_is_sent_and_its_own_replies(guards: Any) -> None:
    seen, _ = overheard(course(guards=guards), LooksAsClient(client="client-3"))
    assert seen.messages and all(message.clients == ("client-3",) for message in seen.messages)
    rounds = {m.at.round for m in seen.messages if getattr(m.request, "params", None)}
    assert rounds == {1, 2}
    hidden = [m for m in seen.messages if isinstance(m.reply, Kept) and not isinstance(m.request, EvaluateModel)]
    assert bool(hidden) == (guards == (SecureSum(),))


def test_a_client_that_is_not_named_is_the_first() -> None:
    seen, _ = overheard(course(), LooksAsClient())
    assert {client for message in seen.messages for client in message.clients} == {"client-0"}


def test_what_is_heard_is_what_guards_let_arrive() -> None:
    alike = FedAvg(local_steps=1, weighting="uniform")
    plain, _ = overheard(course(alike, runtime="loop"), Looks(round=1))
    clipped, _ = overheard(course(alike, runtime="loop", guards=(ClientDP(clip=1e-3, noise=0.0),)), Looks(round=1))
    for ours, theirs in zip(clipped.about("client-1", "params"), plain.about("client-1", "params"), strict=True):
        moved = sum(
            float((ours.reply.params[name] - sent).square().sum()) for name, sent in ours.request.params.items()
        )
        further = sum(
            float((theirs.reply.params[name] - sent).square().sum()) for name, sent in theirs.request.params.items()
        )
        assert moved**0.5 <= 1e-3 * (1 + 1e-9) < further**0.5


def test_only_what_an_attack_wants_is_kept() -> None:
    seen, _ = overheard(course(), Looks(round=2))
    assert {message.at.round for message in seen.messages} == {2}
