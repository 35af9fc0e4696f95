from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch

from isthmus.core.client import Client
from isthmus.core.codec import decode
from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.federation import ExchangeReport, ExchangeRules, Federation, InitialModel, Outcome
from isthmus.core.protocol import Algorithm, Evaluation, KeepBest, Position, Request, on
from isthmus.core.random import PoissonSampling, Sampling, Secret, UniformSampling
from isthmus.core.record import Params, Record, State
from isthmus.core.training import (
    EarlyStopping,
    Plan,
    RoundReport,
    Standing,
    finished,
    run_course,
    scorers_of,
    weighted_metric,
)
from isthmus.runtime.loop import LoopRuntime

NAMES = tuple(f"client-{i}" for i in range(6))


@dataclass(frozen=True)
class Count(Record):
    """A server that counts its rounds and keeps what its clients drew."""

    round: int
    total: float
    params: Params


@dataclass(frozen=True)
class Drawn(Record):
    number: float


@dataclass(frozen=True)
class Draw(Request[Drawn]):
    round: int


@dataclass(frozen=True)
class Counter(Algorithm[Count]):
    """Every client draws a number and remembers how often it was asked, and in which rounds."""

    personal: ClassVar[tuple[str, ...]] = ("times",)
    stop_in: int = 0  # the round in which the server half raises
    error: type[BaseException] = CourseFailed

    def setup(self, fed: Federation) -> Count:
        fed.ask(Draw(0))
        return Count(0, 0.0, fed.initial_params)

    def round(self, state: Count, fed: Federation) -> Count:
        number = state.round + 1
        replies = fed.ask(Draw(number))
        if number == self.stop_in:
            raise self.error("stopped by the test")
        total = state.total + sum(reply.number for reply in replies.values())
        return Count(number, total, {"round": torch.tensor([float(number)])})

    @on(Draw)
    def draw(self, request: Draw, client: Any) -> Drawn:
        client.state["times"] = client.state.get("times", 0) + 1
        client.state["rounds"] = (*client.state.get("rounds", ()), request.round)
        drawn = float(torch.rand(1, dtype=torch.float64, generator=client.generator("draw")))
        client.state["sum"] = client.state.get("sum", 0.0) + drawn
        return Drawn(drawn)


class Scored(Client):
    """A client whose validation score of round r is `scores[r]`, of `held[r]` examples; None is no validation data."""

    def __init__(
        self,
        id: str,
        scores: Mapping[int, float | None],
        fails: frozenset[int] = frozenset(),
        held: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(id)
        self.scores, self.fails, self.held = scores, fails, held or {}

    def evaluate(self, params: Params, splits: tuple[str, ...]) -> Any:
        round = int(params["round"].item())
        if round in self.fails:
            raise RuntimeError("no score today")
        score = self.scores.get(round, 0.0)
        val: dict[str, float] = {} if score is None else {"accuracy": score, "loss": score}
        return {"train": {"accuracy": 0.5}, "val": val}, {
            "train": 3,
            "val": 0 if score is None else self.held.get(round, 2),
        }


@dataclass
class Notes:
    """A listener that keeps everything."""

    exchanges: list[ExchangeReport] = field(default_factory=list)
    rounds: list[RoundReport] = field(default_factory=list)
    checkpoints: list[tuple[Standing, dict[str, State]]] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)

    def exchanged(self, report: ExchangeReport) -> None:
        self.exchanges.append(report)

    def round_done(self, report: RoundReport) -> None:
        self.rounds.append(report)

    def noted(self, round: int, text: str) -> None:
        self.notes.append((round, text))

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        self.checkpoints.append((standing, {name: decode(data, State) for name, data in memories.items()}))


def runtime(algorithm: Algorithm[Any], scores: Mapping[int, float | None] | None = None, **options: Any) -> LoopRuntime:
    return LoopRuntime(algorithm, [Scored(name, scores or {}, **options) for name in NAMES])


