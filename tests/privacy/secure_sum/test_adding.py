"""The server half: the sum is the mean of those who stay, whoever is lost and whenever; else it says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.errors import CourseFailed, TooFewReplies
from isthmus.core.folds import weighted_mean
from isthmus.core.guards.settled import Settled
from isthmus.core.protocol import ModelState
from isthmus.core.record import Record
from isthmus.privacy.secure_sum.adding import over_whom
from isthmus.privacy.secure_sum.rules import SumRules
from isthmus.privacy.secure_sum.stages import MaskedWords, RevealedShares
from tests.privacy.secure_sum.acting import Acting, Fate, Unweighted, Update, updates
from tests.sites.sums.watching import bound_of

RULES = SumRules()
STAGES = ("MakeKeys", "ShareSecrets", "SendMasked 1", "RevealShares 1")
# Where it is counted who holds what.
COUNTING = ("MakeKeys", "ShareSecrets", "SendMasked 0", "RevealShares 0", "SendMasked 1", "RevealShares 1")
# Those who are lost at these stages are in no sum; at the others what they sent counts.
OUT = {"MakeKeys", "ShareSecrets", "SendMasked 0", "SendMasked 1"}


def losing(lost: dict[str, str]) -> Fate:
    """Return a network that loses clients at stages, for good."""
    order = [*COUNTING]

    def lose(stage: str, client: str, reply: Any) -> Any:
        at = lost.get(client)
        plain = stage.replace("ConfirmView", "RevealShares")
        return None if at is not None and order.index(plain) >= order.index(at) else reply

    return lose


def survivors(replies: dict[str, Update], lost: dict[str, str]) -> list[Update]:
    """Return whose replies count: who is lost when the weights are told is not asked for numbers any more."""
    return [reply for client, reply in replies.items() if lost.get(client, "RevealShares 1") == "RevealShares 1"]


def assert_mean(found: Record, kept: list[Update], of: dict[str, Update], rules: SumRules = RULES) -> None:
    """See that a sum over some clients is their mean, within the rounding of words (and of float32)."""
    wanted, number = weighted_mean(kept), len(of)
    whole, every = sum(reply.weight for reply in kept), sum(bound_of(reply.weight) for reply in of.values())
    # Half a unit for each, times what bounded the weights as a multiple of what these are of those who stayed.
    error = number * rules.narrow(number).unit / 2 * every / whole
    for name, tensor in wanted.params.items():
        off = (found.params[name].double() - tensor.double()).abs().max()  # type: ignore[attr-defined]
        assert float(off) <= error + 2.0**-22 * float(tensor.abs().max())
    assert math.isclose(found.loss, wanted.loss, abs_tol=number * 2.0**-26 * every / whole)  # type: ignore[attr-defined]
    assert math.isclose(found.weight, whole, abs_tol=number * 2.0**-20)  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [3, 4, 7])
def test_the_sum_is_the_weighted_mean_within_a_unit_for_each(number: int) -> None:
    replies = updates(number, size=100)
    found = Acting(replies).run()
    # In double precision, so that only the words' rounding is seen.
    whole = sum(reply.weight for reply in replies.values())
    exact = sum(reply.params["w"].double() * (reply.weight / whole) for reply in replies.values())
    way = SumRules().narrow(number)
    float32 = 2.0**-24 * float(exact.abs().max())
    room = sum(bound_of(reply.weight) for reply in replies.values()) / whole
    assert float((found.params["w"].double() - exact).abs().max()) <= room * number * way.unit / 2 + float32  # type: ignore
    assert found.weight == whole  # type: ignore[attr-defined]


def test_words_of_64_bits_are_as_exact_as_double_precision() -> None:
    replies = {
        client: ModelState({"w": torch.randn(50, dtype=torch.float64)}) for client in ("a", "b", "c")
    }  # no weight: all count alike
    found = Acting(replies, SumRules(bits=64)).run()
    wanted = sum(reply.params["w"] for reply in replies.values()) / 3
    assert torch.allclose(found.params["w"], wanted, rtol=0, atol=1e-14)  # type: ignore[attr-defined]


def test_replies_without_a_weight_need_no_sum_of_weights() -> None:
    replies = {f"c{place}": Unweighted({"w": torch.full((2,), float(place))}) for place in range(4)}
    acting = Acting(replies)
    assert torch.allclose(acting.run().params["w"], torch.full((2,), 1.5))  # type: ignore[attr-defined]
    assert {stage for stage, _, _ in acting.seen} == {
        "MakeKeys",
        "ShareSecrets",
        "SendMasked 1",
        "RevealShares 1",
    }


def test_replies_of_weight_zero_leave_no_trace_whatever_they_hold() -> None:
    replies = updates(4, weights=(2.0, 0.0, 3.0, 1.0))
    spoiled = {**replies, "c1": Update({"w": torch.full((3,), 1e30)}, math.nan, 0.0)}
    found = Acting(spoiled).run()
    assert_mean(found, [replies[client] for client in ("c0", "c2", "c3")], replies)


def test_weights_that_are_all_zero_end_the_course() -> None:
    with pytest.raises(CourseFailed, match="every Update has weight 0"):
        Acting(updates(3, weights=(0.0, 0.0, 0.0))).run()


def test_weights_with_a_point_count_as_they_are_rounded() -> None:
    """To multiples of 2^-20, at the client and in the sum alike, so that the parts still add up to one."""
    replies = updates(3, weights=(0.5, 1.25, round(2**20 / 3) / 2**20))
    told = {**replies, "c2": replace(replies["c2"], weight=1 / 3)}
    assert_mean(Acting(told).run(), list(replies.values()), replies)


def losses(number: int, most: int, stages: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield every way to lose up to so many of some clients, each at any stage."""
    names = [f"c{place}" for place in range(number)]
    for size in range(most + 1):
        for chosen in combinations(names, size):
            for at in product(stages, repeat=size):
                yield dict(zip(chosen, at, strict=True))


