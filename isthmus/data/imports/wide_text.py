"""A text table of thousands of columns of numbers, read as one long column: value after value, as a matrix has them.

Arrow makes columns one by one out of a block of text. With thousands of them, each is a walk through all of the block
for a few values. Here the same conversion of Arrow's is given all values in the order in which they stand, which takes
less than half the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from isthmus.core.memory import keep_freed_memory
from isthmus.data.folders.tables.number_block import BlockWriter, Matrix
from isthmus.data.imports.fixed_point import BEFORE, fixed_points
from isthmus.data.on_demand import csv, pa

# So many bytes of a text are looked at in one go; a quarter of it, or twice as much, took longer with two threads.
PIECE_BYTES = 1 << 20
# A table is wide that has as many columns of numbers, and as many for each that stays text.
FEWEST_NUMBERS = 1000
FEWEST_FOR_EACH_TEXT = 50
# Values are taken for counts where at most so many of them are something else than one digit.
OTHERS_AMONG_COUNTS = 0.05
# No number holds it; a text that does is read the usual way.
NO_DELIMITER = "\x01"

Integers = npt.NDArray[np.int64]
Given = TypeVar("Given")
Made = TypeVar("Made")


class NotPlain(Exception):
    """A text that cannot be read as one long column."""


@dataclass(frozen=True)
class Wide:
    """A wide table.

    Fields:
        mark:      what separates the values of a row
        inside:    the places of the columns of numbers
        outside:   the places of the columns of text
        missing:   what stands for a number that is not there
    """

    mark: bytes
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    missing: tuple[str, ...]

    @property
    def numbers(self) -> slice | tuple[int, ...]:
        """The columns of numbers, as an array is asked for them: a slice, where they are side by side, is fast."""
        first, last = self.inside[0], self.inside[-1]
        return slice(first, last + 1) if last - first + 1 == len(self.inside) else self.inside


def num_line_ends(text: bytes) -> int:
    """Return how many line ends a text has, three times as fast as bytes count them."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n")))


def is_wide(num_numbers: int, num_texts: int) -> bool:
    """Return whether a table has so many columns of numbers that it should be read as one long column."""
    return num_numbers >= max(FEWEST_NUMBERS, FEWEST_FOR_EACH_TEXT * num_texts)


def places(names: Sequence[str], number: set[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the columns of numbers, and those of all others."""
    inside = tuple(place for place, name in enumerate(names) if name in number)
    return inside, tuple(place for place, name in enumerate(names) if name not in number)


def read_wide_text(
    path: Path, delimiter: str, names: Sequence[str], number: set[str], missing: Sequence[str]
) -> tuple[list[Any], int] | None:
    """Return the columns of a text file, numbers side by side in single precision, and how many rows there are.

    `number` names the columns of numbers, `missing` what stands for no number.
    None where the text is not plain enough (separators or line ends within quotes, empty lines, lines of another
    length) or does not hold what it should: it is to be read the usual way then, which can tell what is wrong.
    """
    try:
        return _read(path, Wide(delimiter.encode(), *places(names, number), tuple(missing)))
    except (NotPlain, pa.ArrowInvalid):
        return None


def _read(path: Path, wide: Wide) -> tuple[list[Any], int]:
    texts: list[list[Any]] = [[] for _ in wide.outside]
    block, num_rows = _block(path, wide), 0

    def places_of_rows(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, Matrix]]:
        nonlocal num_rows
        for lines in pieces:
            first, num_rows = num_rows, num_rows + num_line_ends(lines)
            yield lines, block.rows(first, num_rows - first)

    keep_freed_memory()
    with path.open("rb") as content:
        header = content.readline().rstrip(b"\r\n")
        if not header or b"\r" in header:
            raise NotPlain
        made = _in_threads(lambda one: _rows(*one, wide), places_of_rows(_pieces(content)), pa.cpu_count())
        for num_null, columns in made:
            block.count_null(num_null)
            for parts, part in zip(texts, columns, strict=True):
                parts.append(part)
    found: dict[int, Any] = dict(zip(wide.inside, block.columns(num_rows), strict=True))
    found |= {place: pa.chunked_array(parts, pa.string()) for place, parts in zip(wide.outside, texts, strict=True)}
    return [found[place] for place in sorted(found)], num_rows


def _block(path: Path, wide: Wide) -> BlockWriter:
    """Return where the numbers go: rows for as many as the file can have, for memory takes no room before it is used.

    The lines are counted first, which takes a sixth of the time, where so much is not to be had.
    """
    num_columns = len(wide.inside) + len(wide.outside)
    try:
        return BlockWriter(
            path.stat().st_size // num_columns + 1, len(wide.inside)
        )  # a mark or line end for each value
    except MemoryError:
        with path.open("rb") as content:
            num_lines = sum(num_line_ends(piece) for piece in iter(lambda: content.read(PIECE_BYTES), b""))
        return BlockWriter(num_lines + 1, len(wide.inside))


def _in_threads(make: Callable[[Given], Made], given: Iterable[Given], num_threads: int) -> Iterator[Made]:
    """Yield what is made of each, in order; no more are under way than there are threads, and one."""
    under_way: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        for one in given:
            under_way.append(pool.submit(make, one))
            if len(under_way) > num_threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _pieces(content: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, many at a time, `BEFORE` before them and with a plain line end after each."""
    while piece := content.read(PIECE_BYTES):
        lines = b"".join([BEFORE, piece, b"" if piece.endswith(b"\n") else content.readline()])
        if b"\r" in lines:
            lines = lines.replace(b"\r\n", b"\n")
        if b"\r" in lines:
            raise NotPlain
        if lines.startswith(b"\n", len(BEFORE)) or not lines.endswith(b"\n") or lines.endswith(b"\n\n"):
            lines = BEFORE + lines[len(BEFORE) :].strip(b"\n") + b"\n"  # empty ones at the borders do not count
        if len(lines) > len(BEFORE) + 1:
            yield lines


def _rows(lines: bytes, into: Matrix, wide: Wide) -> tuple[Integers, list[Any]]:
    """Write the numbers in some lines where they belong, NaN where one is missing.

    Return how many are missing in each column, and the columns of text, as Arrow has them.
    """
    starts, ends = _spans(lines, len(into), wide)
    texts = [_texts(lines, starts[:, place], ends[:, place]) for place in wide.outside]
    values, is_null = _numbers(lines, starts[:, wide.numbers], ends[:, wide.numbers], wide)
    with np.errstate(over="ignore"):
        np.copyto(into, values.reshape(into.shape), casting="same_kind")
    into += 0  # -0 becomes a plain 0
    num_null = np.zeros(into.shape[1], np.int64) if is_null is None else is_null.reshape(into.shape).sum(axis=0)
    return num_null, texts


def _spans(lines: bytes, num_rows: int, wide: Wide) -> tuple[Integers, Integers]:
    """Return where the values of some lines start and end, each (rows, columns)."""
    characters = np.frombuffer(lines, dtype=np.uint8)
    is_end = characters == ord(wide.mark)
    is_end |= characters == ord("\n")
    ends = np.flatnonzero(is_end)
    num_columns = len(wide.inside) + len(wide.outside)
    # There are as many line ends as rows: where each row ends in one, there are no others.
    if len(ends) != num_rows * num_columns or (characters[ends[num_columns - 1 :: num_columns]] != ord("\n")).any():
        raise NotPlain
    starts = np.empty_like(ends)
    starts[0] = len(BEFORE)
    np.add(ends[:-1], 1, out=starts[1:])
    return starts.reshape(num_rows, num_columns), ends.reshape(num_rows, num_columns)


def _texts(lines: bytes, starts: Integers, ends: Integers) -> Any:
    """Return a column of text as Arrow has it."""
    values = [_unquoted(value) for value in _values(lines, starts, ends)]
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    strings = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(values)))
    strings.validate(full=True)  # that they are UTF-8
    return strings