def run(
    plan: Plan,
    scores: Mapping[int, float | None] | None = None,
    algorithm: Counter | None = None,
    carrier: Any = None,
    standing: Standing | None = None,
    **options: Any,
) -> tuple[Standing, Notes]:
    algorithm = algorithm or Counter()
    notes = Notes()
    model = InitialModel({"round": torch.zeros(1)})
    end = run_course(algorithm, carrier or runtime(algorithm, scores, **options), plan, model, [notes], standing)
    return end, notes


RISING = {r: 0.1 * r for r in range(1, 20)}


# ---- rounds and cohorts


def test_rounds_are_counted_from_one_and_the_setup_is_round_zero() -> None:
    end, notes = run(Plan(rounds=3), RISING)
    assert end.round == 3 and end.state.round == 3  # type: ignore[attr-defined]
    assert [report.round for report in notes.rounds] == [1, 2, 3]
    places = [(r.position.round, r.position.exchange, r.request) for r in notes.exchanges]
    assert places[0] == (0, 0, "Draw")
    assert places[1:4] == [(1, 0, "Draw"), (1, 1, "EvaluateModel"), (1, 2, "KeepBest")]


def test_everybody_takes_part_in_the_setup_and_a_cohort_in_each_round() -> None:
    _, notes = run(Plan(rounds=8, sampling=UniformSampling(0.5)))
    draws = [report.num_clients for report in notes.exchanges if report.request == "Draw"]
    assert draws == [6] + [3] * 8
    cohorts = [report.cohort for report in notes.rounds]
    assert len(set(cohorts)) > 1
    assert all(list(cohort) == sorted(cohort) for cohort in cohorts)
    evaluated = {report.num_clients for report in notes.exchanges if report.request == "EvaluateModel"}
    assert evaluated == {6}


def test_cohorts_depend_on_seed_and_round_alone() -> None:
    def cohorts(seed: int, rounds: int) -> list[tuple[str, ...]]:
        plan = Plan(rounds=rounds, seed=seed, sampling=UniformSampling(0.5))
        return [report.cohort for report in run(plan)[1].rounds]

    assert cohorts(0, 6) == cohorts(0, 8)[:6]
    assert cohorts(0, 6) != cohorts(1, 6)


def test_a_round_of_nobody_leaves_the_model_as_it_is_and_says_so() -> None:
    end, notes = run(Plan(rounds=12, seed=3, sampling=PoissonSampling(0.15)))
    empty = [report.round for report in notes.rounds if not report.cohort]
    assert 0 < len(empty) < 12
    asked = {report.position.round for report in notes.exchanges if report.request == "Draw"}
    assert asked == set(range(13)) - set(empty)
    assert end.round == 12 and end.state.round == 12 - len(empty)  # type: ignore[attr-defined]
    told = [text for _, text in notes.notes if "nobody was drawn" in text]
    assert told == [f"nobody was drawn for round {round}: the model stays as it is" for round in empty]


def test_a_server_with_a_secret_draws_cohorts_that_the_seed_does_not_tell() -> None:
    def cohorts(secret: Secret | None, sampling: Sampling) -> list[tuple[str, ...]]:
        notes, algorithm = Notes(), Counter()
        plan = Plan(rounds=8, seed=4, sampling=sampling)
        model = InitialModel({"round": torch.zeros(1)})
        run_course(algorithm, runtime(algorithm), plan, model, [notes], secret=secret)
        return [report.cohort for report in notes.rounds]

    drawn, (one, two) = PoissonSampling(0.5), (Secret(bytes([number]) * 32) for number in (1, 2))
    assert cohorts(one, drawn) == cohorts(one, drawn) != cohorts(two, drawn)
    assert cohorts(None, drawn) == cohorts(Secret.of_simulation(4, "server"), drawn) != cohorts(one, drawn)
    assert cohorts(one, UniformSampling(0.5)) == cohorts(None, UniformSampling(0.5))


