"""Messages in parts arrive whole, in whatever order the engine hands their parts over."""

from __future__ import annotations

import random
import sys

import pytest

from isthmus.runtime.flare.message_parts import MAX_UNFINISHED, NUM_REMEMBERED, PART_BYTES, Assembly, num_parts
from tests.core.test_codec_limits import grown_by

LIMIT = 1 << 30


def parts_of(name: str, data: bytes) -> list[tuple[dict[str, object], bytes]]:
    """A message as a link sends it."""
    return [
        (
            {"message": name, "ident": f"ident of {name}", "size": len(data), "number": number},
            data[number * PART_BYTES : (number + 1) * PART_BYTES],
        )
        for number in range(num_parts(len(data)))
    ]


def content(seed: int, num_bytes: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


@pytest.mark.parametrize("seed", range(5))
def test_messages_whose_parts_are_mixed_and_repeated_arrive_once_each(seed: int) -> None:
    sent = {f"m{k}": content(k, size) for k, size in enumerate((3 * PART_BYTES, 2 * PART_BYTES + 7, 0, PART_BYTES))}
    parts = [part for name, data in sent.items() for part in parts_of(name, data)]
    parts *= 2
    random.Random(seed).shuffle(parts)
    assembly, found = Assembly(LIMIT), {}
    for head, data in parts:
        whole, given_up = assembly.add(head, data)
        assert not given_up
        if whole is not None:
            assert head["message"] not in found
            found[head["message"]] = whole
    assert found == sent


def test_beyond_the_limit_of_bytes_the_oldest_message_is_given_up_and_named() -> None:
    assembly = Assembly(max_bytes=3 * PART_BYTES)
    first, second = parts_of("a", content(1, 3 * PART_BYTES)), parts_of("b", content(2, 3 * PART_BYTES))
    for part in (first[0], first[1], second[0]):
        assert assembly.add(*part) == (None, [])
    assert assembly.add(*second[1]) == (None, ["ident of a"])
    assert assembly.add(*first[2]) == (None, [])  # what still comes of it opens nothing new
    assert assembly.add(*second[2])[0] == content(2, 3 * PART_BYTES)


def test_messages_that_never_end_are_bounded_in_number_and_make_room() -> None:
    assembly = Assembly(LIMIT)
    given_up = []
    for number in range(3 * MAX_UNFINISHED):
        given_up += assembly.add(*parts_of(f"m{number}", bytes(2 * PART_BYTES))[0])[1]
    assert given_up == [f"ident of m{number}" for number in range(2 * MAX_UNFINISHED)]
    assert assembly._num_bytes == MAX_UNFINISHED * PART_BYTES


def test_what_is_remembered_of_messages_that_are_over_is_bounded() -> None:
    assembly = Assembly(LIMIT)
    for number in range(2 * NUM_REMEMBERED):
        assert assembly.add(*parts_of(f"m{number}", b"x")[0])[0] == b"x"
    assert len(assembly._over) == NUM_REMEMBERED


def test_a_part_that_comes_again_is_counted_once_and_nothing_is_held_of_a_message_that_is_over() -> None:
    assembly = Assembly(LIMIT)
    first, second = parts_of("a", content(4, 2 * PART_BYTES))
    for _ in range(5):
        assembly.add(*first)
    assert assembly._num_bytes == PART_BYTES
    assembly.add(*second)
    assert assembly._num_bytes == 0 and not assembly._unfinished


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of Linux")
def test_putting_a_message_together_takes_twice_its_size_at_most() -> None:
    message = memoryview(content(5, 64 * PART_BYTES))

    def put_together() -> bytes | None:
        assembly, whole = Assembly(LIMIT), None
        for number in range(64):
            head = {"message": "m", "ident": "i", "size": len(message), "number": number}
            whole, _ = assembly.add(head, bytes(message[number * PART_BYTES : (number + 1) * PART_BYTES]))
        return whole

    grown_by(lambda: None)
    assert grown_by(put_together) < 2.2 * len(message)
    assert put_together() == message


def test_a_part_that_contradicts_its_message_is_ignored() -> None:
    assembly = Assembly(LIMIT)
    data = content(3, 2 * PART_BYTES)
    first, second = parts_of("a", data)
    assembly.add(*first)
    lie = {**second[0], "size": 3 * PART_BYTES}
    assert assembly.add(lie, bytes(PART_BYTES)) == (None, [])
    assert assembly.add(*second)[0] == data
