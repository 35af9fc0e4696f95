from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from isthmus.core.errors import BadMessage, CourseFailed, TooFewReplies
from isthmus.core.federation import (
    ExchangeReport,
    ExchangeRules,
    Federation,
    InitialModel,
    Outcome,
    Replies,
    StackOutcome,
)
from isthmus.core.folds import Fold, median, weighted_mean
from isthmus.core.protocol import Failure, Kept, Position, Request
from isthmus.core.record import Params, Record
from isthmus.core.replies import Stack

from .toys import same, stack_of


@dataclass(frozen=True)
class Update(Record):
    params: Params
    weight: float


@dataclass(frozen=True)
class Train(Request[Update]):
    steps: int


@dataclass(frozen=True)
class Rest(Request[Kept]):
    pass


def update(value: float, weight: float = 1.0) -> Update:
    return Update({"w": torch.tensor([value], dtype=torch.float64)}, weight)


@dataclass
class Script:
    """A runtime that answers from a list, in the order given, and notes what it was asked."""

    replies: dict[str, Any]
    order: Sequence[str] | None = None
    asked: list[tuple[Position, dict[str, Request[Any]], float | None]] = field(default_factory=list)
    names: tuple[str, ...] = ("a", "b", "c", "d")

    @property
    def clients(self) -> tuple[str, ...]:
        return self.names

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome]:
        self.asked.append((position, dict(requests), timeout_seconds))
        for client in self.order or requests:
            if client in requests:
                yield Outcome(client, self.replies[client], 10, 20, 0.5)

    def mark(self, round: int) -> None: ...

    def undo(self, client: str) -> None:
        pass

    def abandon_round(self) -> int:
        return 0

    def save_clients(self) -> dict[str, bytes]:
        return {}

    def load_clients(self, memories: Mapping[str, bytes]) -> None: ...


@dataclass
class Stage:
    fed: Federation
    script: Script
    reports: list[ExchangeReport]


def stage(
    replies: dict[str, Any],
    *,
    order: Sequence[str] | None = None,
    cohort: Sequence[str] = ("a", "b", "c"),
    rules: ExchangeRules | None = None,
) -> Stage:
    script = Script({name: update(ord(name)) for name in "abcd"} | replies, order)
    reports: list[ExchangeReport] = []
    model = InitialModel({"w": torch.zeros(1)}, frozenset({"mean"}))
    rules = rules or ExchangeRules()
    fed = Federation(script, seed=9, round=4, cohort=cohort, model=model, rules=rules, report=reports.append)
    return Stage(fed, script, reports)


# ---- ask


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_replies_come_in_the_order_of_the_cohort_whenever_they_arrive(order: tuple[str, ...]) -> None:
    replies = stage({}, order=order).fed.ask(Train(1))
    assert list(replies) == ["a", "b", "c"]
    assert [reply.params["w"].item() for reply in replies.values()] == [97, 98, 99]


def test_the_cohort_is_asked_or_those_that_are_named() -> None:
    at = stage({})
    at.fed.ask(Train(1))
    at.fed.ask(Train(1), clients=("d", "a"))
    at.fed.ask(Train(1), clients=at.fed.all_clients)
    assert [list(requests) for _, requests, _ in at.script.asked] == [["a", "b", "c"], ["d", "a"], ["a", "b", "c", "d"]]


def test_each_client_may_get_its_own_request_in_the_order_of_all_clients() -> None:
    at = stage({})
    replies = at.fed.ask({"d": Train(4), "b": Train(2)})
    assert at.script.asked[0][1] == {"b": Train(2), "d": Train(4)}
    assert list(at.script.asked[0][1]) == list(replies) == ["b", "d"]