def test_the_same_seed_gives_the_same_course_and_another_seed_another() -> None:
    first, again, other = (run(Plan(rounds=3, seed=seed))[0].state for seed in (5, 5, 6))
    assert first.total == again.total != other.total  # type: ignore[attr-defined]


def test_a_round_report_sums_its_exchanges() -> None:
    _, notes = run(Plan(rounds=2), RISING)
    second = [report for report in notes.exchanges if report.position.round == 2]
    assert len(second) == 3
    assert notes.rounds[1].bytes_down == sum(report.bytes_down for report in second) > 0
    assert notes.rounds[1].bytes_up == sum(report.bytes_up for report in second) > 0
    assert notes.rounds[1].seconds == sum(report.seconds for report in second) > 0


# ---- the best round


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("accuracy", {1: 0.5, 2: 0.9, 3: 0.7}, 2),
        ("accuracy", {1: 0.5, 2: 0.5, 3: 0.5}, 1),
        ("loss", {1: 0.5, 2: 0.9, 3: 0.1}, 3),
        ("loss", {1: 0.5, 2: 0.9, 3: 0.7}, 1),
    ],
)
def test_the_best_round_and_its_state_are_kept(metric: str, scores: dict[int, float | None], best: int) -> None:
    end, notes = run(Plan(rounds=3, stopping=EarlyStopping(metric=metric)), scores)
    assert (end.best_round, end.best_score) == (best, pytest.approx(scores[best]))
    assert end.best_state.round == best and end.state.round == 3  # type: ignore[attr-defined]
    assert [report.score for report in notes.rounds] == pytest.approx([scores[1], scores[2], scores[3]])
    assert max(report.round for report in notes.rounds if report.is_best) == best


def test_clients_keep_their_personal_parts_of_the_best_round() -> None:
    _, notes = run(Plan(rounds=4), {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3})
    memory = notes.checkpoints[-1][1]["client-0"]
    assert memory["times"] == 5 and memory["best"] == {"times": 3}


def test_an_algorithm_without_personal_parts_is_not_asked_to_keep_any() -> None:
    class Plain(Counter):
        personal: ClassVar[tuple[str, ...]] = ()

    _, notes = run(Plan(rounds=2), RISING, Plain())
    assert KeepBest.__name__ not in {report.request for report in notes.exchanges}


def test_without_validation_data_the_last_round_is_the_best() -> None:
    end, notes = run(Plan(rounds=4, stopping=EarlyStopping(patience=1)), dict.fromkeys(range(9), None))
    assert (end.round, end.best_round, end.best_score) == (4, 4, None)
    assert end.best_state.round == 4  # type: ignore[attr-defined]
    assert [report.score for report in notes.rounds] == [None] * 4


@pytest.mark.parametrize("how", ["fails", "nan"])
def test_a_round_whose_evaluation_failed_does_not_take_the_place_of_the_best(how: str) -> None:
    scores: dict[int, float | None] = {1: 0.4, 2: 0.8, 3: math.nan if how == "nan" else 0.9, 4: 0.5}
    end, notes = run(Plan(rounds=4), scores, fails=frozenset({3}) if how == "fails" else frozenset())
    assert (end.best_round, end.best_score) == (2, pytest.approx(0.8))
    assert end.best_state.round == 2  # type: ignore[attr-defined]
    assert notes.rounds[2].score is None and not notes.rounds[2].is_best


# ---- only what is comparable is compared


def lost(away: Mapping[str, set[int]], scores: Mapping[int, float | None]) -> LoopRuntime:
    """Return clients of whom some give no score in some rounds."""
    clients = [Scored(name, scores, frozenset(away.get(name, set()))) for name in NAMES]
    return LoopRuntime(Counter(), clients)