SEEN = {
    (3, 0.51, 1): {"sum": 13, "none": 48},
    (4, 0.51, 1): {"sum": 17, "none": 0},
    (4, 1.0, 1): {"sum": 5, "none": 12},
    (3, 0.51, 2): {"sum": 19, "none": 108},
    (4, 0.51, 2): {"sum": 25, "none": 0},
    (4, 1.0, 2): {"sum": 5, "none": 20},
}


@pytest.mark.parametrize("holders", [1, 2])
@pytest.mark.parametrize(("number", "threshold", "most"), [(3, 0.51, 2), (4, 0.51, 1), (4, 1.0, 1)])
def test_every_dropout_at_every_stage(number: int, threshold: float, most: int, holders: int) -> None:
    """As long as t stay the sum is the mean of those who count; else the course is told so, and nothing comes out."""
    rules, replies = SumRules(threshold=threshold, min_cohort=2, min_holders=holders), updates(number)
    seen = {"sum": 0, "none": 0}
    for lost in losses(number, most, STAGES if holders == 1 else COUNTING):
        acting = Acting(replies, rules, lose=losing(lost))
        began = sum(at != "MakeKeys" for at in [lost.get(client, "") for client in replies])
        if number - len(lost) >= max(rules.needed(began), rules.min_cohort):
            assert_mean(acting.run(), survivors(replies, lost), replies)
            seen["sum"] += 1
        else:
            with pytest.raises(TooFewReplies, match=r"round 1, the secure sum of Update: \d clients"):
                acting.run()
            seen["none"] += 1
    assert seen == SEEN[number, threshold, holders]


