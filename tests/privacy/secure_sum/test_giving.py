"""The client half: what it holds, what it refuses, and what a server that asks twice does not get."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.core.codec import pack
from isthmus.core.errors import BadMessage, CourseFailed, TooFewReplies
from isthmus.core.guards.settled import Settled
from isthmus.core.protocol import ModelState
from isthmus.core.random import digest
from isthmus.privacy.secure_sum.adding import Adding
from isthmus.privacy.secure_sum.giving import Giver
from isthmus.privacy.secure_sum.rules import SumRules
from isthmus.privacy.secure_sum.stages import (
    ConfirmView,
    MakeKeys,
    RevealShares,
    SendMasked,
    ShareSecrets,
    Sum,
)
from tests.privacy.secure_sum.acting import Acting, stage_of, updates
from tests.sites.sums.watching import bound_of

SENT = ModelState({"w": torch.zeros(3)})
RULES = SumRules()
COUNTING = SumRules(min_holders=2)
STAGES_OF_SHARES = (("RevealShares 1", RULES), ("RevealShares 0", COUNTING), ("RevealShares 1", COUNTING))


# ---- what the server says


Bend = Any


def refused(
    bend: Bend, number: int = 4, rules: SumRules = RULES, weights: tuple[float, ...] = (), **more: Any
) -> dict[str, str]:
    """Return what clients refuse of requests that are bent, by client."""
    acting = Acting(updates(number, weights=weights), rules, bend=bend, **more)
    try:
        acting.run()
    except Exception as error:  # a server that bends what it sends gets no sum; how it ends is its affair
        acting.notes.append(str(error))
    return acting.refusals


def at(stage: str, client: str, change: Any) -> Bend:
    return lambda where, who, request: change(request) if (where, who) == (stage, client) else request


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda sum: replace(sum, course="another"), "this client takes part in another"),
        (lambda sum: replace(sum, round=2), "what is held is of round and exchange"),
        (lambda sum: replace(sum, exchange=1), "what is held is of round and exchange"),
    ],
)
def test_keys_are_made_for_what_is_held_only(change: Any, why: str) -> None:
    assert why in refused(at("MakeKeys", "c1", lambda request: replace(request, sum=change(request.sum))))["c1"]


@pytest.mark.parametrize("stage", ["ShareSecrets", "SendMasked 1", "RevealShares 1"])
@pytest.mark.parametrize("change", [{"name": "second"}, {"course": "x"}, {"round": 2}, {"exchange": 3}])
def test_keys_answer_for_their_own_sum_only(stage: str, change: dict[str, Any]) -> None:
    bend = at(stage, "c1", lambda request: replace(request, sum=replace(request.sum, **change)))
    assert refused(bend)["c1"] == "this client made no keys for this sum"


def without(name: str, peer: str) -> Any:
    def change(request: Any) -> Any:
        cohort = {client: keys for client, keys in request.cohort.items() if client != peer}
        return replace(request, **{name: cohort})

    return change


def swapped(request: ShareSecrets) -> ShareSecrets:
    return replace(request, cohort={**request.cohort, "c1": request.cohort["c2"]})


def twice(request: ShareSecrets) -> ShareSecrets:
    return replace(request, cohort={**request.cohort, "c3": request.cohort["c2"]})


def short(request: ShareSecrets) -> ShareSecrets:
    odd = replace(request.cohort["c2"], public=torch.zeros(2, 31, dtype=torch.uint8))
    return replace(request, cohort={**request.cohort, "c2": odd})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (swapped, "the keys that are said to be this client's are not"),
        (without("cohort", "c1"), "the keys that are said to be this client's are not"),
        (twice, "the same public key occurs twice"),
        (short, "public keys are 2 of 32 bytes"),
        (lambda request: replace(request, cohort={"c1": request.cohort["c1"]}), "the sum is to be over 1 clients"),
    ],
)
def test_cohorts_that_cannot_be_are_refused(change: Any, why: str) -> None:
    assert why in refused(at("ShareSecrets", "c1", change))["c1"]


def test_a_cohort_below_the_least_is_refused() -> None:
    def smaller(request: ShareSecrets) -> ShareSecrets:
        return replace(request, cohort={client: request.cohort[client] for client in ("c0", "c1", "c2")})

    why = refused(at("ShareSecrets", "c1", smaller), rules=SumRules(min_cohort=4))["c1"]
    assert "the sum is to be over 3 clients; from 4" in why


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (("c1",), "1 clients are left of 4; the sum needs 3"),
        (("c0", "c1"), "2 clients are left of 4; the sum needs 3"),
        (("c0", "c2", "c3"), "those whose masks are to count are not this client"),
        (("c0", "c1", "c1", "c2"), "those whose masks are to count are not this client"),
        (("c0", "c1", "c2", "c9"), "those whose masks are to count are not this client"),
    ],
)
def test_groups_that_cannot_be_are_refused(group: tuple[str, ...], why: str) -> None:
    for stage, rules in (("SendMasked 1", RULES), ("SendMasked 0", COUNTING)):
        bend = at(stage, "c1", lambda request: replace(request, group=group))
        assert why in refused(bend, rules=rules)["c1"]


def test_numbers_are_sent_after_the_weights_and_to_the_same() -> None:
    def first(request: SendMasked) -> SendMasked:
        return replace(request, which=1)

    early = refused(at("SendMasked 0", "c1", first), rules=COUNTING)["c1"]
    assert "it has to be counted who holds what before the numbers" in early
    others = at("SendMasked 1", "c1", lambda request: replace(request, group=("c0", "c1", "c2")))
    for rules in (RULES, COUNTING):
        assert "others are to be in the sum of the numbers" in refused(others, rules=rules)["c1"]


def test_sums_that_are_not_made_are_refused() -> None:
    for which in (0, 2, -1):
        bend = at("SendMasked 1", "c1", lambda request, which=which: replace(request, which=which))
        assert f"there is no sum {which} here" in refused(bend)["c1"]


def test_shares_that_do_not_come_from_all_others_are_refused() -> None:
    bend = at("SendMasked 1", "c1", lambda request: replace(request, sealed=request.sealed[:-1]))
    assert "shares of 3 others are to come, found (2, " in refused(bend)["c1"]


def test_a_smaller_total_is_refused_where_it_shows() -> None:
    bend = at("SendMasked 1", "c1", lambda request: replace(request, total=0.5))
    assert "what bounds all weights is said to be 0.5 in all" in refused(bend)["c1"]


def test_what_too_few_hold_must_have_the_form_of_what_is_held() -> None:
    bend = at("SendMasked 1", "c1", lambda request: replace(request, few=torch.ones(2, dtype=torch.bool)))
    assert "in the form of what is added up" in refused(bend)["c1"]


# ---- who is left


@pytest.mark.parametrize(
    ("alive", "why"),
    [
        (("c0", "c2", "c3"), "who is said to be left are not this client"),
        (("c0", "c1"), "2 clients are left; the sum needs 3"),
        (("c0", "c1", "c1", "c2"), "who is said to be left are not this client"),
        (("c0", "c1", "c2", "c3", "c9"), "who is said to be left are not this client"),
    ],
)
def test_views_that_cannot_be_are_refused(alive: tuple[str, ...], why: str) -> None:
    for stage, rules in STAGES_OF_SHARES:
        bend = at(stage, "c1", lambda request: replace(request, alive=alive))
        assert why in refused(bend, rules=rules)["c1"]


def test_nobody_is_called_lost_without_confirmations() -> None:
    for stage, rules in STAGES_OF_SHARES:
        bend = at(stage, "c1", lambda request: replace(request, alive=("c0", "c1", "c2")))
        assert "1 clients confirmed that 3 of 4 are left" in refused(bend, rules=rules)["c1"]


def lost_one(stage: str, client: str, reply: Any) -> Any:
    return None if (stage, client) == ("SendMasked 1", "c3") else reply


def test_tags_of_another_view_or_for_another_count_for_nothing() -> None:
    def turned(request: RevealShares) -> RevealShares:
        names, tags = list(request.tags), list(request.tags.values())
        return replace(request, tags=dict(zip(names, tags[1:] + tags[:1], strict=True)))

    def forged(request: RevealShares) -> RevealShares:
        return replace(request, tags={peer: tag.flip(0) for peer, tag in request.tags.items()})

    def cut(request: RevealShares) -> RevealShares:
        return replace(request, tags={peer: tag[:5] for peer, tag in request.tags.items()})

    for change in (turned, forged, cut):
        assert (
            "clients confirmed that 3 of 4 are left" in refused(at("RevealShares 1", "c1", change), lose=lost_one)["c1"]
        )


def test_a_view_that_was_confirmed_is_the_only_one_that_is_answered() -> None:
    """The server has c1 confirm that c3 is lost, and then asks for what is told when nobody is."""
    bend = at("RevealShares 1", "c1", lambda request: replace(request, alive=request.group, tags={}))
    assert "view 1 was settled in another way" in refused(bend, lose=lost_one)["c1"]


# ---- a server that tells clients different things, so that the sum is of one


def alone(change: Any, stage: str = "SendMasked 1", rules: SumRules = RULES, **more: Any) -> tuple[Any, Any]:
    """Return what c1 holds, and what a server makes of the sum that tells all others something else."""
    replies = updates(4)

    def bend(where: str, client: str, request: Any) -> Any:
        return change(request) if where == stage and client != "c1" else request

    acting = Acting(replies, rules, bend=bend, **more)
    raw: list[Any] = []
    uncovered = acting.server.uncovered
    acting.server.uncovered = lambda *parts: raw.append(uncovered(*parts)) or raw[-1]  # type: ignore
    with contextlib.suppress(CourseFailed, TooFewReplies):
        acting.run()
    way = rules.narrow(4)
    found = [way.numbers(words.narrow) * acting.server.total for words in raw[-1:]]
    return replies["c1"].params["w"].double() * replies["c1"].weight, found[0] if found else None


def test_a_sum_in_which_others_count_for_nothing_does_not_come_out() -> None:
    """Were all others told a total that makes theirs nothing, the sum would be what one client holds."""
    mine, found = alone(lambda request: replace(request, total=2.0**60))
    assert not torch.allclose(mine, found, atol=1e-2)


def test_a_sum_in_which_others_send_what_they_were_sent_does_not_come_out() -> None:
    every = torch.ones(3, dtype=torch.bool)
    mine, found = alone(lambda request: replace(request, few=every), rules=COUNTING)
    assert not torch.allclose(mine, found, atol=1e-2)


def test_clients_that_were_asked_different_things_are_in_no_sum_together() -> None:
    """Others could be sent a model that leaves nothing to be learned, so that the sum would be one client's."""
    sent = {**{f"c{place}": SENT for place in range(4)}, "c1": ModelState({"w": torch.ones(3)})}
    honest = Acting(updates(4), sent=sent)
    honest.run()
    assert honest.failures == {"c1": "it says that it was asked for something else than most were"}

    acting = Acting(updates(4), sent=sent)
    odd_forms = acting.server.odd_forms
    asked = torch.zeros(32, dtype=torch.uint8)

    def trusting(replies: Any) -> Any:
        odd_forms({client: replace(r, keys=replace(r.keys, asked=asked)) for client, r in replies.items()})
        return {}

    acting.server.odd_forms = trusting  # type: ignore[method-assign]
    with pytest.raises(TooFewReplies):
        acting.run()
    assert acting.refusals["c0"] == "the keys of 'c1': it was asked something else"
    assert acting.refusals["c1"] == "the keys of 'c0': it was asked something else"