def test_a_round_that_fewer_clients_scored_never_beats_one_that_all_scored() -> None:
    scores: dict[int, float | None] = {1: 0.3, 2: 0.5, 3: 0.9, 4: 0.95, 5: 0.4}
    end, notes = run(Plan(rounds=5), carrier=lost({"client-5": {3, 4}}, scores))
    assert (end.best_round, end.best_score, end.best_scorers) == (2, pytest.approx(0.5), NAMES)
    assert [report.is_best for report in notes.rounds] == [True, True, False, False, False]
    assert notes.rounds[2].scorers == NAMES[:5] and notes.rounds[2].unscored == ("client-5",)
    assert notes.rounds[4].scorers == NAMES and notes.rounds[4].unscored == ()


def test_a_round_that_more_clients_scored_takes_the_place_of_the_best_whatever_its_score() -> None:
    scores: dict[int, float | None] = {1: 0.9, 2: 0.8, 3: 0.2, 4: 0.3, 5: 0.9}
    end, _ = run(Plan(rounds=5), carrier=lost({"client-0": {1, 2, 5}, "client-1": {1, 5}}, scores))
    assert (end.best_round, end.best_score, end.best_scorers) == (4, pytest.approx(0.3), NAMES)


def test_as_many_other_clients_do_not_compare_and_the_same_fewer_do() -> None:
    scores: dict[int, float | None] = {1: 0.5, 2: 0.9, 3: 0.6, 4: 0.55}
    away = {"client-0": {1, 3, 4}, "client-1": {2}}
    end, _ = run(Plan(rounds=4), carrier=lost(away, scores))
    assert (end.best_round, end.best_scorers) == (3, NAMES[1:])


def with_examples(held: Mapping[str, Mapping[int, int]], scores: Mapping[int, float | None]) -> LoopRuntime:
    """Return clients of whom some have other numbers of validation examples than two in some rounds."""
    return LoopRuntime(Counter(), [Scored(name, scores, held=held.get(name)) for name in NAMES])


def test_a_round_that_the_same_clients_scored_on_fewer_examples_is_not_compared() -> None:
    scores: dict[int, float | None] = {1: 0.3, 2: 0.5, 3: 0.9, 4: 0.95, 5: 0.6, 6: 0.4}
    end, notes = run(Plan(rounds=6), carrier=with_examples({"client-5": {3: 1, 4: 1}}, scores))
    assert (end.best_round, end.best_score, end.best_counts) == (5, pytest.approx(0.6), (2,) * 6)
    assert [report.is_best for report in notes.rounds] == [True, True, False, False, True, False]
    on = [report.scored_on for report in notes.rounds]
    assert len(set(on)) == 2 and on[2] == on[3] and {on[0], on[1], on[4], on[5]} == {on[0]}


def test_a_round_that_the_same_clients_scored_on_more_examples_takes_the_place_of_the_best() -> None:
    scores: dict[int, float | None] = {1: 0.9, 2: 0.2, 3: 0.8, 4: 0.1}
    end, _ = run(Plan(rounds=4), carrier=with_examples({"client-5": {1: 1, 3: 1}}, scores))
    assert (end.best_round, end.best_score, end.best_counts) == (2, pytest.approx(0.2), (2,) * 6)


def test_as_many_examples_of_which_others_are_whose_are_not_compared() -> None:
    held = {"client-0": {2: 3}, "client-1": {2: 1}}
    assert run(Plan(rounds=2), carrier=with_examples(held, {1: 0.5, 2: 0.9}))[0].best_round == 1


def test_a_round_on_more_examples_without_a_finite_score_takes_nobody_s_place() -> None:
    plan = Plan(rounds=2, stopping=EarlyStopping(metric="loss"))
    assert run(plan, carrier=with_examples({"client-0": {2: 5}}, {1: 0.5, 2: math.inf}))[0].best_round == 1


