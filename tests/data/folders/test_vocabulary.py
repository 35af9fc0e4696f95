from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.folders.schema import vocabulary
from isthmus.data.folders.schema.vocabulary import categories, word_vocabulary, words


def test_the_example_of_the_docstring_holds() -> None:
    assert doctest.testmod(vocabulary).failed == 0


def test_spelling_that_means_the_same_gives_the_same_word() -> None:
    assert words("Straße STRASSE ﬁne") == ["strasse", "strasse", "fine"]


@given(st.text())
def test_every_word_is_cut_into_itself(text: str) -> None:
    for word in words(text):
        assert words(word) == [word]


@given(st.lists(st.text("abc ", max_size=12)), st.integers(1, 3), st.integers(1, 5))
def test_a_vocabulary_has_the_most_frequent_words_that_occur_often_enough(
    texts: list[str], min_count: int, max_size: int
) -> None:
    found = word_vocabulary(texts, min_count, max_size)
    count = {word: sum(word in words(text) for text in texts) for text in texts for word in words(text)}
    enough = {word for word, number in count.items() if number >= min_count}
    assert list(found) == sorted(found) and set(found) <= enough and len(found) == min(max_size, len(enough))
    assert all(count[word] >= count[other] for word in found for other in enough - set(found))


def test_a_word_counts_once_for_each_text() -> None:
    assert word_vocabulary(["loan loan loan", "late"], min_count=2, max_size=9) == ()


def test_categories_are_sorted_and_numbers_as_numbers() -> None:
    assert categories(["b", "", "a", "b"]) == ("a", "b")
    assert categories(["10", "9", "-1", ""]) == ("-1", "9", "10")
    assert categories(["10", "9", "x"]) == ("10", "9", "x")