@pytest.mark.parametrize(
    ("holders", "stages"), [(1, STAGES), pytest.param(2, COUNTING, marks=pytest.mark.slow)], ids=["summing", "counting"]
)
def test_every_dropout_of_five_down_to_the_threshold(holders: int, stages: tuple[str, ...]) -> None:
    """All t-of-n at each choice of two stages: whoever two of five are, and wherever each is lost."""
    rules, replies = SumRules(threshold=0.6, min_holders=holders), updates(5)
    for chosen in combinations(replies, 2):
        for at in product(stages, repeat=2):
            lost = dict(zip(chosen, at, strict=True))
            assert_mean(Acting(replies, rules, lose=losing(lost)).run(), survivors(replies, lost), replies)


@pytest.mark.parametrize(("holders", "stages"), [(1, STAGES), (2, COUNTING)])
def test_one_more_than_can_be_lost_is_told_at_every_stage(holders: int, stages: tuple[str, ...]) -> None:
    rules, replies = SumRules(threshold=0.6, min_holders=holders), updates(5)
    for stage in stages[1:]:
        acting = Acting(replies, rules, lose=losing(dict.fromkeys(("c0", "c2", "c4"), stage)))
        with pytest.raises(TooFewReplies, match="3 are needed"):
            acting.run()


def test_who_is_lost_before_the_weights_are_added_up_makes_the_sum_begin_anew_with_other_keys() -> None:
    """Masks of weights come off the whole cohort's sum alone; nothing of the first attempt is used in the second."""
    replies = updates(5)
    acting = Acting(replies, lose=losing({"c1": "ShareSecrets"}))
    assert_mean(acting.run(), [reply for client, reply in replies.items() if client != "c1"], replies)
    keys = [reply.keys.public for stage, _, reply in acting.seen if stage == "MakeKeys"]  # type: ignore[attr-defined]
    assert len(keys) == 5 + 4 and len({row.numpy().tobytes() for public in keys for row in public}) == 2 * len(keys)
    assert acting.server.sum.name == "first 1"
    assert acting.notes == ["c1: lost before the weights were bounded; the sum is begun anew without"]


def test_a_sum_that_is_begun_anew_still_needs_as_many_of_those_who_began() -> None:
    """Three of five are needed; where fewer came to count, a sum over two of three would be one over too few."""
    rules, replies = SumRules(threshold=0.6, min_cohort=2), updates(5)
    lost = {"c0": "ShareSecrets", "c1": "ShareSecrets", "c2": "SendMasked 1"}
    with pytest.raises(TooFewReplies, match="2 clients sent what they hold, 3 are needed"):
        Acting(replies, rules, lose=losing(lost)).run()


def test_clients_that_are_lost_one_after_the_other_are_left_out_one_after_the_other() -> None:
    away: list[str] = []

    def lose(stage: str, client: str, reply: Any) -> Any:
        if stage == "ShareSecrets" and client not in away and len(away) < 2 and (not away or client != "c0"):
            away.append(client)
            return None
        return None if client in away and stage != "MakeKeys" else reply

    replies = updates(6)
    acting = Acting(replies, SumRules(threshold=0.6), lose=lambda s, c, r: lose(s, c, r))
    assert_mean(acting.run(), [reply for client, reply in replies.items() if client not in away], replies)
    assert len(away) == 2


def test_a_weight_that_is_none_is_told_and_no_sum_comes_out() -> None:
    """Nobody sees a single weight; a word that is far off shows in the sum, and nobody can tell whose it is."""

    def lie(reply: Any) -> Any:
        return replace(reply, weight=reply.weight + 2**62 + 2**61)

    with pytest.raises(CourseFailed, match=r"the weights of 4 clients add up to .* one of them sent what is no weight"):
        Acting(updates(4), lose=bending("ShareSecrets", "c2", lie)).run()


def test_a_weight_beyond_what_bounded_it_is_told_and_no_sum_comes_out() -> None:
    """Else a client could move the mean further than `clip` lets it."""

    def lie(reply: Any) -> Any:
        wide = reply.wide.clone()
        wide[-1] += 2**40
        return replace(reply, wide=wide)

    with pytest.raises(CourseFailed, match=r"the weights of 4 clients add up to .* one of them lies"):
        Acting(updates(4), lose=bending("SendMasked 1", "c2", lie)).run()