def test_numbers_of_examples_that_a_checkpoint_of_before_does_not_have_are_comparable() -> None:
    first, _ = run(Plan(rounds=2), RISING)
    before = replace(first, best_counts=None)
    held = {"client-5": {3: 1, 4: 1}}
    assert run(Plan(rounds=3), carrier=with_examples(held, RISING), standing=before)[0].best_round == 3
    assert run(Plan(rounds=3), carrier=with_examples(held, RISING), standing=first)[0].best_round == 2
    worse = with_examples(held, {3: 0.0})
    assert run(Plan(rounds=3), carrier=worse, standing=before)[0].best_round == 2  # compared, and no better


def test_a_loss_of_fewer_clients_is_no_better_either() -> None:
    plan = Plan(rounds=3, stopping=EarlyStopping(metric="loss"))
    assert run(plan, carrier=lost({"client-2": {2, 3}}, {1: 0.5, 2: 0.1, 3: 0.2}))[0].best_round == 1


def test_a_round_that_cannot_be_compared_is_one_without_improvement_for_patience() -> None:
    plan = Plan(rounds=99, stopping=EarlyStopping(patience=3))
    end, _ = run(plan, carrier=lost({"client-5": set(range(3, 99))}, RISING))
    assert (end.round, end.best_round) == (5, 2)
    end, _ = run(plan, carrier=lost({"client-5": {1, 2}}, {1: 0.9, 2: 0.9}))  # all are there: patience begins anew
    assert (end.round, end.best_round) == (6, 3)


def test_the_last_round_is_kept_whoever_scored_it_where_that_is_asked_for() -> None:
    plan = Plan(rounds=4, stopping=EarlyStopping(keep="last"))
    assert run(plan, carrier=lost({"client-5": {4}}, RISING))[0].best_round == 4


def test_clients_without_validation_data_are_missing_in_no_round() -> None:
    clients = [Scored(name, RISING if i else dict.fromkeys(range(9), None)) for i, name in enumerate(NAMES)]
    end, notes = run(Plan(rounds=3), carrier=LoopRuntime(Counter(), clients))
    assert (end.best_round, end.best_scorers, notes.rounds[0].unscored) == (3, NAMES[1:], ())


@pytest.mark.parametrize(("away", "best"), [({}, 4), ({"client-5": {3, 4}}, 2)])
def test_a_standing_that_does_not_say_who_scored_compares_with_complete_rounds_only(
    away: dict[str, set[int]], best: int
) -> None:
    first, _ = run(Plan(rounds=2), RISING)
    before = replace(first, best_scorers=None)
    assert run(Plan(rounds=4), carrier=lost(away, RISING), standing=before)[0].best_round == best


def test_a_round_says_who_gave_the_algorithm_no_reply() -> None:
    class Silent(Scored):
        pass

    class Quiet(Counter):
        @on(Draw)
        def draw(self, request: Draw, client: Any) -> Drawn:
            if isinstance(client, Silent) and request.round == 2:
                raise RuntimeError("no number today")
            return super().draw(request, client)

    clients = [(Silent if i == 4 else Scored)(name, RISING) for i, name in enumerate(NAMES)]
    _, notes = run(Plan(rounds=3), algorithm=Quiet(), carrier=LoopRuntime(Quiet(), clients))
    assert [report.missing for report in notes.rounds] == [(), ("client-4",), ()]
    assert notes.rounds[1].unscored == () and notes.rounds[1].scorers == NAMES


# ---- when it stops


@pytest.mark.parametrize(
    ("metric", "scores"),
    [("accuracy", {1: 0.5, 2: 0.9, 3: 0.7, 4: 0.9, 5: 0.8}), ("loss", {1: 0.5, 2: 0.1, 3: 0.7, 4: 0.1, 5: 0.2})],
)
def test_the_course_stops_when_patience_runs_out(metric: str, scores: dict[int, float | None]) -> None:
    end, notes = run(Plan(rounds=99, stopping=EarlyStopping(patience=3, metric=metric)), scores)
    assert (end.round, end.best_round) == (5, 2)
    assert len(notes.rounds) == 5


