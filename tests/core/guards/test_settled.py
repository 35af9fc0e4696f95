"""What is settled stays settled, in a process and in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.core.errors import BadMessage
from isthmus.core.guards.settled import MOST_KEYS, Settled, SettledFile

Make = Callable[[], Settled]


@pytest.fixture(params=["process", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return what gives the same book again and again: of a file, a new object each time."""
    if request.param == "file":
        return lambda: SettledFile(tmp_path / "state" / "sums")
    book = Settled()
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


def test_a_reply_is_added_up_over_the_same_clients_only(make: Make) -> None:
    assert make().added("reply") == ()
    make().add_up("reply", ("b", "a", "c"))
    make().add_up("reply", ("a", "b", "c"))
    make().add_up("other", ("a", "b"))
    assert make().added("reply") == ("a", "b", "c")
    with pytest.raises(BadMessage, match="the difference of two sums"):
        make().add_up("reply", ("a", "b"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"k": 1}', b'{"k": [1]}', b"\xff\xfe"])
@pytest.mark.parametrize("name", ["keys", "replies"])
def test_a_damaged_file_gives_up_what_was_under_way(tmp_path: Path, name: str, content: bytes) -> None:
    said: list[str] = []
    first = SettledFile(tmp_path)
    first.open("k")
    first.add_up("reply", ("a", "b"))
    (tmp_path / name).write_bytes(content)
    book = SettledFile(tmp_path, said.append)
    if name == "keys":
        with pytest.raises(BadMessage, match="nothing is known of these keys"):
            book.settle("k", "cohort", b"abc")
    else:
        assert book.added("reply") == ()
    assert len(said) == 1 and f"{name} is damaged" in said[0]
    book.open("new")
    book.settle("new", "cohort", b"abc")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    book = SettledFile(tmp_path)
    book.open("k")
    book.add_up("reply", ("a", "b"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
