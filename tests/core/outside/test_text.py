from __future__ import annotations

import pytest

from isthmus.core.outside import MAX_NAME, MAX_TEXT, foreign, named
from isthmus.core.protocol import Failure
from isthmus.core.record import foreign_texts


def test_a_text_from_elsewhere_is_one_line_of_printable_characters() -> None:
    assert foreign("a\nb\r\n\tc\x1b[31md\x00\u202ee") == "a?b???c?[31md??e"
    assert foreign("Grüße, 中文 [bold]") == "Grüße, 中文 [bold]"


@pytest.mark.parametrize("length", [MAX_TEXT, MAX_TEXT + 1, 10**7])
def test_a_text_from_elsewhere_is_cut(length: int) -> None:
    found = foreign("x" * length)
    assert len(found) == MAX_TEXT
    assert found.endswith("...") == (length > MAX_TEXT)


def test_a_name_is_quoted_and_cut() -> None:
    assert named("w") == "'w'"
    assert named("a\nb") == "'a\\nb'"
    assert named(7) == "7"
    assert len(named("x" * 10**6)) < MAX_NAME + 10
    assert len(named(10**4000)) <= 2 * MAX_NAME


def test_every_text_of_a_record_is_cut_and_cleaned_and_nothing_else_changes() -> None:
    found = foreign_texts(Failure("bank-a", "late", "\x1b[2J" + "x" * 10**6), 20)
    assert found == Failure("bank-a", "late", "?[2J" + "x" * 13 + "...")