def test_views_are_confirmed_only_where_somebody_is_lost_in_between() -> None:
    for lost, wanted in (({}, 0), ({"c1": "SendMasked 1"}, 4), ({"c1": "ShareSecrets"}, 0)):
        acting = Acting(updates(5), lose=losing(lost))
        acting.run()
        assert sum(stage.startswith("ConfirmView") for stage, _, _ in acting.seen) == wanted


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(3, 7), st.sampled_from([0.51, 2 / 3, 0.8]), st.integers(0, 10**6))
def test_any_schedule_gives_the_mean_of_those_that_stay_or_nothing(
    data: st.DataObject, number: int, threshold: float, seed: int
) -> None:
    """Clients that answer late, or not at all, or at one stage and not at the next one, in any order."""
    replies = updates(number, seed=seed)
    away = data.draw(
        st.sets(
            st.tuples(st.sampled_from((*STAGES, "ConfirmView 0", "ConfirmView 1")), st.sampled_from(sorted(replies))),
            max_size=number,
        )
    )
    acting = Acting(
        replies,
        SumRules(threshold=threshold),
        lose=lambda stage, client, reply: None if (stage, client) in away else reply,
    )
    try:
        found = acting.run()
    except TooFewReplies:
        assert away
        return
    kept = [reply for client, reply in replies.items() if not any((stage, client) in away for stage in OUT)]
    assert_mean(found, kept, replies)


# ---- what others send


def bending(stage: str, client: str, change: Any) -> Fate:
    return lambda at, who, reply: change(reply) if (at, who) == (stage, client) else reply


def test_wrong_shares_of_a_few_are_found_and_named() -> None:
    def wrong(reply: RevealedShares) -> RevealedShares:
        return RevealedShares(reply.of, torch.zeros_like(reply.shares))

    replies = updates(5)
    acting = Acting(replies, SumRules(threshold=0.6), lose=bending("RevealShares 1", "c3", wrong))
    assert_mean(acting.run(), list(replies.values()), replies)
    assert acting.failures == {"c3": "it told wrong shares of secrets of c0, c1, c2 and 2 more"}


def test_wrong_shares_of_too_many_give_no_sum_but_an_error() -> None:
    def lose(stage: str, client: str, reply: Any) -> Any:
        if stage == "RevealShares 1" and client in ("c1", "c2", "c3"):
            return RevealedShares(reply.of, reply.shares.flip(1))
        return reply

    with pytest.raises(CourseFailed, match="the masks of c0 cannot be taken off the sum"):
        Acting(updates(5), SumRules(threshold=0.6), lose=lose).run()


def rubbish(reply: Any) -> Any:
    return replace(reply, sealed=reply.sealed.flip(1))


@pytest.mark.parametrize("holders", [1, 2])
def test_a_client_that_deals_rubbish_is_named_and_the_sum_goes_on_without_it(holders: int) -> None:
    replies = updates(5)
    rules = SumRules(threshold=0.6, min_holders=holders)
    acting = Acting(replies, rules, lose=bending("ShareSecrets", "c2", rubbish))
    assert_mean(acting.run(), [reply for client, reply in replies.items() if client != "c2"], replies)
    assert acting.failures == {"c2": "4 clients could not open the shares that it dealt"}
    assert acting.notes == ["c2: left out; the sum is begun anew"]


def test_a_client_that_deals_rubbish_to_few_stays_in_the_sum() -> None:
    """The others' shares are enough, whoever lied: who dealt them, or who says so."""

    def to_one(reply: Any) -> Any:
        return replace(reply, sealed=torch.cat([reply.sealed[:1].flip(1), reply.sealed[1:]]))

    replies = updates(5)
    acting = Acting(replies, SumRules(threshold=0.6), lose=bending("ShareSecrets", "c2", to_one))
    assert_mean(acting.run(), list(replies.values()), replies)
    assert acting.notes == ["1 clients could not open the shares that c2 dealt to them"]
    assert acting.server.sum.name == "first"