def test_clients_that_are_told_that_all_were_asked_for_the_same_have_masks_that_come_off_no_sum() -> None:
    """A server that forges what others were asked, where nobody signs, has told two cohorts of it."""
    sent = {**{f"c{place}": SENT for place in range(4)}, "c1": ModelState({"w": torch.ones(3)})}
    told = {client: digest({"sent": request}) for client, request in sent.items()}

    def forged(where: str, client: str, request: Any) -> Any:
        if where != "ShareSecrets":
            return request
        mine = pack(told[client])
        return replace(request, cohort={peer: replace(keys, asked=mine) for peer, keys in request.cohort.items()})

    acting = Acting(updates(4), sent=sent, bend=forged)
    odd_forms = acting.server.odd_forms
    acting.server.odd_forms = lambda replies: odd_forms(  # type: ignore[method-assign]
        {client: replace(r, keys=replace(r.keys, asked=pack(told["c0"]))) for client, r in replies.items()}
    )
    bounds: list[int] = []
    weighed = acting.server.weighed
    acting.server.weighed = lambda words, number: bounds.append(int(words[0])) or weighed(words, number)  # type: ignore
    with contextlib.suppress(CourseFailed):
        acting.run()
    wanted = sum(2**20 * bound_of(reply.weight) for reply in updates(4).values())  # type: ignore[attr-defined]
    assert not acting.refusals and abs(bounds[0] - wanted) > 2**40