def test_a_failure_is_named_and_the_others_replies_are_kept() -> None:
    lost = Failure("b", "lost", "connection closed")
    replies = stage({"b": lost}).fed.ask(Train(1))
    assert list(replies) == ["a", "c"] and replies.failures == {"b": lost}
    assert repr(replies) == "Replies(['a', 'c'], failures=['b'])"
    with pytest.raises(KeyError):
        replies["b"]


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        (Kept(), "malformed", "found the record Kept, expected Update"),
        (None, "malformed", "found the record NoneType, expected Update"),
        (Update({"w": 1.0}, 1.0), "malformed", "Update.params['w']: found"),  # type: ignore[dict-item]
        (Update({}, True), "malformed", "Update.weight: found bool"),
        (Update({"w": torch.eye(2).to_sparse()}, 1.0), "malformed", "Update.params['w']: found a sparse_coo"),
        (update(math.nan), "not_finite", "Update.params['w'] has 1 of 1 entries that are NaN or infinite: diverged; "),
        (update(math.inf), "not_finite", "Update.params['w'] has 1 of 1"),
        (update(1.0, math.nan), "not_finite", "Update.weight is nan"),
    ],
    ids=["other record", "no record", "float for tensor", "bool for float", "sparse", "nan", "inf", "nan weight"],
)
def test_a_reply_that_cannot_be_used_is_a_named_failure_and_is_not_averaged(reply: Any, kind: str, reason: str) -> None:
    at = stage({"b": reply})
    replies = at.fed.ask(Train(1))
    assert list(replies) == ["a", "c"]
    failure = replies.failures["b"]
    assert (failure.client, failure.kind) == ("b", kind) and failure.reason.startswith(reason)
    mean = at.fed.ask_folded(Train(1), weighted_mean)
    assert mean.params["w"].item() == 98.0 and mean.weight == 2.0
    assert [report.failures for report in at.reports] == [(failure,), (failure,)]


# ---- ask_folded

UNEVEN = {"a": update(1.0, 1.0), "b": update(2.0**53, 1.0), "c": update(1.0, 1.0), "d": update(0.3, 7.0)}


@pytest.mark.parametrize("order", list(itertools.permutations("abcd")))
@pytest.mark.parametrize("fold", [weighted_mean, median], ids=["mean", "median"])
def test_a_fold_has_the_same_bits_in_whatever_order_replies_arrive(order: tuple[str, ...], fold: Any) -> None:
    at = stage(UNEVEN, order=order, cohort="abcd")
    assert same(at.fed.ask_folded(Train(1), fold), fold([UNEVEN[name] for name in "abcd"]))


def test_the_order_of_the_replies_would_change_the_bits() -> None:
    """Otherwise the test above could not fail."""
    folds = {weighted_mean([UNEVEN[n] for n in order]).params["w"].item() for order in itertools.permutations("abcd")}  # type: ignore[attr-defined]
    assert len(folds) > 1


@pytest.mark.parametrize("order", list(itertools.permutations("abcd")))
def test_failures_among_early_and_late_replies_hold_nobody_up(order: tuple[str, ...]) -> None:
    at = stage({**UNEVEN, "a": Failure("a", "lost", "x"), "c": update(math.nan)}, order=order, cohort="abcd")
    assert same(at.fed.ask_folded(Train(1), weighted_mean), weighted_mean([UNEVEN["b"], UNEVEN["d"]]))


def test_a_reply_is_folded_as_soon_as_those_before_it_are() -> None:
    seen: list[float] = []

    class Noting(type(weighted_mean)):  # type: ignore[misc]
        def add(self, total: Any, reply: Record) -> None:
            seen.append(reply.params["w"].item())  # type: ignore[attr-defined]
            super().add(total, reply)

    at = stage({}, order="bac")
    arrived: list[list[float]] = []
    exchange = at.script.exchange

    def slow(*args: Any) -> Iterator[Outcome]:
        for outcome in exchange(*args):
            yield outcome
            arrived.append(list(seen))

    at.script.exchange = slow  # type: ignore[method-assign]
    at.fed.ask_folded(Train(1), Noting())
    assert arrived == [[], [97, 98], [97, 98, 99]]


def test_a_fold_of_nothing_fails_even_when_no_reply_is_needed() -> None:
    failed = {name: Failure(name, "lost", "x") for name in "abc"}
    with pytest.raises(CourseFailed, match="no reply to average"):
        stage(failed).fed.ask_folded(Train(1), weighted_mean, min_replies=0)