def test_an_improvement_gives_new_patience() -> None:
    scores: dict[int, float | None] = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.5, 5: 0.4}
    assert run(Plan(rounds=99, stopping=EarlyStopping(patience=2)), scores)[0].round == 5


def test_patience_zero_never_stops() -> None:
    assert run(Plan(rounds=9, stopping=EarlyStopping(patience=0)), {1: 0.9})[0].round == 9


def test_the_last_round_is_kept_when_that_is_asked_for() -> None:
    scores: dict[int, float | None] = {1: 0.2, 2: 0.9, 3: 0.5, 4: None}
    assert run(Plan(rounds=4), scores)[0].best_round == 2
    for rounds in (3, 4):
        end, _ = run(Plan(rounds=rounds, stopping=EarlyStopping(keep="last")), scores)
        assert end.best_round == rounds and end.best_state == end.state and end.best_score == scores[rounds]
    with pytest.raises(ValueError, match="keep is 'first'; choose from best, last"):
        EarlyStopping(keep="first")
    with pytest.raises(ValueError, match="patience needs a best round"):
        EarlyStopping(keep="last", patience=3)


def test_negative_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="patience is -1"):
        EarlyStopping(patience=-1)


def test_only_every_nth_round_and_the_last_are_evaluated() -> None:
    _, notes = run(Plan(rounds=8, evaluate_every=3), RISING)
    assert [report.round for report in notes.rounds if report.evaluations] == [3, 6, 8]
    assert [report.round for report in notes.rounds if report.score is not None] == [3, 6, 8]


def test_patience_shorter_than_the_evaluations_does_not_stop_unevaluated() -> None:
    plan = Plan(rounds=40, evaluate_every=5, stopping=EarlyStopping(patience=2))
    end, _ = run(plan, {5: 0.5, 10: 0.6, 15: 0.6})
    assert (end.round, end.best_round) == (15, 10)


def test_finished_tells_rounds_and_patience() -> None:
    state = Count(0, 0.0, {})
    standing = Standing(round=6, state=state, best_state=state, best_round=4, best_score=0.5)
    assert finished(Plan(rounds=6), standing)
    assert not finished(Plan(rounds=7), standing)
    assert finished(Plan(rounds=7, stopping=EarlyStopping(patience=2)), standing)
    assert not finished(Plan(rounds=7, stopping=EarlyStopping(patience=3)), standing)


# ---- checkpoints, interruptions, resuming


def test_checkpoints_come_every_so_many_rounds_and_at_the_end() -> None:
    _, notes = run(Plan(rounds=5, checkpoint_every=2))
    assert [standing.round for standing, _ in notes.checkpoints] == [2, 4, 5]
    assert [memories["client-0"]["times"] for _, memories in notes.checkpoints] == [3, 5, 6]
    assert [standing.round for standing, _ in run(Plan(rounds=3))[1].checkpoints] == [3]


class Interrupting:
    """Hands everything to another runtime, and raises at one exchange after so many outcomes."""

    def __init__(self, inner: LoopRuntime, round: int, exchange: int, after: int, error: BaseException) -> None:
        self.inner, self.at, self.after, self.error = inner, (round, exchange), after, error

    def exchange(self, position: Position, requests: Any, timeout_seconds: float | None) -> Iterator[Outcome]:
        for number, outcome in enumerate(self.inner.exchange(position, requests, timeout_seconds)):
            if (position.round, position.exchange) == self.at and number == self.after:
                raise self.error
            yield outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CourseFailed("oh"), TooFewReplies("oh")], ids=repr)
