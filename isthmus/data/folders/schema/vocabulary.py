"""Words and categories: what a text is cut into, and which words silos agree to count."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]{2,}")


def words(text: str) -> list[str]:
    """Return the words of a text, in order: runs of two or more letters or digits, in small letters.

    The text is first brought to Unicode's NFKC form and case-folded, so that 'Straße' and 'STRASSE' are one word.
    Everything else (spaces, punctuation, underscores, single letters) only separates words.

    >>> words("Pays late; e-mail: Jo_Ann's, 3 x 250g")
    ['pays', 'late', 'mail', 'jo', 'ann', '250g']
    """
    # Folding can undo the normal form ('ͅ' becomes a letter of its own), so it is brought about once more.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _WORD.findall(folded)


def word_vocabulary(texts: Iterable[str], min_count: int, max_size: int) -> tuple[str, ...]:
    """Return the words that at least `min_count` texts hold, the `max_size` most frequent ones, in alphabetical order.

    A word counts once for each text. Among words of the same count those earlier in the alphabet are taken.
    """
    counts = Counter(word for text in texts for word in set(words(text)))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    return tuple(sorted(word for _, word in frequent[:max_size]))


def categories(values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct values that are not empty, in alphabetical order; whole numbers in the order of numbers."""
    distinct = {value for value in values if value}
    if all(is_whole(value) for value in distinct):
        return tuple(sorted(distinct, key=lambda value: (int(value), value)))
    return tuple(sorted(distinct))


def is_whole(value: str) -> bool:
    """Return whether a text is a whole number that fits into 64 bits."""
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18