def test_a_sum_that_is_begun_anew_without_one_does_not_tell_its_weight() -> None:
    """But for the power of two above it: the server can have the weights of several cohorts added up."""
    weights = (5.0, 40.0, 3.0, 17.0)
    totals = []
    for lost in ((), ("c1",)):
        acting = Acting({c: reply for c, reply in updates(4, weights=weights).items() if c not in lost})
        acting.run()
        totals.append(acting.server.total)
    assert totals[0] - totals[1] == 64.0


def test_what_a_client_refuses_tells_no_more_of_its_weight() -> None:
    def asked(total: float) -> dict[str, str]:
        return refused(
            at("SendMasked 1", "c1", lambda request: replace(request, total=total)),
            rules=RULES,
            weights=(5.0, 40.0, 3.0, 17.0),
        )

    assert [("c1" in asked(total)) for total in (33.0, 40.0, 63.0, 64.0, 80.0)] == [True, True, True, False, False]


# ---- memories that are rolled back


def answered_twice(stage: str, change: Any, settled: bool = True) -> tuple[Any, Any, str]:
    """Return what c1 answers at a stage, and what it answers from the memory of before to a request that is changed."""
    acting = Acting(updates(4), COUNTING if stage.endswith("0") else RULES)
    found: list[Any] = []
    plain = acting.handled

    def handled(client: str, request: Any) -> Any:
        before = acting.memories[client]
        reply = plain(client, request)
        if (stage_of(request), client) == (stage, "c1"):
            after, acting.memories[client] = acting.memories[client], before
            try:
                found.extend([reply, plain(client, change(request)), ""])
            except BadMessage as error:
                found.extend([reply, None, str(error)])
            acting.memories[client] = after
        return reply

    acting.handled = handled  # type: ignore[method-assign]
    acting.run()
    return tuple(found)  # type: ignore[return-value]


