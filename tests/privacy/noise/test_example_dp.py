"""Examples that are hidden by the steps of training: the account, whole courses, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import FedAvg, resume, run
from isthmus.algorithms import Ditto, FedGL, FedOpt, FedProx, Scaffold
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.core.exposure import exposure
from isthmus.core.guards.hiding import STEPS_TAKEN, PrivateSteps
from isthmus.core.guards.line import GuardLine, line_problem
from isthmus.core.protocol import EvaluateModel, Evaluation, Holdings, Known, Position
from isthmus.core.record import State
from isthmus.learn.batching import MiniBatch
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import GraphClassification, LinkPrediction
from isthmus.models import GCN, MLP, DotDecoder, ModelSpec
from isthmus.privacy.accounting.releases import Releases, spent
from isthmus.privacy.noise.example_dp import ExampleDP
from isthmus.runs.journal import read_journal
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course
from isthmus.testing.traces import Trace
from tests.core.guards.test_line import Someone
from tests.learn.tasks.graph_toys import PLAIN
from tests.learn.test_graph_courses import scenario_of

from .test_client_dp import half, release

ON_NODES = ModelSpec(MLP(hidden=5, dropout=0.5))
FAIR = FedAvg(local_steps=2, weighting="uniform", optimizer=SGD(lr=0.1))
GUARD = ExampleDP(clip=0.5, noise=1.0, fraction=0.5, steps=2)


def course(*guards: Any, algorithm: Any = FAIR, **changes: Any) -> Course:
    return toy_course(algorithm, **{"guards": guards, "model": ON_NODES, **changes})


def traced(*guards: Any, **changes: Any) -> Trace:
    return trace_course(course(*guards, **changes), toy_scenario())


def on_graphs(*guards: Any, **changes: Any) -> Course:
    made = Course(
        task=GraphClassification(), model=PLAIN, algorithm=FAIR, rounds=3, num_clients=3, runtime="loop", guards=guards
    )
    return replace(made, **changes)


# ---- whole courses


def test_without_noise_and_a_clip_that_nobody_reaches_every_example_in_a_step_is_a_full_batch() -> None:
    plain, behind = (
        traced(*guards, model=ModelSpec(MLP(hidden=5, dropout=0.0)))
        for guards in ((), (ExampleDP(clip=1e6, noise=0.0, fraction=1.0, steps=2),))
    )
    mine, theirs = (trace.state.params for trace in (plain, behind))  # type: ignore[union-attr]
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-5) for name in mine)


@pytest.mark.parametrize(
    "algorithm",
    [
        FAIR,
        pytest.param(FedProx(local_steps=2, weighting="uniform"), marks=pytest.mark.slow),
        pytest.param(Scaffold(local_steps=2, weighting="uniform"), marks=pytest.mark.slow),
    ],
)
def test_it_keeps_to_what_every_guard_must_keep_to(algorithm: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.testing.guards.toy_course", lambda method, guards: course(*guards, algorithm=method))
        check_guard(GUARD, algorithms=(algorithm,))


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_courses_on_graphs_run_alike_in_every_runtime(runtime: str) -> None:
    results = [run(on_graphs(GUARD, runtime=each), scenario=scenario_of("class")) for each in ("loop", runtime)]
    first, second = (result.params for result in results)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_epsilon_is_in_the_journal_and_the_course_ends_when_the_budget_is_spent(tmp_path: Path) -> None:
    guard = replace(GUARD, noise=2.0, epsilon=4.0)
    made = on_graphs(guard, rounds=40, checkpoint_every=1)
    result = run(made, run_dir=tmp_path / "run", scenario=scenario_of("class"))
    rounds = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "round"]
    told = [event["spent"]["epsilon of examples"] for event in rounds]
    assert told == pytest.approx([spent([Releases(2.0, 2 * t, 0.5)], 1e-5) for t in range(1, len(told) + 1)])
    assert told[-1] <= 4.0 < spent([Releases(2.0, 2 * len(told) + 2, 0.5)], 1e-5)
    assert any("epsilon of examples is" in note and "another round would make it" in note for note in result.notes)
    assert "| epsilon of examples " in (tmp_path / "run" / "report.md").read_text()
    again = resume(tmp_path / "run", scenario=scenario_of("class"))
    assert again.num_rounds == result.num_rounds == len(told)


# ---- the account


def test_clients_are_charged_for_the_answers_in_which_they_learn() -> None:
    memories: dict[str, State] = {}
    sent, scores = TrainModel({"w": torch.zeros(3)}), EvaluateModel({}, ("val",), "accuracy", False)
    for number, asked in enumerate(("ab", "bc"), start=1):
        server = half(GUARD, asked, memories=memories, at=Position(0, number, 0))
        server.sent(dict.fromkeys(asked, sent))
        half(GUARD, "abcd", memories=memories, at=Position(0, number, 1)).sent(dict.fromkeys("abcd", scores))
    (memory,) = memories.values()
    assert memory["asked"] == {"a": 1, "b": 2, "c": 1}
    assert GUARD.spent(memory) == {"epsilon of examples": spent([Releases(1.0, 4, 0.5)], 1e-5)}
    assert GUARD.spent({}) == {"epsilon of examples": 0.0}


def test_a_client_counts_for_itself_and_nothing_leaves_it_beyond_the_budget() -> None:
    guard, client = replace(GUARD, noise=4.0, epsilon=1.0), Someone()
    within = max(answers for answers in range(1, 40) if guard.epsilon_of(answers, 0) <= 1.0)
    update = ModelUpdate({"w": torch.ones(3)}, 1.0)
    for answers in (0, within, within + 1):
        client.state = {STEPS_TAKEN: {"round": 1, "exchange": 0, "taken": 2, "in_all": 2 * answers}}
        sent = TrainModel({"w": torch.zeros(3)})
        if answers <= within:
            assert GuardLine((guard,)).released(update, sent, client) is update
            continue
        with pytest.raises(BadInput, match="epsilon of examples would be 1"):
            GuardLine((guard,)).released(update, sent, client)
        assert GuardLine((replace(guard, epsilon=None),)).released(update, sent, client) is update


def test_an_epoch_s_steps_are_the_same_for_all_clients() -> None:
    assert PrivateSteps(1.0, 1.0, 0.3, 4).per_epoch == 4
    assert PrivateSteps(1.0, 1.0, 0.1, 10).per_epoch == 10
    assert PrivateSteps(1.0, 1.0, 1.0, 1).per_epoch == 1


def test_it_is_said_once_how_much_noise_there_is_in_a_step_and_what_is_not_hidden() -> None:
    notes: list[str] = []
    memories: dict[str, State] = {}
    held = {"a": Holdings(50, {"train": 40}), "b": Holdings(50, {"train": 20})}
    known = Known(held, {"w": torch.zeros(10_000)})
    for number in (1, 2):
        half(GUARD, "ab", known=known, memories=memories, notes=notes, at=Position(0, number, 0)).sent(
            dict.fromkeys("ab", TrainModel(known.params))
        )
    assert len(notes) == 2
    assert "a norm of about 10 clips where a client has 20 examples" in notes[0] and "learn fewer" in notes[0]
    assert "is no part of it" in notes[1]


def test_scores_leave_as_they_are_or_not_at_all() -> None:
    scores, request = Evaluation({"val": {"accuracy": 0.5}}, {"val": 4}), EvaluateModel({}, ("val",), "accuracy", False)
    assert release(GUARD, scores, request) is scores
    assert release(replace(GUARD, hide_scores=True), scores, request) == Evaluation({}, {})
    update = ModelUpdate({"w": torch.ones(3)}, 1.0)
    assert release(GUARD, update) is update


def test_who_sees_what_is_told() -> None:
    (train, scores, *_) = exposure(FedAvg, (replace(GUARD, hide_scores=True),))
    assert train.wire_up == "each client's reply as it is, made by noisy steps" and not scores.answered


# ---- what is refused


class OfOnesOwn(FedAvg):
    """A method that may send anything: its parent's word is not its own."""


