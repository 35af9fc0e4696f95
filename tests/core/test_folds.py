from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.core.errors import CourseFailed
from isthmus.core.folding.krum import Krum
from isthmus.core.folds import Median, TrimmedMean, WeightedMean, median, weight_of, weighted_mean
from isthmus.core.record import Params, Record, leaves
from isthmus.core.replies import Each, Stack, StackedTensor

from .toys import Update, quick, same, stack_of, update


@dataclass(frozen=True)
class Parts(Record):
    pair: tuple[Update, float]
    steps: Tensor
    name: str
    sure: bool
    rounds: int
    loss: float | None = None


@dataclass(frozen=True)
class Bare(Record):
    w: Tensor


numbers = st.floats(-1e6, 1e6, width=32)
weights = st.one_of(st.floats(0.001, 1000.0), st.integers(0, 50).map(float))


@st.composite
def some_updates(draw: st.DrawFn) -> list[Update]:
    size = draw(st.integers(1, 5))
    rows = draw(st.lists(st.tuples(st.lists(numbers, min_size=size, max_size=size), weights), min_size=1, max_size=6))
    return [update(row, weight) for row, weight in rows]


# ---- weighted mean


@quick
@given(some_updates())
def test_the_weighted_mean_is_what_a_plain_loop_gives(updates: list[Update]) -> None:
    total = sum(u.weight for u in updates)
    if total == 0:
        with pytest.raises(CourseFailed, match="every Update has weight 0"):
            weighted_mean(updates)
        return
    expected = []
    for i in range(len(updates[0].params["w"])):
        expected.append(math.fsum(u.weight * u.params["w"][i].item() for u in updates) / total)
    found = weighted_mean(updates)
    assert isinstance(found, Update)
    assert found.weight == pytest.approx(total)
    scale = max(float(u.params["w"].abs().max()) for u in updates)
    # The expected mean as the single-precision number it must become; a subnormal has only a few bits.
    rounded = torch.tensor(expected, dtype=torch.float64).float().tolist()
    assert found.params["w"].tolist() == pytest.approx(rounded, rel=1e-6, abs=1e-6 * scale)
    assert found.params["w"].dtype == torch.float32


@quick
@given(some_updates(), weights.filter(lambda w: w > 0))
def test_the_mean_of_one_reply_is_that_reply_to_the_bit(updates: list[Update], weight: float) -> None:
    one = Update(updates[0].params, weight)
    assert same(weighted_mean([one]), one)


@quick
@given(some_updates(), st.lists(weights.filter(lambda w: w > 0), min_size=2, max_size=5))
def test_the_mean_of_equal_replies_is_the_reply_to_the_bit(updates: list[Update], shares: list[float]) -> None:
    found = weighted_mean([Update(updates[0].params, share) for share in shares])
    assert isinstance(found, Update)
    assert same(found.params, updates[0].params)


def test_a_reply_of_weight_zero_leaves_no_trace_not_even_of_its_shape() -> None:
    good, more = update([1.0, 2.0], 3.0), update([5.0, 6.0], 1.0)
    empty = Update({"other": torch.full((9,), 1e30)}, 0.0)
    for replies in ([empty, good, more], [good, empty, more], [good, more, empty]):
        assert same(weighted_mean(replies), weighted_mean([good, more]))
    assert weighted_mean([good, more]).params["w"].tolist() == [2.0, 3.0]


def test_nothing_to_average_is_an_error_that_says_so() -> None:
    with pytest.raises(CourseFailed, match="there is no reply to average"):
        weighted_mean([])
    with pytest.raises(CourseFailed, match="no client in the cohort has training examples"):
        weighted_mean([update([1.0], 0.0), update([2.0], 0.0)])
    with pytest.raises(CourseFailed, match=r"negative weight -1\.0"):
        weighted_mean([update([1.0], -1.0)])