@pytest.mark.parametrize("stage", ["ShareSecrets", "SendMasked 0", "SendMasked 1", "RevealShares 0", "RevealShares 1"])
def test_the_same_question_again_gets_the_same_answer(stage: str) -> None:
    first, second, _ = answered_twice(stage, lambda request: request)
    assert repr(first) == repr(second)


def fewer(request: SendMasked) -> SendMasked:
    group = tuple(client for client in request.group if client != "c3")
    return replace(request, group=group, sealed=request.sealed[:-1])


@pytest.mark.parametrize(
    ("stage", "change", "why"),
    [
        ("ShareSecrets", without("cohort", "c3"), "cohort was settled in another way"),
        ("SendMasked 0", fewer, "masked 0 was settled in another way"),
        ("SendMasked 1", lambda request: replace(request, total=9999.0), "masked 1 was settled in another way"),
        (
            "RevealShares 0",
            lambda request: replace(request, alive=("c0", "c1", "c2")),
            "view 0 was settled in another way",
        ),
        (
            "RevealShares 1",
            lambda request: replace(request, alive=("c0", "c1", "c3")),
            "view 1 was settled in another way",
        ),
    ],
)
def test_another_question_from_an_earlier_memory_is_refused(stage: str, change: Any, why: str) -> None:
    _, second, refusal = answered_twice(stage, change)
    assert second is None and why in refusal


def test_no_client_tells_both_shares_of_another() -> None:
    """Whatever a server asks of memories that it rolls back, of each client one kind of share comes out."""
    kinds: dict[str, set[bytes]] = {}

    class Greedy(Acting):
        def handled(self, client: str, request: Any) -> Any:
            before = self.memories[client]
            reply = super().handled(client, request)
            if isinstance(request, RevealShares) and client == "c1":
                after = self.memories[client]
                for peer, share in zip(reply.of, reply.shares, strict=True):  # type: ignore[attr-defined]
                    kinds.setdefault(f"{request.which} {peer}", set()).add(bytes(share.tolist()))
                for lost in ("c0", "c2", "c3"):
                    alive = tuple(name for name in request.group if name != lost)
                    for again in (
                        ConfirmView(request.sum, request.which, alive),
                        RevealShares(request.sum, request.which, request.group, alive, request.tags),
                    ):
                        self.memories[client] = before
                        with pytest.raises(BadMessage):
                            super().handled(client, again)
                self.memories[client] = after
            return reply

    for rules, sums in ((RULES, 1), (COUNTING, 2)):
        kinds.clear()
        Greedy(updates(4), rules).run()
        assert len(kinds) == 4 * sums and all(len(shares) == 1 for shares in kinds.values())


