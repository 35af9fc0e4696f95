"""Masks: even, in pairs that cancel, and never the same for anything else."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from isthmus.core.codec import pack
from isthmus.privacy.secure_sum import keys
from isthmus.privacy.secure_sum.masks import (
    Words,
    context_of,
    group_context,
    own_mask,
    pair_mask,
    sign_of,
    terms_context,
)
from isthmus.privacy.secure_sum.stages import Keys, SealedShares, Sum
from tests.privacy.secure_sum.acting import Acting, Update, updates
from tests.sites.sums.watching import bound_of

SUM = Sum("a", "course", 1, 0)


def words(narrow: int, wide: int, kind: type = np.uint32) -> Words:
    return Words(np.zeros(narrow, kind), np.zeros(wide, np.uint64))


def public(secret: bytes = b"") -> Keys:
    asked = torch.zeros(32, dtype=torch.uint8)
    return Keys(torch.stack([pack(keys.public_of(secret or os.urandom(32))) for _ in range(3)]), asked, "")


@pytest.mark.parametrize("part", range(4))
def test_masked_words_are_even_in_every_byte(part: int) -> None:
    """Chi-square over 2^20 masked words of one client, whose numbers are all the same."""
    size = 2**20
    same = {f"c{place}": Update({"w": torch.full((size,), 0.5)}, 0.0, 1.0) for place in range(3)}
    acting = Acting(same)
    acting.run()
    (sent,) = [reply for stage, client, reply in acting.seen if (stage, client) == ("SendMasked 1", "c0")]
    found = sent.narrow.numpy().view(np.uint8).reshape(-1, 4)[:, part]  # type: ignore[attr-defined]
    counts = np.bincount(found, minlength=256)
    assert len(found) == size
    assert stats.chisquare(counts).pvalue > 1e-9  # keys are drawn anew each time: at 1e-4 chance alone turned it red


def test_neighbouring_words_of_a_mask_are_even_together() -> None:
    """Chi-square over the pairs of the lowest and highest nibbles of 2^21 neighbouring words."""
    mask = words(2**21, 0)
    mask.add(bytes(range(32)), 1)
    first, second = mask.narrow[0::2] >> 28, mask.narrow[1::2] & 15
    counts = np.bincount(first * 16 + second, minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 1), (2, 3), (7, 0), (70_001, 2)])
def test_a_mask_that_is_added_and_taken_off_leaves_nothing(kind: type, sizes: tuple[int, int]) -> None:
    found, key = words(*sizes, kind=kind), os.urandom(32)
    found.add(key, 1)
    assert found.narrow.any() or found.wide.any()
    found.add(key, -1)
    assert not found.narrow.any() and not found.wide.any()


def test_the_two_kinds_of_words_have_different_parts_of_the_stream() -> None:
    found = words(4, 2)
    found.add(os.urandom(32), 1)
    assert found.narrow.tobytes() != found.wide.tobytes()


def test_pairs_agree_and_add_with_opposite_signs() -> None:
    mine, theirs = os.urandom(32), os.urandom(32)
    assert pair_mask(mine, keys.public_of(theirs), b"x") == pair_mask(theirs, keys.public_of(mine), b"x")
    assert sign_of("a", "b") == -sign_of("b", "a") == 1


def test_a_key_is_bound_to_course_round_exchange_attempt_cohort_and_terms() -> None:
    one, two, other = public(), public(), public()
    cohort = {"a": one, "b": two}
    contexts = [
        context_of(SUM, cohort),
        context_of(replace(SUM, name="b"), cohort),
        context_of(replace(SUM, course="another"), cohort),
        context_of(replace(SUM, round=2), cohort),
        context_of(replace(SUM, exchange=1), cohort),
        context_of(SUM, {"a": one}),
        context_of(SUM, {"a": one, "c": two}),
        context_of(SUM, {"a": two, "b": one}),
        context_of(SUM, {"a": one, "b": other}),
        context_of(SUM, {"a": one, "b": replace(two, asked=two.asked + 1)}),
        context_of(SUM, {**cohort, "c": other}),
    ]
    sums = [group_context(context, which, group) for context in contexts for which in (0, 1) for group in ("ab", "a")]
    few = torch.tensor([True, False])
    terms = [(1.0, few), (2.0, few), (1.0, ~few), (1.0, few[:1]), (1.0, few[:0])]
    bound = [terms_context(each, *told) for each in sums for told in terms]
    secret = os.urandom(32)
    keys_made = [make for at in bound for make in (own_mask(secret, at), pair_mask(secret, keys.public_of(secret), at))]
    assert len(set(keys_made)) == len(keys_made)


def test_the_order_in_which_a_cohort_is_told_does_not_matter() -> None:
    one, two = public(), public()
    assert context_of(SUM, {"a": one, "b": two}) == context_of(SUM, {"b": two, "a": one})
    assert group_context(b"x", 0, ("a", "b")) == group_context(b"x", 0, ("b", "a"))


def test_no_two_sums_have_a_mask_in_common() -> None:
    """The same replies in two attempts, and in both parts of one sum: all words are others."""
    same = {f"c{place}": Update({"w": torch.full((50,), 0.5)}, 0.0, 1.0) for place in range(3)}
    found = []
    for attempt in ("first", "second"):
        acting = Acting(same, attempt=attempt)
        acting.run()
        found += [reply.wide for stage, client, reply in acting.seen if stage.startswith("SendMasked")]  # type: ignore
        found += [reply.weight for stage, client, reply in acting.seen if stage == "ShareSecrets"]  # type: ignore
    values = sorted(int(word) for wide in found for word in wide)
    assert all(a != b for a, b in pairwise(values))


def test_what_bounds_weights_are_even_words_of_which_only_the_sum_of_all_says_anything() -> None:
    """Chi-square over the bytes of one client's in many sums; whoever is missing keeps the sum as odd."""
    weights, found = (3.0, 5.0, 0.25, 100.0), []
    replies = updates(4, weights=weights)
    for attempt in range(300):
        acting = Acting(replies, attempt=str(attempt))
        acting.server.shared(stage_one(acting))
        assert acting.server.total == sum(map(bound_of, weights))
        sent = {client: int(reply.weight) for stage, client, reply in acting.seen if stage == "ShareSecrets"}  # type: ignore
        found.append(sent["c1"])
        for missing in sent:
            rest = sum(number for client, number in sent.items() if client != missing) % 2**64
            plain = sum(bound_of(w) for c, w in zip(sent, weights, strict=True) if c != missing)
            assert abs(rest / 2**20 - plain) > 1.0
    counts = np.bincount(np.array(found, dtype=np.int64).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-9


def stage_one(acting: Acting) -> dict[str, SealedShares]:
    """Return what clients deal."""
    acting.server.keyed(acting.ask(dict.fromkeys(acting.replies, acting.server.make_keys()), acting.server.odd_forms))
    return acting.ask(acting.server.share_secrets())


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 1), (3, 2), (16_384, 1), (16_385, 3), (70_001, 8_200)])
def test_a_mask_is_the_stream_of_its_key_from_the_start_and_each_row_begins_at_eight_bytes(
    kind: type, sizes: tuple[int, int]
) -> None:
    found, key = words(*sizes, kind=kind), os.urandom(32)
    found.add(key, 1)
    begin = -(-found.narrow.nbytes // 8) * 8
    stream = keys.stream(key, begin + found.wide.nbytes)
    assert found.narrow.tobytes() == stream[: found.narrow.nbytes]
    assert found.wide.tobytes() == stream[begin:]