def test_the_sum_runs_in_the_order_of_the_replies() -> None:
    # In double precision 2**53 + 1 + 1 is 2**53, but 1 + 1 + 2**53 is 2**53 + 2.
    big, one = update([2.0**53], dtype=torch.float64), update([1.0], dtype=torch.float64)
    forward = weighted_mean([big, one, one])
    backward = weighted_mean([one, one, big])
    assert forward.params["w"].item() == 2.0**53 / 3
    assert backward.params["w"].item() == (2.0**53 + 2) / 3


def test_sums_do_not_lose_what_single_precision_would() -> None:
    replies = [update([1e8]), *(update([1.0]) for _ in range(8)), update([-1e8])]
    assert weighted_mean(replies).params["w"].item() == pytest.approx(0.8)


def test_streaming_gives_the_bits_of_folding_at_once_and_changes_no_reply() -> None:
    replies = [update([0.1 * k, 7.3], 1.0 + k) for k in range(5)]
    before = [reply.params["w"].clone() for reply in replies]
    total = weighted_mean.start()
    for reply in replies:
        weighted_mean.add(total, reply)
    assert same(weighted_mean.finish(total), weighted_mean(replies))
    assert all(torch.equal(old, reply.params["w"]) for old, reply in zip(before, replies, strict=True))


def parts(value: float, weight: float, steps: list[int], name: str, loss: float | None = None) -> Parts:
    return Parts((update([value], weight), value), torch.tensor(steps), name, name == "a", int(value), loss)


def test_nested_tensors_and_floats_are_averaged_and_the_rest_is_the_first_replys() -> None:
    found = weighted_mean([parts(2.0, 5.0, [1, 10], "a", 0.5), parts(5.0, 7.0, [2, 13], "b", 1.5)])
    assert isinstance(found, Parts)
    inner, number = found.pair
    # A record without a weight of its own counts once; a weight deeper down is a number like any other.
    assert inner.params["w"].item() == 3.5 and number == 3.5 and inner.weight == 6.0
    assert (found.name, found.sure, found.rounds, found.loss) == ("a", True, 2, 1.0)
    assert found.steps.tolist() == [2, 12] and found.steps.dtype == torch.int64  # 1.5 and 11.5, rounded to even


def test_whole_numbers_in_fields_of_floats_are_averaged_like_floats() -> None:
    mixed = weighted_mean([update([1.0], 1), update([2.0], 2.5)])
    assert mixed.weight == 3.5
    whole = weighted_mean([parts(1.0, 1.0, [0], "a", 0), parts(1.0, 1.0, [0], "a", 3)])
    assert whole.loss == 1.5


def test_a_record_without_a_weight_counts_once() -> None:
    assert weight_of(Bare(torch.ones(1))) == 1.0
    assert weighted_mean([Bare(torch.tensor([1.0])), Bare(torch.tensor([2.0]))]).w.item() == 1.5


@pytest.mark.parametrize("fold", [WeightedMean(), Median(), TrimmedMean(), Krum()], ids=repr)
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (Update({"w": torch.ones(3)}, 1.0), r"\.params\['w'\] is float32 \(2,\) in one and float32 \(3,\) in another"),
        (Update({"v": torch.ones(2)}, 1.0), r"\.params\['w'\] is float32 \(2,\) in one and absent in another"),
        (Update({"w": torch.ones(2), "v": torch.ones(1)}, 1.0), r"\.params\['v'\] is absent in one and float32 \(1,\)"),
        (
            Update({"w": torch.ones(2).long()}, 1.0),
            r"\.params\['w'\] is float32 \(2,\) in one and int64 \(2,\) in another",
        ),
    ],
    ids=["shape", "key", "more", "dtype"],
)
def test_replies_of_different_form_cannot_be_folded_and_the_path_is_named(fold: Any, odd: Update, reason: str) -> None:
    with pytest.raises(CourseFailed, match=r"Update cannot be folded: " + reason):
        fold([update([1.0, 2.0]), update([1.0, 2.0]), odd])