def _keyed_as_if_new(server: Adding, replies: Any) -> None:
    Adding.keyed(server, {client: replace(reply, before=((), ())) for client, reply in replies.items()})


def test_a_second_sum_of_the_same_reply_over_others_is_refused() -> None:
    """Two sums of which one lacks a client would show what that client sent."""
    books = {f"c{place}": Settled() for place in range(4)}
    replies = updates(4)
    Acting(replies, settled=books).run()
    Acting(replies, settled=books, attempt="second").run()  # the same clients: the same sum
    third = Acting(
        replies, settled=books, attempt="third", lose=lambda stage, client, reply: None if client == "c3" else reply
    )
    with pytest.raises(TooFewReplies, match=r"over clients of whom c3 made no keys now.*the same clients are needed"):
        third.run()
    deaf = Acting(replies, settled=books, attempt="deaf", lose=third.lose)
    deaf.server.keyed = lambda found: _keyed_as_if_new(deaf.server, found)  # type: ignore[method-assign]
    with pytest.raises(TooFewReplies, match="0 clients told their shares"):
        deaf.run()
    assert "the difference of two sums would show" in deaf.refusals["c0"]
    other = Acting(replies, settled=books, attempt="fourth", at=(2, 0), lose=third.lose)
    other.run()  # of another round


def test_without_its_keys_a_client_answers_nothing() -> None:
    giver = Giver("c0", SumRules(), "course", Settled())
    wanted = Sum("a", "course", 1, 0)
    with pytest.raises(BadMessage, match="there is nothing to add up"):
        giver.make_keys({}, MakeKeys(wanted, 1), os.urandom(32))
    memory, _ = giver.held(updates(1)["c0"], SENT, (1, 0))
    with pytest.raises(BadMessage, match="made no keys for this sum"):
        nothing = torch.empty(0, 0, dtype=torch.uint8)
        giver.send_masked(memory, SendMasked(wanted, 1, ("c0",), nothing, 1.0, torch.empty(0), 0, 0, 32))
    memory, _ = giver.make_keys(memory, MakeKeys(wanted, 1), os.urandom(32))
    with pytest.raises(BadMessage, match="dealt no shares for this sum"):
        giver.confirm_view(memory, ConfirmView(wanted, 1, ("c0",)))


def test_nothing_is_left_in_memory_after_a_sum_and_no_secret_in_a_message() -> None:
    roots: list[bytes] = []

    class Watched(Acting):
        def handled(self, client: str, request: Any) -> Any:
            reply = super().handled(client, request)
            if "root" in self.memories[client]:
                roots.append(bytes(self.memories[client]["root"].tolist()))
            return reply

    acting = Watched(updates(4))
    acting.run()
    assert all(memory == {} for memory in acting.memories.values())
    from isthmus.core.codec import encode

    assert len(set(roots)) == 4
    for _, _, reply in acting.seen:
        assert not any(root in encode(reply) for root in set(roots))


# ---- signatures


class Hand:
    """Signs by a secret that all hands have in common; good enough to see who asks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sign(self, text: bytes) -> str:
        return f"{self.name} {text.hex()}"

    def problem(self, client: str, text: bytes, signature: str) -> str:
        return "" if signature == f"{client} {text.hex()}" else "it is not signed by its client"


def signed(bend: Bend) -> Acting:
    acting = Acting(updates(4), bend=bend)
    acting.givers = {name: replace(giver, signer=Hand(name)) for name, giver in acting.givers.items()}
    return acting


def test_keys_that_are_signed_by_their_clients_are_taken() -> None:
    assert signed(lambda stage, client, request: request).run()


@pytest.mark.parametrize("what", ["the channel's", "the masks'", "signature"])
def test_keys_that_a_server_puts_in_place_of_anothers_are_refused(what: str) -> None:
    def forged(request: ShareSecrets) -> ShareSecrets:
        keys = request.cohort["c2"]
        if what == "signature":
            keys = replace(keys, signature=keys.signature + "!")
        else:
            first, second = keys.public
            keys = replace(
                keys, public=torch.stack([first.flip(0), second] if "ch" in what else [first, second.flip(0)])
            )
        return replace(request, cohort={**request.cohort, "c2": keys})

    acting = signed(at("ShareSecrets", "c1", forged))
    acting.run()
    assert acting.refusals["c1"] == "the keys of 'c2': it is not signed by its client"
