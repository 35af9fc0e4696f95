"""Noise that hides a client: each half by hand, in whole courses, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import FedAvg, resume, run
from isthmus.algorithms import FedGL, FedOpt, Scaffold
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.exposure import exposure
from isthmus.core.folds import Median, weighted_mean
from isthmus.core.guards.guard import Guard
from isthmus.core.guards.line import GuardLine, ServerSide
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure, Known, Position, Request
from isthmus.core.random import PoissonSampling, Sampling, Secret, UniformSampling
from isthmus.core.record import Record, State
from isthmus.models import GCN, ModelSpec
from isthmus.privacy.accounting.gaussian import epsilon_of
from isthmus.privacy.accounting.releases import Releases, spent
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.runs.journal import read_journal
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Trace, require_close
from tests.core.guards.test_line import AT, Someone
from tests.core.guards.toys import Adding

FAIR = FedAvg(local_steps=2, weighting="uniform")
START = torch.tensor([1.0, -2.0, 0.5])
REQUEST = TrainModel({"w": START})


def reply(*moved: float, weight: float = 1.0) -> ModelUpdate:
    return ModelUpdate({"w": START + torch.tensor(moved)}, weight)


def release(guard: Guard, message: Record, request: Request[Any] = REQUEST, secret: Secret | None = None) -> Any:
    client = Someone()
    client.secret = secret or client.secret
    client.begin(AT, request)
    return GuardLine((guard,)).released(message, request, client)


def half(
    guard: Guard,
    clients: Sequence[str],
    *,
    secret: Secret | None = None,
    sampling: Sampling | None = None,
    everybody: Sequence[str] | None = None,
    known: Known | None = None,
    memories: dict[str, State] | None = None,
    notes: list[str] | None = None,
    at: Position = AT,
) -> Any:
    server = ServerSide(
        {} if memories is None else memories,
        secret or Secret.of_simulation(0, "server"),
        known or Known(params=REQUEST.params),
        (lambda text: None) if notes is None else notes.append,
        tuple(everybody or clients),
        sampling or UniformSampling(),
    )
    return GuardLine((guard,)).at_server(server, at, clients, weighted_mean)


def summed(guard: Guard, replies: dict[str, ModelUpdate], **about: Any) -> torch.Tensor:
    """Return what an algorithm gets of some replies that clients made, as they left, arrived and were folded."""
    requests = dict.fromkeys(replies, REQUEST)
    server = half(guard, tuple(replies), **about)
    server.sent(requests)
    arrived = [server.accepted(c, release(guard, message), REQUEST) for c, message in replies.items()]
    found: ModelUpdate = server.folded(weighted_mean(arrived), requests, len(arrived))
    return found.params["w"].double()


# ---- the arithmetic


def test_the_mean_is_that_of_clipped_changes_over_the_cohort_whatever_clients_weigh() -> None:
    replies = {
        "a": reply(3.0, 0.0, 4.0, weight=50.0),
        "b": reply(0.0, 0.3, 0.0, weight=0.0),
        "c": reply(0.0, 0.0, -9.0),
    }
    found = summed(ClientDP(clip=1.0, noise=0.0), replies) - START
    assert found.tolist() == pytest.approx([0.6 / 3, 0.1, (0.8 - 1.0) / 3], abs=1e-6)


def test_who_fails_leaves_the_divisor_as_it_is() -> None:
    requests = dict.fromkeys("abcd", REQUEST)
    server = half(ClientDP(clip=1.0, noise=0.0), "abcd")
    found = server.folded(reply(0.5, 0.0, 0.0, weight=2.0), requests, 2)
    assert (found.params["w"] - START).tolist() == pytest.approx([0.25, 0.0, 0.0], abs=1e-6)
    assert found.weight == 4.0


def test_cohorts_that_are_drawn_are_divided_by_what_is_expected_of_them() -> None:
    about: dict[str, Any] = {"sampling": PoissonSampling(0.25), "everybody": [f"c{i}" for i in range(40)]}
    found = summed(ClientDP(clip=1.0, noise=0.0), {"a": reply(0.5, 0.0, 0.0)}, **about) - START
    assert found.tolist() == pytest.approx([0.05, 0.0, 0.0], abs=1e-6)


def test_the_server_s_noise_has_the_spread_that_is_promised() -> None:
    sent = TrainModel({"w": torch.zeros(100_000)})
    guard = ClientDP(clip=0.5, noise=3.0)
    server = half(guard, "abcde", known=Known(params=sent.params))
    found = server.folded(ModelUpdate(sent.params, 5.0), dict.fromkeys("abcde", sent), 5).params["w"]
    assert float(found.std()) == pytest.approx(3.0 * 0.5 / 5, rel=0.01)
    assert abs(float(found.mean())) < 0.005


def test_one_client_moves_the_sum_by_no_more_than_the_clip_whatever_all_send() -> None:
    guard = ClientDP(clip=0.7, noise=0.0)
    sent = [
        reply(1e6, 0.0, 0.0),
        reply(-1e6, 1.0, 0.0),
        reply(0.1, 0.0, 0.0, weight=1e9),
        reply(0.0, 0.0, 0.0),
        reply(0, 5, -5),
    ]
    nothing = reply(0.0, 0.0, 0.0)
    for chosen in itertools.product(sent, repeat=3):
        whole = dict(zip("abc", chosen, strict=True))
        without = summed(guard, {**whole, "a": nothing})
        assert float((summed(guard, whole) - without).norm()) * 3 <= 0.7 + 2e-6  # the mean is rounded to float32


@pytest.mark.parametrize("length", [1.5, 30.0])
def test_a_reply_that_is_longer_than_the_clip_is_clipped_by_the_server(length: float) -> None:
    server = half(ClientDP(clip=1.0, noise=0.0), "a")
    found = server.accepted("a", reply(0.0, length, 0.0), REQUEST)
    assert (found.params["w"] - START).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-5) and found.weight == 1.0


def test_a_reply_that_no_coder_makes_so_long_and_one_that_counts_more_are_told() -> None:
    server = half(ClientDP(clip=1.0, noise=0.0), "a")
    told = server.accepted("a", reply(0.0, 3000.0, 0.0), REQUEST)
    assert isinstance(told, Failure) and told.kind == "suspicious"
    assert told.reason == "its change has the length 3e+03; clients clip to 1"
    assert (
        server.accepted("a", reply(0.0, 0.0, 0.0, weight=9.0), REQUEST).reason
        == "its weight is 9; all clients count as 1"
    )


def test_clients_own_noise_is_of_the_share_or_of_all_of_it() -> None:
    request = TrainModel({"w": torch.zeros(50_000)})
    for guard, spread in ((ClientDP(0.5, 2.0, "local"), 1.0), (ClientDP(0.5, 2.0, "distributed", enough=4), 0.5)):
        found = release(guard, ModelUpdate(request.params, 3.0), request)
        assert float(found.params["w"].std()) == pytest.approx(spread, rel=0.02) and found.weight == 1.0
        other = half(guard, "abcd", known=Known(params=request.params))
        assert other.folded(found, dict.fromkeys("abcd", request), 4) is found
    assert torch.equal(release(ClientDP(0.5, 2.0), reply(0.1, 0.0, 0.0)).params["w"], reply(0.1, 0.0, 0.0).params["w"])


def test_the_same_sum_has_the_same_noise_and_another_sum_another() -> None:
    secret, guard = Secret(b"s" * 32), ClientDP(noise=2.0)
    one, again = (summed(guard, {"a": reply(0.1, 0.0, 0.0)}, secret=secret) for _ in range(2))
    other = summed(guard, {"a": reply(0.2, 0.0, 0.0)}, secret=secret)
    assert torch.equal(one, again)
    assert float((other - one - torch.tensor([0.1, 0.0, 0.0])).abs().min()) > 1e-3
    assert not torch.equal(one, summed(guard, {"a": reply(0.1, 0.0, 0.0)}, secret=Secret(b"t" * 32)))


def test_a_round_of_nobody_has_the_noise_of_any_other() -> None:
    drawn: dict[str, Any] = {"sampling": PoissonSampling(0.1), "everybody": [f"c{i}" for i in range(20)]}
    server = half(ClientDP(clip=1.0, noise=4.0), (), **drawn)
    assert server.line.answers_for_nobody and not GuardLine([ClientDP(clip=None, noise=0.0)]).answers_for_nobody
    request = TrainModel({"w": torch.zeros(50_000)})
    found = server.folded(server.of_nobody(request), {}, 0)
    assert float(found.params["w"].std()) == pytest.approx(4.0 / 2, rel=0.02)


# ---- scores


def test_scores_leave_as_they_are_or_not_at_all() -> None:
    scores, request = Evaluation({"val": {"accuracy": 0.5}}, {"val": 4}), EvaluateModel({}, ("val",), "accuracy", False)
    assert release(ClientDP(), scores, request) is scores
    assert release(ClientDP(hide_scores=True), scores, request) == Evaluation({}, {})


# ---- whole courses


def course(*guards: Guard, algorithm: Any = FAIR, **changes: Any) -> Trace:
    made = toy_course(algorithm, **{"num_clients": 4, "rounds": 3, "guards": guards, **changes})
    return trace_course(made, toy_scenario(4))


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("algorithm", [FedAvg(local_steps=2), Scaffold(local_steps=2)], ids=["fedavg", "scaffold"])
def test_neutral_it_is_no_guard_to_the_bit(algorithm: Any, runtime: str) -> None:
    plain, behind = (
        course(*guards, algorithm=algorithm, runtime=runtime, sampling=UniformSampling(0.5))
        for guards in ((), (ClientDP(clip=None, noise=0.0),))
    )
    mine, theirs = (
        {name: value for name, value in trace.values().items() if not name.startswith("the memory")}
        for trace in (plain, behind)
    )
    require_close(mine, theirs, "a neutral guard and none", 1e-5 if runtime == "auto" else 0.0)


def test_a_clip_that_nobody_reaches_and_no_noise_is_a_plain_uniform_mean() -> None:
    # to the last bits: the sum is divided by the size of the cohort twice
    values = [course(*guards).values() for guards in ((), (ClientDP(clip=1e6, noise=0.0),))]
    mine, theirs = ({n: v for n, v in value.items() if "params" in n} for value in values)
    require_close(mine, theirs, "a loose clip and none", 1e-6)


@pytest.mark.parametrize("mode", ["central", pytest.param("local", marks=pytest.mark.slow)])
def test_it_keeps_to_what_every_guard_must_keep_to(mode: str) -> None:
    algorithms = (FAIR, Scaffold(local_steps=2, weighting="uniform"))
    # who has nothing to train on counts as all others do: else its weight would tell
    check_guard(ClientDP(clip=0.5, noise=0.01, mode=mode), algorithms=algorithms, skip=("idle_client",))


def test_epsilon_is_in_the_journal_and_the_course_ends_when_the_budget_is_spent(tmp_path: Path) -> None:
    guard = ClientDP(noise=2.0, epsilon=5.0)
    made = toy_course(FAIR, rounds=50, guards=(guard,), checkpoint_every=1)
    result = run(made, run_dir=tmp_path / "run", scenario=toy_scenario(3))
    rounds = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "round"]
    told = [event["spent"]["epsilon"] for event in rounds]
    assert told == pytest.approx([epsilon_of(math.sqrt(t) / 2.0, 1e-5) for t in range(1, len(told) + 1)])
    assert told[-1] <= 5.0 < epsilon_of(math.sqrt(len(told) + 1) / 2.0, 1e-5)
    assert any("epsilon" in note and "is spent, and another round would make it" in note for note in result.notes)
    assert "| epsilon " in (tmp_path / "run" / "report.md").read_text()
    again = resume(tmp_path / "run", scenario=toy_scenario(3))
    assert again.num_rounds == result.num_rounds == len(told)


def test_clients_are_charged_for_the_exchanges_that_asked_them() -> None:
    memories: dict[str, State] = {}
    guard = ClientDP(noise=3.0, epsilon=100.0)
    for number, asked in enumerate(("ab", "bc", "bd"), start=1):
        half(guard, asked, memories=memories, at=Position(0, number, 0)).sent(dict.fromkeys(asked, REQUEST))
    (memory,) = memories.values()
    assert memory["asked"] == {"a": 1, "b": 3, "c": 1, "d": 1}
    assert guard.spent(memory)["epsilon"] == epsilon_of(math.sqrt(3) / 3.0, 1e-5)
    assert ClientDP(noise=3.0, mode="local").spent(memory)["epsilon"] == epsilon_of(2 * math.sqrt(3) / 3.0, 1e-5)


def test_rounds_of_clients_that_are_drawn_cost_less() -> None:
    memories: dict[str, State] = {}
    guard, drawn = ClientDP(noise=1.0), PoissonSampling(0.1)
    everybody = [f"c{i}" for i in range(50)]
    for number in range(1, 21):
        server = half(guard, "", memories=memories, at=Position(0, number, 0), sampling=drawn, everybody=everybody)
        server.sent({})
    (memory,) = memories.values()
    assert guard.spent(memory)["epsilon"] == spent([Releases(1.0, 20, 0.1)], 1e-5)
    assert guard.spent(memory)["epsilon"] < 0.3 * epsilon_of(math.sqrt(20), 1e-5)
    assert guard.exhausted({}) == ""


def test_a_course_of_clients_that_are_drawn_goes_on_through_rounds_of_nobody() -> None:
    trace = course(ClientDP(noise=0.5), sampling=PoissonSampling(0.2), rounds=8, num_clients=4)
    assert trace.ended_by is None


def test_it_is_said_once_how_much_noise_there_is_beside_what_is_learned() -> None:
    # five clients, epsilon 8 over a hundred rounds, 92,000 parameters
    params = {"w": torch.zeros(92_000)}
    notes: list[str] = []
    memories: dict[str, State] = {}
    for number in (1, 2):
        about: dict[str, Any] = {"known": Known(params=params), "memories": memories, "notes": notes}
        half(ClientDP(noise=6.0), "abcde", at=Position(0, number, 0), **about).sent(
            dict.fromkeys("abcde", TrainModel(params))
        )
    assert len(notes) == 2
    assert "on the mean of 5 clients and 92,000 parameters it has a norm of about 364 clips" in notes[0]
    assert (
        "edges (guard edge_dp), nodes (node_dp), examples (example_dp)" in notes[0] and "is not part of it" in notes[1]
    )


@pytest.mark.parametrize(
    ("noise", "words"),
    [(0.01, "near that without"), (0.05, "some points less"), (0.15, "much less than"), (6.0, "of a guess, or little")],
)
def test_it_is_said_what_accuracy_to_expect(noise: float, words: str) -> None:
    params, notes = {"w": torch.zeros(92_000)}, list[str]()
    half(ClientDP(noise=noise), "abcde", known=Known(params=params), notes=notes).sent(
        dict.fromkeys("abcde", TrainModel(params))
    )
    assert f": expect {'the accuracy ' if noise == 6.0 else ''}" in notes[0] and words in notes[0]
    assert ("To let less drown" in notes[0]) == (noise > 0.02)


# ---- what is refused


@pytest.mark.parametrize(
    ("guard", "changes", "words"),
    [
        (ClientDP(), {"algorithm": FedAvg()}, "algorithm.weighting is 'examples'.*set algorithm.weighting=uniform"),
        (ClientDP(), {"algorithm": replace(FAIR, fold=Median())}, "algorithm.fold is Median"),
        (ClientDP(), {"model": ModelSpec(GCN(hidden=5, batch_norm=True))}, "model.gnn.batch_norm is true"),
        (ClientDP(), {"algorithm": FedGL()}, "FedGL looks at each client's reply to ShareNodes"),
        (ClientDP(mode="distributed"), {}, "no guard adds the replies up"),
        (ClientDP(epsilon=0.1), {}, "epsilon is 0.1, and the first round would spend"),
    ],
)
def test_what_breaks_the_promise_is_refused_before_the_start(guard: ClientDP, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        toy_course(changes.pop("algorithm", FAIR), guards=(guard,), **changes)


def test_shares_of_noise_need_clients_enough_in_every_sum() -> None:
    guards = (ClientDP(mode="distributed", enough=3), Adding())
    with pytest.raises(ValueError, match="enough is 3, but a sum may be of 1 clients"):
        toy_course(FAIR, guards=guards, num_clients=4)
    with pytest.raises(ValueError, match="enough is 3, but a sum may be of 2 clients"):
        toy_course(FAIR, guards=guards, num_clients=4, min_replies=3, sampling=UniformSampling(0.5))
    trace = trace_course(toy_course(FAIR, guards=guards, num_clients=4, min_replies=3), toy_scenario(4))
    assert trace.ended_by is None
    server = half(guards[0], "abc")
    with pytest.raises(CourseFailed, match="2 clients put noise on the sum, and 3 are needed"):
        server.folded(reply(0.0, 0.0, 0.0), dict.fromkeys("abc", REQUEST), 2)


def test_what_makes_a_clipped_change_longer_before_it_is_added_up_is_refused() -> None:
    shares, coder = ClientDP(mode="distributed", enough=2), RandomK(fraction=0.5, min_numbers=1)
    with pytest.raises(ValueError, match=r"RandomK may make a change longer .*: put RandomK before ClientDP"):
        toy_course(FAIR, guards=(shares, coder, Adding()), num_clients=2, min_replies=2)
    course = toy_course(FAIR, guards=(coder, shares, Adding()), num_clients=2, min_replies=2)
    assert trace_course(course, toy_scenario(2)).ended_by is None


def test_what_only_shows_in_a_round_is_refused_there() -> None:
    requests = dict.fromkeys("ab", REQUEST)
    with pytest.raises(BadInput, match=r"statistics that no gradient moves \(norm.mean\)"):
        half(ClientDP(), "ab", known=Known(buffers=frozenset({"norm.mean"}))).sent(requests)
    single = GuardLine([ClientDP()]).at_server(
        ServerSide({}, Secret.of_simulation(0, "server"), Known(), print), AT, "ab", None
    )
    with pytest.raises(BadInput, match="the replies to TrainModel are looked at one by one"):
        single.sent(requests)
    other = GuardLine([ClientDP()]).at_server(
        ServerSide({}, Secret.of_simulation(0, "server"), Known(), print), AT, "ab", Median()
    )
    with pytest.raises(BadInput, match="replies are folded by Median"):
        other.sent(requests)
    with pytest.raises(CourseFailed, match="clients were sent different requests"):
        half(ClientDP(), "ab").folded(reply(0, 0, 0), {"a": REQUEST, "b": TrainModel({"w": START + 1})}, 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clip": 0.0}, "clip is 0.0"),
        ({"clip": math.inf}, "clip is inf"),
        ({"clip": None}, "clip is null: what is not clipped, no noise can hide"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"mode": "secret"}, "mode is 'secret'; choose from central, distributed, local"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"enough": 0}, "enough is 0"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        ClientDP(**fields)


def test_who_sees_what_is_told_with_the_noise() -> None:
    def seen(guard: ClientDP) -> list[tuple[str, str]]:
        return [(each.server_sees, each.wire_up) for each in exposure(FedOpt, [guard])[:1]]

    assert seen(ClientDP()) == [
        ("only the fold, which gets noise before it is used", "each client's reply as it is, clipped")
    ]
    assert seen(ClientDP(mode="local")) == [("only the noisy fold", "each client's reply as it is, clipped and noisy")]
    assert seen(ClientDP(clip=None, noise=0.0)) == [("only the fold", "each client's reply as it is")]