def test_an_optional_number_that_only_some_give_cannot_be_folded() -> None:
    with pytest.raises(CourseFailed, match=r"\.loss is float in one and NoneType in another"):
        weighted_mean([parts(1.0, 1.0, [0], "a", 1.0), parts(1.0, 1.0, [0], "a", None)])


def test_only_the_weighted_mean_streams() -> None:
    assert [fold.streams for fold in (WeightedMean(), Median(), TrimmedMean(), Krum())] == [True, False, False, False]


# ---- robust folds


@quick
@given(some_updates())
def test_the_median_is_numpys_and_forgets_weights(updates: list[Update]) -> None:
    kept = [u for u in updates if u.weight > 0]
    if not kept:
        with pytest.raises(CourseFailed, match="no reply of positive weight"):
            median(updates)
        return
    found = median(updates)
    assert isinstance(found, Update)
    expected = np.median(np.stack([u.params["w"].double().numpy() for u in kept]), axis=0).astype(np.float32)
    assert found.params["w"].tolist() == expected.tolist()
    assert found.weight == sum(u.weight for u in kept)


@quick
@given(some_updates(), st.floats(0.0, 0.49))
def test_the_trimmed_mean_is_scipys(updates: list[Update], fraction: float) -> None:
    positive = [Update(u.params, u.weight + 1.0) for u in updates]
    found = TrimmedMean(fraction)(positive)
    assert isinstance(found, Update)
    stack = np.stack([u.params["w"].double().numpy() for u in positive])
    expected = scipy.stats.trim_mean(stack, fraction, axis=0)
    assert found.params["w"].tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-3)
    assert found.weight == sum(u.weight for u in positive)


def test_an_outlier_moves_the_mean_but_not_the_robust_folds() -> None:
    replies = [update([float(k)]) for k in (1, 2, 3, 4)] + [update([1e6])]
    assert weighted_mean(replies).params["w"].item() > 1e5
    for fold in (Median(), TrimmedMean(0.2), Krum(num_malicious=1)):
        assert 1 <= fold(replies).params["w"].item() <= 4


def test_integer_tensors_stay_integers_in_the_median() -> None:
    found = median([Update({"n": torch.tensor([k])}, 1.0) for k in (1, 2, 9)])
    assert found.params["n"].tolist() == [2] and found.params["n"].dtype == torch.int64


@pytest.mark.parametrize(
    "make",
    [lambda: TrimmedMean(0.5), lambda: TrimmedMean(-0.1), lambda: Krum(-1), lambda: Krum(0, 0)],
)
def test_impossible_settings_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_the_repr_tells_two_folds_apart() -> None:
    assert repr(Krum(1)) != repr(Krum(2)) != repr(TrimmedMean(0.2))


# ---- stacks: replies that come as one


@dataclass(frozen=True)
class Rich(Record):
    params: Params
    weight: float
    loss: float
    steps: int
    name: str
    nested: dict[str, tuple[float, int]]


def rich(k: int, weight: float, value: float) -> Rich:
    return Rich(
        {"w": torch.tensor([value, -0.5 * k]), "n": torch.tensor([k, 3 * k])},
        weight,
        k if k % 2 else value / 3,
        k,
        f"client {k}",
        {"x": (value, k)},
    )


@st.composite
def mixed(draw: st.DrawFn) -> list[list[tuple[Rich, bool]]]:
    """Some groups of replies, each with whether it is sound; groups of one may be given singly."""
    groups, k = [], 0
    for _ in range(draw(st.integers(1, 4))):
        group = []
        for _ in range(draw(st.integers(1, 4))):
            reply = rich(k, draw(st.one_of(weights, st.integers(0, 3))), draw(st.floats(-1e3, 1e3, width=32)))
            group.append((reply, draw(st.sampled_from([True, True, True, False]))))
            k += 1
        groups.append(group)
    return groups


