"""Bags of words: which of the most common words the texts of each node have."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from isthmus.data.zoo.raw import matrix

WORD = re.compile(r"[a-z]{3,}")
BLOCK_WORDS = 4_000_000


def bag_of_words(
    texts: Iterable[tuple[int, str]], num_rows: int, num_words: int, binary: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    """Return (rows, words), float32 CSR, and the words; a text comes with its row, a row may have several.

    A word is three letters or more of the Latin alphabet in one case, and no English stop word. The `num_words` that
    most rows have become columns, the most common first, in alphabetical order where equal. An entry is 1, or how often
    the row has the word. Texts are taken one by one; kept is a number for each pair of row and word.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    number_of: defaultdict[str, int] = defaultdict()
    number_of.default_factory = number_of.__len__
    seen = _Counts()
    for row, text in texts:
        numbers = [number_of[word] for word in WORD.findall(text.lower()) if word not in ENGLISH_STOP_WORDS]
        seen.add(row, numbers)
    rows, words, counts = seen.totals()
    names = np.array(list(number_of), dtype=str)
    num_rows_with = np.bincount(words, minlength=len(names))
    chosen = np.lexsort((names, -num_rows_with))[:num_words]
    column_of = np.full(len(names), -1, dtype=np.int64)
    column_of[chosen] = np.arange(len(chosen))
    columns = column_of[words] if len(words) else words
    kept = columns >= 0
    values = None if binary else counts[kept]
    x = matrix(rows[kept], columns[kept], values, (num_rows, len(chosen)))
    return x, tuple(names[chosen].tolist())


class _Counts:
    """How often each row has each word; sums up whenever enough has come in."""

    def __init__(self) -> None:
        self._rows, self._words = array("q"), array("q")
        self._key, self._count = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def add(self, row: int, words: list[int]) -> None:
        self._rows.extend([row] * len(words))
        self._words.extend(words)
        if len(self._words) >= BLOCK_WORDS:
            self._sum_up()

    def _sum_up(self) -> None:
        new = (np.array(self._rows, dtype=np.int64) << 32) | np.array(self._words, dtype=np.int64)
        key, place = np.unique(np.concatenate([self._key, new]), return_inverse=True)
        weight = np.concatenate([self._count, np.ones(len(new), dtype=np.int64)])
        self._count = np.bincount(place, weight, len(key)).astype(np.int64)
        self._key = key
        self._rows, self._words = array("q"), array("q")

    def totals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, words and counts."""
        self._sum_up()
        return self._key >> 32, self._key & 0xFFFFFFFF, self._count


def categories(names: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of each name, int64, and the names in alphabetical order."""
    distinct, number = np.unique(np.array(names, dtype=str), return_inverse=True)
    return torch.from_numpy(number.astype(np.int64).reshape(-1)), tuple(distinct.tolist())