def deaf(reply: Any) -> Any:
    return replace(reply, unopened=("c0", "c1", "c2", "c4"))


@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_a_client_that_says_it_can_open_nothing_leaves_nobody_out(threshold: float) -> None:
    """Four of five can still tell shares of each."""
    replies = updates(5)
    acting = Acting(replies, SumRules(threshold=threshold), lose=bending("SendMasked 1", "c3", deaf))
    assert_mean(acting.run(), list(replies.values()), replies)
    assert acting.server.sum.name == "first"


def test_where_all_shares_are_needed_a_client_that_can_open_nothing_is_the_one_that_is_missing() -> None:
    acting = Acting(updates(5), SumRules(threshold=1.0), lose=bending("SendMasked 1", "c3", deaf))
    with pytest.raises(TooFewReplies, match="4 clients could open each other's shares, 5 are needed"):
        acting.run()


def test_who_deals_rubbish_and_who_says_it_can_open_nothing_are_both_left_out() -> None:
    """Five of seven are needed: of the shares of c2 two are damaged, and c3 tells none."""

    def to_two(reply: Any) -> Any:
        return replace(reply, sealed=torch.cat([reply.sealed[:2].flip(1), reply.sealed[2:]]))

    replies = updates(7)
    bent = bending("ShareSecrets", "c2", to_two), bending("SendMasked 1", "c3", deaf)
    acting = Acting(replies, SumRules(threshold=0.7), lose=lambda *at: bent[at[0] != "ShareSecrets"](*at))
    assert_mean(acting.run(), [reply for client, reply in replies.items() if client not in ("c2", "c3")], replies)
    assert acting.notes == ["c2, c3: left out; the sum is begun anew"]
    assert acting.failures == {
        "c2": "3 clients could not open the shares that it dealt",
        "c3": "it says that it could not open the shares of most others",
    }


def test_a_promise_that_is_not_kept_gives_no_sum() -> None:
    def other(reply: Any) -> Any:
        return replace(reply, promises=reply.promises.flip(1))

    with pytest.raises(CourseFailed, match="the masks of c2 cannot be taken off"):
        Acting(updates(4), lose=bending("ShareSecrets", "c2", other)).run()


@pytest.mark.parametrize(
    "change",
    [
        lambda words: MaskedWords(words.narrow[:-1], words.wide, ()),
        lambda words: MaskedWords(words.narrow.long(), words.wide, ()),
        lambda words: MaskedWords(words.narrow, words.wide.float(), ()),
        lambda words: MaskedWords(words.narrow, words.wide, ("a stranger",)),
    ],
)
def test_words_of_another_form_are_not_counted(change: Any) -> None:
    replies = updates(4)
    acting = Acting(replies, lose=bending("SendMasked 1", "c1", change))
    assert_mean(acting.run(), [reply for client, reply in replies.items() if client != "c1"], replies)


def test_who_holds_another_form_than_most_is_left_out_and_told() -> None:
    replies = updates(4)
    odd = {**replies, "c3": Update({"w": torch.zeros(2)}, 0.0, 5.0)}
    acting = Acting(odd)
    assert_mean(acting.run(), [replies[client] for client in ("c0", "c1", "c2")], replies)
    assert acting.failures == {"c3": "what it holds has another form than what most hold"}


def test_forms_that_the_request_does_not_allow_are_left_out() -> None:
    acting = Acting(updates(4))
    acting.server.fits = lambda outline: "it does not fit"
    with pytest.raises(TooFewReplies, match="0 clients made keys"):
        acting.run()
    assert acting.failures == dict.fromkeys(acting.replies, "it does not fit")


# ---- what was added up before


