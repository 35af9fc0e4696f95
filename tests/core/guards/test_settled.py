"""What is settled stays settled, in a process and in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.core.errors import BadMessage
from isthmus.core.guards.settled import MOST_KEYS, Settled, SettledFile

Make = Callable[[], Settled]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what gives the book of a process."""
    book = SettledFile(tmp_path / "settled")
    return lambda: book


def test_the_same_again_is_fine_and_anything_else_refused(make: Make) -> None:
    make().open("k")
    for _ in range(3):
        make().settle("k", "cohort", b"abc")
        make().settle("k", "view 0", b"v")
    with pytest.raises(BadMessage, match="cohort was settled in another way"):
        make().settle("k", "cohort", b"abd")
    make().settle("k", "cohort", b"abc")


def test_unknown_keys_and_known_ones_are_refused(make: Make) -> None:
    with pytest.raises(BadMessage, match="nothing is known of these keys"):
        make().settle("k", "cohort", b"abc")
    make().open("k")
    with pytest.raises(BadMessage, match="made once"):
        make().open("k")


def test_old_keys_are_forgotten_and_refused(make: Make) -> None:
    for number in range(MOST_KEYS + 1):
        make().open(f"k{number}")
    with pytest.raises(BadMessage, match="nothing is known"):
        make().settle("k0", "cohort", b"abc")
    make().settle("k1", "cohort", b"abc")


def test_keys_are_gone_with_the_process_and_answer_nothing_any_more(tmp_path: Path) -> None:
    first = SettledFile(tmp_path / "settled")
    first.open("k")
    first.under_way = {"root": 1}
    again = SettledFile(tmp_path / "settled")
    assert again.under_way == {} and not (tmp_path / "settled").exists()
    with pytest.raises(BadMessage, match="nothing is known of these keys"):
        again.settle("k", "cohort", b"abc")


def test_what_is_settled_for_good_outlives_keys_and_the_process(tmp_path: Path) -> None:
    book = SettledFile(tmp_path / "settled")
    book.settle_for_good("sums of a course", b"abc")
    book.settle_for_good("sums of a course", b"abc")
    for number in range(MOST_KEYS + 1):
        book.open(f"k{number}")
    for again in (book, SettledFile(tmp_path / "settled")):
        again.add_up("reply", ("a", "b"))
        again.settle_for_good("sums of another course", b"abd")
        with pytest.raises(BadMessage, match="sums of a course was settled in another way"):
            again.settle_for_good("sums of a course", b"abd")


def test_each_kind_of_entries_has_its_own_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.guards.settled.MOST_REPLIES", 3)
    monkeypatch.setattr("isthmus.core.guards.settled.MOST_FOR_GOOD", 3)
    book = SettledFile(tmp_path / "settled")
    book.settle_for_good("first", b"a")
    for number in range(5):
        book.add_up(f"r{number}", ("a", "b"))
    for _ in range(2):
        with pytest.raises(BadMessage, match="settled in another way"):
            book.settle_for_good("first", b"b")
        book = SettledFile(tmp_path / "settled")
    for number in range(5):
        book.settle_for_good(f"s{number}", b"a")
    assert SettledFile(tmp_path / "settled").added("r4") == ("a", "b")
    SettledFile(tmp_path / "settled").settle_for_good("first", b"b")  # the oldest of many is forgotten


@pytest.mark.parametrize("of_file", [False, True])
def test_a_reply_is_added_up_over_the_same_clients_only(of_file: bool, tmp_path: Path) -> None:
    book = Settled()
    made = (lambda: SettledFile(tmp_path / "settled")) if of_file else (lambda: book)
    assert made().added("reply") == ()
    made().add_up("reply", ("b", "a", "c"))
    made().add_up("reply", ("a", "b", "c"))
    made().add_up("other", ("a", "b"))
    assert made().added("reply") == ("a", "b", "c")
    with pytest.raises(BadMessage, match="the difference of two sums"):
        made().add_up("reply", ("a", "b"))


def test_a_book_has_a_bounded_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.guards.settled.MOST_REPLIES", 3)
    book = SettledFile(tmp_path / "settled")
    for number in range(5):
        book.add_up(f"r{number}", ("a", "b"))
    assert [SettledFile(book.path).added(f"r{number}") for number in range(5)] == [(), ()] + [("a", "b")] * 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"k": 1}', b'{"k": [1]}', b"\xff\xfe", b'{"added": {}}'])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    said: list[str] = []
    path = tmp_path / "settled"
    SettledFile(path).add_up("reply", ("a", "b"))
    path.write_bytes(content)
    book = SettledFile(path, said.append)
    assert book.added("reply") == ()
    assert len(said) == 1 and "settled is damaged" in said[0]
    book.add_up("reply", ("a", "b", "c"))
    assert SettledFile(path, said.append).added("reply") == ("a", "b", "c") and len(said) == 1


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    SettledFile(tmp_path / "settled").add_up("reply", ("a", "b"))
    assert (tmp_path / "settled").stat().st_mode & 0o777 == 0o600