# ---- how many replies are enough


@pytest.mark.parametrize("method", ["ask", "ask_folded"])
def test_too_few_replies_name_who_failed_and_why(method: str) -> None:
    at = stage(
        {"a": Failure("a", "lost", "gone"), "c": update(math.nan)}, rules=ExchangeRules(min_replies=2), order="cab"
    )
    with pytest.raises(TooFewReplies) as caught:
        at.fed.ask(Train(1)) if method == "ask" else at.fed.ask_folded(Train(1), weighted_mean)
    text = str(caught.value)
    assert text.startswith("round 4, Train: 1 of 3 clients replied, 2 needed (")
    assert "a: lost: gone" in text and "c: not_finite: Update.params['w']" in text
    assert len(at.reports) == 1  # the failed exchange is in the journal all the same


def test_enough_replies_are_enough() -> None:
    at = stage({"a": Failure("a", "lost", "gone")}, rules=ExchangeRules(min_replies=2))
    assert len(at.fed.ask(Train(1))) == 2


def test_an_algorithm_can_see_how_many_replies_are_needed() -> None:
    assert stage({}).fed.min_replies == 1
    assert stage({}, rules=ExchangeRules(min_replies=4)).fed.min_replies == 4


def test_a_small_cohort_cannot_owe_more_replies_than_it_has_clients() -> None:
    at = stage({"d": Failure("d", "lost", "x")}, rules=ExchangeRules(min_replies=3))
    assert len(at.fed.ask(Train(1), clients=("a", "b"))) == 2
    assert len(at.fed.ask({"c": Train(1)})) == 1
    with pytest.raises(TooFewReplies, match="1 of 2 clients replied, 3 needed"):
        at.fed.ask(Train(1), clients=("a", "d"))


def test_one_ask_may_need_more_or_fewer_than_the_rules() -> None:
    failed = {"a": Failure("a", "lost", "x"), "b": Failure("b", "lost", "x"), "c": Failure("c", "lost", "x")}
    assert len(stage(failed).fed.ask(Train(1), min_replies=0)) == 0
    with pytest.raises(TooFewReplies, match="2 of 3 clients replied, 3 needed"):
        stage({"a": failed["a"]}).fed.ask(Train(1), min_replies=3)


# ---- who may be asked what


@pytest.mark.parametrize(
    "ask",
    [
        lambda fed: fed.ask({"a": Train(1), "zoe": Train(1)}),
        lambda fed: fed.ask(Train(1), clients=("a", "zoe")),
        lambda fed: fed.ask_folded(Train(1), weighted_mean, clients=("zoe",)),
    ],
)
def test_a_stranger_is_refused_before_anybody_is_asked(ask: Any) -> None:
    at = stage({})
    with pytest.raises(KeyError, match="there is no client 'zoe'; clients: a, b, c, d"):
        ask(at.fed)
    assert at.script.asked == []


def test_one_exchange_carries_requests_of_one_type() -> None:
    at = stage({})
    with pytest.raises(TypeError, match="one type"):
        at.fed.ask({"a": Train(1), "b": Rest()})  # type: ignore[dict-item]
    assert at.script.asked == []


def test_requests_by_client_and_a_choice_of_clients_exclude_each_other() -> None:
    at = stage({})
    with pytest.raises(TypeError, match="leave out `clients`"):
        at.fed.ask({"a": Train(1)}, clients=("a",))
    assert at.script.asked == []


def test_asking_nobody_is_an_exchange_without_replies() -> None:
    at = stage({})
    assert dict(at.fed.ask({})) == {}
    assert at.reports[0].num_clients == 0 and at.reports[0].request == "nothing"


# ---- bookkeeping


def test_exchanges_are_counted_within_the_round() -> None:
    at = stage({})
    at.fed.ask(Train(1))
    at.fed.ask_folded(Train(1), weighted_mean)
    at.fed.ask({"a": Train(1)})
    assert [position for position, _, _ in at.script.asked] == [Position(9, 4, k) for k in range(3)]