@pytest.mark.parametrize(("exchange", "after"), [(0, 0), (0, 3), (1, 2), (2, 4)])
def test_an_interruption_leaves_a_checkpoint_of_the_last_whole_round(
    error: BaseException, exchange: int, after: int
) -> None:
    plan = Plan(rounds=6, seed=3)
    carrier = Interrupting(runtime(Counter(), RISING), 4, exchange, after, error)
    notes = Notes()
    with pytest.raises(type(error)):
        run_course(Counter(), carrier, plan, InitialModel({"round": torch.zeros(1)}), [notes])  # type: ignore[arg-type]
    ((standing, memories),) = notes.checkpoints
    _, whole = run(Plan(rounds=3, seed=3), RISING)
    assert standing.round == 3
    assert standing.state.total == whole.checkpoints[-1][0].state.total  # type: ignore[attr-defined]
    assert memories == whole.checkpoints[-1][1]


def test_an_error_of_the_server_half_leaves_a_checkpoint_too() -> None:
    notes = Notes()
    algorithm = Counter(stop_in=3)
    with pytest.raises(CourseFailed, match="stopped by the test"):
        run_course(algorithm, runtime(algorithm), Plan(rounds=6), InitialModel({"round": torch.zeros(1)}), [notes])
    ((standing, memories),) = notes.checkpoints
    assert standing.round == 2 and {m["rounds"] for m in memories.values()} == {(0, 1, 2)}


def test_an_interruption_while_a_checkpoint_is_written_writes_it_again() -> None:
    class Hasty(Notes):
        def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
            super().checkpoint(standing, memories)
            if len(self.checkpoints) == 1:
                raise KeyboardInterrupt

    notes = Hasty()
    with pytest.raises(KeyboardInterrupt):
        run_course(
            Counter(),
            runtime(Counter()),
            Plan(rounds=9, checkpoint_every=2),
            InitialModel({"round": torch.zeros(1)}),
            [notes],
        )
    assert [standing.round for standing, _ in notes.checkpoints] == [2, 2]
    assert notes.checkpoints[0][1] == notes.checkpoints[1][1]


