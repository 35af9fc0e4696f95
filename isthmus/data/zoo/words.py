"""Bags of words: which of the most common words the texts of each node have."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.data.zoo.raw import matrix

Numbers = npt.NDArray[np.int64]

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
    pairs, counts, new = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), array("q")
    for row, text in texts:
        numbers = [number_of[word] for word in WORD.findall(text.lower()) if word not in ENGLISH_STOP_WORDS]
        new.extend([row << 32 | number for number in numbers])
        if len(new) >= BLOCK_WORDS:
            pairs, counts, new = *_summed_up(pairs, counts, new), array("q")
    pairs, counts = _summed_up(pairs, counts, new)
    rows, words = pairs >> 32, pairs & 0xFFFFFFFF
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


def _summed_up(pairs: Numbers, counts: Numbers, new: array[int]) -> tuple[Numbers, Numbers]:
    """Return pairs of row and word, each once, and how often each has come, after new ones have."""
    found, place = np.unique(np.concatenate([pairs, np.array(new, dtype=np.int64)]), return_inverse=True)
    weight = np.concatenate([counts, np.ones(len(new), dtype=np.int64)])
    return found, np.bincount(place, weight, len(found)).astype(np.int64)


def categories(names: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of each name, int64, and the names in alphabetical order."""
    distinct, number = np.unique(np.array(names, dtype=str), return_inverse=True)
    return torch.from_numpy(number.astype(np.int64).reshape(-1)), tuple(distinct.tolist())
