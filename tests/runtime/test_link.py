"""What a link refuses before it keeps anything; the link itself is tested with real processes in tests/federation."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

from isthmus.runtime.flare.link import PART_BYTES, _head_problem

HEAD = {"kind": "exchange", "ident": "i", "message": "m", "number": 0, "size": 10}


def problem(num_bytes: int = 10, max_bytes: int = 1000, **changes: Any) -> str:
    return _head_problem({**HEAD, **changes}, num_bytes, max_bytes)


def test_a_message_that_fits_is_fine_whole_or_in_parts() -> None:
    assert problem() == ""
    assert problem(0, size=0) == ""
    big = 2 * PART_BYTES + 5
    for number, num_bytes in enumerate((PART_BYTES, PART_BYTES, 5)):
        assert problem(num_bytes, max_bytes=big, size=big, number=number) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": 10**13}, "announces 10000000000000 bytes, the limit is 1000"),  # a bomb
        ({"size": 1001}, "the limit is 1000"),
        ({"size": -5}, "misnumbered"),
        ({"size": "10"}, "misnumbered"),
        ({"size": True}, "misnumbered"),
        ({"number": 1}, "misnumbered"),
        ({"number": -1}, "misnumbered"),
        ({"size": 11}, "does not fit the 11 announced"),
        ({"kind": None}, "malformed"),
        ({"ident": "x" * 65}, "malformed"),
        ({"message": 7}, "malformed"),
    ],
)
def test_a_head_that_lies_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert reason in problem(**changes)