def test_the_rules_time_limit_holds_unless_an_ask_has_its_own() -> None:
    at = stage({}, rules=ExchangeRules(timeout_seconds=7.0))
    at.fed.ask(Train(1))
    at.fed.ask(Train(1), timeout_seconds=2.0)
    at.fed.ask_folded(Train(1), weighted_mean, timeout_seconds=3.0)
    assert [limit for _, _, limit in at.script.asked] == [7.0, 2.0, 3.0]


@pytest.mark.parametrize("folded", [False, True])
def test_a_report_has_bytes_seconds_and_failures(folded: bool) -> None:
    failure = Failure("b", "late", "x")
    at = stage({"b": failure})
    at.fed.ask_folded(Train(1), weighted_mean) if folded else at.fed.ask(Train(1))
    (report,) = at.reports
    assert (report.position, report.request, report.num_clients) == (Position(9, 4, 0), "Train", 3)
    assert (report.bytes_down, report.bytes_up, report.client_seconds) == (30, 60, 1.5)
    assert 0 < report.seconds < 5 and report.failures == (failure,)


def test_the_model_and_the_streams_of_the_server() -> None:
    fed = stage({}).fed
    assert fed.initial_params["w"].tolist() == [0.0] and fed.buffers == {"mean"}
    again = stage({}).fed
    assert torch.equal(torch.rand(3, generator=fed.generator("x")), torch.rand(3, generator=again.generator("x")))
    assert fed.numpy_generator("x").random() == again.numpy_generator("x").random()
    assert fed.numpy_generator("x").random() != fed.numpy_generator("y").random()


def test_replies_are_a_mapping_that_does_not_follow_its_source() -> None:
    source = {"a": Kept()}
    replies = Replies(source, {})
    source.clear()
    assert dict(replies) == {"a": Kept()}


def test_a_client_of_whom_the_runtime_says_nothing_is_lost_and_holds_nobody_up() -> None:
    at = stage({}, order=("b", "c"), rules=ExchangeRules(min_replies=2))
    assert at.fed.ask_folded(Train(1), weighted_mean).params["w"].item() == pytest.approx((98 + 99) / 2)
    assert [(failure.client, failure.kind) for failure in at.reports[0].failures] == [("a", "lost")]
    assert list(stage({}, order=("b", "c")).fed.ask(Train(1))) == ["b", "c"]
    with pytest.raises(TooFewReplies, match="2 of 3"):
        stage({}, order=("b", "c"), rules=ExchangeRules(min_replies=3)).fed.ask(Train(1))


def test_a_request_that_does_not_fit_its_own_type_is_not_sent() -> None:
    at = stage({})
    with pytest.raises(BadMessage, match="Train"):
        at.fed.ask(Train("not a number"))  # type: ignore[arg-type]
    assert not at.script.asked


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (update(1.0, weight=-1.0), "weight is -1"),
        (update(1.0, weight=1e308), "weight is 1e+308"),
        (update(1.0, weight=10**400), "too large"),
    ],
)
def test_a_weight_that_would_spoil_the_mean_is_a_named_failure(reply: Update, reason: str) -> None:
    at = stage({"a": reply})
    assert at.fed.ask_folded(Train(1), weighted_mean).params["w"].item() == pytest.approx((98 + 99) / 2)
    (failure,) = at.reports[0].failures
    assert (failure.client, failure.kind) == ("a", "malformed") and reason in failure.reason


@dataclass(frozen=True)
class Send(Request[Update]):
    params: Params


@pytest.mark.parametrize("params", [{"w": torch.zeros(2)}, {"v": torch.zeros(1)}, {"w": torch.zeros(1).long()}])
def test_a_model_of_another_shape_than_was_sent_is_its_sender_s_failure(params: Params) -> None:
    good = {name: Update({"w": torch.ones(1)}, 1.0) for name in "bcd"}
    at = stage({"a": Update(params, 1.0), **good})
    assert at.fed.ask_folded(Send({"w": torch.zeros(1)}), weighted_mean).params["w"].item() == 1.0
    assert [(f.client, f.kind) for f in at.reports[0].failures] == [("a", "malformed")]


