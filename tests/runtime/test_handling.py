from __future__ import annotations

import pytest

from isthmus.core.protocol import Failure
from isthmus.runtime.loop import Site, timed
from tests.runtime.toys import AT, Toy, ToyClient, Unknown, Update, train


@pytest.fixture
def site() -> Site:
    found = Site(Toy(), ToyClient("a"))
    found.answer(AT, train())
    return found


def test_the_handler_answers_and_the_client_knows_where_it_is(site: Site) -> None:
    reply = site.answer(AT, train())
    assert isinstance(reply, Update) and reply.params["w"].item() == 12.0
    assert site.client.position == AT and site.client.state["calls"] == 2


def test_a_handler_that_raises_is_a_failure_with_the_place(site: Site) -> None:
    reply = site.answer(AT, train("raises"))
    assert isinstance(reply, Failure) and (reply.client, reply.kind) == ("a", "error")
    assert reply.reason.startswith("ZeroDivisionError: nothing to divide by (in raises, line ")
    assert reply.reason.endswith(" of toys.py)")


def test_an_error_made_for_users_is_told_as_it_is(site: Site) -> None:
    assert site.answer(AT, train("refuses")) == Failure("a", "error", "the graph has no nodes")


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("remembers_a_list", "state of client a['calls']: found list"),
        ("remembers_an_object", "state of client a['deep']['x'][0]: found a ToyClient"),
        ("remembers_a_record", "state of client a['update']: found the record Update"),
        ("remembers_a_sparse_tensor", "state of client a['w']: found a sparse_coo tensor"),
        ("remembers_a_complex_tensor", "state of client a['w']: found a strided tensor of complex64"),
        ("remembers_a_number", "state of client a: found int '5', expected a dict"),
    ],
)
def test_a_memory_that_cannot_be_stored_is_a_failure_with_the_place(site: Site, how: str, place: str) -> None:
    reply = site.answer(AT, train(how))
    assert isinstance(reply, Failure) and reply.kind == "error" and reply.reason.startswith(place)
    assert site.client.state["calls"] == 1 and set(site.client.state) == {"calls", "params"}


@pytest.mark.parametrize("how", ["raises", "refuses"])
def test_the_memory_is_what_it_was_before_a_failure(site: Site, how: str) -> None:
    site.answer(AT, train(how))
    assert site.client.state["calls"] == 1 and site.client.state["params"]["w"].item() == 11.0
    site.answer(AT, train())
    assert site.client.state["calls"] == 2


def test_a_request_without_a_handler_is_a_failure(site: Site) -> None:
    assert site.answer(AT, Unknown()) == Failure("a", "error", "Toy has no handler for Unknown")


def test_an_interruption_goes_through(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Toy, request: object, client: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Toy, "raises", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.answer(AT, train("raises"))


def test_a_late_answer_is_a_failure_and_leaves_no_memory(site: Site) -> None:
    outcome = timed(site, AT, train("dawdles"), timeout_seconds=0.01)
    assert isinstance(outcome.reply, Failure) and outcome.reply.kind == "late"
    assert "the limit is 0.01 s" in outcome.reply.reason
    assert outcome.seconds >= 0.05 and site.client.state["calls"] == 1


def test_an_answer_in_time_is_measured_and_kept(site: Site) -> None:
    outcome = timed(site, AT, train("dawdles"), timeout_seconds=60.0)
    assert isinstance(outcome.reply, Update) and 0.05 <= outcome.seconds < 60
    assert site.client.state["calls"] == 2
    assert isinstance(timed(site, AT, train("dawdles"), None).reply, Update)