def test_a_repeated_sum_is_over_those_that_it_was_over_before() -> None:
    """A server that was killed after a sum, and begins the round anew when somebody is back, gets the same sum."""
    books, replies = {f"c{place}": Settled() for place in range(5)}, updates(5)
    kept = [reply for client, reply in replies.items() if client != "c2"]
    for stage in ("MakeKeys", "ShareSecrets", "SendMasked 1"):
        books = {client: Settled() for client in replies}
        assert_mean(Acting(replies, settled=books, lose=losing({"c2": stage})).run(), kept, replies)
        again = Acting(replies, settled=books, attempt="again")
        assert_mean(again.run(), kept, replies)
        assert any(
            note.startswith("c2: left out of the sum, as the same replies were added up") for note in again.notes
        )


def test_counts_of_holders_are_over_the_same_clients_too() -> None:
    """The difference of two counts would show what one client alone has."""
    books, replies, rules = {f"c{place}": Settled() for place in range(5)}, updates(5), SumRules(min_holders=2)
    with pytest.raises(TooFewReplies):  # after the counts
        Acting(replies, rules, settled=books, lose=losing(dict.fromkeys(("c0", "c1"), "SendMasked 1"))).run()
    fewer = Acting(replies, rules, settled=books, attempt="again", lose=losing({"c4": "MakeKeys"}))
    with pytest.raises(TooFewReplies, match="of whom c4 made no keys now"):
        fewer.run()
    assert_mean(Acting(replies, rules, settled=books, attempt="whole").run(), list(replies.values()), replies)


def test_a_few_who_say_that_a_sum_was_over_others_keep_nobody_out() -> None:
    assert over_whom([("a", "b", "c"), (), (), ()]) == frozenset()
    assert over_whom([("a", "b", "c"), ("a", "b", "c"), (), ()]) == {"a", "b", "c"}
    replies = updates(5)
    lie = bending("MakeKeys", "c3", lambda reply: replace(reply, before=(("c1", "c2", "c3"), ("c1", "c2", "c3"))))
    assert_mean(Acting(replies, lose=lie).run(), list(replies.values()), replies)


# ---- what too few hold


def test_numbers_that_too_few_clients_hold_stay_as_they_were() -> None:
    sent = ModelState({"w": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    changes = {
        "c0": torch.tensor([0.5, 0.5, 0.0, 0.0]),  # alone at place 1
        "c1": torch.tensor([0.5, 0.0, 0.5, 0.0]),
        "c2": torch.tensor([0.5, 0.0, 0.5, 0.0]),
    }
    replies = {client: Update({"w": sent.params["w"] + change}, 0.0, 1.0) for client, change in changes.items()}
    acting = Acting(replies, SumRules(min_holders=2), sent=sent)
    found = acting.run()
    wanted = torch.tensor([1.5, 2.0, 3.0 + 1 / 3, 4.0])
    assert torch.allclose(found.params["w"], wanted, atol=1e-6)  # type: ignore[attr-defined]
    assert acting.notes == ["1 of 4 numbers stay as they were: too few clients hold something there"]
    assert_mean(Acting(replies, sent=sent).run(), list(replies.values()), replies)


def test_who_weighs_nothing_is_no_holder() -> None:
    sent = ModelState({"w": torch.zeros(3)})
    replies = updates(4, weights=(1.0, 0.0, 1.0, 1.0))
    one = {client: Update({"w": torch.zeros(3)}, 0.0, reply.weight) for client, reply in replies.items()}
    one["c0"], one["c1"] = replies["c0"], replies["c1"]
    found = Acting(one, SumRules(min_holders=2), sent=sent).run()
    assert torch.allclose(found.params["w"], torch.zeros(3), atol=1e-6)  # type: ignore[attr-defined]


def test_holders_are_counted_without_weights_too() -> None:
    replies = {f"c{place}": Unweighted({"w": torch.tensor([float(place > 0), 1.0])}) for place in range(3)}
    replies["c1"] = Unweighted({"w": torch.tensor([0.0, 1.0])})
    sent = ModelState({"w": torch.zeros(2)})
    found = Acting(replies, SumRules(min_holders=2), sent=sent).run()
    assert torch.allclose(found.params["w"], torch.tensor([0.0, 1.0]), atol=1e-6)  # type: ignore[attr-defined]