@pytest.mark.parametrize(
    ("guard", "changes", "words"),
    [
        (GUARD, {"algorithm": FedGL()}, "FedGL is not known to send nothing but what training gave"),
        (GUARD, {"algorithm": Ditto()}, "Ditto is not known to send nothing but what training gave"),
        (GUARD, {"algorithm": OfOnesOwn(local_steps=2, weighting="uniform")}, "OfOnesOwn is not known to send"),
        (GUARD, {"algorithm": FedAvg(local_steps=2)}, "algorithm.weighting is 'examples'.*algorithm.weighting=uniform"),
        (GUARD, {"algorithm": replace(FAIR, local_steps=3)}, "steps is 2, and an answer takes 3.*set steps to 3"),
        (GUARD, {"algorithm": replace(FAIR, step_unit="epoch")}, "an answer takes 4"),
        (GUARD, {"model": ModelSpec(GCN(hidden=5))}, "the network GCN sees edges"),
        (GUARD, {"model": ModelSpec(MLP(batch_norm=True))}, "model.gnn.batch_norm is true"),
        (replace(GUARD, epsilon=0.1), {}, "epsilon is 0.1, and the first round would spend"),
    ],
)
def test_what_breaks_the_promise_is_refused_before_the_start(guard: ExampleDP, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        course(guard, **changes)


def test_batches_of_the_course_s_own_and_links_are_refused() -> None:
    with pytest.raises(ValueError, match="it draws the examples of each step itself"):
        on_graphs(GUARD, batching=MiniBatch(4))
    with pytest.raises(ValueError, match="the examples are links"):
        Course(
            task=LinkPrediction(),
            model=ModelSpec(MLP(), decoder=DotDecoder()),
            algorithm=FAIR,
            guards=(GUARD,),
            stopping=replace(Course().stopping, metric="auc"),
        )


def test_only_one_guard_says_how_clients_learn() -> None:
    assert "both say how clients learn; leave one out" in line_problem((GUARD, replace(GUARD, noise=2.0)))


def test_methods_that_are_let_in_say_so_themselves() -> None:
    for kind in (FedAvg, FedProx, FedOpt, Scaffold):
        assert vars(kind)["tells_only_models"] is True


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clip": 0.0}, "clip is 0.0; it must be positive"),
        ({"noise": -1.0}, "noise is -1.0; it must be at least 0"),
        ({"fraction": 0.0}, "fraction is 0.0; it must be above 0"),
        ({"fraction": 1.5}, "fraction is 1.5; it must be above 0"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"delta": 1.0}, "delta is 1.0; it must be between 0 and 1"),
        ({"epsilon": 0.0}, "epsilon is 0.0; it must be positive, or null"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ExampleDP(**fields)