def folded(fold: Any, groups: list[list[tuple[Rich, bool]]], as_stacks: bool) -> Any:
    total = fold.start()
    for group in groups:
        if as_stacks and (len(group) > 1 or group[0][0].steps % 2):
            sound = torch.tensor([sound for _, sound in group])
            fold.add_stack(total, stack_of({reply.name: reply for reply, _ in group}), sound)
        else:
            for reply, sound in group:
                if sound:
                    fold.add(total, reply)
    return fold.finish(total)


def agree(found: Any, expected: Any) -> None:
    left, right = leaves(found), leaves(expected)
    assert left.keys() == right.keys()
    for path, value in right.items():
        if isinstance(value, Tensor):
            assert left[path].dtype == value.dtype and not left[path].is_meta
            torch.testing.assert_close(left[path], value, rtol=1e-6, atol=1e-5)
        elif isinstance(value, float):
            assert type(left[path]) is float and left[path] == pytest.approx(value, rel=1e-9, abs=1e-9)
        else:
            assert type(left[path]) is type(value) and left[path] == value


@quick
@given(mixed())
def test_stacks_and_single_replies_have_the_weighted_mean_of_all_members(
    groups: list[list[tuple[Rich, bool]]],
) -> None:
    # A mean that is half a whole number may be rounded either way; such a counter is left out of the comparison.
    used = [reply for group in groups for reply, sound in group if sound and reply.weight > 0]
    if not used:
        for as_stacks in (False, True):
            with pytest.raises(CourseFailed, match=r"no reply to average|has weight 0"):
                folded(weighted_mean, groups, as_stacks)
        return
    found, expected = folded(weighted_mean, groups, True), folded(weighted_mean, groups, False)
    mass = math.fsum(reply.weight for reply in used)
    for i, n in enumerate(found.params["n"].tolist()):
        assert abs(n - math.fsum(reply.weight * reply.params["n"][i].item() for reply in used) / mass) <= 0.5 + 1e-9
    for reply in (found, expected):
        reply.params.pop("n")
    agree(found, expected)
    assert found.weight == pytest.approx(mass)
    # Against the plain formula too, and words and whole numbers of the first reply that counts.
    assert found.params["w"][0].item() == pytest.approx(
        math.fsum(reply.weight * reply.params["w"][0].item() for reply in used) / mass, rel=1e-5, abs=1e-3
    )
    assert (found.name, found.steps) == (used[0].name, used[0].steps)