@pytest.mark.parametrize(("when", "kept"), [("before", 2), ("after", 3)])
def test_an_interruption_around_the_mark_of_a_round_keeps_standing_and_memories_together(when: str, kept: int) -> None:
    class Late(Interrupting):
        def mark(self, round: int) -> None:
            if round == 3 and when == "before":
                raise KeyboardInterrupt
            self.inner.mark(round)
            if round == 3:
                raise KeyboardInterrupt

    notes = Notes()
    carrier = Late(runtime(Counter()), 99, 0, 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_course(Counter(), carrier, Plan(rounds=9), InitialModel({"round": torch.zeros(1)}), [notes])  # type: ignore[arg-type]
    ((standing, memories),) = notes.checkpoints
    assert standing.round == standing.state.round == kept  # type: ignore[attr-defined]
    assert memories["client-0"]["rounds"] == tuple(range(kept + 1))


@pytest.mark.parametrize("stop", [0, 1, 2, 4, 5])
def test_resuming_gives_the_same_as_not_stopping(stop: int) -> None:
    scores: dict[int, float | None] = {1: 0.3, 2: 0.8, 3: 0.2, 4: 0.5, 5: 0.9}
    plan = Plan(rounds=6, seed=2, sampling=UniformSampling(0.5), stopping=EarlyStopping(patience=3))
    end, whole = run(plan, scores)

    first = runtime(Counter(), scores)
    notes = Notes()
    carrier = Interrupting(first, stop + 1, 0, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_course(Counter(), carrier, plan, InitialModel({"round": torch.zeros(1)}), [notes])  # type: ignore[arg-type]
    standing, _ = notes.checkpoints[-1]

    second = runtime(Counter(), scores)
    second.load_clients(first.save_clients())
    resumed, rest = run(plan, scores, carrier=second, standing=standing)
    assert (resumed.round, resumed.best_round, resumed.best_score) == (end.round, end.best_round, end.best_score)
    assert resumed.state.total == end.state.total  # type: ignore[attr-defined]
    assert resumed.best_state.total == end.best_state.total  # type: ignore[attr-defined]
    assert rest.checkpoints[-1][1] == whole.checkpoints[-1][1]
    assert [report.cohort for report in rest.rounds] == [report.cohort for report in whole.rounds[stop:]]


def test_resuming_a_finished_course_does_nothing_but_save_it() -> None:
    end, notes = run(Plan(rounds=3))
    again, rest = run(Plan(rounds=3), standing=end)
    assert again == end and rest.exchanges == [] and len(rest.checkpoints) == 1
    assert len(notes.rounds) == 3


def test_the_rules_of_the_plan_hold_in_every_exchange() -> None:
    carrier = runtime(Counter(), RISING, fails=frozenset({2}))
    plan = Plan(rounds=3, rules=ExchangeRules(min_replies=6))
    end, notes = run(plan, carrier=carrier)
    # Evaluations may fail: they decide nothing but which round is the best.
    assert end.round == 3
    assert [len(report.failures) for report in notes.exchanges if report.request == "EvaluateModel"] == [0, 6, 0]


# ---- the metric


def evaluation(value: float | None, count: int) -> Evaluation:
    return Evaluation({"val": {} if value is None else {"accuracy": value}}, {"val": count})


def test_the_metric_is_the_mean_over_clients_weighted_by_their_examples() -> None:
    found = {"a": evaluation(0.5, 1), "b": evaluation(1.0, 3), "c": evaluation(None, 0), "d": evaluation(0.0, 0)}
    assert weighted_metric(found, "val", "accuracy") == pytest.approx(3.5 / 4)
    assert math.isnan(weighted_metric(found, "test", "accuracy"))
    assert math.isnan(weighted_metric(found, "val", "f1"))
    assert math.isnan(weighted_metric({}, "val", "accuracy"))


def test_who_has_no_examples_is_no_scorer_whatever_it_says() -> None:
    """More scorers beat fewer, so one that has nothing to score by must not count."""
    found = {"b": evaluation(1.0, 3), "a": evaluation(0.5, 1), "c": evaluation(None, 2), "d": evaluation(0.9, 0)}
    assert scorers_of(found, "val", "accuracy") == ("a", "b")


def test_a_server_state_that_no_checkpoint_could_bring_back_is_refused_at_once() -> None:
    @dataclass(frozen=True)
    class Stray(Counter):
        def round(self, state: Count, fed: Federation) -> Any:
            return Drawn(0.0)

    with pytest.raises(CourseFailed, match="gave the server state Drawn"):
        run(Plan(rounds=1), algorithm=Stray())


# ---- what the algorithm says


@dataclass(frozen=True)
class Talking(Counter):
    """Says something in the setup and in every second round."""

    def setup(self, fed: Federation) -> Count:
        fed.note("beginning")
        return super().setup(fed)

    def round(self, state: Count, fed: Federation) -> Count:
        if fed.round % 2 == 0:
            fed.note(f"round {fed.round}")
            fed.note("again")
        return super().round(state, fed)


def test_what_the_algorithm_notes_reaches_the_listener_with_its_round() -> None:
    _, notes = run(Plan(rounds=5), algorithm=Talking())
    assert notes.notes == [(0, "beginning"), (2, "round 2"), (2, "again"), (4, "round 4"), (4, "again")]


def test_notes_change_nothing_and_a_federation_without_a_listener_takes_them() -> None:
    said, silent = run(Plan(rounds=3), algorithm=Talking())[0], run(Plan(rounds=3))[0]
    assert said.state.total == silent.state.total  # type: ignore[attr-defined]
    fed = Federation(
        runtime(Counter()),
        seed=0,
        round=1,
        cohort=NAMES,
        model=InitialModel({}),
        rules=ExchangeRules(),
        report=lambda report: None,
    )
    fed.note("to nobody")