# ---- clients that answer together


def staged(
    plan: Sequence[str],
    replies: dict[str, Any] | None = None,
    *,
    cohort: Sequence[str] = "abcd",
    rules: ExchangeRules | None = None,
) -> Stage:
    """Return a stage on which clients answer as `plan` says: "ca" is one stack of c and a, "b" is b by itself."""
    at = stage(replies or {}, cohort=cohort, rules=rules)
    answers = at.script.replies

    def exchange(position: Position, requests: Any, limit: float | None) -> Iterator[Outcome | StackOutcome]:
        at.script.asked.append((position, dict(requests), limit))
        for group in plan:
            if len(group) == 1:
                yield Outcome(group, answers[group], 10, 20, 0.5)
            else:
                stack = stack_of({name: answers[name] for name in group})
                yield StackOutcome(stack, 10 * len(group), 20 * len(group), 0.5 * len(group))

    at.script.exchange = exchange  # type: ignore[method-assign, assignment]
    return at


PLANS: tuple[tuple[str, ...], ...] = (
    ("abcd",),
    ("dcba",),
    ("ab", "cd"),
    ("dc", "ba"),
    ("d", "bc", "a"),
    ("b", "ad", "c"),
    ("ca", "d", "b"),
    ("bd", "a", "c"),
)


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_replies_of_stacks_are_looked_at_one_by_one_in_the_order_of_the_cohort(plan: tuple[str, ...]) -> None:
    replies = staged(plan, UNEVEN).fed.ask(Train(1))
    assert list(replies) == list("abcd") and not replies.failures
    assert all(same(replies[name], UNEVEN[name]) for name in "abcd")


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_folds_of_stacks_and_single_replies_are_those_of_the_members(plan: tuple[str, ...]) -> None:
    values = {name: update(0.1 * ord(name), k % 3) for k, name in enumerate("abcd")}
    mean = staged(plan, values).fed.ask_folded(Train(1), weighted_mean)
    expected = weighted_mean([values[name] for name in "abcd"])
    assert mean.params["w"].item() == pytest.approx(expected.params["w"].item(), rel=1e-14)  # type: ignore[attr-defined]
    assert mean.weight == expected.weight  # type: ignore[attr-defined]
    robust = staged(plan, values).fed.ask_folded(Train(1), median)
    assert same(robust, median([values[name] for name in "abcd"]))


@dataclass(frozen=True)
class Noting(Fold):
    """Notes who is added, and when a whole stack is."""

    notes: list[str] = field(default_factory=list)

    def start(self) -> list[Record]:
        return []

    def add(self, total: list[Record], reply: Record) -> None:
        self.notes.append(chr(int(reply.params["w"].item())))  # type: ignore[attr-defined]
        total.append(reply)

    def finish(self, total: list[Record]) -> Record:
        return total[0]


@dataclass(frozen=True)
class NotingStream(Noting):
    streams: ClassVar[bool] = True

    def add_stack(self, total: list[Record], stack: Stack, sound: torch.Tensor) -> None:
        self.notes.append("stack " + "".join(c for c, fits in zip(stack.clients, sound.tolist(), strict=True) if fits))
        super().add_stack(total, stack, sound)


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_a_fold_that_needs_all_replies_gets_them_in_the_order_of_the_cohort(plan: tuple[str, ...]) -> None:
    fold = Noting()
    staged(plan).fed.ask_folded(Train(1), fold)
    assert fold.notes == list("abcd")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (("abcd",), ["stack abcd", *"abcd"]),
        (("d", "bc", "a"), ["stack bc", *"bc", *"ad"]),
        (("ca", "d", "b"), ["stack ca", *"ca", *"bd"]),
        (("b", "ad", "c"), ["stack ad", *"ad", *"bc"]),
    ],
    ids=lambda value: "-".join(value),
)
def test_a_fold_that_streams_takes_stacks_when_they_come_and_the_others_in_order(
    plan: tuple[str, ...], expected: list[str]
) -> None:
    fold = NotingStream()
    staged(plan).fed.ask_folded(Train(1), fold)
    assert fold.notes == expected


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_failures_in_a_stack_are_named_and_hold_nobody_up(plan: tuple[str, ...]) -> None:
    odd = {"b": update(98.0, -1.0), "c": update(99.0, 1e300)}
    at = staged(plan, odd)
    replies = at.fed.ask(Train(1))
    assert list(replies) == ["a", "d"] and sorted(replies.failures) == ["b", "c"]
    assert {(f.client, f.kind) for f in at.reports[0].failures} == {("b", "malformed"), ("c", "malformed")}
    for fold, expected in ((weighted_mean, (97 + 100) / 2), (median, (97 + 100) / 2)):
        found = staged(plan, odd).fed.ask_folded(Train(1), fold)
        assert found.params["w"].item() == pytest.approx(expected)
    for noting in (Noting(), NotingStream()):
        staged(plan, odd).fed.ask_folded(Train(1), noting)
        assert sorted(note for note in noting.notes if len(note) == 1) == ["a", "d"]