@pytest.mark.parametrize("fold", [Median(), TrimmedMean(0.2), Krum(num_malicious=1), Krum(1, 3)], ids=repr)
def test_robust_folds_of_stacks_give_the_bits_of_their_members(fold: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(9, generator=draw).tolist()
    replies = [rich(k, [1.0, 2.0, 0.0][k % 3], value) for k, value in enumerate(values)]
    groups = [[(r, r.steps != 4) for r in replies[:5]], [(replies[5], True)], [(r, True) for r in replies[6:]]]
    assert same(folded(fold, groups, True), folded(fold, groups, False))


def test_leaves_that_are_the_same_for_all_count_with_the_whole_weight() -> None:
    shared = Stack.of(
        ("a", "b", "c"), Rich, **{**vars(rich(2, 0.0, 4.0)), "weight": Each((1.0, 0.0, 3.0)), "loss": Each((1, 9, 5))}
    )
    total = weighted_mean.start()
    weighted_mean.add_stack(total, shared, torch.tensor([True, True, True]))
    weighted_mean.add(total, rich(8, 4.0, 6.0))
    found = weighted_mean.finish(total)
    assert isinstance(found, Rich)
    assert found.params["w"].tolist() == [5.0, -2.5] and found.params["n"].tolist() == [5, 15]
    assert found.loss == pytest.approx((1 * 1.0 + 3 * 5.0 + 4 * 2.0) / 8) and found.weight == 8.0
    assert found.nested == {"x": (5.0, 2)} and found.name == "client 2"
    assert shared.record.params["w"].tolist() == [4.0, -1.0]


def test_a_stack_of_weight_zero_leaves_no_trace_not_even_of_its_shape() -> None:
    empty = stack_of({name: Update({"other": torch.full((9,), 1e30)}, 0.0) for name in "ab"})
    unsound = stack_of({name: Update({"other": torch.full((9,), 1e30)}, 5.0) for name in "cd"})
    good = stack_of({"e": update([1.0, 2.0], 3.0), "f": update([5.0, 6.0], 1.0)})
    for order in ([empty, unsound, good], [good, empty, unsound], [unsound, good, empty]):
        total = weighted_mean.start()
        for stack in order:
            weighted_mean.add_stack(total, stack, torch.tensor([stack is not unsound] * 2))
        assert same(weighted_mean.finish(total), update([2.0, 3.0], 4.0))
    total = weighted_mean.start()
    weighted_mean.add_stack(total, empty, torch.tensor([True, True]))
    with pytest.raises(CourseFailed, match="every Update has weight 0"):
        weighted_mean.finish(total)


def test_stacks_of_different_form_cannot_be_folded_and_the_path_is_named() -> None:
    first = stack_of({"a": update([1.0, 2.0]), "b": update([1.0, 2.0])})
    for odd, reason in [
        (Update({"w": torch.ones(3)}, 1.0), r"is float32 \(2,\) in one and float32 \(3,\) in another"),
        (Update({"w": torch.ones(2).long()}, 1.0), r"is float32 \(2,\) in one and int64 \(2,\) in another"),
    ]:
        total = weighted_mean.start()
        weighted_mean.add_stack(total, first, torch.tensor([True, True]))
        with pytest.raises(CourseFailed, match=reason):
            weighted_mean.add_stack(total, stack_of({"c": odd}), torch.tensor([True]))
        with pytest.raises(CourseFailed, match=reason):
            weighted_mean.add(total, odd)


def test_a_stack_is_added_without_being_changed() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    stack = Stack.of(("a", "b"), Update, params={"w": StackedTensor(values)}, weight=Each((1.0, 1.0)))
    total = weighted_mean.start()
    for _ in range(3):
        weighted_mean.add_stack(total, stack, torch.tensor([True, False]))
    assert values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert weighted_mean.finish(total).params["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bad", [update([math.nan, math.inf], 1.0), update([1.0, 1.0], math.nan)], ids=repr)
def test_an_unsound_member_leaves_no_trace_whatever_it_holds(bad: Update) -> None:
    total = weighted_mean.start()
    stack = stack_of({"a": update([1.0, 2.0], 3.0), "b": bad, "c": update([5.0, 6.0], 1.0)})
    weighted_mean.add_stack(total, stack, torch.tensor([True, False, True]))
    assert same(weighted_mean.finish(total), update([2.0, 3.0], 4.0))


def test_an_unsound_weight_beyond_floats_leaves_no_trace() -> None:
    total = weighted_mean.start()
    stack = stack_of({"a": update([1.0], 10**400), "b": update([5.0], 1.0)})
    weighted_mean.add_stack(total, stack, torch.tensor([False, True]))
    assert same(weighted_mean.finish(total), update([5.0], 1.0))


@pytest.mark.parametrize("losses", [(1.0, None), (None, 1.0)], ids=repr)
def test_an_optional_number_that_only_some_members_give_cannot_be_folded(losses: tuple[Any, ...]) -> None:
    total = weighted_mean.start()
    stack = stack_of({f"{k}": parts(1.0, 1.0, [0], "a", loss) for k, loss in enumerate(losses)})
    with pytest.raises(CourseFailed, match=r"\.loss is .* in one and .* in another"):
        weighted_mean.add_stack(total, stack, torch.tensor([True, True]))