def _values(lines: bytes, starts: Integers, ends: Integers) -> list[bytes]:
    return [lines[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _unquoted(value: bytes) -> bytes:
    if b'"' not in value:
        return value
    inner = value[1:-1]
    if len(value) < 2 or value != b'"' + inner + b'"' or b'"' in inner:
        raise NotPlain
    return inner


Numbers = tuple[npt.NDArray[np.floating[Any]], npt.NDArray[np.bool_] | None]


def _numbers(lines: bytes, starts: Integers, ends: Integers, wide: Wide) -> Numbers:
    """Return the numbers in some lines, where each starts and ends being told, and which are missing, if any are."""
    first, last = starts.ravel(), ends.ravel()
    counts = _counts(lines, first, last, wide.missing)
    if counts is not None:
        return counts
    values = fixed_points(lines, first, last)
    if values is not None:
        return values, None
    text = _apart(lines, starts, ends, wide)
    values = _converted(text.translate(None, wide.mark + b"\n"), last - first)
    if values is not None:
        return values, None
    return _parsed(text.translate(bytes.maketrans(wide.mark, b"\n")), wide.missing)


def _apart(lines: bytes, starts: Integers, ends: Integers, wide: Wide) -> bytes:
    """Return the numbers in some lines without the text between them, a mark or a line end after each."""
    after_text = np.flatnonzero(np.diff(wide.inside, prepend=-2) != 1)
    before_text = np.append(after_text[1:], len(wide.inside)) - 1
    return b"".join(_values(lines, starts[:, after_text].ravel(), ends[:, before_text].ravel() + 1))


def _counts(lines: bytes, starts: Integers, ends: Integers, missing: tuple[str, ...]) -> Numbers | None:
    """Return values that are mostly one digit: those are taken as they stand, and only the others are parsed."""
    some = slice(0, FEWEST_NUMBERS)
    if np.median(ends[some] - starts[some]) > 1:  # no need to look at all
        return None
    is_other = ends - starts != 1
    if np.count_nonzero(is_other) > OTHERS_AMONG_COUNTS * len(is_other):
        return None
    digits = np.frombuffer(lines, dtype=np.uint8)[starts] - ord("0")  # what is below "0" goes round to above 9
    values = digits.astype(np.float32)
    others = np.flatnonzero(is_other | (digits > 9))
    if len(others) == 0:
        return values, None
    text = b"\n".join([*_values(lines, starts[others], ends[others]), b""])
    values[others], is_missing = _parsed(text, missing)
    if is_missing is None:
        return values, None
    is_null = np.zeros_like(is_other)
    is_null[others] = is_missing
    return values, is_null


def _converted(characters: bytes, lengths: Integers) -> npt.NDArray[np.float64] | None:
    """Return values of which each is plainly a number; None if one is not."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    strings = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(characters))
    try:
        exact = strings.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values: npt.NDArray[np.float64] = exact.to_numpy()
    return None if np.isnan(values).any() else values  # "nan" may stand for no number


def _parsed(text: bytes, missing: tuple[str, ...]) -> Numbers:
    """Return values with all that may stand for a number, or for none, in a text table."""
    column = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(column_names=["value"], use_threads=False),
        csv.ParseOptions(delimiter=NO_DELIMITER, quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types={"value": pa.float64()}, null_values=missing),
    ).column(0)
    values = np.empty(len(column), dtype=np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for chunk in column.chunks:
            values[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
            start += len(chunk)
    return values, column.is_null().to_numpy() if column.null_count else None