@pytest.mark.parametrize("plan", [plan for plan in PLANS if any("b" in g and len(g) > 1 for g in plan)], ids="-".join)
def test_a_diverged_model_in_a_stack_is_not_averaged(plan: tuple[str, ...]) -> None:
    at = staged(plan, {"b": update(math.nan)})
    found = at.fed.ask_folded(Train(1), weighted_mean)
    assert [(f.client, f.kind) for f in at.reports[0].failures] == [("b", "not_finite")]
    assert found.params["w"].item() == pytest.approx((97 + 99 + 100) / 3)


@pytest.mark.parametrize("method", ["ask", "ask_folded"])
def test_failures_in_stacks_count_against_the_replies_that_are_needed(method: str) -> None:
    odd = {"a": update(97.0, -1.0), "c": Failure("c", "lost", "gone"), "d": update(math.nan)}
    plan = ("abd", "c")

    def call(needed: int) -> Any:
        fed = staged(plan, odd, rules=ExchangeRules(min_replies=needed)).fed
        return fed.ask(Train(1)) if method == "ask" else fed.ask_folded(Train(1), median)

    assert list(call(1)) == ["b"] if method == "ask" else call(1).params["w"].item() == 98.0
    with pytest.raises(TooFewReplies) as caught:
        call(2)
    text = str(caught.value)
    assert text.startswith("round 4, Train: 1 of 4 clients replied, 2 needed (")
    assert "a: malformed" in text and "c: lost: gone" in text and "d: not_finite" in text


@pytest.mark.parametrize("folded", [False, True])
def test_a_stacks_bytes_seconds_and_failures_are_in_the_report(folded: bool) -> None:
    at = staged(("dab", "c"), {"b": update(1.0, -1.0)})
    at.fed.ask_folded(Train(1), weighted_mean) if folded else at.fed.ask(Train(1))
    (report,) = at.reports
    assert (report.request, report.num_clients) == ("Train", 4)
    assert (report.bytes_down, report.bytes_up, report.client_seconds) == (40, 80, 2.0)
    assert [(failure.client, failure.kind) for failure in report.failures] == [("b", "malformed")]


def test_clients_of_whom_neither_a_stack_nor_an_outcome_speaks_are_lost() -> None:
    at = staged(("da",))
    replies = at.fed.ask(Train(1))
    assert list(replies) == ["a", "d"]
    assert {(f.client, f.kind) for f in at.reports[0].failures} == {("b", "lost"), ("c", "lost")}
    assert staged(("da",)).fed.ask_folded(Train(1), weighted_mean).params["w"].item() == pytest.approx(98.5)


def test_a_stack_of_another_record_fails_for_all_its_clients() -> None:
    at = staged(("ab", "c", "d"), {"a": Kept(), "b": Kept()})
    assert list(at.fed.ask(Train(1))) == ["c", "d"]
    assert [f.reason for f in at.reports[0].failures] == ["found the record Kept, expected Update"] * 2
